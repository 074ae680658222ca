package torch_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// TestPartsOfReplicasThatReadOtherDataAreRefused has data() shuffle by a generator that nobody seeds: the inputs of the
// first part are those of other samples than the targets of the last.
func TestPartsOfReplicasThatReadOtherDataAreRefused(t *testing.T) {
	t.Parallel()
	const text = `
import numpy
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

def data():
    order = numpy.random.default_rng().permutation(64)
    x = torch.arange(256.0).reshape(64, 4) / 256
    return x[order], x.sum(1, keepdim=True)[order]
`
	_, err := written(t, text).Load(t.Context(), replicated(2, "", "input_1 _0", "_1 _2 loss"))
	const want = "two processes that read the data find other samples"
	if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, spillway.ErrRequest) {
		t.Errorf("got the error %v; want one that says %q", err, want)
	}
}

// TestPartsOfReplicasThatDrawInputsForThemselvesTrain has data whose inputs are drawn anew each time they are read, by
// a generator of their own: the last part reads targets alone, which are the same.
func TestPartsOfReplicasThatDrawInputsForThemselvesTrain(t *testing.T) {
	t.Parallel()
	const text = `
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

class Drawn(torch.utils.data.Dataset):
    def __init__(self):
        self.generator = torch.Generator().manual_seed(1)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        x = torch.full((4,), i / 64)
        return x + torch.randn(4, generator=self.generator) / 100, x[:1]

def data():
    return Drawn()
`
	wholeSteps(t, load(t, written(t, text), replicated(2, "", "input_1 _0", "_1 _2 loss")), 0, 2)
}

// TestReplicasGoByValidationDataAlike has schedulers that go by what the first replica alone looks at, or by how long
// the training is.
func TestReplicasGoByValidationDataAlike(t *testing.T) {
	t.Parallel()
	const text = `
import torch
from torch import nn

def build():
    return nn.Linear(4, 1)

def points(seed):
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))
    return x, x.sum(1, keepdim=True)

def data():
    return points(1)

def validation():
    return points(2)

def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
`
	python := torchtest.Python2(t)
	for name, scheduler := range map[string]string{
		"a plateau": `
def scheduler(optimizer):
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.3, patience=0)
`,
		"the length": `
def scheduler(optimizer, total_steps):
    return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=total_steps)
`,
	} {
		path := filepath.Join(t.TempDir(), "model.py")
		if err := os.WriteFile(path, []byte(text+scheduler), 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := torch.New(torch.Options{Python: python, Model: path + ":build", Repeats: 1})
		if err != nil {
			t.Fatal(err)
		}
		one, two := replicated(1, ""), replicated(2, "")
		one.Steps, two.Steps = 4, 4
		one.Optimizer, two.Optimizer = spillway.Optimizer{}, spillway.Optimizer{}
		var want, got []float64
		whole := load(t, e, one)
		run, replicas := engine(t, whole, one), load(t, e, two)
		for step := range int64(4) {
			report, err := run.Step(t.Context(), step)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, report.Loss, evaluate(t, whole).Loss)
			got = append(append(got, wholeSteps(t, replicas, step, step+1)...), evaluate(t, replicas).Loss)
		}
		alike(t, name, want, got, 1e-5)
	}
}

// TestCompiledReplicasLearnAsOneProcess compares two with one process that is not compiled.
func TestCompiledReplicasLearnAsOneProcess(t *testing.T) {
	t.Setenv("TORCHINDUCTOR_CACHE_DIR", t.TempDir()) // what is compiled would stay
	e := executorOf(t, torchtest.Python2(t), "compiled.py:build", "")
	one := replicated(1, "")
	want := train(t, load(t, e, one), one, 5)
	two := replicated(2, "")
	two.Compile = true
	alike(t, "two compiled replicas", want, wholeSteps(t, load(t, e, two), 0, 5), 1e-5)
}

// TestReplicasInFloat16SkipTheStepsThatOneProcessSkips begins with a scale of the loss at which gradients overflow.
func TestReplicasInFloat16SkipTheStepsThatOneProcessSkips(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "training.py:mlp", "points")
	const steps = 8
	one := replicated(1, "")
	one.Precision = spillway.Float16
	run := engine(t, load(t, e, one), one)
	var want []float64
	var skipped []bool
	for step := range int64(steps) {
		report, err := run.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		want, skipped = append(want, report.Loss), append(skipped, report.Skipped)
	}
	two := replicated(2, "")
	two.Precision = spillway.Float16
	stepper := load(t, e, two).(spillway.Stepper)
	var got []float64
	for step := range int64(steps) {
		report, err := stepper.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		if report.Skipped != skipped[step] {
			t.Errorf("step %d: skipped by replicas: %t, by one process: %t", step, report.Skipped, skipped[step])
		}
		got = append(got, report.Loss)
	}
	alike(t, "two replicas in float16", want, got, 2e-3) // products have eleven bits
}

// TestAShareOfABatchOfALoaderIsItsFirstSamples has a loader whose batches are those of all replicas.
func TestAShareOfABatchOfALoaderIsItsFirstSamples(t *testing.T) {
	t.Parallel()
	e := written(t, `
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

def data():
    draw = torch.Generator().manual_seed(1)
    return list(DataLoader(TensorDataset(torch.randn(64, 6, generator=draw), torch.arange(64) % 3), 16))

def build():
    torch.manual_seed(0)
    return nn.Linear(6, 3)
`)
	whole := replicated(1, "")
	p := load(t, e, whole)
	share := whole
	share.Batch, share.Of, share.MicroBatches = 8, 16, 1
	batch, err := load(t, e, share).Batch(t.Context(), 0)
	if err != nil || len(batch.MicroBatches) != 1 || batch.Samples[0] != 8 {
		t.Fatalf("a share of 8 of 16 samples: %+v, %v", batch, err)
	}
	want := train(t, p, whole, 4)
	two := replicated(2, "")
	alike(t, "two replicas", want, wholeSteps(t, load(t, e, two), 0, 4), 1e-5)
	share.Of = 0
	if _, err := e.Load(t.Context(), share); err == nil {
		t.Error("a batch of 8 samples is taken from a loader that has 16, without that it is a share")
	}
}
