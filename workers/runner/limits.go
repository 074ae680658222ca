package runner

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
)

// answerTime is what is kept of the function's own time to tell how the attempt ended: a function that runs into its
// limit tells nothing, and is billed to it.
const answerTime = 3 * time.Second

// limits say until when a program may run.
type limits struct {
	// ask is when it is asked to end, kill when it is killed.
	ask, kill time.Time
	// store is until when its last checkpoint may be stored: as long as there is money, and time to answer.
	store time.Time
	// money says that the run's money for the attempt sets them, timeout that the stage does; the function else.
	money   bool
	timeout time.Duration
}

// limitsOf is the earliest of what bounds an attempt: its stage's timeout, which leaves the grace beyond it as at the
// pool; the money of its run and the function's own time, which leave nothing.
func limitsOf(ctx context.Context, start wire.StartAttempt, grace time.Duration, begun time.Time) limits {
	end, bounded := ctx.Deadline()
	if !bounded {
		end = begun.Add(wire.FunctionTime)
	}
	left := end.Sub(begun)
	toAnswer := min(answerTime, left/4)
	kill := end.Add(-toAnswer)
	l := limits{ask: kill.Add(-min(grace, left/4)), kill: kill, store: end.Add(-toAnswer / 2)}
	if paid := begun.Add(start.Bound); start.Bound > 0 && paid.Before(l.store) {
		l.store = paid
	}
	if start.Bound > 0 && begun.Add(start.Bound).Before(l.kill) {
		l.kill = begun.Add(start.Bound)
		l.ask, l.money = l.kill.Add(-wire.BoundGrace(start.Bound)), true
	}
	if timeout := start.Task.Timeout; timeout > 0 && begun.Add(timeout).Before(l.ask) {
		l.ask, l.money, l.timeout = begun.Add(timeout), false, timeout
		if end := l.ask.Add(grace); end.Before(l.kill) {
			l.kill = end
			if stored := end.Add(toAnswer / 2); stored.Before(l.store) { // whoever waits for the answer waits no longer
				l.store = stored
			}
		}
	}
	return l
}

// late is the failure of an attempt whose time was over.
func (l limits) late(detail string) wire.StageFailure {
	failure := wire.StageFailure{TimedOut: true, Message: "the function's time was over"}
	switch {
	case l.money:
		failure = wire.StageFailure{Bounded: true, Message: "the run's money for the attempt is used up"}
	case l.timeout > 0:
		failure.Message = fmt.Sprintf("the attempt ran past the stage's timeout of %s", l.timeout)
	}
	if detail != "" {
		failure.Message += "; " + detail
	}
	return failure
}
