package display_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestSizesAreTablesThatFitATerminal(t *testing.T) {
	t.Parallel()
	var attempts []hindsight.Attempt
	for i := range 40 {
		one := hindsight.Attempt{
			Stage: "train", Venue: predictor.Pool, Outcome: predictor.Succeeded, Names: []string{"input_bytes", "epochs"},
			Values: []float32{float32(20-i%20) * 1e6, float32(i % 4)},
			Peak:   quantity.Bytes(20-i%20) * 50 * quantity.MiB, Granted: quantity.GiB,
			Wall: float64(i%4)*30 + 0.05, PredictedWall: predictor.Interval{Low: 20, Mid: 31, High: 47},
		}
		memory := float64(one.Peak)
		one.PredictedMemory = predictor.Interval{Low: memory * 0.9, Mid: memory, High: memory * 1.2}
		if i == 20 {
			one.Outcome, one.Cause = predictor.OutOfMemory, predictor.CauseMemoryLimit
		}
		attempts = append(attempts, one)
	}
	attempts = append(attempts,
		hindsight.Attempt{Stage: "load", Venue: predictor.Pool, Outcome: predictor.Succeeded, Peak: 7, Wall: 0.4},
		hindsight.Attempt{Stage: "fail", Venue: predictor.Pool, Outcome: predictor.Failed})
	lines := display.Sizes("digits-1", hindsight.Of(attempts, 2000), display.Style{Width: 80})
	for _, line := range lines {
		if len([]rune(line)) > 80 {
			t.Errorf("%d columns: %s", len([]rune(line)), line)
		}
	}
	golden(t, "sizes.golden", []byte(strings.Join(lines, "\n")+"\n"))
	if got := display.Sizes("r", nil, display.Style{}); len(got) != 1 || got[0] != "r: no attempt has ended yet" {
		t.Errorf("of a run without attempts: %q", got)
	}
}
