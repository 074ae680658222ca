package spill

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Time and value kept in hand, so that a choice is not undone by the next attempt.
const (
	DeadlineReserve = 0.9  // a deadline counts as met when the stage ends within this part of the time left
	deadlineRelief  = 0.5  // function slots go back once the pool alone ends within this part of it
	valueRelief     = 1.25 // and once they cost this many times what they save
)

// Backlog is what waits at a stage for which functions have an offer.
type Backlog struct {
	Offer
	// Queued is how many tasks wait now; of the Tasks of the offer, the others are known to come.
	Queued int
	// Refills says that tasks waited a moment ago, so that an empty queue is not believed yet.
	Refills bool
	// Held is how many function slots the stage has, Limit how many the venue has for it.
	Held, Limit int
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
	// Left is how many seconds the stage has until the run would miss its deadline, 0 when it is lost; Limited is false
	// where the run has none.
	Left    float64
	Limited bool
	// Part is the part of the tasks that is the run's.
	Part float64
	// Budget is what is left of the run's budget; it means nothing where the goal has none.
	Budget quantity.Money
}

// Choice is how many function slots a stage gets and why.
type Choice struct {
	Slots  int
	Reason string
	// Run is the one whose goal decided; empty when none is known.
	Run string
}

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
	if b.Held > picked.Slots && keep {
		picked.Slots = min(b.Held, b.Limit)
	}
	if picked.Slots > b.Held && b.Held > 0 && picked.Slots < b.Held+max(1, b.Held/4) {
		picked.Slots = b.Held // a slot more than a few is not worth a decision
	}
	return picked
}

// wish asks every run that waits how many slots it wants and can pay for; keep is whether any of them still gains by
// those held.
func (b Backlog) wish() (picked Choice, keep bool) {
	for _, run := range b.Runs {
		mine := b.bounded(b.byGoal(run), run)
		mine.Run = run.Run
		if picked.Run == "" || mine.Slots > picked.Slots {
			picked = mine
		}
		keep = keep || b.keeps(run) && b.bounded(Choice{Slots: b.Held}, run).Slots == b.Held
	}
	if picked.Run == "" {
		return b.byGoal(Waiting{}), b.keeps(Waiting{})
	}
	return picked, keep
}

// byGoal is how many slots one run wants: the least that meet its deadline; none beyond that to save cost, all that
// help to save time; without a deadline and an objective, as many as are worth their price.
func (b Backlog) byGoal(run Waiting) Choice {
	wait, goal := b.told(), run.Goal
	if run.Limited && b.Duration(0) > DeadlineReserve*run.Left {
		n := b.within(DeadlineReserve * run.Left)
		if n > 0 {
			return Choice{Slots: n, Reason: fmt.Sprintf("%s, with %s left to the deadline; %s in %s for %s",
				wait, words.Seconds(run.Left), finishes(n), words.Seconds(b.Duration(n)), b.Price(n))}
		}
		return Choice{Reason: fmt.Sprintf("%s, with %s left to the deadline, but functions would finish no sooner", wait,
			words.Seconds(run.Left))}
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
		return Choice{Reason: fmt.Sprintf("%s, well within the %s left to the deadline", wait, words.Seconds(run.Left))}
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

// keeps reports whether held slots still help the run. Environments that are held are warm, so no start is counted.
func (b Backlog) keeps(run Waiting) bool {
	goal := run.Goal
	b.Cold = 0
	if b.Held == 0 || b.Function >= b.Duration(0) {
		return false
	}
	switch {
	case run.Limited && goal.Minimise != fact.Latency:
		return b.Duration(0) > deadlineRelief*run.Left
	case goal.Minimise == fact.Latency:
		return true
	case goal.Minimise == fact.Cost:
		return false
	}
	return b.value(b.Held, b.ValueOfTime)*valueRelief >= float64(b.Price(b.Held))
}

// bounded cuts what a run wants to what its budget has left for its part of the tasks. It says nothing of other runs: a
// task of theirs that a slot takes which this one pays for is kept within their budget by their own account, which the
// venue asks before it runs the task.
func (b Backlog) bounded(wanted Choice, run Waiting) Choice {
	if run.Goal.Budget <= 0 || wanted.Slots == 0 {
		return wanted
	}
	if n := b.affordable(wanted.Slots, run.Budget, run.Part); n < wanted.Slots {
		wanted.Reason += fmt.Sprintf("; %s of the budget of %s is left and that may cost %s, so it is %s",
			run.Budget, run.Goal.Budget, b.UpperPrice(wanted.Slots).Times(run.Part), words.Count(n, "slot"))
		wanted.Slots = n
	}
	return wanted
}

func finishes(n int) string {
	if n == 1 {
		return "1 function slot finishes"
	}
	return fmt.Sprintf("%d function slots finish", n)
}

// money writes an amount that was computed as a ratio.
func money(pico float64) string { return quantity.Money(1).Times(pico).String() }
