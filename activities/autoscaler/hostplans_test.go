package autoscaler

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/predictor"
)

// countedHostPlans counts what is written for hosts, and loses what is on its way when it is told to.
type countedHostPlans struct {
	HostPlanStore
	lose    bool
	written []string
}

func (c *countedHostPlans) ReplaceHostPlans(ctx context.Context, plans []loop.HostPlan) error {
	if c.lose {
		return errors.New("no answer")
	}
	for _, one := range plans {
		c.written = append(c.written, one.Host)
	}
	return c.HostPlanStore.ReplaceHostPlans(ctx, plans)
}

// placedAt is a plan with these slots of a stage on each host.
func placedAt(term, tick uint64, slots map[string]int) predictor.Plan {
	plan := predictor.Plan{Term: term, Tick: tick}
	for _, host := range []string{"a", "b"} {
		if slots[host] > 0 {
			plan.Placements = append(plan.Placements, predictor.Placement{Stage: train, Host: host, Slots: slots[host]})
		}
	}
	return plan
}

// TestHostsAreToldWhatHasChangedForThem follows two leaders that write one after another.
func TestHostsAreToldWhatHasChangedForThem(t *testing.T) {
	t.Parallel()
	plans := newPlans(t, stream(t))
	store := &countedHostPlans{HostPlanStore: plans}
	hosts := []predictor.Host{{ID: "a"}, {ID: "b"}, {ID: "no key"}}
	told := func(h *hostPlans, plan predictor.Plan, hosts []predictor.Host, want ...string) {
		t.Helper()
		store.written = nil
		if err := h.write(t.Context(), plan, hosts); err != nil {
			t.Fatal(err)
		}
		slices.Sort(store.written)
		if !slices.Equal(store.written, want) {
			t.Errorf("tick %d of term %d: written for %v, want %v", plan.Tick, plan.Term, store.written, want)
		}
	}
	first := &hostPlans{store: store}
	told(first, placedAt(1, 1, map[string]int{"a": 1, "b": 1}), hosts, "a", "b")
	told(first, placedAt(1, 2, map[string]int{"a": 1, "b": 1}), hosts)
	told(first, placedAt(1, 3, map[string]int{"a": 1, "b": 2}), hosts, "b")

	store.lose = true
	if err := first.write(t.Context(), placedAt(1, 4, map[string]int{"a": 2}), hosts); err == nil || !first.behind() {
		t.Errorf("what was lost on its way: %v, want that it is known to be behind", err)
	}
	store.lose = false
	told(first, placedAt(1, 4, map[string]int{"a": 2}), hosts, "a", "b")

	second := &hostPlans{store: store} // it does not know what the first has written, and writes all of it
	told(second, placedAt(2, 1, map[string]int{"a": 2}), hosts, "a", "b")
	err := first.write(t.Context(), placedAt(1, 5, map[string]int{"a": 7}), hosts)
	if !errors.Is(err, loop.ErrReplaced) {
		t.Errorf("the leader that was deposed: %v, want %v", err, loop.ErrReplaced)
	}
	told(second, placedAt(2, 2, map[string]int{"a": 2}), hosts[:1], "b")
	if found, err := plans.HostPlans(t.Context()); err != nil || len(found) != 1 || found["a"] == 0 {
		t.Errorf("once a host has gone: %v, %v, want that of the other alone", found, err)
	}
	told(second, placedAt(2, 3, map[string]int{"a": 2, "b": 1}), hosts, "b")
	if found, err := plans.HostPlans(t.Context()); err != nil || len(found) != 2 || second.behind() {
		t.Errorf("once it has come back: %v, %v, want those of both", found, err)
	}
}

// TestALeaderHasHostsObey follows a leader on NATS: the host that it knows is told what it obeys of the plan, also
// where a leader before was killed between the plan and that.
func TestALeaderHasHostsObey(t *testing.T) {
	t.Parallel()
	js := stream(t)
	o := options(t, js)
	plans := newPlans(t, js)
	o.HostPlans = plans
	lead(t, leader(t, o))
	told := make(chan predictor.Plan, 64)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = plans.Of("laptop").Watch(ctx, func(plan predictor.Plan) {
			select {
			case told <- plan:
			default:
			}
		})
	}()
	defer func() { stop(); <-done }()
	publish(t, js, scheduled(train, 3))
	eventually(t, "the host is told of its slots", func() bool {
		select {
		case plan := <-told:
			return len(plan.Placements) == 1 && len(plan.Grants) == 1 && len(plan.Sizings) == 1 && plan.Windows == nil
		default:
			return false
		}
	})
}
