package webtest

import (
	"context"

	"github.com/spillway-ml/spillway/activities/retention"
)

// Collect answers with OnCollect; there is nothing to collect where that is nil.
func (e *Engine) Collect(_ context.Context, dry bool) (retention.Collection, error) {
	if e.failure != nil || e.OnCollect == nil {
		return retention.Collection{DryRun: dry}, e.failure
	}
	return e.OnCollect(dry)
}
