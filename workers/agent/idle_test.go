package agent

import (
	"testing"

	"github.com/spillway-ml/spillway/predictor"
)

// TestAnIdleChildStaysAsLongAsThePlanHasASlotForIt has the plan take the slot back, and give it to another stage of the
// same build first.
func TestAnIdleChildStaysAsLongAsThePlanHasASlotForIt(t *testing.T) {
	t.Parallel()
	h := start(t, 1, nil)
	first, _ := h.done(t, order{Do: "report"})
	awaitTrue(t, func() bool { return h.agent.Idle() == 1 })
	other := stage
	other.Name = "train"
	h.obeyed(predictor.Plan{Placements: []predictor.Placement{{Stage: other, Host: "h1", Slots: 1}}})
	h.agent.children.reap(t.Context())
	if h.agent.Idle() != 1 {
		t.Fatal("a child of a build that has a slot was stopped")
	}
	h.obeyed(predictor.Plan{Placements: []predictor.Placement{{Stage: stage, Host: "elsewhere", Slots: 4}}})
	awaitTrue(t, func() bool { return h.agent.Idle() == 0 })
	h.obeyed(placement(1, predictor.Sizing{}))
	if second, _ := h.done(t, order{Do: "report"}); second.PID == first.PID {
		t.Error("a child that was stopped served an attempt")
	}
}

func TestNoMoreChildrenAreIdleThanThePlanHasSlotsFor(t *testing.T) {
	t.Parallel()
	one, two := build{app: "a", digest: "1"}, build{app: "a", digest: "2"}
	child := func(b build) *child { return &child{build: b} }
	s := &children{busy: map[build]int{one: 2}, slots: map[build]int{one: 4, two: 1}}
	for _, b := range []build{one, two, one, two, one, {app: "gone"}} {
		s.idle = append(s.idle, child(b))
	}
	longest, newest := s.idle[0], s.idle[4]
	gone := s.surplus()
	left := map[build]int{}
	for _, c := range s.idle {
		left[c.build]++
	}
	if left[one] != 2 || left[two] != 1 || len(left) != 2 || len(gone) != 3 {
		t.Errorf("%v are idle and %d are to go, want two and one, and three", left, len(gone))
	}
	if gone[0] != longest || s.idle[len(s.idle)-1] != newest {
		t.Error("those go that were idle for the shortest time")
	}
	s.obey(nil)
	if gone = s.surplus(); len(gone) != 3 || len(s.idle) != 0 {
		t.Errorf("without a plan %d are idle, want none", len(s.idle))
	}
}
