package alerting

import (
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/predictor"
)

// Resume returns, by run, what had been told once these alerts were sent, in whatever order they are given: an engine
// that starts again tells nothing twice and goes on counting. What was expected between two alerts is forgotten, so
// doubts start anew.
func Resume(alerts []Alert) map[string]Watch {
	sorted := slices.Clone(alerts)
	slices.SortStableFunc(sorted, func(a, b Alert) int { return a.At.Compare(b.At) })
	watches := map[string]Watch{}
	for _, alert := range sorted {
		w := watches[alert.Run]
		w.goal = alert.Goal
		if i := slices.Index(kinds[:], alert.Kind); i >= 0 {
			w.told[i] = max(w.told[i], number(alert))
		}
		switch {
		case alert.Kind == KindDeadlineAtRisk:
			w.deadline.open = true
		case alert.Kind == KindBudgetAtRisk:
			w.budget.open = true
		case alert.Kind == KindGoalImpossible:
			w.impossible = alert.Goal
		case alert.Recovers == KindGoalImpossible:
			w.impossible = predictor.Goal{}
		case alert.Recovers == KindDeadlineAtRisk:
			w.deadline.open = false
		case alert.Recovers == KindBudgetAtRisk:
			w.budget.open = false
		}
		watches[alert.Run] = w
	}
	return watches
}

// number is which alert of its kind it is, as its ID says.
func number(alert Alert) int {
	n, err := strconv.Atoi(alert.ID[strings.LastIndexByte(alert.ID, '/')+1:])
	if err != nil {
		return 0
	}
	return max(0, n)
}
