package runs

import (
	"cmp"
	"fmt"
	"maps"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/workflows/internal/account"
)

// carried is what a run that continues as new takes along besides its memo. The zero value is a run's beginning.
type carried struct {
	// StartedAt is the start of the whole run.
	StartedAt  time.Time       `json:"started_at,omitzero"`
	Next       map[string]int  `json:"next,omitempty"`
	Windows    map[string]int  `json:"windows,omitempty"`
	Priorities map[string]int  `json:"priorities,omitempty"`
	Tunings    map[string]int  `json:"tunings,omitempty"`
	Money      account.Carried `json:"money"`
}

// carry returns what the run takes along. Nothing may be in flight.
func (r *run) carry() carried {
	return carried{
		StartedAt: r.startedAt, Next: r.next, Windows: r.windows, Priorities: r.priorities,
		Tunings: r.tunings, Money: r.account.Carry(),
	}
}

// resume begins the run where the one before has continued as new.
func (r *run) resume(from carried, begun time.Time) {
	r.startedAt, r.continued = cmp.Or(from.StartedAt, begun), !from.StartedAt.IsZero()
	maps.Copy(r.next, from.Next)
	maps.Copy(r.windows, from.Windows)
	maps.Copy(r.priorities, from.Priorities)
	maps.Copy(r.tunings, from.Tunings)
	r.account = account.New(r.goal.Budget, from.Money)
}

// finished waits until nothing of the run is in flight.
func (r *run) finished(ctx workflow.Context) error {
	return workflow.Await(ctx, func() bool {
		return r.open == 0 && !r.account.Parted() && workflow.AllHandlersFinished(ctx)
	})
}

// continueAsNew ends this part of a run, of which err says how the next begins: once nothing is in flight any more, and
// unless it was cancelled.
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
