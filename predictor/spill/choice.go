package spill

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/calm"
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// What is kept in hand, so that a choice is not undone by the next attempt.
const (
	deadlineRelief = 0.5  // slots go back once the deadline is missed without them this many times as often as it may be
	valueRelief    = 1.25 // and once they cost this many times what they save
)

// lost is the probability below which a deadline counts as lost, whatever functions do: then the fastest is best.
const lost = 0.01

// Backlog is what waits at a stage for which functions have an offer.
type Backlog struct {
	Offer
	// Queued is how many tasks wait now; of the Tasks of the offer, the others are known to come.
	Queued int
	// Refills says that tasks waited a moment ago, so that an empty queue is not believed yet.
	Refills bool
	// Held is how many function slots the stage has, Limit how many the venue has for it. Eased is since when fewer have
	// been enough, Clock the time now.
	Held, Limit int
	Eased       calm.Eased
	Clock       fact.Instant
	// Free is how many pool slots have nothing to do.
	Free int
	// Runs are those whose tasks wait or are to come, in the order of their names.
	Runs []Waiting
	// ValueOfTime is what an hour of earlier finish is worth to a run whose goal does not say.
	ValueOfTime quantity.Money
}

// Waiting is a run whose tasks wait at a stage.
type Waiting struct {
	Run  string
	Goal fact.Goal
	// Left is how many seconds the stage has until the run would miss its deadline in the middle of cases, 0 when it is
	// lost; Limited is false where the run has none.
	Left    float64
	Limited bool
	// Due is in how many seconds the deadline is, and After for how many the run goes on once the stage is done, each as
	// probable as another: by its plan, or as earlier runs that are alike did; none where nothing is known to follow.
	Due   float64
	After []float64
	// Divided says of a run with a plan where that buys time, so that Left and After are what they are; empty of others.
	// Planned is how many function slots the plan has for the stage, and Hastened for how many seconds the run goes on
	// once it is done where what follows is as fast as it can be.
	Divided  string
	Planned  int
	Hastened float64
	// Part is the part of the tasks that is the run's.
	Part float64
	// Budget is what is left of the run's budget for functions of the stage; it means nothing where the goal has none.
	// Reserved is what a plan keeps of it besides, for the pool and for what follows.
	Budget, Reserved quantity.Money
}

// Choice is how many function slots a stage gets and why.
type Choice struct {
	Slots  int
	Reason string
	// Run is the one whose goal decided; empty when none is known.
	Run string
	// Eased is what the next choice is to know of this one.
	Eased calm.Eased

	wanted int // slots, before what is kept for calm
	most   int
	odds   *chances // of the deadline of Run; nil where it has none that functions are needed for
}

// Alternative is a number of function slots that was not chosen.
type Alternative struct {
	Slots int
	// Price is that of functions, Seconds until the backlog is done.
	Price   quantity.Money
	Seconds float64
	// Chance is how likely the deadline is met; -1 where there is none, or nobody looked.
	Chance float64
}

// Alternatives are what the choice was made among, besides what was chosen: no function, a slot less, and all that can
// be had. A choice for which nothing was weighed has none. What is drawn of a deadline was drawn for the choice: less
// than what decides is exact only where it does, see chances.
func (c Choice) Alternatives(o Offer) (others []Alternative) {
	if c.most == 0 {
		return nil
	}
	o.Most = c.most
	seen := []int{c.Slots}
	for _, n := range []int{0, c.wanted - 1, c.most} {
		if n < 0 || slices.Contains(seen, n) {
			continue
		}
		seen = append(seen, n)
		other := Alternative{Slots: n, Price: o.Price(n), Chance: -1}
		if !o.Never(n) {
			other.Seconds = o.Duration(n)
		}
		if c.odds != nil {
			if chance, drawn := c.odds.metAt[n]; drawn {
				other.Chance = chance
			}
		}
		others = append(others, other)
	}
	return others
}

// calmFor is for how long fewer slots must have been enough: each task that ends tells something else of those that
// wait, and tasks that end first are short ones.
const calmFor = fact.Instant(10 * time.Second)

// Choose decides by the goals of the runs whose tasks wait. Their tasks share a queue, so the run that wants most
// function slots, of those that it can pay for, decides. Slots once given stay until the backlog is gone, the advantage
// reverses or the budget ends.
func (b Backlog) Choose() Choice {
	further := b.Tasks > float64(b.Queued)
	if b.Queued == 0 {
		if b.Held > 0 && (further || b.Refills) {
			return Choice{Slots: min(b.Held, b.Limit), Reason: "the venue has no room for more"}
		}
		return Choice{Reason: "no task waits any more"}
	}
	if b.Held == 0 && b.Wait == 0 && b.Queued <= b.Free {
		return Choice{Reason: "a pool slot is free for every task that waits"}
	}
	b.Most = min(b.Queued, b.Limit)
	picked, keep := b.wish()
	picked.wanted, picked.most = picked.Slots, b.Most
	picked.Slots = max(picked.Slots, min(keep, b.Limit))
	if !b.spent() {
		picked = b.calm(picked)
	}
	if change := picked.Slots - b.Held; picked.Slots > 0 && change != 0 && max(change, -change) < max(1, b.Held/4) {
		picked.Slots = min(b.Held, b.Limit) // a slot more or less than a few is not worth a decision
	}
	return picked
}

