package torch_test

import (
	"math"
	"strings"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// TestACompiledPartGivesTheSameLosses has a model with dropout, in two parts of which the second is computed again.
func TestACompiledPartGivesTheSameLosses(t *testing.T) {
	t.Setenv("TORCHINDUCTOR_CACHE_DIR", t.TempDir()) // what is compiled would stay
	e := executorOf(t, torchtest.Python2(t), "compiled.py:build", "")
	l := spillway.Layout{
		Batch: 8, MicroBatches: 2, Seed: 3, Optimizer: spillway.Optimizer{Kind: spillway.Adam},
		Parts: []spillway.Part{
			{Ops: strings.Fields("x first relu drop second"), InFlight: 2, Device: spillway.Device{Threads: 1}},
			{
				Ops: strings.Fields("norm gelu add last loss"), InFlight: 2, Device: spillway.Device{Threads: 1}, Recompute: true,
			},
		},
	}
	want := train(t, load(t, e, l), l, 5)
	l.Compile = true
	got := train(t, load(t, e, l), l, 5)
	for i := range want {
		if math.Abs(got[i]-want[i]) > 1e-5*math.Abs(want[i]) {
			t.Errorf("step %d: a loss of %v compiled, %v otherwise", i, got[i], want[i])
		}
	}
}

func TestATorchThatIsTooOldToCompileIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torch.RequirePython(t), "half.py:build", "")
	l := halves(1)
	l.Precision, l.Compile = spillway.Float32, true
	if _, err := e.Load(t.Context(), l); err == nil || !strings.Contains(err.Error(), "or leave --compile out") {
		t.Errorf("got %v", err)
	}
}
