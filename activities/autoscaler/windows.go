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
	sent   map[windowKey]predictor.Window
}

func newWindows(send func(ctx context.Context, window predictor.Window) error, logger *slog.Logger) *windows {
	return &windows{send: send, logger: logger, jobs: make(chan predictor.Window, windowQueue), sent: map[windowKey]predictor.Window{}}
}

// obey queues the rows that differ from what their run was told last; it never waits. A row that finds the queue full is left for the
// next plan. A run and stage without a row keeps what it has.
func (w *windows) obey(rows []predictor.Window) {
	for _, row := range rows {
		key := windowKey{row.Run, row.Stage}
		if w.sent[key] == row {
			continue
		}
		select {
		case w.jobs <- row:
			w.sent[key] = row
		default:
			return
		}
	}
}

// forget drops what was told to a run that has ended.
func (w *windows) forget(run string) {
	for key := range w.sent {
		if key.run == run {
			delete(w.sent, key)
		}
	}
}

// run sends until ctx ends. Failures do no harm: a run without the window keeps its last one.
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
	w.logger.DebugContext(ctx, "window did not reach its run", "run", row.Run, "stage", row.Stage, "error", fmt.Errorf("update window: %w", err))
}
