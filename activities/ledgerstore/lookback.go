package ledgerstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

// told are the messages that a run is shown by until all of it is kept.
var told = []wire.Kind{wire.KindRunStarted, wire.KindGoalChanged, wire.KindRunEnded}

// errSeen ends a look back.
var errSeen = errors.New("all was seen")

// lookBack shows the runs that an engine has taken in which kept only what they spent, as far as the stream still tells
// of them.
func (s *Store) lookBack(ctx context.Context, js jetstream.JetStream) error {
	db, err := s.readable()
	if err != nil {
		return err
	}
	until, err := meta(ctx, db, metaShown)
	if err != nil || until == 0 {
		return err
	}
	_, last, err := loop.Extent(ctx, js)
	if err != nil {
		return fmt.Errorf("look back at earlier runs: %w", err)
	}
	if until = min(until, int64(last)); until > 0 {
		err = s.showAll(ctx, js, uint64(until))
	}
	if err == nil {
		err = s.write(ctx, func(w *writer) error { return setMeta(ctx, w.tx, metaShown, 0) })
	}
	if err != nil {
		return fmt.Errorf("look back at earlier runs: %w", err)
	}
	return nil
}

// showAll shows the runs of which the stream tells up to a sequence.
func (s *Store) showAll(ctx context.Context, js jetstream.JetStream, until uint64) error {
	var batch []loop.Line
	wanted := &loop.FollowOptions{Kinds: told, NoSamples: true, Logger: s.options.Logger}
	err := loop.Follow(ctx, js, 1, wanted, func(line loop.Line) error {
		if line.Sequence <= until && line.Message.Event != nil {
			batch = append(batch, line)
		}
		if over := line.Sequence >= until; over || len(batch) >= maxBatch {
			if err := s.showSome(ctx, batch); err != nil {
				return err
			}
			batch = batch[:0]
			if over {
				return errSeen
			}
		}
		return nil
	})
	if errors.Is(err, errSeen) {
		return nil
	}
	return err
}

func (s *Store) showSome(ctx context.Context, lines []loop.Line) error {
	return s.write(ctx, func(w *writer) error {
		for _, line := range lines {
			if err := w.takeAgain(ctx, line); err != nil {
				return fmt.Errorf("take in message %d: %w", line.Sequence, err)
			}
		}
		return nil
	})
}

// takeAgain takes in what a message tells of a run whose end may be known already.
func (w *writer) takeAgain(ctx context.Context, line loop.Line) error {
	if e, ended := fitEvent(line.Message.Event).(predictor.RunEnded); ended {
		r, err := w.run(ctx, e.Run)
		if err != nil {
			return err
		}
		if r.ended > 0 && r.settled != removed {
			if view, known, err := w.shown(ctx, e.Run); err != nil || known && view.State != predictor.RunRunning ||
				known && e.At.Before(view.StartedAt) {
				return err
			}
			if _, err := w.exec(ctx, `UPDATE runs SET last_sequence = $2 WHERE run = $1`, e.Run, int64(line.Sequence)); err !=
				nil {
				return err
			}
			defer w.forget(e.Run)
			return w.over(ctx, e)
		}
	}
	return w.take(ctx, line)
}
