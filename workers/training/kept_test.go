package training_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
)

// probes counts the probes of an executor, and notes what it loads.
type probes struct {
	loads
	count atomic.Int64
}

func (p *probes) Probe(ctx context.Context, o exec.ProbeOptions) (exec.Probe, error) {
	p.count.Add(1)
	return p.loads.Probe(ctx, o)
}

// attempted trains on until so many steps are done and returns what it did and what it logged.
func attempted(t *testing.T, job training.Job) (training.Result, *probes, string) {
	t.Helper()
	on := &probes{loads: loads{Executor: exectest.Reference(exectest.Options{})}}
	var log bytes.Buffer
	job.Executor, job.Directory = on, t.TempDir()
	job.Logger = slog.New(slog.NewTextHandler(&log, nil))
	result, err := training.Run(t.Context(), job, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	return result, on, log.String()
}

// chosen is a job whose parts and micro-batches are left to the plan.
func chosen() training.Job {
	return training.Job{Devices: devices("a", "b", "c"), Batch: 12, Seed: 7, ClipNorm: 1}
}

func TestTheNextAttemptTrainsByThePlanOfTheCheckpointWithoutAnyProbe(t *testing.T) {
	t.Parallel()
	for _, steps := range []int64{tooShort, enough} { // without a trial, and with one
		job := chosen()
		job.Steps = steps
		first, before, _ := attempted(t, job)
		job.Steps, job.Resume = steps+tooShort, first.Checkpoint
		second, after, log := attempted(t, job)
		if n := after.count.Load(); n != 0 || len(after.layouts) != 1 {
			t.Errorf("after %d steps the next attempt makes %d probes and loads %d times; the log is\n%s", steps, n,
				len(after.layouts), log)
		}
		if !strings.Contains(log, "the plan of the checkpoint is used again") {
			t.Errorf("the log does not say that the plan is used again:\n%s", log)
		}
		last := before.layouts[len(before.layouts)-1]
		if steps == tooShort { // no other one was loaded
			last.Steps = job.Steps // what is wanted is another number now
			if diff := cmp.Diff(last, after.layouts[0]); diff != "" {
				t.Errorf("layouts (-before +after):\n%s", diff)
			}
		}
		want, got := first.Training, second.Training
		if want.PredictedStepSeconds != got.PredictedStepSeconds || want.Reason != got.Reason ||
			len(want.Parts) != len(got.Parts) || want.Parts[0].PredictedPeakBytes != got.Parts[0].PredictedPeakBytes {
			t.Errorf("planned first:\n%+v\nand then:\n%+v", want, got)
		}
		if got.Steps != steps+tooShort {
			t.Errorf("%d steps were done", got.Steps)
		}
	}
}

func TestAPlanIsMadeAnewWhereSomethingElseIsWantedAndTheLogSaysWhat(t *testing.T) {
	t.Parallel()
	job := chosen()
	job.Steps = tooShort
	first, _, _ := attempted(t, job)
	for name, change := range map[string]func(*training.Job){
		"devices":            func(j *training.Job) { j.Devices = devices("a", "b") },
		"batch":              func(j *training.Job) { j.Batch = 24 },
		"micro_batches":      func(j *training.Job) { j.MicroBatches = 3 },
		"partitions":         func(j *training.Job) { j.Partitions = 2 },
		"schedule":           func(j *training.Job) { j.Schedule = training.GPipe },
		"clipped":            func(j *training.Job) { j.ClipNorm = 0 },
		"recompute":          func(j *training.Job) { j.Recompute = training.RecomputeAlways },
		"data_workers":       func(j *training.Job) { j.DataWorkers = 2 },
		"checkpoints_beside": func(j *training.Job) { j.CheckpointEvery = -1 },
		"optimizer":          func(j *training.Job) { j.Optimizer.Kind = exec.Momentum },
	} {
		again := job
		again.Resume, again.Steps = first.Checkpoint, tooShort+2
		change(&again)
		_, on, log := attempted(t, again)
		if on.count.Load() == 0 || !strings.Contains(log, "the plan is made anew") ||
			!regexp.MustCompile(`was made for other [^"]*`+name).MatchString(log) {
			t.Errorf("with another %s there were %d probes; the log is\n%s", name, on.count.Load(), log)
		}
	}
	// What is alike may have other names.
	again := job
	again.Resume, again.Steps, again.Devices = first.Checkpoint, tooShort+2, devices("x", "y", "z")
	if result, on, log := attempted(t, again); on.count.Load() != 0 || result.Training.Parts[0].Device != "x" {
		t.Errorf("on devices of other names there were %d probes, and the first part is on %s; the log is\n%s",
			on.count.Load(), result.Training.Parts[0].Device, log)
	}
}

// rewritten is a copy of a checkpoint whose plan is another one.
func rewritten(t *testing.T, checkpoint string, change func(plan map[string]any) any) string {
	t.Helper()
	made := filepath.Join(t.TempDir(), "changed")
	if err := os.CopyFS(made, os.DirFS(checkpoint)); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(made, exec.Manifest)
	var manifest, plan map[string]any
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &manifest)
	}
	if err != nil {
		t.Fatal(err)
	}
	plan, _ = manifest["plan"].(map[string]any)
	if plan == nil {
		t.Fatalf("the checkpoint keeps no plan: %s", text)
	}
	if other := change(plan); other != nil {
		manifest["plan"] = other
	} else {
		delete(manifest, "plan")
	}
	if text, err = json.Marshal(manifest); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func TestAPlanThatCannotBeUsedIsMadeAnew(t *testing.T) {
	t.Parallel()
	job := chosen()
	job.Steps, job.Partitions, job.MicroBatches = tooShort, 2, 2
	first, _, _ := attempted(t, job)
	part := func(plan map[string]any, i int) map[string]any {
		one, _ := plan["parts"].([]any)[i].(map[string]any)
		return one
	}
	const contradicts = "that of the checkpoint contradicts itself"
	for name, c := range map[string]struct {
		change func(plan map[string]any) any
		says   string
	}{
		"there is none":       {func(map[string]any) any { return nil }, "the checkpoint keeps none"},
		"it is another thing": {func(map[string]any) any { return []int{1} }, "that of the checkpoint cannot be read"},
		"it has no parts": {func(p map[string]any) any {
			p["parts"] = nil
			return p
		}, contradicts},
		"a device is there twice": {func(p map[string]any) any {
			part(p, 0)["device"] = part(p, 1)["device"]
			return p
		}, contradicts},
		"a device is none": {func(p map[string]any) any {
			part(p, 0)["device"] = -1
			return p
		}, contradicts},
		"the model is another one": {func(p map[string]any) any {
			most := part(p, 0) // of its operations one is left out; where the cut is depends on how long they took
			ops, _ := most["ops"].([]any)
			if others, _ := part(p, 1)["ops"].([]any); len(others) > len(ops) {
				most, ops = part(p, 1), others
			}
			most["ops"] = ops[1:]
			return p
		}, "is in no part"},
	} {
		again := job
		again.Resume, again.Steps = rewritten(t, first.Checkpoint, c.change), tooShort+2
		result, on, log := attempted(t, again)
		if on.count.Load() == 0 || !strings.Contains(log, "the plan is made anew") || !strings.Contains(log, c.says) {
			t.Errorf("%s: there were %d probes; the log is, without %q,\n%s", name, on.count.Load(), c.says, log)
		}
		if result.Training.Steps != tooShort+2 {
			t.Errorf("%s: %d steps were done", name, result.Training.Steps)
		}
	}
}

func TestAPlanThatWasMadeAnewIsKeptByTheCheckpointsThatFollow(t *testing.T) {
	t.Parallel()
	job := chosen()
	job.Steps = tooShort
	first, _, _ := attempted(t, job)
	job.Steps, job.Resume = tooShort+2, rewritten(t, first.Checkpoint, func(map[string]any) any { return nil })
	second, on, _ := attempted(t, job)
	if on.count.Load() == 0 || second.Training.MicroBatches != first.Training.MicroBatches {
		t.Fatalf("%d probes, and %d micro-batches after %d", on.count.Load(), second.Training.MicroBatches,
			first.Training.MicroBatches)
	}
	job.Steps, job.Resume = tooShort+4, second.Checkpoint
	if _, on, log := attempted(t, job); on.count.Load() != 0 {
		t.Errorf("the third attempt makes %d probes; the log is\n%s", on.count.Load(), log)
	}
}
