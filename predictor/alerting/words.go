package alerting

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// lateMessage tells that the deadline is at risk and how to move it.
func lateMessage(r Reading) string {
	deadline := span(r.Goal.Deadline.Seconds())
	var text string
	switch passed := r.Elapsed >= r.Goal.Deadline.Seconds(); {
	case passed && r.Known:
		text = fmt.Sprintf("run %s is past its deadline of %s: %s have passed and it is expected to take %s",
			r.Run, deadline, span(r.Elapsed), between(r.Finish, span))
	case passed:
		return fmt.Sprintf("run %s is past its deadline of %s: %s have passed, and how long the rest takes is not known; "+
			"give it more time: spillway goal %s --deadline %s",
			r.Run, deadline, span(r.Elapsed), r.Run, DeadlineFlag(2*r.Elapsed))
	default:
		text = fmt.Sprintf("run %s is expected to end after %s, past its deadline of %s; %s have passed",
			r.Run, between(r.Finish, span), deadline, span(r.Elapsed))
	}
	text += fmt.Sprintf("; give it more time: spillway goal %s --deadline %s", r.Run,
		DeadlineFlag(max(r.Finish.High, r.Elapsed)))
	if r.Goal.Budget > 0 {
		text += fmt.Sprintf(", or more than its budget of %s", r.Goal.Budget)
	}
	return text
}

// dearMessage tells that the budget is at risk and how to raise it.
func dearMessage(r Reading) string {
	spent := r.Spent.USD()
	switch overspent := r.Spent > r.Goal.Budget; {
	case overspent && r.Known:
		return fmt.Sprintf("run %s has spent %s, more than its budget of %s, and is expected to cost %s; give it more: "+
			"spillway goal %s --budget %s",
			r.Run, r.Spent, r.Goal.Budget, between(r.Cost, dollars), r.Run, BudgetFlag(max(r.Cost.High, spent)))
	case overspent:
		return fmt.Sprintf("run %s has spent %s, more than its budget of %s, and what the rest costs is not known; give it "+
			"more: spillway goal %s --budget %s",
			r.Run, r.Spent, r.Goal.Budget, r.Run, BudgetFlag(2*spent))
	}
	already := ""
	if r.Spent > 0 { // else no attempt has ended, which costs something all the same
		already = fmt.Sprintf("; %s is spent", r.Spent)
	}
	return fmt.Sprintf("run %s is expected to cost %s, more than its budget of %s%s; give it more: spillway goal %s "+
		"--budget %s",
		r.Run, between(r.Cost, dollars), r.Goal.Budget, already, r.Run, BudgetFlag(r.Cost.High))
}

// inTimeMessage tells that the deadline is no longer at risk.
func inTimeMessage(r Reading) string {
	if r.Goal.Deadline <= 0 {
		return fmt.Sprintf("run %s has no deadline any more", r.Run)
	}
	if !r.Known {
		return fmt.Sprintf("run %s has a new deadline, %s; %s have passed", r.Run, span(r.Goal.Deadline.Seconds()),
			span(r.Elapsed))
	}
	return fmt.Sprintf("run %s is expected to end after %s again, within its deadline of %s",
		r.Run, between(r.Finish, span), span(r.Goal.Deadline.Seconds()))
}

// inBudgetMessage tells that the budget is no longer at risk.
func inBudgetMessage(r Reading) string {
	if r.Goal.Budget <= 0 {
		return fmt.Sprintf("run %s has no budget any more", r.Run)
	}
	if !r.Known || r.Unpriced {
		return fmt.Sprintf("run %s has a new budget, %s; %s is spent", r.Run, r.Goal.Budget, r.Spent)
	}
	return fmt.Sprintf("run %s is expected to cost %s again, within its budget of %s", r.Run, between(r.Cost, dollars),
		r.Goal.Budget)
}

func between(i predictor.Interval, write func(float64) string) string {
	return fmt.Sprintf("%s (%s to %s)", write(i.Mid), write(i.Low), write(i.High))
}

// span writes seconds: "4.5s", "1m30s".
func span(seconds float64) string {
	if !(seconds < 1e9) {
		return "for ever"
	}
	step := time.Second
	switch {
	case seconds < 0.1:
		step = time.Millisecond
	case seconds < 10:
		step = 100 * time.Millisecond
	}
	return short(time.Duration(max(seconds, 0) * float64(time.Second)).Round(step))
}

// DeadlineFlag is what to give to --deadline where so many seconds are expected: a tenth more, in steps that people
// would write.
func DeadlineFlag(seconds float64) string {
	wanted := time.Duration(min(max(1.1*seconds, 1), 1e9) * float64(time.Second))
	step := time.Second
	switch {
	case wanted >= time.Hour:
		step = 5 * time.Minute
	case wanted >= 10*time.Minute:
		step = time.Minute
	case wanted >= time.Minute:
		step = 10 * time.Second
	}
	if past := wanted % step; past > 0 {
		wanted += step - past
	}
	return short(wanted)
}

// short leaves out the seconds and minutes that are none.
func short(d time.Duration) string {
	text := d.String()
	if d >= time.Minute {
		text = strings.TrimSuffix(text, "0s")
		if text[len(text)-1] != 'm' {
			text = d.String() // "1m10s"
		}
	}
	if d >= time.Hour && strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func dollars(amount float64) string { return quantity.USD.Times(amount).String() }

// BudgetFlag is what to give to --budget where so many US dollars are expected: a tenth more, rounded up to two digits.
func BudgetFlag(amount float64) string {
	wanted := 1.1 * amount
	if !(wanted > 0) || math.IsInf(wanted, 0) {
		return "0.01"
	}
	digits := 1 - int(math.Floor(math.Log10(wanted)))
	scale := math.Pow(10, float64(digits))
	return strconv.FormatFloat(math.Ceil(wanted*scale-1e-9)/scale, 'f', max(digits, 0), 64)
}
