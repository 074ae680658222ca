package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

const (
	// incoming is how many messages may be read ahead of the fold.
	incoming = 512
	// quiet is after how long without a message the catching up asks where the stream ends now: its last message may
	// have been deleted.
	quiet = 2 * time.Second
)

// read is one message of the loop's stream.
type read struct {
	sequence uint64
	stored   time.Time // when
	message  wire.Message
}

// serve leads one term, from claiming the plan to the reason why it ends, which is never nil.
func (l *Leader) serve(whole context.Context, outside ports) error {
	ctx, cancel := context.WithCancelCause(whole)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(context.Canceled)
	// start runs work beside the term; an error of it ends the term.
	start := func(work func(ctx context.Context) error) {
		helpers.Go(func() {
			if err := work(ctx); err != nil {
				cancel(err)
			}
		})
	}
	renewal := newRenewal(l.lasts, outside.taken)
	start(func(ctx context.Context) error { return renewal.run(ctx, outside.renew) })

	plan, err := claimPlan(ctx, l.options.JetStream, l.options.Plans, max(l.term, l.higher.Load()),
		l.options.Logger)
	if err != nil {
		return cause(ctx, err)
	}
	l.term = plan.term
	t := newTerm(l, plan, renewal, outside)
	from, err := t.load(ctx)
	if err != nil {
		return cause(ctx, err)
	}
	messages := make(chan read, incoming)
	start(func(ctx context.Context) error { return l.follow(ctx, from, messages) })
	if err := t.catchUp(ctx, messages); err != nil {
		return cause(ctx, err)
	}
	t.state = predictor.Resume(t.state, plan.inForce)

	l.options.Logger.InfoContext(ctx, "lead the loop", "term", plan.term, "sequence", t.sequence)
	defer t.lead(false)
	start(func(ctx context.Context) error { t.windows.run(ctx); return nil })
	start(func(ctx context.Context) error {
		l.watchBacklog(ctx, t.stages, outside.backlog, t.journal.tell)
		return nil
	})
	// The journal outlives the term by a moment, so that the last decisions reach the stream.
	helpers.Go(func() { t.journal.run(ctx) })
	err = cause(ctx, t.decide(ctx, messages))
	if whole.Err() != nil { // this process stops in good order
		t.leave(ctx)
	}
	l.options.Logger.InfoContext(ctx, "no longer lead the loop", "term", plan.term, "reason", err)
	return err
}

// follow hands the messages of the stream to the term.
func (l *Leader) follow(ctx context.Context, from uint64, messages chan<- read) error {
	err := l.options.Follow(ctx, from, func(sequence uint64, stored time.Time, message wire.Message) error {
		select {
		case messages <- read{sequence, stored, message}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	if ctx.Err() == nil {
		return err
	}
	return nil // the term has ended, and that is why
}

// cause says why ctx ended where it has, because that is what made err happen.
func cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// load restores the newest checkpoint and returns the sequence from which the stream is to be folded.
func (t *term) load(ctx context.Context) (from uint64, err error) {
	t.saves, err = openCheckpoints(ctx, t.leader.options.JetStream)
	if err != nil {
		return 0, err
	}
	stream, err := t.leader.options.JetStream.Stream(ctx, wire.LoopStream)
	if err != nil {
		return 0, fmt.Errorf("look up stream %s: %w", wire.LoopStream, err)
	}
	state := stream.CachedInfo().State
	t.saves.first = state.FirstSeq
	saved, err := t.saves.load(ctx)
	switch {
	case errors.Is(err, errCheckpoint):
		t.log.WarnContext(ctx, "fold the whole stream", "reason", err)
		saved = checkpoint{}
	case err != nil:
		return 0, err
	case saved.Sequence > state.LastSeq:
		t.log.WarnContext(ctx, "fold the whole stream", "reason",
			"the checkpoint is of another stream: it reaches beyond this one's end",
			"sequence", saved.Sequence, "last", state.LastSeq)
		saved = checkpoint{}
	case saved.Sequence > 0 && saved.Sequence+1 < state.FirstSeq:
		t.log.WarnContext(ctx, "messages behind the checkpoint were discarded", "sequence", saved.Sequence, "first",
			state.FirstSeq)
	}
	t.state, t.sequence, t.saved = saved.State, saved.Sequence, saved.Sequence
	if state.Msgs > 0 {
		t.target = state.LastSeq
	}
	return t.sequence + 1, nil
}

// catchUp folds until the end that the stream had when the term began, so that the first decision knows everything up
// to there. A stream that is slow is waited for, however long: whoever decides on half of what happened gives away what
// the other half holds.
func (t *term) catchUp(ctx context.Context, messages <-chan read) error {
	timer := time.NewTimer(t.quiet)
	defer timer.Stop()
	for t.sequence < t.target {
		select {
		case next := <-messages:
			t.state = predictor.Pass(t.state, next.stored) // later each decision says what time it is
			t.fold(next)
		case <-timer.C:
			if t.atEnd(ctx) {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		timer.Reset(t.quiet)
	}
	return nil
}

// atEnd reports whether the stream holds no message behind the last that was folded.
func (t *term) atEnd(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	_, last, err := t.leader.options.Extent(limited)
	if err != nil || last > t.sequence {
		t.log.WarnContext(ctx, "the end of the stream does not come; wait for it",
			"sequence", t.sequence, "last", t.target, "error", err)
		return false
	}
	t.log.InfoContext(ctx, "the end of the stream was deleted; go on without it",
		"sequence", t.sequence, "last", t.target)
	return true
}

// fold takes one message in and reports whether it asks for a decision before the next regular one.
func (t *term) fold(next read) (urgent bool) {
	t.sequence = max(t.sequence, next.sequence)
	event := next.message.Event
	if event == nil {
		return false
	}
	t.state = predictor.Fold(t.state, event)
	switch event := event.(type) {
	case predictor.Scheduled:
		t.stages.hear(event.Stage, time.Now())
		return true
	case predictor.AttemptStarted:
		t.stages.hear(event.Stage, time.Now())
		return false
	case predictor.Record: // it may be the last of its stage, or the one that shows what a task takes
		t.stages.hear(event.Stage, time.Now())
		return true
	case predictor.RunEnded:
		t.windows.forget(event.Run)
		return true
	case predictor.GoalChanged, predictor.HostStarted:
		return true
	default:
		return false
	}
}
