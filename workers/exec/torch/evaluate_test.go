package torch_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// evaluate looks at the validation data.
func evaluate(t *testing.T, p spillway.Pipeline) spillway.Evaluation {
	t.Helper()
	evaluator, can := p.(spillway.Evaluator)
	if !can || !p.Data().Validates {
		t.Fatalf("the pipeline does not evaluate: %v, %+v", can, p.Data())
	}
	found, err := evaluator.Evaluate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// plainly evaluates a trained model as PyTorch's users do.
func plainly(t *testing.T, python, function string, p spillway.Pipeline) spillway.Evaluation {
	t.Helper()
	const text = `
import importlib.util, json, sys
import torch
spec = importlib.util.spec_from_file_location("validated", "testdata/validated.py")
validated = importlib.util.module_from_spec(spec)
spec.loader.exec_module(validated)
model = getattr(validated, sys.argv[1])()
model.load_state_dict(torch.load(sys.argv[2]))
model.eval()
with torch.no_grad():
    x, y = validated.validation()
    output = model(x)
    loss = torch.nn.functional.cross_entropy(output, y)
    accuracy = (output.argmax(-1) == y).double().mean()
    zeros = (y == 0).double().mean()
metrics = {"accuracy": accuracy.item(), "zeros": zeros.item()}
print(json.dumps({"Samples": len(x), "Loss": loss.item(), "Metrics": metrics}))
`
	path := filepath.Join(t.TempDir(), "model.pt")
	if err := p.Write(t.Context(), export(t, p), path); err != nil {
		t.Fatal(err)
	}
	printed, err := exec.CommandContext(t.Context(), python, "-B", "-c", text, function, path).Output()
	if err != nil {
		t.Fatal(err)
	}
	var found spillway.Evaluation
	if err := json.Unmarshal(printed, &found); err != nil {
		t.Fatal(err)
	}
	return found
}

// near compares evaluations to the last digits of float32.
func near(a, b spillway.Evaluation) bool {
	same := func(x, y float64) bool { return math.Abs(x-y) <= 2e-6*math.Max(1, math.Abs(x)) }
	return a.Samples == b.Samples && same(a.Loss, b.Loss) && maps.EqualFunc(a.Metrics, b.Metrics, same)
}

func pythons(t *testing.T) map[string]func(testing.TB) string {
	t.Helper()
	return map[string]func(testing.TB) string{"torch": torch.RequirePython, "torch2": torchtest.Python2}
}

// TestAnEvaluationIsThatOfPlainPyTorchAndLeavesNoTrace trains with and without evaluations in between, whole and split.
func TestAnEvaluationIsThatOfPlainPyTorchAndLeavesNoTrace(t *testing.T) {
	t.Parallel()
	const steps = 3
	cases := []struct {
		function string
		layout   spillway.Layout
	}{
		{"build", layout()},
		{"build", layout("x one norm dropout dropout_1 add two", "relu frozen drop last loss")},
		{"tied", layout("x linear norm", "drop", "linear_1 loss")},
	}
	for version, find := range pythons(t) {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			python := find(t)
			for _, c := range cases {
				e := executorOf(t, python, "validated.py:"+c.function, "")
				want := train(t, load(t, e, c.layout), c.layout, steps)
				p := load(t, e, c.layout)
				run, losses := engine(t, p, c.layout), []float64(nil)
				var got spillway.Evaluation
				for step := range int64(steps) {
					report, err := run.Step(t.Context(), step)
					if err != nil {
						t.Fatal(err)
					}
					losses, got = append(losses, report.Loss), evaluate(t, p)
				}
				parts := len(c.layout.Parts)
				if want := plainly(t, python, c.function, p); !near(got, want) {
					t.Errorf("%s in %d parts: %+v; plain PyTorch finds %+v", c.function, parts, got, want)
				}
				if diff := cmp.Diff(want, losses); diff != "" {
					t.Errorf("%s in %d parts: the losses without and with evaluations:\n%s", c.function, parts, diff)
				}
			}
		})
	}
}

// TestAnEvaluationThatIsLeftLeavesNoTrace ends it before its first piece, and somewhere in the middle.
func TestAnEvaluationThatIsLeftLeavesNoTrace(t *testing.T) {
	t.Parallel()
	l := layout("x one norm dropout dropout_1 add two", "relu frozen drop last loss")
	e := newExecutor(t, "validated.py:build", "")
	want := train(t, load(t, e, l), l, 4)
	p := load(t, e, l)
	run, losses := engine(t, p, l), []float64(nil)
	for step := range int64(4) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(step)*time.Millisecond, cancel)
		if step == 0 {
			cancel()
		}
		if _, err := p.(spillway.Evaluator).Evaluate(ctx); err != nil && !errors.Is(err, context.Canceled) ||
			err == nil && step == 0 {
			t.Errorf("the evaluation before step %d: %v", step, err)
		}
		report, err := run.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, report.Loss)
	}
	if diff := cmp.Diff(want, losses); diff != "" {
		t.Errorf("the losses without and with evaluations that were left:\n%s", diff)
	}
	fresh := load(t, e, l)
	if _, err := p.(spillway.Evaluator).Evaluate(t.Context()); err != nil {
		t.Error(err)
	}
	train(t, fresh, l, 4)
	if got, want := evaluate(t, p), evaluate(t, fresh); !near(got, want) {
		t.Errorf("evaluated afterwards: %+v, want %+v", got, want)
	}
}

