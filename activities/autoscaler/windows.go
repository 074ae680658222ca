package autoscaler

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"go.temporal.io/api/serviceerror"
	"go.temporal.io/sdk/client"

	"github.com/spillway-ml/spillway/predictor"
)

// windowUpdate is the name of the update by which a run takes a predictor.Window; package workflows answers it.
const windowUpdate = "spillway.window"

const (
	// windowSenders is how many windows are on their way at a time, windowQueue how many more may wait.
	windowSenders = 4
	windowQueue   = 256
	// windowWait is how long one may take to reach its run. A run whose worker is away does not answer; its next window replaces this one.
	windowWait = 5 * time.Second
	// awayLeast and awayMost bound the pause before a run that a window did not reach is tried again; it doubles.
	awayLeast = time.Second
	awayMost  = 2 * time.Minute
)

// sendWindow tells a run of its window and returns once the run has accepted it. The same ID again is the same telling.
func (l *Leader) sendWindow(ctx context.Context, window predictor.Window, id string) error {
	_, err := l.options.Client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
		UpdateID:     id,
		WorkflowID:   window.Run,
		UpdateName:   windowUpdate,
		Args:         []any{window},
		WaitForStage: client.WorkflowUpdateStageAccepted,
	})
	return err
}

// windowKey names a row.
type windowKey struct {
	run   string
	stage predictor.StageID
}

// windowRow is a row and the name of its telling, which its tries share: a run takes it once, however often it is sent.
type windowRow struct {
	predictor.Window
	id string
}

// away is how long a run that did not answer is left alone. The zero value is a run that answers.
type away struct {
	pause time.Duration
	until time.Time
}

// windows sends the rows that changed to their runs. All but run is for one goroutine.
type windows struct {
	send   func(ctx context.Context, window predictor.Window, id string) error
	logger *slog.Logger
	jobs   chan windowRow
	slow   chan windowRow          // of runs that did not answer: they have a sender of their own, so that they delay no other
	failed chan windowRow          // did not reach their runs
	sent   map[windowKey]windowRow // or on their way
	due    map[windowKey]windowRow // to be sent
	order  []windowKey             // in which they became so
	away   map[string]away         // by run
	name   string                  // of this start, for names of tellings
	named  int
}

func newWindows(send func(ctx context.Context, window predictor.Window, id string) error, logger *slog.Logger) *windows {
	return &windows{
		send: send, logger: logger, jobs: make(chan windowRow, windowQueue), slow: make(chan windowRow, windowQueue),
		failed: make(chan windowRow, 2*windowQueue+windowSenders+1),
		sent:   map[windowKey]windowRow{}, due: map[windowKey]windowRow{}, away: map[string]away{}, name: rand.Text(),
	}
}

// obey queues the rows that differ from what their run was told last, and those that did not reach it and that no newer one replaces; it never
// waits. A row that finds the queue full is due the next time, that of a run which did not answer after a pause. A run and stage without a row
// keeps what it has.
func (w *windows) obey(rows []predictor.Window) {
	now := time.Now()
	w.again(now)
	for _, row := range rows {
		key := windowKey{row.Run, row.Stage}
		switch due, known := w.due[key]; {
		case w.sent[key].Window == row:
			delete(w.due, key)
		case !known || due.Window != row:
			w.named++
			w.owe(key, windowRow{row, w.name + "/" + strconv.Itoa(w.named)})
		}
	}
	var rest []windowKey
	for _, key := range w.order {
		row, still := w.due[key]
		if !still {
			continue
		}
		if w.queue(row, now) {
			w.sent[key] = row
			delete(w.due, key)
		} else {
			rest = append(rest, key)
		}
	}
	w.order = rest
}

// queue hands a row to the senders, and reports whether it could.
func (w *windows) queue(row windowRow, now time.Time) bool {
	lane := w.jobs
	if silent, is := w.away[row.Run]; is {
		if now.Before(silent.until) {
			return false
		}
		lane = w.slow
	}
	select {
	case lane <- row:
		return true
	default:
		return false
	}
}

// owe makes a row due, in place of an older one of its run and stage.
func (w *windows) owe(key windowKey, row windowRow) {
	if _, known := w.due[key]; !known {
		w.order = append(w.order, key)
	}
	w.due[key] = row
}

// again makes the rows due that did not reach their runs, and trusts runs again of which that has not been so for a while.
func (w *windows) again(now time.Time) {
	for run, silent := range w.away {
		if now.After(silent.until.Add(awayMost)) {
			delete(w.away, run)
		}
	}
	for {
		select {
		case row := <-w.failed:
			key := windowKey{row.Run, row.Stage}
			if w.sent[key] != row {
				continue // replaced, or its run has ended
			}
			if silent := w.away[row.Run]; !now.Before(silent.until) { // one pause for all rows that were on their way
				silent.pause = min(max(2*silent.pause, awayLeast), awayMost)
				silent.until = now.Add(silent.pause)
				w.away[row.Run] = silent
			}
			delete(w.sent, key)
			if _, newer := w.due[key]; !newer {
				w.owe(key, row)
			}
		default:
			return
		}
	}
}

// forget drops what was told to a run that has ended.
func (w *windows) forget(run string) {
	delete(w.away, run)
	for _, rows := range []map[windowKey]windowRow{w.sent, w.due} {
		for key := range rows {
			if key.run == run {
				delete(rows, key)
			}
		}
	}
}

// run sends until ctx ends. A run that a window did not reach keeps its last one until it is sent again.
func (w *windows) run(ctx context.Context) {
	var senders sync.WaitGroup
	senders.Go(func() { w.sendAll(ctx, w.slow) })
	for range windowSenders {
		senders.Go(func() { w.sendAll(ctx, w.jobs) })
	}
	senders.Wait()
}

func (w *windows) sendAll(ctx context.Context, rows <-chan windowRow) {
	for {
		select {
		case <-ctx.Done():
			return
		case row := <-rows:
			w.sendOne(ctx, row)
		}
	}
}

func (w *windows) sendOne(ctx context.Context, row windowRow) {
	ctx, cancel := context.WithTimeout(ctx, windowWait)
	defer cancel()
	err := w.send(ctx, row.Window, row.id)
	var gone *serviceerror.NotFound
	if err == nil || errors.As(err, &gone) {
		return
	}
	select {
	case w.failed <- row:
	default: // more than are on their way cannot fail before obey looks again
	}
	w.logger.DebugContext(ctx, "window did not reach its run", "run", row.Run, "stage", row.Stage, "error", fmt.Errorf("update window: %w", err))
}
