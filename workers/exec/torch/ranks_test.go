package torch_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// replicated is a layout of replicas of parts with these operations.
func replicated(replicas int, sharding spillway.Sharding, parts ...string) spillway.Layout {
	l := layout(parts...)
	l.Batch, l.MicroBatches, l.Replicas, l.Sharding = 16, 2, replicas, sharding
	return l
}

// wholeSteps trains by whole steps.
func wholeSteps(t *testing.T, p spillway.Pipeline, from, to int64) []float64 {
	t.Helper()
	stepper, whole := p.(spillway.Stepper)
	if !whole {
		t.Fatalf("%T does no whole steps", p)
	}
	var losses []float64
	for step := from; step < to; step++ {
		report, err := stepper.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, report.Loss)
	}
	return losses
}

// alike compares losses.
func alike(t *testing.T, what string, want, got []float64, relative float64) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf("%s: %d losses; want %d", what, len(got), len(want))
	}
	for i := range want {
		if off := math.Abs(got[i]-want[i]) / math.Abs(want[i]); !(off <= relative) {
			t.Errorf("%s: the loss of step %d is %v; want %v: %.1e off", what, i, got[i], want[i], off)
			return
		}
	}
}

// cutOperations are those of a model in two parts, cut after an operation.
func cutOperations(t *testing.T, probe spillway.Probe, after string) []string {
	t.Helper()
	parts := make([]string, 2)
	at := 0
	for _, op := range probe.Graph.Ops {
		parts[at] += " " + op.ID
		if op.ID == after {
			at = 1
		}
	}
	if at == 0 {
		t.Fatalf("the model has no operation %s", after)
	}
	return parts
}

// TestReplicasOfPartsLearnAsOneProcess compares losses with those of one process that has the whole batch.
func TestReplicasOfPartsLearnAsOneProcess(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	for _, m := range []struct{ function, data, after string }{
		{"mlp", "points", "relu"}, // a tensor that the second part reads passes over the cut, and dropout
	} {
		e := executorOf(t, python, "training.py:"+m.function, m.data)
		probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 4, Device: spillway.Device{Threads: 1}})
		if err != nil {
			t.Fatal(err)
		}
		two := cutOperations(t, probe, m.after)
		one := replicated(1, "")
		want := train(t, load(t, e, one), one, 12)
		for _, replicas := range []int{2, 4} {
			for _, parts := range [][]string{nil, two} {
				l := replicated(replicas, "", parts...)
				if replicas > 1 {
					what := fmt.Sprintf("%s in %d replicas of %d parts", m.function, replicas, len(l.Parts))
					t.Log(strings.Repeat("-", 8), what)
					alike(t, what, want, wholeSteps(t, load(t, e, l), 0, 12), 1e-5)
				}
			}
		}
	}
}