// spent reports whether no run can pay for a slot any more.
func (b Backlog) spent() bool {
	return len(b.Runs) > 0 && !slices.ContainsFunc(b.Runs, func(run Waiting) bool {
		return b.bounded(Choice{Slots: 1}, run).Slots > 0
	})
}

// calm keeps slots that a deadline needed a moment ago.
func (b Backlog) calm(picked Choice) Choice {
	limited := slices.ContainsFunc(b.Runs, func(run Waiting) bool { return run.Limited })
	if !limited || picked.Slots >= b.Held || b.Function >= b.Duration(0) {
		return picked
	}
	most, long, eased := b.Eased.Fewer(picked.Slots, b.Clock, calmFor)
	if !long {
		most = b.Held
	}
	picked.Slots, picked.Eased = min(most, b.Held, b.Limit), eased
	return picked
}

// wish asks every run that waits how many slots it wants and can pay for; keep is how many of those held any of them
// still gains by.
func (b Backlog) wish() (picked Choice, keep int) {
	runs := b.Runs
	if len(runs) == 0 {
		runs = []Waiting{{}}
	}
	held := b
	held.Cold, held.Most = 0, b.Held // environments that are held are warm
	wanted, kept := b.draw(), held.draw()
	for i, run := range runs {
		var odds *chances
		if run.Limited {
			odds = wanted.chances(run, run.asked())
		}
		mine := b.bounded(b.byGoal(run, odds), run)
		mine.Run, mine.odds = run.Run, odds
		if i == 0 || mine.Slots > picked.Slots {
			picked = mine
		}
		keep = max(keep, b.bounded(Choice{Slots: b.keeps(run, kept)}, run).Slots)
	}
	return picked, keep
}

// byGoal is how many slots one run wants: the least that meet its deadline; none beyond that to save cost, all that
// help to save time; without a deadline and an objective, as many as are worth their price.
func (b Backlog) byGoal(run Waiting, odds *chances) Choice {
	wait, goal := b.told(), run.Goal
	if run.Limited {
		if choice, needed := b.byDeadline(run, odds); needed {
			return choice
		}
	}
	switch {
	case goal.Minimise == fact.Latency:
		if n := b.fastest(); n > 0 && b.Never(0) {
			return Choice{Slots: n, Reason: fmt.Sprintf("%s; the run minimises latency: %s in %s for %s", wait, finishes(n),
				words.Seconds(b.Duration(n)), b.Price(n))}
		} else if n > 0 {
			return Choice{Slots: n, Reason: fmt.Sprintf("%s; the run minimises latency: %s %s sooner for %s", wait, finishes(n),
				b.sooner(n), b.Price(n))}
		}
		return Choice{Reason: wait + "; functions would finish no sooner"}
	case run.Limited:
		return Choice{Reason: fmt.Sprintf("%s, well within the %s", wait, run.leaves())}
	case goal.Minimise == fact.Cost:
		return Choice{Reason: wait + "; the run minimises cost and has no deadline that needs functions"}
	}
	n := b.best(b.ValueOfTime)
	switch {
	case n > 0 && b.Never(0):
		return Choice{Slots: n, Reason: fmt.Sprintf("%s; %s in %s for %s", wait, finishes(n), words.Seconds(b.Duration(n)),
			b.Price(n))}
	case n > 0:
		return Choice{Slots: n, Reason: fmt.Sprintf("%s; %s %s sooner for %s, less than the %s that %s are worth",
			wait, finishes(n), b.sooner(n), b.Price(n), money(b.value(n, b.ValueOfTime)), b.sooner(n))}
	}
	return Choice{Reason: b.notWorth(wait)}
}

// byDeadline is the least number of slots that meets the deadline as often as is asked, or about as often as any does;
// needed is false where the pool alone does.
func (b Backlog) byDeadline(run Waiting, odds *chances) (choice Choice, needed bool) {
	wait := b.told()
	n, found := odds.least()
	if found && n == 0 {
		return Choice{}, false
	}
	left := fmt.Sprintf("%s, with %s", wait, run.leaves())
	alone, with := odds.met(0), odds.met(n)
	switch {
	case max(alone, with) < lost && run.Divided != "" && odds.hastened().met(b.Most) >= lost:
		if n = min(max(run.Planned, b.Held), b.Most); n == 0 {
			return Choice{Reason: left + ", behind which it is; what follows is hastened"}, true
		}
		return Choice{Slots: n, Reason: fmt.Sprintf("%s, behind which it is; %s in %s for %s by the plan, and what follows "+
			"is hastened", left, finishes(n), words.Seconds(b.Duration(n)), b.Price(n))}, true
	case max(alone, with) < lost:
		if n = b.fastest(); n > 0 {
			return Choice{Slots: n, Reason: fmt.Sprintf("%s, which is lost; %s in %s for %s", left, finishes(n),
				words.Seconds(b.Duration(n)), b.Price(n))}, true
		}
		return Choice{Reason: left + ", but functions would finish no sooner"}, true
	case n == 0:
		return Choice{Reason: fmt.Sprintf("%s, which the pool alone meets with %s; functions would not meet it more often",
			left, words.Percent(alone))}, true
	}
	asked := ""
	if !found {
		asked = fmt.Sprintf(", less than the %s that is asked, which no number of functions meets",
			words.Percent(run.asked()))
	}
	reason := fmt.Sprintf("%s, which the pool alone meets with %s; %s in %s for %s, in time with %s%s", left,
		words.Percent(alone), finishes(n), words.Seconds(b.Duration(n)), b.Price(n), words.Percent(with), asked)
	return Choice{Slots: n, Reason: reason}, true
}

