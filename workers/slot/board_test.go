package slot

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
)

func TestStepsLowerBeforeTheyRaise(t *testing.T) {
	t.Parallel()
	a, b, c := named("a"), named("b"), named("c")
	for _, tt := range []struct {
		name    string
		targets map[predictor.StageID]Target
		workers map[predictor.StageID]int
		want    []step
	}{
		{"nothing asks for nothing", nil, nil, nil},
		{"a declared stage without slots costs nothing", map[predictor.StageID]Target{a: {}}, nil, nil},
		{
			"a new stage is created",
			map[predictor.StageID]Target{a: {Slots: 2}},
			nil,
			[]step{{stage: a, target: Target{Slots: 2}, create: true}},
		},
		{
			"what is gone is lowered first",
			map[predictor.StageID]Target{a: {Slots: 1}, b: {Slots: 3, PoolOnly: true}},
			map[predictor.StageID]int{b: 1, c: 1},
			[]step{
				{stage: c},
				{stage: a, target: Target{Slots: 1}, create: true},
				{stage: b, target: Target{Slots: 3, PoolOnly: true}},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, diff(tt.targets, tt.workers), cmp.AllowUnexported(step{})); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestABoardFollowsThePlanAndKeepsItWhenThePlanCannotBeWatched(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := named("a")
		made := make(map[predictor.StageID]*countedWorker)
		board := newBoard(func(stage predictor.StageID) stageWorker {
			made[stage] = &countedWorker{}
			return made[stage]
		}, slog.New(slog.DiscardHandler))
		plans := &plans{next: make(chan predictor.Plan), broken: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- board.Run(ctx, plans, slotsOfGrants, time.Minute) }()

		plans.next <- predictor.Plan{Grants: []predictor.Grant{{Stage: a, Slots: 2}}}
		synctest.Wait()
		if got := made[a].slots.Load(); got != 2 {
			t.Errorf("slots after the first plan: got %d, want 2", got)
		}
		plans.broken <- struct{}{}
		time.Sleep(5 * time.Second)
		if got := made[a].slots.Load(); got != 2 {
			t.Errorf("slots while the plan cannot be watched: got %d, want 2", got)
		}
		plans.next <- predictor.Plan{}
		synctest.Wait()
		if got := board.Stages(); len(got) != 0 {
			t.Errorf("stages after an empty plan: got %v, want none", got)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// TestWhatEndsStillRuns: who asks when the board has been told to end hears of the attempts that it waits for.
func TestWhatEndsStillRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		board := newBoard(func(predictor.StageID) stageWorker { return &endingWorker{} }, slog.New(slog.DiscardHandler))
		plans := &plans{next: make(chan predictor.Plan), broken: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- board.Run(ctx, plans, slotsOfGrants, time.Minute) }()
		plans.next <- predictor.Plan{Grants: []predictor.Grant{{Stage: named("a"), Slots: 2}}}
		synctest.Wait()
		cancel()
		synctest.Wait()
		if got := board.Running(); got != 1 {
			t.Errorf("%d attempts run while the board waits for one", got)
		}
		if err := <-ended; err != nil || board.Running() != 0 {
			t.Errorf("afterwards %d run: %v", board.Running(), err)
		}
	})
}

// endingWorker runs an attempt that takes a while to end.
type endingWorker struct{ countedWorker }

func (w *endingWorker) Running() int { return 1 }

func (w *endingWorker) Close(context.Context) error {
	time.Sleep(time.Second)
	return nil
}

func named(name string) predictor.StageID { return predictor.StageID{App: "x", Build: "y", Name: name} }

func slotsOfGrants(plan predictor.Plan) map[predictor.StageID]Target {
	targets := make(map[predictor.StageID]Target)
	for _, g := range plan.Grants {
		targets[g.Stage] = Target{Slots: g.Slots, PoolOnly: g.PoolOnly}
	}
	return targets
}

type plans struct {
	next   chan predictor.Plan
	broken chan struct{}
}

func (p *plans) Watch(ctx context.Context, obey func(predictor.Plan)) error {
	for {
		select {
		case plan := <-p.next:
			obey(plan)
		case <-p.broken:
			return errors.New("connection lost")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type countedWorker struct{ slots atomic.Int64 }

func (w *countedWorker) Set(n int, _ bool) error     { w.slots.Store(int64(n)); return nil }
func (w *countedWorker) Running() int                { return 0 }
func (w *countedWorker) Idle() bool                  { return w.slots.Load() == 0 }
func (w *countedWorker) Close(context.Context) error { return nil }
