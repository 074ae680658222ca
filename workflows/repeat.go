package workflows

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// ErrStop ends a Repeat: the step that returns it, or an error that wraps it, was the last.
var ErrStop = errors.New("stop")

// Repeat calls step again and again, each time with the state that the step before returned, and so may go on for ever: between two steps it
// continues the run as new whenever Temporal suggests it, long before the run's history is full. To everyone outside it stays one run: its
// name, goal, money, task numbers and trace go on.
//
// Signals that have come and that no step has read yet do not go on: Repeat calls step until they are read. A run whose history is nearly full
// (nine tenths of what Temporal keeps) because signals come faster than they are read, or by a name that nobody reads, continues without them,
// and says so in the engine's log. A pipeline that returns workflow.NewContinueAsNewError itself has to read its signals before it does.
//
// It must be the last thing that a pipeline does, and the pipeline's input must be the state: a run that continues begins the pipeline anew,
// with the newest state as its input.
//
//	func Watch(ctx workflow.Context, in State) (State, error) { return spillway.Repeat(ctx, in, step) }
//
// Repeat ends with the state of the step that returned ErrStop, or with the error of the step that failed; a cancelled run ends at the next
// thing that its step waits for. A step must wait for something: a stage, a signal, a timer.
func Repeat[State any](ctx workflow.Context, state State, step func(workflow.Context, State) (State, error)) (State, error) {
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
		if err := runOf(ctx).finished(ctx); err != nil {
			return state, err
		}
		if signalled(ctx, info) {
			continue // what came while the run waited is not lost either
		}
		if lost := workflow.GetUnhandledSignalNames(ctx); len(lost) > 0 {
			slices.Sort(lost)
			workflow.GetLogger(ctx).Warn("the history is nearly full: the run continues as new without the signals that it has not read", "signals", lost)
		}
		return state, workflow.NewContinueAsNewError(ctx, info.WorkflowType.Name, state)
	}
}

// Repeat leaves signals behind where a history passes these, nine tenths of what Temporal keeps: beyond, the whole run would end.
const mostEvents, mostHistory = 46_080, 45 << 20

// signalled reports whether a run has to read signals first, which it would lose when it continues as new.
func signalled(ctx workflow.Context, info *workflow.Info) bool {
	full := info.GetCurrentHistoryLength() >= mostEvents || info.GetCurrentHistorySize() >= mostHistory
	return !full && len(workflow.GetUnhandledSignalNames(ctx)) > 0
}

// CarriedMemo is the key of the memo with what a run that continues as new takes along.
const CarriedMemo = "spillway.carried"

// carried is what a run that continues as new takes along besides its memo. The zero value is a run's beginning.
type carried struct {
	// StartedAt is the start of the whole run.
	StartedAt  time.Time       `json:"started_at,omitzero"`
	Next       map[string]int  `json:"next,omitempty"`
	Windows    map[string]int  `json:"windows,omitempty"`
	Priorities map[string]int  `json:"priorities,omitempty"`
	Money      account.Carried `json:"money"`
}

// carry returns what the run takes along. Nothing may be in flight.
func (r *run) carry() carried {
	return carried{StartedAt: r.startedAt, Next: r.next, Windows: r.windows, Priorities: r.priorities, Money: r.account.Carry()}
}

// resume begins the run where the one before has continued as new.
func (r *run) resume(from carried, begun time.Time) {
	r.startedAt, r.continued = cmp.Or(from.StartedAt, begun), !from.StartedAt.IsZero()
	maps.Copy(r.next, from.Next)
	maps.Copy(r.windows, from.Windows)
	maps.Copy(r.priorities, from.Priorities)
	r.account = account.New(r.goal.Budget, from.Money)
}

// finished waits until nothing of the run is in flight.
func (r *run) finished(ctx workflow.Context) error {
	return workflow.Await(ctx, func() bool { return r.open == 0 && !r.account.Parted() && workflow.AllHandlersFinished(ctx) })
}

// continueAsNew ends this part of a run, of which err says how the next begins: once nothing is in flight any more, and unless it was cancelled.
func (r *run) continueAsNew(ctx workflow.Context, err error) error {
	settled, _ := workflow.NewDisconnectedContext(ctx)
	if err := r.finished(settled); err != nil {
		return err
	}
	if ctx.Err() != nil { // the next part would not know
		return ctx.Err()
	}
	if memoErr := workflow.UpsertMemo(ctx, map[string]any{GoalMemo: r.goal, CarriedMemo: r.carry()}); memoErr != nil {
		return fmt.Errorf("continue run %s as new: %w", r.id, memoErr)
	}
	return err
}