func (b Backlog) notWorth(wait string) string {
	switch {
	case b.Most == 0:
		return wait + "; every function slot is taken"
	case b.Duration(1) >= b.Duration(0):
		return wait + "; functions would finish no sooner"
	case b.Never(0):
		return fmt.Sprintf("%s; 1 function slot would finish in %s for %s, more than that is worth", wait,
			words.Seconds(b.Duration(1)), b.Price(1))
	}
	return fmt.Sprintf("%s; 1 function slot would finish %s sooner for %s, more than the %s that %s are worth",
		wait, b.sooner(1), b.Price(1), money(b.value(1, b.ValueOfTime)), b.sooner(1))
}

// keeps is how many of the slots that are held still help the run.
func (b Backlog) keeps(run Waiting, kept *drawn) int {
	goal := run.Goal
	b.Cold = 0
	if b.Held == 0 || b.Function >= b.Duration(0) {
		return 0
	}
	switch {
	case goal.Minimise == fact.Latency:
		return b.Held
	case run.Limited:
		n, _ := kept.chances(run, 1-deadlineRelief*(1-run.asked())).least()
		return n
	case goal.Minimise == fact.Cost:
		return 0
	}
	if b.value(b.Held, b.ValueOfTime)*valueRelief >= float64(b.Price(b.Held)) {
		return b.Held
	}
	return 0
}

// bounded cuts what a run wants to what its budget has left for its part of the tasks. It says nothing of other runs: a
// task of theirs that a slot takes which this one pays for is kept within their budget by their own account, which the
// venue asks before it runs the task.
func (b Backlog) bounded(wanted Choice, run Waiting) Choice {
	if run.Goal.Budget <= 0 || wanted.Slots == 0 {
		return wanted
	}
	n := b.affordable(wanted.Slots, run.Budget, run.Part)
	if held := min(b.Held, wanted.Slots); run.Divided != "" && n < held {
		// What is kept by the plan changes with each attempt that ends: what was once given is to be paid as it is expected.
		if float64(b.Price(held))*run.Part <= float64(run.Budget) {
			n = held
		}
	}
	if n == 0 && run.Reserved > 0 && b.Never(0) {
		// Nothing follows before these tasks are done, and nobody else does them.
		n = min(b.affordable(wanted.Slots, run.Budget+run.Reserved, run.Part), max(1, run.Planned))
		if n > 0 {
			wanted.Slots = n
			wanted.Reason += fmt.Sprintf("; the plan keeps %s for what follows, which pays for these tasks first, as the pool "+
				"takes none, so it is %s", run.Reserved, words.Count(n, "slot"))
			return wanted
		}
	}
	if n < wanted.Slots {
		kept := ""
		if run.Reserved > 0 {
			kept = fmt.Sprintf(" besides the %s that the plan keeps for the pool and for what follows", run.Reserved)
		}
		wanted.Reason += fmt.Sprintf("; %s of the budget of %s is left%s and that may cost %s, so it is %s",
			run.Budget, run.Goal.Budget, kept, b.UpperPrice(wanted.Slots).Times(run.Part), words.Count(n, "slot"))
		wanted.Slots = n
	}
	return wanted
}

// planned is how often a stage is to be done by when its run's plan has the next one begin: the plan asks for the
// middle of cases, as the stages after it make up for the others, and it is divided anew before they begin.
const planned = 0.5

// asked is how often the stage is to be done in time.
func (w Waiting) asked() float64 {
	if w.Divided != "" {
		return planned
	}
	return w.Goal.Asked()
}

// leaves says what the deadline leaves the stage.
func (w Waiting) leaves() string {
	if w.Divided == "" {
		return words.Seconds(w.Left) + " left to the deadline"
	}
	return fmt.Sprintf("%s of the %s to the deadline that the plan leaves it (%s)", words.Seconds(w.Left),
		words.Seconds(max(w.Due, 0)), w.Divided)
}

func finishes(n int) string {
	if n == 1 {
		return "1 function slot finishes"
	}
	return fmt.Sprintf("%d function slots finish", n)
}

// money writes an amount that was computed as a ratio.
func money(pico float64) string { return quantity.Money(1).Times(pico).String() }
