package torch_test

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	spillway "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/torch"
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

// TestShardingChangesMemoryAlone compares losses with those of one process, and what ranks hold.
func TestShardingChangesMemoryAlone(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "training.py:tied", "words")
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 4, Device: spillway.Device{Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	one := replicated(1, "")
	want := train(t, load(t, e, one), one, 6)
	two := cutOperations(t, probe, "add_2")
	for _, sharding := range []spillway.Sharding{
		spillway.ShardOptimizer, spillway.ShardGradients, spillway.ShardParameters,
	} {
		for _, parts := range [][]string{nil, two} {
			l := replicated(2, sharding, parts...)
			what := fmt.Sprintf("sharding of %s in %d parts", sharding, len(l.Parts))
			p := load(t, e, l)
			alike(t, what, want[:3], wholeSteps(t, p, 0, 3), 1e-5)
			meta := spillway.Describe("torch", l)
			meta.Step = 3
			wait, err := spillway.Save(t.Context(), p, filepath.Join(t.TempDir(), "checkpoint"), meta)
			if err != nil {
				t.Fatal(err)
			}
			saved, err := wait()
			if err != nil {
				t.Fatal(err)
			}
			alike(t, what+", on from its checkpoint", want[3:4], wholeSteps(t, p, 3, 4), 1e-5)
			if err := spillway.Restore(t.Context(), p, saved); err != nil {
				t.Fatal(err)
			}
			alike(t, what+", from its checkpoint", want[3:], wholeSteps(t, p, 3, 6), 1e-5)
		}
	}
}

// TestACheckpointOfReplicasGoesOnInAnyLayout saves two replicas of two parts, goes on in one process, and back.
func TestACheckpointOfReplicasGoesOnInAnyLayout(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "training.py:tied", "words")
	probe, err := e.Probe(t.Context(), spillway.ProbeOptions{Samples: 4, Device: spillway.Device{Threads: 1}})
	if err != nil {
		t.Fatal(err)
	}
	whole := replicated(1, "")
	split := replicated(2, "", cutOperations(t, probe, "add_2")...)
	unsplit := load(t, e, whole)
	want := train(t, unsplit, whole, 9)
	first := load(t, e, split)
	alike(t, "two replicas of two parts that share a parameter", want[:3], wholeSteps(t, first, 0, 3), 1e-5)
	save := func(p spillway.Pipeline, l spillway.Layout, step int64) spillway.Checkpoint {
		meta := spillway.Describe("torch", l)
		meta.Step = step
		wait, err := spillway.Save(t.Context(), p, filepath.Join(t.TempDir(), "checkpoint"), meta)
		if err != nil {
			t.Fatal(err)
		}
		saved, err := wait()
		if err != nil {
			t.Fatal(err)
		}
		return saved
	}
	saved := save(first, split, 3)
	if len(saved.Files) != 4 || saved.Meta.Replicas != 2 {
		t.Errorf("%d files of %d replicas; want 4 of 2", len(saved.Files), saved.Meta.Replicas)
	}
	alike(t, "the replicas after their checkpoint", want[3:4], wholeSteps(t, first, 3, 4), 1e-5)
	if err := spillway.Restore(t.Context(), unsplit, saved); err != nil {
		t.Fatal(err)
	}
	run := engine(t, unsplit, whole)
	for step := int64(3); step < 6; step++ {
		report, err := run.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		alike(t, "one process from the checkpoint of four", want[step:step+1], []float64{report.Loss}, 1e-5)
	}
	again := load(t, e, split)
	if err := spillway.Restore(t.Context(), again, save(unsplit, whole, 6)); err != nil {
		t.Fatal(err)
	}
	alike(t, "four processes from the checkpoint of one", want[6:], wholeSteps(t, again, 6, 9), 1e-5)
}

// TestARankThatDiesIsNamedAndEndsTheOthers kills the second part of the second replica between two steps.
func TestARankThatDiesIsNamedAndEndsTheOthers(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "training.py:mlp", "points")
	l := replicated(2, "", "x first tanh second relu", "drop third tanh_1 drop_1 add last loss")
	for name, c := range map[string]struct {
		signal syscall.Signal
		want   string
		is     error
	}{
		"killed": {syscall.SIGKILL, "replica 1, part 1 on cpu-1", nil},
		"hangs":  {syscall.SIGSTOP, "no answer comes from: replica 1, part 1 on cpu-1; the first", spillway.ErrMissing},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := l
			l.Collective.Timeout = 5 * time.Second
			p := load(t, e, l)
			wholeSteps(t, p, 0, 2)
			processes := torch.Processes(p)
			if err := syscall.Kill(processes[3], c.signal); err != nil {
				t.Fatal(err)
			}
			_, err := p.(spillway.Stepper).Step(t.Context(), 2)
			if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, spillway.ErrRequest) ||
				c.is != nil && !errors.Is(err, c.is) {
				t.Errorf("got the error %v; want one that says %q", err, c.want)
			}
			for _, process := range processes {
				if err := syscall.Kill(process, 0); !errors.Is(err, syscall.ESRCH) {
					t.Errorf("process %d: %v; want that it has ended", process, err)
				}
			}
			if _, err := p.(spillway.Stepper).Step(t.Context(), 2); !errors.Is(err, spillway.ErrBroken) {
				t.Errorf("a step after that: %v; want that the pipeline is broken", err)
			}
		})
	}
}
