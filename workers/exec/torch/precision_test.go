package torch_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// scaledLoop trains half.py in PyTorch alone with its own scaler, and prints the losses and which steps were made.
const scaledLoop = `
import json, sys, torch
sys.path.insert(0, "testdata")
import half
torch.set_num_threads(1)
clip, steps = float(sys.argv[1]), int(sys.argv[2])
model, (inputs, targets) = half.build(), half.data()
model.load_state_dict(torch.load(sys.argv[3], weights_only=True))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu")
losses, made = [], []
for _ in range(steps):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
    scaler.scale(loss).backward()
    if clip:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    made.append(scaler.get_scale() >= scale)
    optimizer.zero_grad()
    losses.append(loss.item())
print(json.dumps({"losses": losses, "made": made}))
`

// halves are half.py's layouts in one part and in two.
func halves(parts int) spillway.Layout {
	l := spillway.Layout{
		Batch: 16, MicroBatches: 1, Seed: 3, Precision: spillway.Float16,
		Optimizer: spillway.Optimizer{Kind: spillway.SGD, LearningRate: 0.01},
		Parts:     []spillway.Part{{InFlight: 1, Device: spillway.Device{Threads: 1}}},
	}
	if parts == 2 {
		l.Parts = append(l.Parts, l.Parts[0])
		l.Parts[0].Ops, l.Parts[1].Ops = strings.Fields("input_1 _0 _1 _2"), strings.Fields("_3 _4 loss")
	}
	return l
}

// scaled trains some steps, and returns the losses and which steps were made.
func scaled(
	t *testing.T, p spillway.Pipeline, l spillway.Layout, clip float64, from, to int64,
) (losses []float64, made []bool) {
	t.Helper()
	s, err := schedule.OneForwardOneBackward(len(l.Parts), l.MicroBatches, schedule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	run, err := spillway.NewEngine(p, s, spillway.EngineOptions{Layout: l, ClipNorm: clip})
	if err != nil {
		t.Fatal(err)
	}
	for step := from; step < to; step++ {
		report, err := run.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		losses, made = append(losses, report.Loss), append(made, !report.Skipped)
	}
	return losses, made
}

func TestAStepThatOverflowsInFloat16IsMadeInNoPart(t *testing.T) {
	t.Parallel()
	const steps, half = 24, 12
	python := torchtest.Python2(t)
	e := executorOf(t, python, "half.py:build", "")
	for _, clip := range []float64{0, 0.5} {
		t.Run(fmt.Sprintf("clipped to %v", clip), func(t *testing.T) {
			t.Parallel()
			one := load(t, e, halves(1))
			initial := t.TempDir() + "/initial.pt"
			if err := one.Write(t.Context(), export(t, one), initial); err != nil {
				t.Fatal(err)
			}
			//nolint:gosec // a Python that was looked for
			cmd := exec.CommandContext(t.Context(), python, "-B", "-c", scaledLoop, fmt.Sprint(clip), strconv.Itoa(steps),
				initial)
			printed, err := cmd.Output()
			var want struct {
				Losses []float64
				Made   []bool
			}
			if err := json.Unmarshal(printed, &want); err != nil {
				t.Fatalf("%v: %s", err, printed)
			}
			if err != nil {
				t.Fatal(err)
			}
			unsplit, made := scaled(t, one, halves(1), clip, 0, steps)
			l := halves(2)
			first := load(t, e, l)
			split, madeInTwo := scaled(t, first, l, clip, 0, half)
			second := load(t, e, l) // the scale is in the checkpoint: from the first one, the step would overflow again
			for _, stage := range second.Stages() {
				if err := stage.Import(t.Context(), export(t, first)); err != nil {
					t.Fatal(err)
				}
			}
			rest, madeAfter := scaled(t, second, l, clip, half, steps)
			split, madeInTwo = append(split, rest...), append(madeInTwo, madeAfter...)
			skipped := 0
			for i := range want.Losses {
				if made[i] != want.Made[i] || madeInTwo[i] != want.Made[i] {
					t.Errorf("step %d was made: %v in one part, %v in two; PyTorch's own: %v", i, made[i], madeInTwo[i], want.Made[i])
				}
				if !want.Made[i] {
					skipped++
				}
				for _, got := range []float64{unsplit[i], split[i]} {
					if math.Abs(got-want.Losses[i]) > 1e-2*want.Losses[i] {
						t.Errorf("step %d: a loss of %v; PyTorch's own is %v", i, got, want.Losses[i])
					}
				}
			}
			if skipped == 0 || skipped > half/2 || want.Losses[steps-1] >= want.Losses[0] {
				t.Errorf("%d steps of %v overflow, and the losses are %v: this tells nothing", skipped, steps, want.Losses)
			}
		})
	}
}

func TestPrecisionsThatCPUsLackAreRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torch.RequirePython(t), "half.py:build", "")
	for precision, want := range map[spillway.Precision]string{
		spillway.TF32: "only units of GPUs multiply so", "float12": "want one of [float32 tf32 bfloat16 float16]",
		spillway.Float16: "does not compute in float16 on CPUs", // of 1.13
	} {
		l := halves(1)
		l.Precision = precision
		if _, err := e.Load(t.Context(), l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("load in %s: got %v, want %q", precision, err, want)
		}
		_, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 1, Precision: precision})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("probe in %s: got %v, want %q", precision, err, want)
		}
	}
}

func TestAProbeTellsHowMuchLongerACPUTakesInAPrecision(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "half.py:build", "")
	for precision, told := range map[spillway.Precision]bool{"": false, spillway.BFloat16: true, spillway.Float16: true} {
		probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 4, Precision: precision})
		if err != nil || probe.Slowdown > 0 != told {
			t.Errorf("%s: %v times as long as float32, %v", precision, probe.Slowdown, err)
		}
	}
}
