// Package display writes runs as lines of text and as one JSON object.
//
// Rendering is pure: a [Model] and a [Style] give the same lines always. Only [Screen] writes.
package display

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// Model is everything that is shown of one run.
type Model struct {
	// Now is when it is shown.
	Now time.Time
	// Run is the run as it is then.
	Run ledger.RunView
	// Decisions are those about it, oldest first.
	Decisions []predictor.Decision
	// Page and TemporalUI are addresses; empty when the part is off.
	Page, TemporalUI string
	// HostPrice is what the pool costs, per hour.
	HostPrice quantity.Money
	// Alerts are those about it that came while it was followed, oldest first.
	Alerts []alerting.Alert
	// Breakdown is where its time went; nil when that was not asked for.
	Breakdown *timeline.Breakdown
	// WhatIf is what the run could come to, or could have; nil when that was not asked for.
	WhatIf *whatif.Answer
	// Away says that the engine does not answer, so that this is how it was.
	Away bool
	// Own says that the stack was started for this run and ends with it.
	Own bool
}

// Away is what is said while an engine does not answer.
const Away = "the stack does not answer: it is tried again for half a minute"

// Style is how lines are written.
type Style struct {
	// Width is the number of columns; lines are at most one shorter, so that no terminal wraps them. Below 40 it counts as
	// 40.
	Width int
	// Color uses ANSI colours.
	Color bool
	// ASCII uses no characters beyond ASCII of our own.
	ASCII bool
	// Whole cuts nothing for lack of columns: what is no terminal is a file or a program, which has no end of the line.
	Whole bool
}

// Wall is how long the run has taken, or took.
func (m Model) Wall() time.Duration {
	if m.Run.StartedAt.IsZero() {
		return 0
	}
	end := m.Run.EndedAt
	if end.IsZero() {
		end = m.Now
	}
	return max(end.Sub(m.Run.StartedAt), 0)
}

// Ended reports whether the run is over.
func Ended(run ledger.RunView) bool { return run.State != "" && run.State != predictor.RunRunning }

// known reports whether an interval predicts anything.
func known(interval predictor.Interval) bool { return interval != predictor.Interval{} }

// tasksOf is how many tasks of a stage are known of.
func tasksOf(stage ledger.StageView) int {
	return max(stage.Expected, stage.Scheduled, stage.Done+stage.Running)
}

// Accuracy returns the number named "accuracy" in a result, the outermost first, and whether there is one.
func Accuracy(result json.RawMessage) (float64, bool) {
	var value any
	if json.Unmarshal(result, &value) != nil {
		return 0, false
	}
	level := []any{value}
	for len(level) > 0 {
		var next []any
		for _, one := range level {
			switch one := one.(type) {
			case []any:
				next = append(next, one...)
			case map[string]any:
				for _, key := range slices.Sorted(maps.Keys(one)) {
					number, isNumber := one[key].(float64)
					if isNumber && strings.EqualFold(key, "accuracy") && !math.IsInf(number, 0) {
						return number, true
					}
					next = append(next, one[key])
				}
			}
		}
		level = next
	}
	return 0, false
}
