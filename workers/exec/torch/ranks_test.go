package torch_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
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

// written is an executor, on PyTorch 2, of what build returns in a file of this text.
func written(t *testing.T, text string) *torch.Executor {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.py")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := torch.New(torch.Options{Python: torchtest.Python2(t), Model: path + ":build", Repeats: 1})
	if err != nil {
		t.Fatal(err)
	}
	return e
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

// measures says that time may be taken for every case.
var measures = os.Getenv("SPILLWAY_MEASURE") == "1"

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
		again := replicated(4, "", two...)
		for i := range again.Parts {
			again.Parts[i].Recompute = true
		}
		layouts := []spillway.Layout{replicated(2, ""), again}
		if measures {
			layouts = append(layouts, replicated(2, "", two...), replicated(4, ""))
		}
		for _, l := range layouts {
			what := fmt.Sprintf("%s in %d replicas of %d parts", m.function, l.Replicas, len(l.Parts))
			alike(t, what, want, wholeSteps(t, load(t, e, l), 0, 12), 1e-5)
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
	unsplit := load(t, e, one)
	want := train(t, unsplit, one, 6)
	all, err := unsplit.Stages()[0].Usage(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	two := cutOperations(t, probe, "add_2")
	for sharding, usual := range map[spillway.Sharding][]string{
		spillway.ShardOptimizer: two, spillway.ShardGradients: nil, spillway.ShardParameters: two,
	} {
		for _, parts := range [][]string{nil, two} {
			if !measures && len(parts) != len(usual) {
				continue
			}
			l := replicated(2, sharding, parts...)
			what := fmt.Sprintf("sharding of %s in %d parts", sharding, len(l.Parts))
			p := load(t, e, l)
			alike(t, what, want[:3], wholeSteps(t, p, 0, 3), 1e-5)
			mine, err := p.Stages()[0].Usage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			// Rows of parameters are divided, and counts of steps are not.
			if half := float64(all.Optimizer) / 2; float64(mine.Optimizer) > 1.05*half {
				t.Errorf("%s: the optimizer of a rank holds %v; want half of %v", what, mine.Optimizer, all.Optimizer)
			}
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

// sent are the bytes that a process has written, to its sockets above all.
func sent(t *testing.T, process int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", process))
	if err != nil {
		t.Skipf("this system does not count what processes write: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		if count, is := strings.CutPrefix(line, "wchar: "); is {
			n, err := strconv.ParseInt(strings.TrimSpace(count), 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("no line wchar")
	return 0
}

// TestReplicasSendWhatTheFormulasSay counts what the ranks of a model of 4 MiB write to their sockets in a step. Of Ψ
// bytes of parameters, N replicas that divide nothing send 2 (N-1)/N Ψ each, which are a reduce-scatter and an
// all-gather; dividing the optimizer's state or the gradients, as much; dividing the parameters, which are gathered for
// the backward pass once more, 3 (N-1)/N Ψ: Rajbhandari et al., "ZeRO", 2020, section 7.
func TestReplicasSendWhatTheFormulasSay(t *testing.T) {
	t.Parallel()
	e := executorOf(t, torchtest.Python2(t), "training.py:wide", "points")
	const parameters = 4 * (16*1024 + 1024 + 1024*1024 + 1024 + 1024*4 + 4) // bytes of training.py:wide
	counts := []int{2}
	if measures {
		counts = append(counts, 4)
	}
	for _, replicas := range counts {
		for sharding, volume := range map[spillway.Sharding]float64{
			spillway.ShardNone: 2, spillway.ShardOptimizer: 2, spillway.ShardGradients: 2, spillway.ShardParameters: 3,
		} {
			l := replicated(replicas, sharding)
			l.MicroBatches = 1
			p := load(t, e, l)
			wholeSteps(t, p, 0, 2)
			processes := torch.Processes(p)
			before := int64(0)
			for _, process := range processes {
				before -= sent(t, process)
			}
			wholeSteps(t, p, 2, 6)
			for _, process := range processes {
				before += sent(t, process)
			}
			got := float64(before) / 4 / float64(replicas)
			want := volume * float64(replicas-1) / float64(replicas) * parameters
			if off := got/want - 1; math.Abs(off) > 0.01 {
				t.Errorf("%d replicas, sharding %s: each sends %.0f bytes in a step; want %.0f: %.1f %% off", replicas, sharding,
					got, want, 100*off)
			}
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestAPlateauIsSeenByAllReplicas has a metric that never gets better, by which the rate goes to nearly nothing.
func TestAPlateauIsSeenByAllReplicas(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	common, err := os.ReadFile("testdata/validated.py")
	if err != nil {
		t.Fatal(err)
	}
	const plateau = `
def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)

def scheduler(optimizer):
    made = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max", factor=0.001, patience=0)
    return {"scheduler": made, "monitor": "zeros"}
`
	file := filepath.Join(t.TempDir(), "model.py")
	if err := os.WriteFile(file, append(common, plateau...), 0o600); err != nil {
		t.Fatal(err)
	}
	e, err := torch.New(torch.Options{Python: python, Model: file + ":tied", Repeats: 1})
	if err != nil {
		t.Fatal(err)
	}
	var all [][]float64
	for _, replicas := range []int{1, 2} {
		l := replicated(replicas, "")
		l.Optimizer = spillway.Optimizer{}
		p := load(t, e, l)
		var losses []float64
		for step := range int64(4) {
			if replicas == 1 {
				report, err := engine(t, p, l).Step(t.Context(), step)
				if err != nil {
					t.Fatal(err)
				}
				losses = append(losses, report.Loss)
			} else {
				losses = append(losses, wholeSteps(t, p, step, step+1)...)
			}
			losses = append(losses, evaluate(t, p).Loss)
		}
		all = append(all, losses)
	}
	alike(t, "one and two replicas", all[0], all[1], 1e-5)
	if last := all[1][len(all[1])-1]; math.Abs(last-all[1][len(all[1])-3]) > 1e-4 {
		t.Errorf("the rate did not fall: the validation losses are among %v", all[1])
	}
}

// TestTheFirstReplicaEvaluatesAsPlainPyTorchDoes trains two replicas of two parts before and after an evaluation.
func TestTheFirstReplicaEvaluatesAsPlainPyTorchDoes(t *testing.T) {
	t.Parallel()
	python := torchtest.Python2(t)
	e := executorOf(t, python, "validated.py:build", "")
	l := replicated(2, "", "x one norm dropout dropout_1 add two", "relu frozen drop last loss")
	undisturbed := wholeSteps(t, load(t, e, l), 0, 3)
	p := load(t, e, l)
	losses := wholeSteps(t, p, 0, 2)
	got := evaluate(t, p)
	if want := plainly(t, python, "build", p); !near(got, want) {
		t.Errorf("got %+v; plain PyTorch finds %+v", got, want)
	}
	alike(t, "steps with an evaluation in between", undisturbed, append(losses, wholeSteps(t, p, 2, 3)...), 0)
	l.Sharding = spillway.ShardParameters
	const want = "not evaluated with validation data"
	if _, err := e.Load(t.Context(), l); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("divided parameters: got the error %v; want one that says %q", err, want)
	}
}
