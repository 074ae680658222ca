package loop_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/predictor"
)

func TestAHostObeysWhatIsItsOwn(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).Connect()
	if err := loop.EnsureStreams(t.Context(), js); err != nil {
		t.Fatal(err)
	}
	leader := plans(t, js)
	post(t, leader, plan(1, 1, 9))
	obeyed := make(chan predictor.Plan, 64)
	own := plans(t, js)
	background(t, func(ctx context.Context) error {
		return own.Of("gpu-1.example.com").Watch(ctx, func(plan predictor.Plan) { obeyed <- plan })
	})
	write := func(plans ...loop.HostPlan) ([]loop.HostPlan, error) {
		return plans, leader.ReplaceHostPlans(t.Context(), plans)
	}
	written, err := write(loop.HostPlan{Host: "gpu-1.example.com", Plan: plan(1, 1, 1)},
		loop.HostPlan{Host: "gpu-2", Plan: plan(1, 1, 2)})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{"gpu-1.example.com": written[0].Revision, "gpu-2": written[1].Revision}
	if found, err := leader.HostPlans(t.Context()); err != nil || !cmp.Equal(found, want) {
		t.Errorf("revisions: got %v, %v, want %v", found, err, want)
	}
	if got := (<-obeyed).Grants[0].Slots; got != 1 {
		t.Errorf("the host obeys a plan of %d slots, want its own of 1", got)
	}

	next := written[0]
	next.Plan = plan(2, 1, 3)
	if _, err := write(next); err != nil {
		t.Fatal(err)
	}
	late := written[0] // of a leader that does not know that it was deposed
	late.Plan = plan(1, 2, 8)
	if _, err := write(late, loop.HostPlan{Host: "gpu-3", Plan: plan(1, 2, 8)}); !errors.Is(err, loop.ErrReplaced) {
		t.Errorf("a plan that replaces one that is no more: %v, want %v", err, loop.ErrReplaced)
	}
	if got := <-obeyed; got.Term != 2 {
		t.Errorf("the host obeys a plan of term %d, want 2", got.Term)
	}
	gone := written[1]
	gone.Gone = true
	if _, err := write(gone); err != nil {
		t.Fatal(err)
	}
	found, err := leader.HostPlans(t.Context())
	if _, there := found["gpu-2"]; err != nil || there || len(found) != 2 {
		t.Errorf("after that of one was removed: %v, %v, want the two others", found, err)
	}
	back, err := write(loop.HostPlan{Host: "gpu-2", Plan: plan(2, 2, 4)})
	if err != nil {
		t.Fatalf("the plan of a host that has come back: %v", err)
	}
	found, err = leader.HostPlans(t.Context())
	if err != nil || back[0].Revision == 0 || found["gpu-2"] != back[0].Revision {
		t.Errorf("once a host has come back: %v, %v, want its plan at revision %d", found, err, back[0].Revision)
	}
	if _, err := write(loop.HostPlan{Host: "gpu-2", Plan: plan(1, 9, 8)}); !errors.Is(err, loop.ErrReplaced) {
		t.Errorf("a plan in place of none, where there is one: %v, want %v", err, loop.ErrReplaced)
	}
	select {
	case plan := <-obeyed:
		t.Errorf("the host obeys a plan of a leader that was deposed: %+v", plan)
	case <-time.After(50 * time.Millisecond):
	}
}
