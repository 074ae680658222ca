package alerts

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

// errFinal says that sending the same alert again cannot succeed.
var errFinal = errors.New("no further try can succeed")

// delivery is an alert on its way, with its JSON.
type delivery struct {
	alert alerting.Alert
	data  []byte
}

// queue is what waits for one destination. Each has its own, so that one that is away holds back no other.
type queue struct {
	to     destination
	retry  Retry
	logger *slog.Logger
	wake   chan struct{} // has room for one word that what is queued or closed changed

	mu     sync.Mutex
	queued []delivery // guarded by mu; the first is the one that is tried
	closed bool       // guarded by mu
}

// put adds a delivery. A full queue drops the oldest of the same run, or else the oldest of all, but not the one that
// is being tried.
func (q *queue) put(l delivery) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queued) >= maxQueue {
		oldest := slices.IndexFunc(q.queued[1:], func(other delivery) bool { return other.alert.Run == l.alert.Run })
		oldest = max(oldest, 0) + 1
		q.logger.Warn("alert dropped: too many wait", "alert", q.queued[oldest].alert.ID, "destination", q.to.name())
		q.queued = slices.Delete(q.queued, oldest, oldest+1)
	}
	q.queued = append(q.queued, l)
	q.nudge()
}

func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.nudge()
}

func (q *queue) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.queued)
}

// run delivers what is queued until the queue is closed and empty, or ctx ends.
func (q *queue) run(ctx context.Context) {
	for {
		next, more, closed := q.first()
		switch {
		case more:
			if !q.deliver(ctx, next) {
				return // it stays in the queue, where Close counts it
			}
			q.drop()
			continue
		case closed:
			return
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return
		}
	}
}

func (q *queue) first() (next delivery, more, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.queued) > 0 {
		return q.queued[0], true, q.closed
	}
	return delivery{}, false, q.closed
}

// drop takes the first delivery off: it was delivered or given up.
func (q *queue) drop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.queued = slices.Delete(q.queued, 0, 1)
}

// deliver tries until one arrives, cannot arrive, or has been tried for long enough. It returns false when ctx ended
// before.
func (q *queue) deliver(ctx context.Context, l delivery) bool {
	end := time.Now().Add(q.retry.For)
	for backoff := q.retry.First; ; backoff = min(2*backoff, q.retry.Most) {
		err := q.to.deliver(ctx, l.alert, l.data)
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		pause := backoff
		if asked, ok := errors.AsType[*laterError](err); ok {
			pause = min(max(backoff, asked.after), q.retry.Most)
		}
		if errors.Is(err, errFinal) || time.Now().Add(pause).After(end) {
			q.logger.WarnContext(ctx, "alert given up", "alert", l.alert.ID, "destination", q.to.name(), "error", err)
			return true
		}
		q.logger.DebugContext(ctx, "alert is sent again", "alert", l.alert.ID, "destination", q.to.name(), "wait", pause,
			"error", err)
		if !wait.For(ctx, pause) {
			return false
		}
	}
}

func (r Retry) orDefaults() Retry {
	return Retry{
		First: cmp.Or(max(r.First, 0), time.Second), Most: cmp.Or(max(r.Most, 0), time.Minute),
		For: cmp.Or(max(r.For, 0), 10*time.Minute),
	}
}
