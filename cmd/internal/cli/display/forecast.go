package display

import (
	"fmt"
	"strings"

	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Expected returns what is expected of a run, and one line of warning where it will probably miss its goal; nothing
// while nothing is expected.
func Expected(run ledger.RunView) []string {
	told := run.Predicted
	if !known(told.FinishSeconds) {
		return nil
	}
	line := "expected to end after " + between(told.FinishSeconds, seconds)
	if known(told.Cost) {
		line += " for " + between(told.Cost, money)
	}
	if basis := basisOf(told); basis != "" {
		line += "; " + basis
	}
	lines := []string{line}
	if warning := warningOf(run, told); warning != "" {
		lines = append(lines, warning)
	}
	return lines
}

// Misses tells once that a run will probably miss its goal: what is expected of it warns of that, and so does the alert
// that comes of the same, each with advice of its own. The zero value has said nothing.
type Misses struct{ told, warned map[alerting.Kind]bool }

// Expected is as the function, without a warning where alerts have said all that it would.
func (m *Misses) Expected(run ledger.RunView) []string {
	lines := Expected(run)
	news := false
	for _, kind := range missedBy(run, run.Predicted) {
		news = news || !m.told[kind]
		if m.warned == nil {
			m.warned = map[alerting.Kind]bool{}
		}
		m.warned[kind] = true
	}
	if warned := warningOf(run, run.Predicted) != ""; warned && !news {
		lines = lines[:len(lines)-1]
	}
	return lines
}

// News reports whether an alert of the run is to be told: of a kind of which was warned, the first is not.
func (m *Misses) News(alert alerting.Alert) bool {
	if m.told == nil {
		m.told = map[alerting.Kind]bool{}
	}
	first := !m.told[alert.Kind]
	m.told[alert.Kind] = true
	return !first || !m.warned[alert.Kind]
}

// missedBy are the kinds of alerts that a forecast warns of.
func missedBy(run ledger.RunView, told ledger.RunPrediction) (kinds []alerting.Kind) {
	if told.Late > warned && run.Goal.Deadline > 0 {
		kinds = append(kinds, alerting.KindDeadlineAtRisk)
	}
	if told.Dear > warned && run.Goal.Budget > 0 {
		kinds = append(kinds, alerting.KindBudgetAtRisk)
	}
	return kinds
}

// basisOf says what a forecast rests on; empty where that is not known.
func basisOf(told ledger.RunPrediction) string {
	switch {
	case told.Basis != "":
		return "rests on " + Clean(told.Basis)
	case told.Runs > 0: // an older engine told it
		return "rests on " + Count(told.Runs, "earlier run")
	}
	return ""
}

// warned is how probable it is that a goal is missed of which people are warned, or more: the middle of what is
// expected misses it.
const warned = 0.5

// warningOf says that a run will probably miss its goal, and what can be done; empty where it will probably not.
func warningOf(run ledger.RunView, told ledger.RunPrediction) string {
	var misses, flags []string
	for _, kind := range missedBy(run, told) {
		if kind == alerting.KindDeadlineAtRisk {
			misses = append(misses, fmt.Sprintf("its deadline of %s (%.0f%%)", duration(run.Goal.Deadline), 100*told.Late))
			flags = append(flags, "--deadline "+alerting.DeadlineFlag(told.FinishSeconds.High))
			continue
		}
		misses = append(misses, fmt.Sprintf("its budget of %s (%.0f%%)", run.Goal.Budget, 100*told.Dear))
		flags = append(flags, "--budget "+alerting.BudgetFlag(told.Cost.High))
	}
	if len(misses) == 0 {
		return ""
	}
	return fmt.Sprintf("warning: it will probably miss %s; `spillway goal %s` shows what else could be had, and %s there "+
		"gives enough", strings.Join(misses, " and "), Clean(run.Run), strings.Join(flags, " "))
}
