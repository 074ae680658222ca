package display

import (
	"fmt"
	"strings"
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
			seconds(Model{Now: now, Run: run}.Wall().Seconds()), finish, GoalInShort(run, now),
			spent(run.Totals.Cost, !Ended(run)),
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

// mostResumed is how many runs are named that go on; those beyond are counted.
const mostResumed = 3

// Resumed returns the line that tells which of the runs that go on began before the stack did; empty where none has.
func Resumed(going []ledger.RunView, stack time.Time) string {
	var named []string
	resumed := 0
	for _, run := range going {
		if Ended(run) || !run.StartedAt.Before(stack) {
			continue
		}
		if resumed++; resumed <= mostResumed {
			named = append(named, Clean(run.Run)+", begun "+startedAt(run.StartedAt, stack))
		}
	}
	if resumed == 0 {
		return ""
	}
	verb, rest := "goes", ""
	if resumed > 1 {
		verb = "go"
	}
	if resumed > mostResumed {
		rest = fmt.Sprintf("; and %d more", resumed-mostResumed)
	}
	return fmt.Sprintf("note: %s from before this start %s on: %s%s (`spillway runs --status running` lists them, "+
		"`spillway cancel RUN` ends one)", Count(resumed, "run"), verb, strings.Join(named, "; "), rest)
}
