package engine_test

import (
	"net/http"
	"testing"
)

// TestAttackWithNamesThatNoHeaderHolds publishes an event whose ID calls to Temporal cannot carry, and asks for runs of
// such names: the event starts its run, those behind it as well, and nothing fails for ever.
func TestAttackWithNamesThatNoHeaderHolds(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	for _, id := range []string{"größe", "数字", "plain"} {
		if got := succeed[map[string]int](e, e.publish("echo", id, map[string]int{"index": 3}), patience); got["index"] != 3 {
			t.Errorf("event %s: got %v, want what was sent", id, got)
		}
	}
	for _, view := range []string{"", "/history", "/result", "/timeline"} {
		answer := e.get(t.Context(), "/api/v1/runs/gr%C3%B6%C3%9Fe"+view)
		if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusNotFound {
			t.Errorf("%s of a run that there cannot be: got %s, %v, want 404", view, answer.Status, err)
		}
	}
}
