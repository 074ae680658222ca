package webtest

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// SetTunings sets how the tunings of a run stand, and tells the streams that it has changed.
func (e *Engine) SetTunings(run string, tunings ...runs.Tuning) {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	e.tunings = maps.Clone(e.tunings)
	if e.tunings == nil {
		e.tunings = map[string][]runs.Tuning{}
	}
	e.tunings[run] = slices.Clone(tunings)
	e.Feed.RunChanged(run)
}

// Tunings returns how the tunings of a run stand, as SetTunings said last.
func (e *Engine) Tunings(_ context.Context, run string) ([]runs.Tuning, error) {
	return account(e, run, func(l *ledger.Ledger, _ time.Time) ([]runs.Tuning, bool) {
		_, known := l.Run(run)
		return e.tunings[run], known
	})
}
