package display

import (
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Runs returns the list of runs. What was predicted is what was told of a run first, as in its report.
func Runs(found []ledger.RunView, now time.Time, s Style) []string {
	t := newTable("RUN", "PIPELINE", "STATE", "STARTED", "TIME", "PREDICTED", "GOAL", "COST", "POOL+FN")
	t.spare, t.cuts = []int{5, 8, 1, 3, 6}, 6
	if !s.Whole {
		t.terminal = s.columns()
	}
	for _, run := range found {
		finish := middle(run.Predicted.FinishSeconds, seconds)
		t.add(Clean(run.Run), Clean(run.Pipeline), string(run.State), startedAt(run.StartedAt, now),
			seconds(Model{Now: now, Run: run}.Wall().Seconds()), finish, GoalInShort(run, now), run.Totals.Cost.String(),
			fmt.Sprintf("%d+%d", run.Totals.Tasks[predictor.Pool], run.Totals.Tasks[predictor.Function]))
	}
	lines := t.lines(s, "")
	return append(lines, t.note(s, "")...)
}

// startedAt writes a time of today as such, and others with their day.
func startedAt(at, now time.Time) string {
	at, now = at.Local(), now.Local()
	switch {
	case at.Format(time.DateOnly) == now.Format(time.DateOnly):
		return at.Format(time.TimeOnly)
	case at.Year() == now.Year():
		return at.Format("Jan 02 15:04")
	default:
		return at.Format(time.DateOnly)
	}
}
