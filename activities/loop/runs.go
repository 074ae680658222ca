package loop

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// fresh is for how long after a run's end the server is sure to drop a second telling of it by itself: half of the
	// streams' window, since the clocks of hosts differ.
	fresh = duplicates / 2
	// skew is by how much the server's clock may be behind that of whoever told the start of a run.
	skew = time.Minute
	// lookWait is how long one look through a stream may take. Two of them fit into what a run gives to the telling of its
	// end.
	lookWait = 25 * time.Second
)

// End makes the end of a run and its completion event durable, and its start once more, and returns once they are.
// Telling the same end again has no effect, however much later: the bucket of ends says how far it was told, and the
// streams are looked through where it cannot, and for an end that is told again after a minute. A run whose pipeline is
// not known has no completion event, because nobody listens where it would go. A start of the run that Tell was given
// and that is not sent yet is left out.
func (r *Recorder) End(
	ctx context.Context, started predictor.RunStarted, ended predictor.RunEnded, done wire.Done,
) error {
	r.starts.takeBack(ended.Run)
	stands, err := r.beginEnd(ctx, started, ended)
	if err != nil {
		return fmt.Errorf("tell the end of run %s: %w", ended.Run, err)
	}
	told, complete := false, false
	if stands.look { // also where all was told: the server may have lost it, as after a power cut
		if told, complete, err = r.toldBefore(ctx, started, ended, done); err != nil {
			return fmt.Errorf("tell the end of run %s: %w", ended.Run, err)
		}
	}
	if !told {
		if err := r.tellEnd(ctx, started, ended, done, complete); err != nil {
			return err
		}
	}
	if stands.over {
		return nil
	}
	if err := stands.done(ctx); err != nil { // all is told; whoever tells it again looks for it
		r.options.Logger.DebugContext(ctx, "an end was told, and that is not written down", "run", ended.Run, "error", err)
	}
	return nil
}

// tellEnd publishes all that is told of an end. Complete says that the completion event was published before.
func (r *Recorder) tellEnd(
	ctx context.Context, started predictor.RunStarted, ended predictor.RunEnded, done wire.Done, complete bool,
) error {
	if err := r.keep(ctx, started, wire.RunStartedID(started.Run)); err != nil {
		return err
	}
	if !complete && done.Pipeline != "" {
		encoded, err := json.Marshal(done)
		if err != nil {
			return fmt.Errorf("tell the end of run %s: %w", done.Run, err)
		}
		told := message(wire.DoneSubject(done.Pipeline), encoded, "")
		if err := r.publish(ctx, wire.DoneStream, done.Run, told); err != nil {
			return fmt.Errorf("tell the end of run %s: %w", done.Run, err)
		}
	}
	return r.keep(ctx, ended, wire.RunEndedID(ended.Run))
}

// toldBefore looks up in the streams whether all that End tells was told before, and whether the completion event was.
func (r *Recorder) toldBefore(
	ctx context.Context, started predictor.RunStarted, ended predictor.RunEnded, done wire.Done,
) (told, complete bool, err error) {
	kind, _, err := wire.EncodeEvent(ended)
	if err != nil {
		return false, false, err
	}
	since := started.At.Add(-skew)
	told, err = r.holds(ctx, wire.LoopStream, wire.LoopSubject(kind), since, func(data []byte) bool {
		message, err := wire.DecodeMessage(data)
		end, isEnd := message.Event.(predictor.RunEnded)
		return err == nil && isEnd && end.Run == ended.Run
	})
	if err != nil || told || done.Pipeline == "" {
		return told, told, err
	}
	complete, err = r.holds(ctx, wire.DoneStream, wire.DoneSubject(done.Pipeline), since, func(data []byte) bool {
		var other wire.Done
		return json.Unmarshal(data, &other) == nil && other.Run == done.Run
	})
	return false, complete, err
}

// holds reports whether a stream has a message on subject, stored since then, that matches.
func (r *Recorder) holds(
	ctx context.Context, stream, subject string, since time.Time, matches func(data []byte) bool,
) (found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookWait)
	defer cancel()
	err = scan(ctx, r.js, stream, jetstream.ConsumerConfig{
		FilterSubject: subject, DeliverPolicy: jetstream.DeliverByStartTimePolicy, OptStartTime: &since,
	}, func(message jetstream.Msg, _ *jetstream.MsgMetadata) (more bool) {
		found = matches(message.Data())
		return !found
	})
	return found, err
}

// keep publishes one event and waits for its acknowledgement; the caller tries again.
func (r *Recorder) keep(ctx context.Context, event predictor.Event, id string) error {
	kind, data, err := wire.EncodeEvent(event)
	if err != nil {
		return err
	}
	if err := r.publish(ctx, wire.LoopStream, id, message(wire.LoopSubject(kind), data, "")); err != nil {
		return fmt.Errorf("record %s: %w", id, err)
	}
	return nil
}
