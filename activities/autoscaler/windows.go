package autoscaler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
)

// sendWindow tells a run of its window and returns once the run has accepted it.
func (l *Leader) sendWindow(ctx context.Context, window predictor.Window) error {
	_, err := l.options.Client.UpdateWorkflow(ctx, client.UpdateWorkflowOptions{
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

// windows sends the rows that changed to their runs. All but run is for one goroutine.
type windows struct {
	send   func(ctx context.Context, window predictor.Window) error
	logger *slog.Logger
	jobs   chan predictor.Window
	failed chan predictor.Window          // did not reach their runs
	sent   map[windowKey]predictor.Window // or on their way
	due    map[windowKey]predictor.Window // to be sent
	order  []windowKey                    // in which they became so
}

func newWindows(send func(ctx context.Context, window predictor.Window) error, logger *slog.Logger) *windows {
	return &windows{
		send: send, logger: logger, jobs: make(chan predictor.Window, windowQueue), failed: make(chan predictor.Window, windowQueue+windowSenders),
		sent: map[windowKey]predictor.Window{}, due: map[windowKey]predictor.Window{},
	}
}

// obey queues the rows that differ from what their run was told last, and those that did not reach it and that no newer one replaces; it never
// waits. A row that finds the queue full is due the next time. A run and stage without a row keeps what it has.
func (w *windows) obey(rows []predictor.Window) {
	w.again()
	for _, row := range rows {
		key := windowKey{row.Run, row.Stage}
		if w.sent[key] == row {
			delete(w.due, key)
		} else {
			w.owe(key, row)
		}
	}
	for len(w.order) > 0 {
		key := w.order[0]
		if row, still := w.due[key]; still {
			select {
			case w.jobs <- row:
				w.sent[key] = row
				delete(w.due, key)
			default:
				return
			}
		}
		w.order = w.order[1:]
	}
}

// owe makes a row due, in place of an older one of its run and stage.
func (w *windows) owe(key windowKey, row predictor.Window) {
	if _, known := w.due[key]; !known {
		w.order = append(w.order, key)
	}
	w.due[key] = row
}

// again makes the rows due that did not reach their runs.
func (w *windows) again() {
	for {
		select {
		case row := <-w.failed:
			key := windowKey{row.Run, row.Stage}
			if w.sent[key] != row {
				continue // replaced, or its run has ended
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
	for _, rows := range []map[windowKey]predictor.Window{w.sent, w.due} {
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
		senders.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case row := <-w.jobs:
					w.sendOne(ctx, row)
				}
			}
		})
	}
	senders.Wait()
}

func (w *windows) sendOne(ctx context.Context, row predictor.Window) {
	ctx, cancel := context.WithTimeout(ctx, windowWait)
	defer cancel()
	err := w.send(ctx, row)
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
