package alerting

import (
	"fmt"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// A forecast swings with every attempt that ends. Without these two, a run whose expected finish wanders around its
// deadline by a percent would send an alert with every swing (TestNoiseAroundTheGoalSendsOneAlert).
const (
	// doubts is how many readings in a row must expect the goal to be missed.
	doubts = 2
	// relief is by which part of the goal the forecast must be below it before the goal counts as safe again.
	relief = 0.05
)

// Reading is what is known of a run at one time.
type Reading struct {
	Run      string
	Pipeline string
	At       time.Time
	Goal     predictor.Goal
	// Elapsed is how long the run has gone on, in seconds, and Spent what it has cost.
	Elapsed float64
	Spent   quantity.Money
	// Stopped says that the run was stopped at its budget: what it would still have cost is not spent, and is no
	// saving.
	Stopped bool
	// Known is false while nothing is known of how the run ends: then only what has happened counts.
	Known bool
	// Finish is when the run is expected to end, in seconds from its start, and Cost what it is expected to cost
	// altogether, in US dollars.
	Finish predictor.Interval
	Cost   predictor.Interval
	// Asked says that it was asked now whether any plan meets the goal, and Impossible what was found: a sentence about
	// what could be met instead, empty where a plan meets it.
	Asked      bool
	Impossible string
	// Unpriced says that Cost leaves out tasks that are to come, of which it is not known whether functions take them:
	// that it is below the budget then says nothing.
	Unpriced bool
}

// Read makes a reading of an outlook under the goal in force: what the next tick will do counts.
func Read(pipeline string, outlook predictor.Outlook) Reading {
	return Reading{
		Run: outlook.Run, Pipeline: pipeline, At: outlook.At, Goal: outlook.Goal, Elapsed: outlook.Elapsed,
		Spent: quantity.USD.Times(outlook.Spent), Known: outlook.Known, Finish: outlook.Chosen.FinishSeconds,
		Cost: outlook.Chosen.CostUSD, Unpriced: len(outlook.Unpriced) > 0,
	}
}

// Watch is what has been told of one run. The zero Watch has told nothing. It is a value: keep what Next returns.
type Watch struct {
	goal       predictor.Goal
	deadline   risk
	budget     risk
	impossible predictor.Goal  // the goal of which that was told; zero for none
	told       [len(kinds)]int // alerts by kind
}

// risk is how one limit of a goal stands.
type risk struct {
	open   bool // an alert was sent and holds
	moved  bool // the limit was changed with the last reading
	doubts int  // readings in a row that expect the limit to be missed
}

// kinds is the order in which they are counted.
var kinds = [...]Kind{KindDeadlineAtRisk, KindBudgetAtRisk, KindRecovered, KindGoalImpossible}

// Next takes a reading and returns what is told by then, and the alert to send, if there is one. The same readings lead
// to the same alerts with the same IDs: run, kind and how many of that kind the run had.
//
// A limit is at risk when the middle of the forecast is past it in two readings in a row, or the whole forecast is (its
// low end), or it has been passed. It is safe again when the middle is 5 percent below it, or the goal was changed to
// one that is not at risk. A budget is not safe while what is expected leaves out tasks. Each turn is
// told once; two that fall together are told one after the other, risks first.
//
// A goal that no plan meets is told at once, with what could be, and then that it is at risk only once it has been
// passed: that would say the same again. A new goal is told of anew.
func Next(w Watch, r Reading) (Watch, Alert, bool) {
	deadline, budget := deadlineOf(r), budgetOf(r)
	w.deadline.note(deadline, w.goal.Deadline != r.Goal.Deadline)
	w.budget.note(budget, w.goal.Budget != r.Goal.Budget)
	w.goal = r.Goal
	none := predictor.Goal{}
	told := w.impossible != none && w.impossible == r.Goal
	alert := Alert{
		Run: r.Run, Pipeline: r.Pipeline, At: r.At, Goal: r.Goal, FinishSeconds: r.Finish,
		CostUSD: r.Cost,
	}
	if told && (!r.Asked || r.Impossible != "") {
		deadline.certain, deadline.past = false, false
		budget.certain, budget.past = false, false
		w.deadline.doubts, w.budget.doubts = 0, 0
	}
	switch {
	case r.Asked && r.Impossible != "" && !told:
		w.impossible = r.Goal
		alert.Kind, alert.Message = KindGoalImpossible, "run "+r.Run+": "+r.Impossible
	case r.Asked && r.Impossible == "" && w.impossible != none:
		w.impossible = none
		alert.Kind, alert.Recovers = KindRecovered, KindGoalImpossible
		alert.Message = "run " + r.Run + " has a plan that meets its goal"
	case w.deadline.rises(deadline):
		w.deadline.open = true
		alert.Kind, alert.Message = KindDeadlineAtRisk, lateMessage(r)
	case w.budget.rises(budget):
		w.budget.open = true
		alert.Kind, alert.Message = KindBudgetAtRisk, dearMessage(r)
	case w.deadline.falls(deadline):
		w.deadline = risk{}
		alert.Kind, alert.Recovers, alert.Message = KindRecovered, KindDeadlineAtRisk, inTimeMessage(r)
	case w.budget.falls(budget) && (!r.Stopped || w.budget.moved):
		w.budget = risk{}
		alert.Kind, alert.Recovers, alert.Message = KindRecovered, KindBudgetAtRisk, inBudgetMessage(r)
	default:
		return w, Alert{}, false
	}
	kind := slices.Index(kinds[:], alert.Kind)
	w.told[kind]++
	alert.ID = fmt.Sprintf("%s/%s/%d", r.Run, alert.Kind, w.told[kind])
	return w, alert, true
}

// standing is how one limit of a goal stands in one reading.
type standing struct {
	limited bool // there is such a limit
	passed  bool // it has been passed, whatever comes
	known   bool // something is expected
	certain bool // even the low end of what is expected is past it
	past    bool // the middle is
	safe    bool // the middle is well below it
}

func deadlineOf(r Reading) standing {
	limit := r.Goal.Deadline.Seconds()
	return stand(limit, r.Elapsed >= limit, r.Known, r.Finish)
}

func budgetOf(r Reading) standing {
	s := stand(r.Goal.Budget.USD(), r.Spent > r.Goal.Budget, r.Known, r.Cost)
	s.safe = s.safe && !r.Unpriced
	return s
}

func stand(limit float64, passed, known bool, expected predictor.Interval) standing {
	return standing{
		limited: limit > 0, passed: limit > 0 && passed, known: known,
		certain: known && expected.Low > limit, past: known && expected.Mid > limit,
		safe: known && !passed && expected.Mid <= (1-relief)*limit,
	}
}

// note counts the doubts of a reading. A limit that was moved starts anew, and an alert about it holds on only while it
// may recover.
func (k *risk) note(s standing, moved bool) {
	if moved {
		k.doubts = 0
		if k.open && s.limited && (s.passed || s.past) {
			k.open = false // told again, with the new limit
		}
	}
	switch {
	case !s.limited:
		k.doubts = 0
	case s.past:
		k.doubts++
	case s.known:
		k.doubts = 0
	}
	k.moved = moved
}

func (k *risk) rises(s standing) bool {
	return s.limited && !k.open && (s.passed || s.certain || k.doubts >= doubts)
}

func (k *risk) falls(s standing) bool {
	return k.open && (!s.limited || s.safe || k.moved && !s.passed && !s.past)
}
