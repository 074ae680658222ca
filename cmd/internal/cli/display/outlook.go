package display

import (
	"fmt"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// mostAlternatives is how many alternatives are listed; JSON has all.
const mostAlternatives = 12

// Outlook returns the lines that say what is expected of a run under a goal, and what else could be had.
func Outlook(o predictor.Outlook, s Style) []string {
	lines := []string{
		"run       " + Clean(o.Run),
		"goal      " + goal(o.Goal),
		"so far    " + seconds(o.Elapsed),
	}
	if o.Spent > 0 { // else no attempt has ended, which costs something all the same
		lines[2] += ", " + money(o.Spent)
	}
	if o.Summary != "" {
		summary := wrapped("outlook   ", o.Summary, s.page())
		if !o.Feasible {
			for i := range summary {
				summary[i] = s.paint(red, summary[i])
			}
		}
		lines = append(lines, summary...)
	}
	if !o.Known {
		if o.Why != "" {
			lines = append(lines, wrapped("unknown   ", o.Why, s.page())...)
		}
		return lines
	}
	t := newTable("way", "is", "ends after", "costs")
	add := func(one predictor.Alternative, is string) {
		t.add(Clean(one.Name), is, estimate(one.FinishSeconds, seconds), estimate(one.CostUSD, money))
	}
	if o.Present.Name == o.Chosen.Name {
		add(o.Present, "present, chosen")
	} else {
		add(o.Present, "present")
		add(o.Chosen, "chosen")
	}
	others := slices.DeleteFunc(slices.Clone(o.Alternatives), func(one predictor.Alternative) bool {
		return one.Name == o.Present.Name || one.Name == o.Chosen.Name
	})
	for _, one := range spread(others, mostAlternatives) {
		add(one, "")
	}
	lines = append(append(lines, ""), t.lines(s, "")...)
	if hidden := len(others) - mostAlternatives; hidden > 0 {
		lines = append(lines, s.paint(dim, fmt.Sprintf("%d more lie between; --json has them", hidden)))
	}
	return lines
}

// estimate is as between, and says when nothing is predicted.
func estimate(interval predictor.Interval, write func(float64) string) string {
	if !known(interval) {
		return "unknown"
	}
	return between(interval, write)
}

// spread returns at most most of the elements, at equal distances, with the first and the last.
func spread[T any](all []T, most int) []T {
	if len(all) <= most {
		return all
	}
	kept := make([]T, most)
	for i := range kept {
		kept[i] = all[i*(len(all)-1)/(most-1)]
	}
	return kept
}

// GoalKept returns the lines that say whether a run that has ended kept its goal.
func GoalKept(run ledger.RunView) []string {
	took := Model{Run: run}.Wall()
	lines := []string{
		"run       " + Clean(run.Run),
		"goal      " + goal(run.Goal),
		fmt.Sprintf("ended     %s in %s for %s", run.State, seconds(took.Seconds()), run.Totals.Cost),
	}
	if run.Goal.Deadline > 0 {
		lines = append(lines, "deadline  "+kept(took <= run.Goal.Deadline))
	}
	if run.Goal.Budget > 0 {
		lines = append(lines, "budget    "+kept(run.Totals.Cost <= run.Goal.Budget))
	}
	return lines
}

func kept(met bool) string {
	if met {
		return "kept"
	}
	return "missed"
}
