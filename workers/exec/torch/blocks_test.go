package torch_test

import (
	"slices"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// TestABlockThatIsComputedAgainHasItsMasks trains blocks with dropout that torch.utils.checkpoint computes again in the
// backward pass, beside the same ones that are kept.
func TestABlockThatIsComputedAgainHasItsMasks(t *testing.T) {
	t.Parallel()
	for _, version := range []struct {
		name   string
		python func(testing.TB) string
	}{{"1.13", torch.RequirePython}, {"2", torchtest.Python2}} {
		t.Run("torch "+version.name, func(t *testing.T) {
			t.Parallel()
			var losses [][]float64
			for _, model := range []string{"kept", "recomputed"} {
				e := executorOf(t, version.python(t), "blocks.py:"+model, "points")
				l := spillway.Layout{
					Batch: 8, MicroBatches: 2, Seed: 2, Optimizer: spillway.Optimizer{Kind: spillway.SGD, LearningRate: 0.1},
					Parts: []spillway.Part{
						{Ops: []string{"first"}, InFlight: 2, Device: spillway.Device{Threads: 1}},
						{Ops: []string{"second", "loss"}, InFlight: 2, Device: spillway.Device{Threads: 1}},
					},
				}
				losses = append(losses, train(t, load(t, e, l), l, 6))
			}
			if !slices.Equal(losses[0], losses[1]) {
				t.Errorf("computed again, losses are %v; kept, %v", losses[1], losses[0])
			}
		})
	}
}
