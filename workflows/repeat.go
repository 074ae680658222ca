package workflows

import (
	"errors"
	"slices"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/workflows/runs"
)

// Repeat calls step again and again, each time with the state that the step before returned, and so may go on for ever:
// between two steps it continues the run as new whenever Temporal suggests it, long before the run's history is full.
// To everyone outside it stays one run: its name, goal, money, task numbers and trace go on.
//
// Signals that have come and that no step has read yet do not go on: Repeat calls step until they are read. A run whose
// history is nearly full (nine tenths of what Temporal keeps) because signals come faster than they are read, or by a
// name that nobody reads, continues without them, and says so in the engine's log. A pipeline that returns
// workflow.NewContinueAsNewError itself has to read its signals before it does.
//
// It must be the last thing that a pipeline does, and the pipeline's input must be the state: a run that continues
// begins the pipeline anew, with the newest state as its input.
//
//	func Watch(ctx workflow.Context, in State) (State, error) { return spillway.Repeat(ctx, in, step) }
//
// Repeat ends with the state of the step that returned ErrStop, or with the error of the step that failed; a cancelled
// run ends at the next thing that its step waits for. A step must wait for something: a stage, a signal, a timer.
func Repeat[State any](
	ctx workflow.Context, state State, step func(workflow.Context, State) (State, error),
) (State, error) {
	for {
		next, err := step(ctx, state)
		switch {
		case errors.Is(err, ErrStop):
			return next, nil
		case err != nil:
			return next, err
		}
		state = next
		info := workflow.GetInfo(ctx)
		if !info.GetContinueAsNewSuggested() || signalled(ctx, info) {
			continue
		}
		if err := runs.Settled(ctx); err != nil {
			return state, err
		}
		if signalled(ctx, info) {
			continue // what came while the run waited is not lost either
		}
		if lost := workflow.GetUnhandledSignalNames(ctx); len(lost) > 0 {
			slices.Sort(lost)
			workflow.GetLogger(ctx).Warn("the history is nearly full: the run continues as new without the signals that it "+
				"has not read", "signals", lost)
		}
		return state, workflow.NewContinueAsNewError(ctx, info.WorkflowType.Name, state)
	}
}

// Repeat leaves signals behind where a history passes these, nine tenths of what Temporal keeps: beyond, the whole run
// would end.
const mostEvents, mostHistory = 46_080, 45 << 20

// signalled reports whether a run has to read signals first, which it would lose when it continues as new.
func signalled(ctx workflow.Context, info *workflow.Info) bool {
	full := info.GetCurrentHistoryLength() >= mostEvents || info.GetCurrentHistorySize() >= mostHistory
	return !full && len(workflow.GetUnhandledSignalNames(ctx)) > 0
}
