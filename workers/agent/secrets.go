package agent

import (
	"context"
	"errors"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// obtainSecrets asks for what the stage names as secrets, right before its code begins. Where that cannot be had, f
// says how the attempt has ended.
func (r *running) obtainSecrets(ctx context.Context, task wire.Task) (f finish, obtained bool) {
	secrets, err := slot.Obtain(ctx, r.agent.secrets, task, r.try.Number)
	switch {
	case err == nil:
		r.secrets, r.mask = secrets, wire.NewMask(secrets)
		return f, true
	case ctx.Err() != nil:
		r.interrupt(ctx, &f)
	case errors.Is(err, slot.ErrNoSecret):
		f.answer, f.cause = refusal(err, true), predictor.CauseStart
	default:
		f.stopped, f.cause, f.reason = predictor.Lost, predictor.CauseVenue, err.Error()
	}
	return f, false
}
