package whatif

import (
	"fmt"
	"math"
	"strings"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// say writes the sentences.
func (a *Answer) say() {
	if !a.Known {
		a.Sentences = append(a.Sentences, "what it could come to is not known: "+a.Why)
		return
	}
	a.Sentences = append(a.Sentences, a.faster(), a.cheaper())
	if text := a.Verdict(); text != "" {
		a.Sentences = append(a.Sentences, text)
	}
	a.sayDevices()
}

// left is what is left of the time and the cost of a point.
func (a Answer) left(p Point) (seconds, cost float64) {
	return p.Seconds - a.Elapsed, p.Cost - a.Spent
}

// faster says what twice as fast would cost.
func (a Answer) faster() string {
	seconds, cost := a.left(*a.Present)
	if seconds < leastLeft {
		return "nothing is left that could be done faster"
	}
	if a.Faster == nil {
		fastest := a.Points[0]
		least, dearest := a.left(fastest)
		if least >= seconds*(1-leastGain) {
			return fmt.Sprintf("nothing that is known is faster than the %s that it takes%s", words.Seconds(seconds), a.since())
		}
		return fmt.Sprintf("nothing that is known is twice as fast: the fastest takes %s instead of %s%s, for %s instead "+
			"of %s, %s", words.Seconds(least), words.Seconds(seconds), a.since(), usd(dearest), usd(cost), a.by(fastest))
	}
	takes, costs := a.left(*a.Faster)
	return fmt.Sprintf("twice as fast (%s instead of %s%s) would cost %s instead of %s, %s", words.Seconds(takes),
		words.Seconds(seconds), a.since(), usd(costs), usd(cost), a.by(*a.Faster))
}

// leastLeft is how many seconds have to be left for half of them to be worth a word: a run whose last attempt says that
// it is done has a millisecond.
const leastLeft = 0.05

// leastGain is the part of a time or cost below which a difference is none: the model leaves out as much.
const leastGain = 0.05

// cheaper says what half the money would take.
func (a Answer) cheaper() string {
	seconds, cost := a.left(*a.Present)
	if a.Cheaper == nil {
		cheapest := a.Points[len(a.Points)-1]
		takes, least := a.left(cheapest)
		if least >= cost*(1-leastGain) {
			return fmt.Sprintf("nothing that is known costs less than the %s that it costs%s", usd(cost), a.since())
		}
		return fmt.Sprintf("half the money is not enough: the cheapest costs %s instead of %s%s, and takes %s instead of "+
			"%s, %s", usd(least), usd(cost), a.since(), words.Seconds(takes), words.Seconds(seconds), a.by(cheapest))
	}
	takes, costs := a.left(*a.Cheaper)
	return fmt.Sprintf("half the money (%s instead of %s%s) would take %s instead of %s, %s", usd(costs), usd(cost),
		a.since(), words.Seconds(takes), words.Seconds(seconds), a.by(*a.Cheaper))
}

// since says that it is what is left that is compared.
func (a Answer) since() string {
	if a.Elapsed > 0 {
		return " from now on"
	}
	return ""
}

// Verdict says what becomes of the goal; empty without one, and where nothing is known.
func (a Answer) Verdict() string {
	p := a.Promise
	if p == nil {
		return ""
	}
	deadline, budget := a.Goal.Deadline.Seconds(), a.Goal.Budget.USD()
	switch {
	case p.Met && deadline > 0:
		return fmt.Sprintf("the deadline of %s is met in %s of cases%s for %s, %s", words.Seconds(deadline),
			words.Percent(p.Probability), a.inBudget(), usd(p.Plan.Cost), a.by(p.Plan))
	case p.Met:
		return fmt.Sprintf("the budget of %s is kept: at most %s, in %s, %s", usd(budget), usd(p.Plan.Cost),
			words.Seconds(p.Plan.Seconds), a.by(p.Plan))
	}
	return "no plan that is known " + a.unmet() + "; " + a.needed()
}

func (a Answer) inBudget() string {
	if a.Goal.Budget > 0 {
		return ", and the budget of " + usd(a.Goal.Budget.USD()) + " kept,"
	}
	return ""
}

// unmet says which goal no plan meets.
func (a Answer) unmet() string {
	deadline := words.Seconds(a.Goal.Deadline.Seconds())
	switch {
	case a.Goal.Deadline <= 0, a.Goal.Budget > 0 && a.Promise.Plan.Cost > a.Goal.Budget.USD():
		return "keeps the budget of " + a.Goal.Budget.String()
	case a.Goal.Budget <= 0:
		return fmt.Sprintf("meets the deadline of %s in %s of cases, the fastest does in %s", deadline,
			words.Percent(a.Goal.Asked()), words.Percent(a.Promise.Probability))
	}
	return fmt.Sprintf("meets the deadline of %s in %s of cases within the budget of %s, the fastest within it does in %s",
		deadline, words.Percent(a.Goal.Asked()), a.Goal.Budget, words.Percent(a.Promise.Probability))
}

// needed says what goal could be met instead.
func (a Answer) needed() string {
	var ways []string
	if least := a.Promise.LeastDeadline; least > 0 && !math.IsInf(least, 1) {
		ways = append(ways, "a deadline of "+words.Seconds(words.TimeAbove(least)))
	}
	if least := a.Promise.LeastBudget; least > 0 {
		ways = append(ways, "a budget of "+usd(words.AmountAbove(least)))
	}
	if len(ways) == 0 {
		return "give more of both"
	}
	return "give " + strings.Join(ways, " or ") + ", or more"
}

// by says what stages get otherwise than at present.
func (a Answer) by(p Point) string {
	now := map[string]string{}
	for _, g := range a.Present.Stages {
		now[g.Stage] = g.Gets()
	}
	var other []Given
	for _, g := range p.Stages {
		if g.Tasks > 0 && now[g.Stage] != g.Gets() {
			other = append(other, g)
		}
	}
	if len(other) == 0 {
		return "with what stages get anyway"
	}
	return "with " + Gets(other)
}

// Gets says what stages get, those that get the same together: "4 slots of 1 core and 8 functions of 1 GiB for score, 1
// slot of 1 core for load and report". Stages without tasks are left out.
func Gets(given []Given) string {
	var order []string
	stages := map[string][]string{}
	for _, g := range given {
		if g.Tasks == 0 {
			continue
		}
		gets := g.Gets()
		if len(stages[gets]) == 0 {
			order = append(order, gets)
		}
		stages[gets] = append(stages[gets], g.Stage)
	}
	if len(order) == 0 {
		return "what it has"
	}
	for i, gets := range order {
		names := stages[gets]
		text := strings.Join(names[:len(names)-1], ", ")
		if text != "" {
			text += " and "
		}
		order[i] = gets + " for " + text + names[len(names)-1]
	}
	return strings.Join(order, ", ")
}

// Gets says what one stage gets: "4 slots of 1 core and 8 functions of 1 GiB".
func (g Given) Gets() string {
	slots, functions := words.Count(g.Slots, "slot"), words.Count(g.Functions, "function")
	if g.Slots > 0 && g.Size.CPU > 0 {
		cores := "1 core"
		if g.Size.CPU != quantity.Core {
			cores = fmt.Sprintf("%.3g cores", g.Size.CPU.Cores())
		}
		slots += " of " + cores
		if g.Size.DeviceClass != "" {
			slots += " on " + g.Size.DeviceClass
		}
	}
	if g.Class > 0 {
		functions += " of " + g.Class.String()
	}
	switch {
	case g.Functions == 0:
		return slots
	case g.Slots == 0:
		return functions
	}
	return slots + " and " + functions
}

func usd(amount float64) string { return quantity.USD.Times(amount).String() }
