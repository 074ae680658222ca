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
	// windowWait is how long one may take to reach its run. A run whose worker is away does not answer. One that is
	// slow takes it later, and then the next try, which is of the same delivery, is answered at once: a try that ends
	// early loses nothing.
	windowWait = 2 * time.Second
	// unresponsiveAfter is how many tries in a row fail before a run counts as unresponsive: one answer may be slow.
	unresponsiveAfter = 2
	// unresponsiveSenders send to runs that are unresponsive, and unresponsiveWait is how long each such try may take.
	unresponsiveSenders = 4
	unresponsiveWait    = time.Second
	// leastBackoff and mostBackoff bound the pause before a run that a window did not reach is tried again; it doubles.
	leastBackoff = time.Second
	mostBackoff  = 2 * time.Minute
)

// sendWindow tells a run of its window and returns once the run has accepted it. The same ID again is the same
// delivery.
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

// windowRow is a row and the ID of its delivery, which its tries share: a run takes it once, however often it is sent.
type windowRow struct {
	predictor.Window
	id string
}

// backoff is how often in a row a run did not answer, and how long it is left alone. The zero value is a run that
// answers.
type backoff struct {
	failures int
	pause    time.Duration
	until    time.Time
}

// delivery is what became of a row that was sent.
type delivery struct {
	windowRow

	reached bool // its run has it, or has ended
}

// windows sends the rows that changed to their runs. All but run is for one goroutine.
type windows struct {
	send         func(ctx context.Context, window predictor.Window, id string) error
	logger       *slog.Logger
	jobs         chan windowRow
	slow         chan windowRow // of unresponsive runs: they have senders of their own, so that they delay no other
	deliveries   chan delivery
	sent         map[windowKey]windowRow // or on their way
	inFlight     map[windowKey]bool      // one row of a run and stage at a time, so that no older one comes after it
	due          map[windowKey]windowRow // to be sent
	order        []windowKey             // in which they became so
	unresponsive map[string]backoff      // by run
	name         string                  // of this start, for IDs of deliveries
	named        int
}

func newWindows(
	send func(ctx context.Context, window predictor.Window, id string) error, logger *slog.Logger,
) *windows {
	return &windows{
		send: send, logger: logger,
		jobs: make(chan windowRow, windowQueue), slow: make(chan windowRow, unresponsiveSenders),
		deliveries: make(chan delivery, windowQueue), name: rand.Text(),
		sent: map[windowKey]windowRow{}, inFlight: map[windowKey]bool{}, due: map[windowKey]windowRow{},
		unresponsive: map[string]backoff{},
	}
}

// obey queues the rows that differ from what their run was told last, and those that did not reach it and that no newer
// one replaces; it never waits. A row that finds its queue full, or an older one of its run and stage on its way, is
// due the next time, and that of a run which did not answer after a pause. A run and stage without a row keeps what it
// has.
func (w *windows) obey(rows []predictor.Window) {
	now := time.Now()
	w.takeDeliveries(now)
	for _, row := range rows {
		key := windowKey{row.Run, row.Stage}
		switch due, known := w.due[key]; {
		case w.sent[key].Window == row:
			delete(w.due, key)
		case !known || due.Window != row:
			w.named++
			w.makeDue(key, windowRow{row, w.name + "/" + strconv.Itoa(w.named)})
		}
	}
	var rest []windowKey
	for _, key := range w.order {
		row, still := w.due[key]
		if !still {
			continue
		}
		if w.queue(key, row, now) {
			w.sent[key], w.inFlight[key] = row, true
			delete(w.due, key)
		} else {
			rest = append(rest, key)
		}
	}
	w.order = rest
}

// queue hands a row to the senders, and reports whether it could.
func (w *windows) queue(key windowKey, row windowRow, now time.Time) bool {
	state := w.unresponsive[row.Run]
	if w.inFlight[key] || now.Before(state.until) {
		return false
	}
	lane := w.jobs
	if state.failures >= unresponsiveAfter {
		lane = w.slow
	}
	select {
	case lane <- row:
		return true
	default:
		return false
	}
}

// makeDue makes a row due, in place of an older one of its run and stage.
func (w *windows) makeDue(key windowKey, row windowRow) {
	if _, known := w.due[key]; !known {
		w.order = append(w.order, key)
	}
	w.due[key] = row
}

// takeDeliveries takes in what became of rows: those that did not reach their runs are due again, and a run that one
// reached answers again.
func (w *windows) takeDeliveries(now time.Time) {
	for {
		select {
		case one := <-w.deliveries:
			key := windowKey{one.Run, one.Stage}
			delete(w.inFlight, key)
			if one.reached {
				delete(w.unresponsive, one.Run)
			} else if w.sent[key] == one.windowRow { // otherwise its run has ended
				w.missed(one.Run, now)
				delete(w.sent, key)
				if _, newer := w.due[key]; !newer {
					w.makeDue(key, one.windowRow)
				}
			}
		default:
			return
		}
	}
}

// missed notes that a run did not answer: once for all rows that were on their way to it.
func (w *windows) missed(run string, now time.Time) {
	state := w.unresponsive[run]
	if now.Before(state.until) {
		return
	}
	state.failures++
	state.pause = min(max(2*state.pause, leastBackoff), mostBackoff)
	state.until = now.Add(state.pause)
	w.unresponsive[run] = state
}

// forget drops what was told to a run that has ended.
func (w *windows) forget(run string) {
	delete(w.unresponsive, run)
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
	for range windowSenders {
		senders.Go(func() { w.sendAll(ctx, w.jobs, windowWait) })
	}
	for range unresponsiveSenders {
		senders.Go(func() { w.sendAll(ctx, w.slow, unresponsiveWait) })
	}
	senders.Wait()
}

func (w *windows) sendAll(ctx context.Context, rows <-chan windowRow, patience time.Duration) {
	for {
		select {
		case <-ctx.Done():
			return
		case row := <-rows:
			select {
			case w.deliveries <- delivery{row, w.sendOne(ctx, row, patience)}:
			case <-ctx.Done():
				return
			}
		}
	}
}

// sendOne reports whether the row reached its run, or its run has ended.
func (w *windows) sendOne(ctx context.Context, row windowRow, patience time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := w.send(ctx, row.Window, row.id)
	var gone *serviceerror.NotFound
	if err == nil || errors.As(err, &gone) {
		return true
	}
	w.logger.DebugContext(ctx, "window did not reach its run", "run", row.Run, "stage", row.Stage, "error",
		fmt.Errorf("update window: %w", err))
	return false
}
