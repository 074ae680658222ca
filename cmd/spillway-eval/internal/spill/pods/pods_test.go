package pods

import (
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/provision"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/spill"
)

// TestPodsFollowHowManyTasksAreAtWork has seven tasks at work for a while, then seventy, then none, on pods of one.
func TestPodsFollowHowManyTasksAreAtWork(t *testing.T) {
	t.Parallel()
	setting := spill.Inception()
	for name, policy := range map[string]spill.Policy{"kpa": NewKPA(setting, 0, 64), "hpa": NewHPA(setting, 0, 64)} {
		var pool []provision.Held
		minutes := func(n int, busy float64) int {
			for range n {
				for i := range pool {
					pool[i].Age++
				}
				ended := spill.Minute{Tasks: 1, Busy: slices.Repeat([]float64{busy}, 60)}
				decision, err := policy.Next(ended, pool)
				if err != nil {
					t.Fatal(err)
				}
				pool = decision.Apply(pool)
			}
			return len(pool)
		}
		if got := minutes(20, 7); got != 10 {
			t.Errorf("%s: %d pods for 7 tasks at 70%%, want 10", name, got)
		}
		if got := minutes(20, 70); got != 64 {
			t.Errorf("%s: %d pods for 70 tasks, want the 64 that there may be", name, got)
		}
		if got := minutes(40, 0); got != 1 {
			t.Errorf("%s: %d pods for nothing, want the one that is always there", name, got)
		}
	}
}
