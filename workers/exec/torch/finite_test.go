package torch_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// lineOf is the first line of a file that has a text, as file:line.
func lineOf(t *testing.T, file, text string) string {
	t.Helper()
	content, err := os.ReadFile(file) //nolint:gosec // of testdata
	if err != nil {
		t.Fatal(err)
	}
	has := func(line string) bool { return strings.Contains(line, text) }
	at := slices.IndexFunc(strings.Split(string(content), "\n"), has)
	if at < 0 {
		t.Fatalf("%s has no line with %q", file, text)
	}
	return fmt.Sprintf("%s:%d", file, at+1)
}

// diverged trains a model in parts until its loss is not finite, which happens in the first epoch of four steps.
func diverged(t *testing.T, python, model string, parts int, clip float64, recompute bool) *spillway.LossError {
	t.Helper()
	e := executorOf(t, python, "not_finite.py:"+model, model)
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 4})
	if err != nil {
		t.Fatal(err)
	}
	l := spillway.Layout{
		Batch: 8, MicroBatches: 2, Seed: 4, Optimizer: spillway.Optimizer{Kind: spillway.SGD, LearningRate: 1e-3},
		Parts: make([]spillway.Part, parts),
	}
	for i := range l.Parts {
		l.Parts[i] = spillway.Part{Device: spillway.Device{Threads: 1}, InFlight: 2, Recompute: recompute}
	}
	for i, op := range probe.Graph.Ops {
		part := &l.Parts[i*parts/len(probe.Graph.Ops)]
		if parts > 1 {
			part.Ops = append(part.Ops, op.ID)
		}
	}
	s, err := schedule.OneForwardOneBackward(parts, 2, schedule.Options{Recompute: recompute})
	if err != nil {
		t.Fatal(err)
	}
	run, err := spillway.NewEngine(load(t, e, l), s, spillway.EngineOptions{Layout: l, ClipNorm: clip})
	if err != nil {
		t.Fatal(err)
	}
	for step := range int64(8) {
		_, err := run.Step(t.Context(), step)
		var loss *spillway.LossError
		if errors.As(err, &loss) && errors.Is(err, spillway.ErrLoss) && loss.Step == step {
			t.Log(err)
			return loss
		}
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
	}
	t.Fatal("the loss stays finite")
	return nil
}

func TestTheFirstTensorThatIsNotFiniteIsTold(t *testing.T) {
	t.Parallel()
	const file = "testdata/not_finite.py"
	for _, tt := range []struct {
		name        string
		python      func(testing.TB) string
		model       string
		parts       int
		clip        float64
		place, says string
	}{
		{"forward, of an earlier part", torchtest.Python2, "logarithm", 3, 0, "torch.log(", "log: log gives 1 -inf of 4"},
		{"forward, with 1.13", torch.RequirePython, "logarithm", 1, 0, "torch.log(", "log: log gives 1 -inf of 4"},
		{
			"backward, of a recomputed part", torchtest.Python2, "root", 2, math.MaxFloat64, ".sqrt()",
			"operation sqrt: the gradient of sqrt has 1 -inf of 4",
		},
		{"what the data gives", torch.RequirePython, "missing", 1, 0, "", "x of micro-batch"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			loss := diverged(t, tt.python(t), tt.model, tt.parts, tt.clip, tt.parts == 2)
			var found *torch.ModelError
			if !errors.As(loss.Found, &found) || loss.Updated {
				t.Fatalf("updated: %v, found: %v", loss.Updated, loss.Found)
			}
			if tt.place != "" && !strings.HasSuffix(found.Place, lineOf(t, file, tt.place)) {
				t.Errorf("the place is %s, want %s", found.Place, lineOf(t, file, tt.place))
			}
			if !strings.Contains(found.Message, tt.says) || !strings.Contains(found.Message, "micro-batch ") ||
				strings.Contains(loss.Error(), "step ") {
				t.Errorf("it says %q, in %v; want %q of a micro-batch, and the step told by who returns it", found.Message, loss,
					tt.says)
			}
		})
	}
}

// Where nothing is clipped, a gradient is not looked at before it is applied; the next step finds what it left.
func TestAParameterThatAnEarlierStepLeftWithoutANumberIsTold(t *testing.T) {
	t.Parallel()
	loss := diverged(t, torch.RequirePython(t), "root", 1, 0, false)
	if !errors.Is(loss.Found, spillway.ErrLossBefore) || !strings.Contains(loss.Error(), "first.weight") {
		t.Errorf("got %v", loss)
	}
}

// A gradient of float16 may overflow because the loss is scaled, but not for ever.
func TestGradientsThatOverflowAtEveryScaleEndTheTraining(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "not_finite.py:root", "root")
	l := spillway.Layout{
		Batch: 32, MicroBatches: 1, Seed: 4, Precision: spillway.Float16,
		Optimizer: spillway.Optimizer{Kind: spillway.SGD, LearningRate: 1e-3},
		Parts:     []spillway.Part{{InFlight: 1, Device: spillway.Device{Threads: 1}}},
	}
	run := engine(t, load(t, e, l), l)
	for step := range int64(40) {
		report, err := run.Step(t.Context(), step)
		if err == nil && report.Skipped {
			continue
		}
		if !errors.Is(err, spillway.ErrLoss) || step < 16 || !strings.Contains(err.Error(), "the gradient of sqrt has 1 ") {
			t.Fatalf("step %d: got %v, skipped: %v", step, err, report.Skipped)
		}
		return
	}
	t.Error("it goes on for ever")
}
