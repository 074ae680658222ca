package outlook

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/words"
)

// Summarise says whether the goal is met and, in one sentence, what happens under it, or why it cannot be met and what
// could be. While the rest of the run is not known, only what is impossible for certain is refused.
func (o Outlook) Summarise() (feasible bool, summary string) {
	deadline, budget := o.Goal.Deadline.Seconds(), o.Goal.Budget.USD()
	past, overspent := deadline > 0 && o.Elapsed >= deadline, budget > 0 && o.Spent > budget
	if !o.Known {
		summary = "how it ends is not known, because " + o.Why
		switch {
		case past:
			summary = fmt.Sprintf("a deadline of %s is past: %s have passed; give more than that", words.Seconds(deadline),
				words.Seconds(o.Elapsed))
		case overspent:
			summary = fmt.Sprintf("a budget of %s is spent already (%s); give more than that", o.Goal.Budget, usd(o.Spent))
		case o.Elapsed > 0:
			summary += fmt.Sprintf("; %s have passed", words.Seconds(o.Elapsed))
			if o.Spent > 0 { // else no attempt has ended, which costs something all the same
				summary += fmt.Sprintf(" and %s is spent", usd(o.Spent))
			}
		}
		return !past && !overspent, summary
	}
	fastest, cheapest := o.Alternatives[0], o.Alternatives[len(o.Alternatives)-1]
	late := deadline > 0 && o.Chosen.FinishSeconds.Mid > deadline
	dear := budget > 0 && o.Chosen.CostUSD.Mid > budget
	switch {
	case past:
		return false, fmt.Sprintf("a deadline of %s is past: %s have passed and %s more are needed%s; give %s or more",
			words.Seconds(deadline),
			words.Seconds(o.Elapsed), words.Seconds(fastest.FinishSeconds.Mid-o.Elapsed), with(fastest),
			words.Seconds(words.TimeAbove(fastest.FinishSeconds.High)))
	case late && fastest.FinishSeconds.Mid > deadline:
		return false, fmt.Sprintf("a deadline of %s cannot be met: %s have passed and%s %s more are needed; give %s or more",
			words.Seconds(deadline),
			words.Seconds(o.Elapsed), even(fastest), words.Seconds(fastest.FinishSeconds.Mid-o.Elapsed),
			words.Seconds(words.TimeAbove(fastest.FinishSeconds.High)))
	case overspent:
		return false, fmt.Sprintf("a budget of %s is spent already (%s): the run costs at least %s; give %s or more",
			o.Goal.Budget, usd(o.Spent), usd(cheapest.CostUSD.Mid), usd(words.AmountAbove(cheapest.CostUSD.High)))
	case dear && cheapest.CostUSD.Mid > budget:
		return false, fmt.Sprintf("a budget of %s is not enough: %s is spent, and the cheapest way, %s, costs %s; "+
			"give %s or more",
			o.Goal.Budget, usd(o.Spent), spoken(cheapest), usd(cheapest.CostUSD.Mid),
			usd(words.AmountAbove(cheapest.CostUSD.High)))
	case late:
		return false, o.later(deadline, budget)
	case dear:
		return false, fmt.Sprintf("%s, more than the budget of %s; %s would cost %s", o.ends(), o.Goal.Budget,
			spoken(cheapest), usd(cheapest.CostUSD.Mid))
	}
	return true, o.ends() + o.within(deadline, budget)
}

// ends tells how the run ends: "ends after 4m10s (3m50s to 4m40s) for $0.012".
func (o Outlook) ends() string {
	finish, guess := o.Chosen.FinishSeconds, ""
	if o.Runs == 1 {
		guess = ", a guess from one earlier run"
	}
	return fmt.Sprintf("ends after %s (%s to %s%s) for %s with %s",
		words.Seconds(finish.Mid), words.Seconds(finish.Low), words.Seconds(finish.High), guess, usd(o.Chosen.CostUSD.Mid),
		spoken(o.Chosen))
}

// within tells which limits are kept, and which only most of the time.
func (o Outlook) within(deadline, budget float64) string {
	var kept, doubt []string
	if deadline > 0 {
		kept = append(kept, "the deadline of "+words.Seconds(deadline))
		if high := o.Chosen.FinishSeconds.High; high > deadline {
			doubt = append(doubt, "it may take "+words.Seconds(high))
		}
	}
	if budget > 0 {
		kept = append(kept, "the budget of "+o.Goal.Budget.String())
		if high := o.Chosen.CostUSD.High; high > budget {
			doubt = append(doubt, "it may cost "+usd(high))
		}
	}
	if len(kept) == 0 {
		return ""
	}
	text := ", within " + strings.Join(kept, " and ")
	if len(doubt) > 0 {
		text += ", but " + strings.Join(doubt, " and ")
	}
	return text
}

// later tells why a deadline that could be met is not: it costs more than the budget, or the choice keeps to what is
// held.
func (o Outlook) later(deadline, budget float64) string {
	meets := o.Alternatives[0]
	for _, a := range o.Alternatives {
		if a.FinishSeconds.Mid <= deadline {
			meets = a // the last that does is the cheapest
		}
	}
	if budget > 0 && meets.CostUSD.Mid > budget {
		afford := o.Alternatives[len(o.Alternatives)-1]
		for _, a := range slices.Backward(o.Alternatives) {
			if a.CostUSD.Mid <= budget {
				afford = a
			}
		}
		return fmt.Sprintf("the deadline of %s and the budget of %s cannot both be met: %s would end after %s for %s, and "+
			"%s after %s for %s; give more of one",
			words.Seconds(deadline), o.Goal.Budget, spoken(meets), words.Seconds(meets.FinishSeconds.Mid),
			usd(meets.CostUSD.Mid),
			spoken(afford), words.Seconds(afford.FinishSeconds.Mid), usd(afford.CostUSD.Mid))
	}
	return fmt.Sprintf("%s, later than the deadline of %s; %s would end after %s for %s",
		o.ends(), words.Seconds(deadline), spoken(meets), words.Seconds(meets.FinishSeconds.Mid), usd(meets.CostUSD.Mid))
}

// spoken is the name of an alternative in a sentence.
func spoken(a Alternative) string {
	if len(a.Functions) == 0 {
		return "the pool only"
	}
	return a.Name
}

func with(a Alternative) string { return " with " + spoken(a) }

func even(a Alternative) string {
	if len(a.Functions) == 0 {
		return ""
	}
	return " even with " + a.Name
}
