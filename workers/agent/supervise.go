package agent

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/slot"
)

const (
	// cancelGrace is how long a stage may take to stop once its context has ended; termGrace what is added after SIGTERM.
	cancelGrace = 5 * time.Second
	termGrace   = time.Second
)

// child takes a child for the attempt. What waits for one holds its room and pays for it, so it waits no longer than
// the run's money allows.
func (r *running) child(ctx context.Context, task wire.Task) (c *child, cold bool, output string, err error) {
	a := r.agent
	waiting, stop := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer stop(nil)
	watch.Go(func() {
		samples := time.NewTicker(a.sampleEvery)
		defer samples.Stop()
		looks := newLooks(r)
		defer looks.stop()
		for {
			select {
			case <-waiting.Done():
				return
			case <-samples.C:
				if !r.affords(ctx) { // what it asks for is also for the time after the start
					stop(errUnaffordable)
				}
				looks.look()
			case <-looks.next():
				looks.look()
			case <-r.recalled:
				looks.look()
			}
		}
	})
	c, cold, output, err = a.children.take(waiting, build{task.Stage.App, task.Stage.Build}, task.Stage.Name,
		a.gpus.visible(r.gpus), func() quantity.Size {
			// not before there is a group, when nobody could call in what it is lent
			r.borrow()
			return r.limits()
		}, func(group *enforce.Group) { a.attend(r, target{group: group}) })
	if err != nil && errors.Is(context.Cause(waiting), errUnaffordable) {
		err = errUnaffordable
	}
	return c, cold, output, err
}

// source says whose output it is.
func (r *running) source() wire.LogSource {
	task := r.try.Task
	return wire.LogSource{
		Run: task.Run, Stage: task.Stage.Name, Task: task.ID, Attempt: r.try.Number, Venue: predictor.Pool, Host: r.agent.id,
	}
}

// unstarted tells what it means that no child could be had.
func unstarted(ctx context.Context, err error, output string) (f finish) {
	switch {
	case ctx.Err() != nil:
		f.stopped, f.reason = slot.Stopped(ctx)
	case errors.Is(err, errUnavailable):
		f.stopped, f.cause, f.reason = predictor.Lost, predictor.CauseVenue, err.Error()
	case isDiskFull(err):
		f.noRoom(predictor.CauseStart, err)
	default:
		f.failed, f.tail = err, output
	}
	return f
}

// supervise tells the child to start and follows it to the end of the attempt.
func (r *running) supervise(ctx context.Context, c *child, task wire.Task, input json.RawMessage) (f finish) {
	err := c.send(wire.ToChild{Server: r.agent.children.server, Start: &wire.StartAttempt{
		Task: task, Attempt: r.try.Number, Input: input, Grant: r.limits(), Resume: r.try.State().Checkpoint,
		Secrets: r.secrets,
		Past:    r.agent.past(task.Stage), TimeToLoss: r.agent.timeToLoss(r.held().DeviceClass),
	}})
	if err != nil {
		endAll(ctx, c.group)
		f.failed = err
	}
	samples := time.NewTicker(r.agent.sampleEvery)
	defer samples.Stop()
	looks := newLooks(r)
	defer looks.stop()
	var timeout <-chan time.Time
	if task.Timeout > 0 {
		timer := time.NewTimer(task.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	stop := stopping{child: c, done: ctx.Done()}
	for {
		select {
		case message, open := <-c.messages:
			switch {
			case !open:
				return gone(ctx, c, f)
			case message.Progress != nil:
				r.try.Progress(*message.Progress)
			case message.Checkpoint != nil:
				r.try.Checkpoint(*message.Checkpoint, message.CheckpointParts...)
			case message.Training != nil:
				r.trained(ctx, *message.Training)
			case message.Done != nil:
				f.answer = message.Done
				return f
			}
		case <-samples.C:
			r.sample()
			looks.again()
			if f.stopped == "" && !r.affords(ctx) {
				r.unaffordable(&f)
				endAll(ctx, c.group)
			}
		case <-looks.next():
			looks.look()
		case <-r.recalled:
			looks.look()
		case <-timeout:
			timeout = nil
			f.stopped, f.reason = predictor.TimedOut, pastTimeout(task.Timeout)
			endAll(ctx, c.group)
		case <-stop.done:
			if f.stopped == "" {
				f.stopped, f.reason = slot.Stopped(ctx)
			}
			stop.ask(ctx, f.stopped)
		case <-stop.next:
			stop.force(ctx)
		}
	}
}

// trained takes over what a child tells of a split training. The child has refused what is not sound; a child of
// another version may not have.
func (r *running) trained(ctx context.Context, training predictor.Training) {
	if err := training.Validate(); err != nil {
		r.agent.logger.WarnContext(ctx, "what an attempt tells of its training is left out", "task", r.try.Task.ID, "error",
			err)
		return
	}
	r.try.Trained(training)
}

// stopping ends a child step by step: it is asked, then told to terminate, then killed.
type stopping struct {
	child      *child
	done       <-chan struct{} // of the attempt's context, until it was seen
	next       <-chan time.Time
	terminated bool
}

// ask tells the stage that its context has ended; an attempt that is lost anyhow is not given time.
func (s *stopping) ask(ctx context.Context, outcome predictor.Outcome) {
	s.done = nil
	if outcome != predictor.Cancelled || s.child.send(wire.ToChild{Cancel: true}) != nil {
		endAll(ctx, s.child.group)
		return
	}
	s.next = time.After(cancelGrace)
}

// force takes the next step.
func (s *stopping) force(ctx context.Context) {
	if s.terminated {
		endAll(ctx, s.child.group)
		s.next = nil
		return
	}
	s.terminated = true
	s.child.signal(syscall.SIGTERM)
	s.next = time.After(termGrace)
}

// gone tells how a child went away that says no more.
func gone(ctx context.Context, c *child, f finish) finish {
	timer := time.NewTimer(exitGrace)
	defer timer.Stop()
	select {
	case <-c.exited:
	case <-timer.C: // it closed its channel but lives
		endAll(ctx, c.group)
		<-c.exited
	}
	if c.broken != nil {
		f.failed = c.broken
	}
	f.exit = statusOf(c.process.ProcessState)
	c.output.flush() //nolint:contextcheck // Outputs do not wait
	f.tail = c.output.text()
	return f
}
