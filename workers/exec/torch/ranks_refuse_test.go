package torch_test

import (
	"errors"
	"os"
	"strings"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// TestRanksOfDifferentCodeAreRefusedBeforeTheFirstStep has a function that builds another model in the second process,
// with the same parameters.
func TestRanksOfDifferentCodeAreRefusedBeforeTheFirstStep(t *testing.T) {
	t.Parallel()
	const text = `
import os, torch
from torch import nn

def build():
    made = os.path.join(os.path.dirname(__file__), "made")
    with open(made, "a") as file:
        file.write("x")
    other = os.path.getsize(made) > 1
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU() if other else nn.Tanh(), nn.Linear(8, 1))

def data():
    return torch.rand(40, 4), torch.rand(40, 1)
`
	_, err := written(t, text).Load(t.Context(), replicated(2, ""))
	const want = "replica 1, part 0 on cpu: what was asked for cannot be done: its model is another one"
	if err == nil || !strings.Contains(err.Error(), want) || !errors.Is(err, spillway.ErrRequest) {
		t.Errorf("got the error %v; want one that says %q", err, want)
	}
}

// TestALossOfReplicasThatIsNotFiniteUpdatesNothing has targets that are too large in one of two shares.
func TestALossOfReplicasThatIsNotFiniteUpdatesNothing(t *testing.T) {
	t.Parallel()
	const text = `
import torch
from torch import nn

def build():
    return nn.Linear(4, 1)

def data():
    y = torch.rand(16, 1)
    y[3] = float("inf")
    return torch.rand(16, 4), y
`
	p := load(t, written(t, text), replicated(2, ""))
	before := export(t, p)
	_, err := p.(spillway.Stepper).Step(t.Context(), 0)
	var loss *spillway.LossError
	if !errors.As(err, &loss) || loss.Updated || !strings.Contains(err.Error(), "the parameters are those before it") {
		t.Fatalf("got the error %v; want one about the loss, before an update", err)
	}
	after := export(t, p)
	for i := range before {
		one, err := os.ReadFile(before[i])
		if err != nil {
			t.Fatal(err)
		}
		other, err := os.ReadFile(after[i])
		if err != nil {
			t.Fatal(err)
		}
		if string(one) != string(other) {
			t.Errorf("what rank %d holds is another thing after the step", i)
		}
	}
}

// TestLayoutsOfReplicasThatCannotBeAreRefused looks at what the executor is asked for.
func TestLayoutsOfReplicasThatCannotBeAreRefused(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "training.py:mlp", "points")
	for name, c := range map[string]struct {
		change func(*spillway.Layout)
		want   string
	}{
		"too few samples": {
			func(l *spillway.Layout) { l.Batch = 3 },
			"a batch of 3 samples for 2 replicas with 2 micro-batches",
		},
		"micro-batches of two sizes": {
			func(l *spillway.Layout) {
				*l = replicated(2, "", "x first tanh second relu", "drop third tanh_1 drop_1 add last loss")
				l.Batch = 14
			},
			"choose a batch that 4 divides, or one part",
		},
		"a device too many": {
			func(l *spillway.Layout) { l.Parts[0].Replicas = []spillway.Device{{}, {}} },
			"2 devices of further replicas",
		},
		"compiled and sharded replicas": {
			func(l *spillway.Layout) { l.Compile, l.Sharding = true, spillway.ShardOptimizer },
			"optimizer take are not compiled",
		},
	} {
		l := replicated(2, "")
		c.change(&l)
		if _, err := e.Load(t.Context(), l); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got the error %v; want one that says %q", name, err, c.want)
		}
	}
	old := executorOf(t, torch.RequirePython(t), "training.py:mlp", "points")
	if err := old.Distributes(t.Context()); err != nil && !strings.Contains(err.Error(), "replicas need 2.4 or later") {
		t.Errorf("PyTorch that is too old: got the error %v", err)
	}
}