// TestAnEvaluationPutsBuffersBack has a module that writes to one in evaluation mode.
func TestAnEvaluationPutsBuffersBack(t *testing.T) {
	t.Parallel()
	l := layout()
	e := newExecutor(t, "validated.py:blocks_of_writes", "")
	want := train(t, load(t, e, l), l, 3)
	p := load(t, e, l)
	evaluate(t, p)
	if diff := cmp.Diff(want, train(t, p, l, 3)); diff != "" {
		t.Errorf("the losses without and with an evaluation before:\n%s", diff)
	}
}

// TestTheOperationsOfAModelAreThoseOfItsProducts has two of a matrix of 6 by 6.
func TestTheOperationsOfAModelAreThoseOfItsProducts(t *testing.T) {
	t.Parallel()
	found, err := newExecutor(t, "validated.py:tied", "").Probe(t.Context(),
		spillway.ProbeOptions{Samples: 4, Device: spillway.Device{Threads: 1}})
	if want := 4 * 2 * (6 * 6 * 2.0); err != nil || found.FLOPs != want || found.PeakFLOPS <= found.FLOPs {
		t.Errorf("4 samples take %v operations, of %v in a second, %v; want %v", found.FLOPs, found.PeakFLOPS, err, want)
	}
}

// TestALanguageModelIsEvaluatedInParts has one whose graph belongs to shapes, and pieces of two sizes.
func TestALanguageModelIsEvaluatedInParts(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	file := filepath.Join(t.TempDir(), "model.py")
	const text = `
import torch
from transformers import GPT2Config, GPT2LMHeadModel

def build():
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=12, n_embd=16, n_layer=2, n_head=2))

def words(seed, count):
    ids = torch.randint(0, 50, (count, 12), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": ids, "labels": ids}

def data():
    return words(1, 24)

def validation():
    return words(2, 7)
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := torch.New(torch.Options{Python: python, Model: file + ":build", Repeats: 1})
	if err != nil {
		t.Fatal(err)
	}
	found, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 2, Device: spillway.Device{Threads: 1}})
	if err != nil || !found.Validates {
		t.Fatalf("the probe says %v, %v", found.Validates, err)
	}
	if found.FLOPs <= 0 || found.PeakFLOPS <= 0 {
		t.Errorf("a forward pass takes %v operations, of %v in a second", found.FLOPs, found.PeakFLOPS)
	}
	var ops []string
	for _, op := range found.Graph.Ops {
		ops = append(ops, op.ID)
	}
	half := slices.IndexFunc(ops, func(id string) bool { return strings.Contains(id, "h_1") })
	if half < 0 {
		half = len(ops) / 2
	}
	var all []spillway.Evaluation
	var losses [][]float64
	for _, l := range []spillway.Layout{layout(), layout(strings.Join(ops[:half], " "), strings.Join(ops[half:], " "))} {
		l.Batch, l.MicroBatches = 8, 2
		p := load(t, e, l)
		if batch, err := p.Batch(t.Context(), 0); err != nil || batch.Tokens != 8*12 {
			t.Errorf("a batch has %d tokens, %v; want %d", batch.Tokens, err, 8*12)
		}
		all = append(all, evaluate(t, p))
		losses = append(losses, train(t, p, l, 2))
		all = append(all, evaluate(t, p))
	}
	if !near(all[0], all[2]) || !near(all[1], all[3]) || all[0].Loss == all[1].Loss || all[0].Samples != 7 {
		t.Errorf("whole before and after 2 steps, then split: %+v", all)
	}
	if diff := cmp.Diff(losses[0], losses[1]); diff != "" {
		t.Errorf("the losses whole and split:\n%s", diff)
	}
}

// TestValidationThatCannotBeIsToldByTheProbe has what is wrong with the file's functions.
func TestValidationThatCannotBeIsToldByTheProbe(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile("testdata/validated.py")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ add, want string }{
		"another shape": {
			"def validation():\n    return torch.randn(4, 7), torch.zeros(4).long()",
			"mat1 and mat2 shapes cannot be multiplied",
		},
		"another type": {
			"def validation():\n    return torch.zeros(4, 6).long(), torch.zeros(4).long()",
			"the input x of the validation data is (2, 6) of int64, and that of the training data is (2, 6) of float32",
		},
		"no samples": {"def validation():\n    return []", "the validation data"},
		"an error":   {"def validation():\n    return 1 / 0", "validation() fails: ZeroDivisionError"},
		"no dict":    {"def metrics(output, target):\n    return 1.0", "metrics() returns a float, not a dict of numbers"},
		"no number": {
			"def metrics(output, target):\n    return {'accuracy': output}",
			"metrics() returns (2, 2) of float32 as accuracy, not a number",
		},
		"a taken name": {"def metrics(output, target):\n    return {'loss': 1}", "metrics() names one 'loss'"},
		"an error in metrics": {
			"def metrics(output, target):\n    return {'one': missing}",
			"metrics() fails on an output (2, 2) and a target (2): NameError",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "model.py")
			if err := os.WriteFile(file, append(whole, "\n"+c.add+"\n"...), 0o600); err != nil {
				t.Fatal(err)
			}
			e, err := torch.New(torch.Options{Python: torch.RequirePython(t), Model: file + ":build", Repeats: 1})
			if err != nil {
				t.Fatal(err)
			}
			_, err = e.Probe(t.Context(), spillway.ProbeOptions{Samples: 2, Device: spillway.Device{Threads: 1}})
			if err == nil || !strings.Contains(err.Error(), c.want) || !errors.Is(err, spillway.ErrRequest) {
				t.Errorf("the probe says %v; want %q", err, c.want)
			}
		})
	}
}

// TestSchedulersAreSteppedAlikeInAllParts trains with an evaluation after every second step, whole, split, and split in
// two pipelines of which the second goes on with the state of the first.
func TestSchedulersAreSteppedAlikeInAllParts(t *testing.T) {
	t.Parallel()
	common, err := os.ReadFile("testdata/validated.py")
	if err != nil {
		t.Fatal(err)
	}
	const groups = `
def optimizer(named_parameters):
    return torch.optim.AdamW([
        {"params": [p for n, p in named_parameters if p.dim() > 1], "name": "weights"},
        {"params": [p for n, p in named_parameters if p.dim() < 2], "name": "others", "weight_decay": 0.0, "lr": 0.2},
    ], lr=0.1)
`
	for name, scheduler := range map[string]string{
		"a plateau": `
def scheduler(optimizer):
    made = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.1, patience=0)
    return {"scheduler": made, "monitor": "zeros"}`, // which never gets better
		"warm-up": `
