package stack

import (
	"context"
	"testing"
)

// TestAnAgentIsCutOffOnlyWhereNoServerAnswers has an agent told to end in a moment's reconnect, among others.
func TestAnAgentIsCutOffOnlyWhereNoServerAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		running             int
		lost, answers, want bool
	}{
		"it runs something, and nothing was missed": {1, false, false, false},
		"it runs something, in a reconnect":         {1, true, true, false},
		"it runs something, and is cut off":         {1, true, false, true},
		"it runs nothing, in a reconnect":           {0, true, true, false},
		"it runs nothing, and was just cut off":     {0, false, false, true},
		"it runs nothing":                           {0, false, true, false},
	} {
		way := &contact{lost: c.lost}
		if got := way.isCut(c.running, func() bool { return c.answers }); got != c.want {
			t.Errorf("%s: cut off is %v, want %v", name, got, c.want)
		}
		if err := way.close(t.Context(), cutLimit, func(context.Context) error { return nil }); err != nil {
			t.Errorf("%s: end: %v", name, err)
		}
	}
}
