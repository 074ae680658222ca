package loop

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// End makes the end of a run and its completion event durable, and its start once more, and returns once they are.
// Telling the same end again has no effect.
func (r *Recorder) End(ctx context.Context, started predictor.RunStarted, ended predictor.RunEnded, done wire.Done) error {
	if err := r.keep(ctx, started, started.Run+"/started"); err != nil {
		return err
	}
	encoded, err := json.Marshal(done)
	if err != nil {
		return fmt.Errorf("tell the end of run %s: %w", done.Run, err)
	}
	if err := r.publish(ctx, wire.DoneStream, wire.DoneSubject(done.Pipeline), done.Run, encoded); err != nil {
		return fmt.Errorf("tell the end of run %s: %w", done.Run, err)
	}
	return r.keep(ctx, ended, ended.Run+"/ended")
}

// keep publishes one event and waits for its acknowledgement; the caller tries again.
func (r *Recorder) keep(ctx context.Context, event predictor.Event, id string) error {
	kind, data, err := wire.EncodeEvent(event)
	if err != nil {
		return err
	}
	if err := r.publish(ctx, wire.LoopStream, wire.LoopSubject(kind), id, data); err != nil {
		return fmt.Errorf("record %s: %w", id, err)
	}
	return nil
}