def scheduler(optimizer, total_steps):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min((n + 1) / 3, (total_steps - n) / total_steps))`,
		"epochs": `
def scheduler(optimizer):
    return {"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1), "interval": "epoch"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "model.py")
			if err := os.WriteFile(file, []byte(string(common)+groups+scheduler), 0o600); err != nil {
				t.Fatal(err)
			}
			e, err := torch.New(torch.Options{Python: torch.RequirePython(t), Model: file + ":tied", Repeats: 1})
			if err != nil {
				t.Fatal(err)
			}
			whole, split := layout(), layout("x linear norm drop", "linear_1 loss")
			for _, l := range []*spillway.Layout{&whole, &split} {
				l.Optimizer, l.Steps = spillway.Optimizer{}, 8 // the file's own; an epoch has 5 steps
			}
			steps := func(p spillway.Pipeline, l spillway.Layout, first, last int64) (losses []float64) {
				run := engine(t, p, l)
				for step := first; step < last; step++ {
					report, err := run.Step(t.Context(), step)
					if err != nil {
						t.Fatal(err)
					}
					losses = append(losses, report.Loss)
					if step%2 == 1 {
						losses = append(losses, evaluate(t, p).Loss)
					}
				}
				return losses
			}
			want := steps(load(t, e, whole), whole, 0, 8)
			if got := steps(load(t, e, split), split, 0, 8); !slices.EqualFunc(got, want, func(a, b float64) bool {
				return math.Abs(a-b) <= 1e-4*math.Max(1, math.Abs(a)) // gradients of a tied weight are added up in another order
			}) {
				t.Errorf("split, the losses are %v; whole, they are %v", got, want)
			}
			first, second := load(t, e, whole), load(t, e, whole)
			losses := steps(first, whole, 0, 4)
			for _, s := range second.Stages() {
				if err := s.Import(t.Context(), export(t, first)); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(want, append(losses, steps(second, whole, 4, 8)...)); diff != "" {
				t.Errorf("the losses in one go and of a training that goes on:\n%s", diff)
			}
			unscheduled := filepath.Join(t.TempDir(), "model.py")
			if err := os.WriteFile(unscheduled, []byte(string(common)+groups), 0o600); err != nil {
				t.Fatal(err)
			}
			e, err = torch.New(torch.Options{Python: torch.RequirePython(t), Model: unscheduled + ":tied", Repeats: 1})
			if err != nil {
				t.Fatal(err)
			}
			if got := steps(load(t, e, whole), whole, 0, 8); slices.Equal(got, want) {
				t.Error("the scheduler changes nothing")
			}
		})
	}
}
