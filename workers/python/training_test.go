package python_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// step is what was reported of one.
type step struct {
	step, of int
	metrics  map[string]float64
}

// trained is what became of an attempt.
type trained struct {
	steps    []step
	kept     []activities.Ref // its checkpoints
	values   map[string]any   // its result
	warnings []string
	printed  string
	err      error
}

// last is the value that was told last of a metric.
func (t trained) last(metric string) (value float64, told bool) {
	for _, one := range t.steps {
		if now, has := one.metrics[metric]; has {
			value, told = now, true
		}
	}
	return value, told
}

// train runs a command as an attempt, and kills it with all that it has started once it has left so many checkpoints; 0
// lets it end.
func train(t *testing.T, store activities.Store, killed int, resume activities.Ref, arguments ...string) trained {
	t.Helper()
	dir := t.TempDir()
	options := command.Options{Root: filepath.Join(dir, "root"), Cache: filepath.Join(dir, "cache"), Store: store}
	c := wire.Command{Arguments: arguments, Environment: map[string]string{"HF_HUB_OFFLINE": "1"}}
	w, err := command.Prepare(t.Context(), options, c, resume)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.Remove(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	program, err := w.Program(command.Launch{Grant: quantity.Size{CPU: quantity.Core}})
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	program.Command.Stdout, program.Command.Stderr, program.Command.WaitDelay = &printed, &printed, time.Minute
	if err := program.Start((*exec.Cmd).Start); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		err := program.Command.Wait()
		if endErr := program.Ended(); endErr != nil {
			t.Error(endErr)
		}
		ended <- err
	}()
	var got trained
	reported := w.Follow(t.Context(), program.Reports, command.Listener{
		Progress: func(number, of int, metrics map[string]float64) {
			got.steps = append(got.steps, step{number, of, metrics})
		},
		Checkpoint: func(ref activities.Ref) {
			got.kept = append(got.kept, ref)
			if len(got.kept) == killed {
				if err := program.Command.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
		},
		Warn: func(text string) { got.warnings = append(got.warnings, text) },
	})
	got.err, got.values, got.printed = <-ended, reported.Values, printed.String()
	if err := program.Reports.Close(); err != nil {
		t.Error(err)
	}
	return got
}

// script returns the path of a script of the tests.
func script(t *testing.T, name string) string {
	t.Helper()
	found, err := filepath.Abs(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// plainly runs a script without Spillway, and returns what an expression of its names, in g, comes to.
func plainly(t *testing.T, python, path, expression string) (value float64) {
	t.Helper()
	module, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	const run = `import runpy, sys; g = runpy.run_path(sys.argv[1]); print("\n%r" % float(eval(sys.argv[2])))`
	cmd := exec.CommandContext(t.Context(), python, "-B", "-c", run, path, expression)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PYTHONPATH="+module, "HF_HUB_OFFLINE=1")
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("without Spillway: %v\n%s", err, printed)
	}
	lines := strings.Split(strings.TrimSpace(string(printed)), "\n")
	if value, err = strconv.ParseFloat(lines[len(lines)-1], 64); err != nil {
		t.Fatalf("without Spillway: %v\n%s", err, printed)
	}
	return value
}

// TestTrainersReportAndGoOnWithThreeLines runs a script without Spillway, with it, and with it killed in the middle and
// resumed: all come to the same loss, to the last digit.
func TestTrainersReportAndGoOnWithThreeLines(t *testing.T) {
	t.Parallel()
	python2 := torchtest.Python2(t)
	for name, c := range map[string]struct {
		script, evaluated, plain string
		steps                    int
		rates                    []string
	}{
		"Hugging Face": {
			"with_huggingface.py", "eval_loss",
			`[e["eval_loss"] for e in g["trainer"].state.log_history if "eval_loss" in e][-1]`, 24,
			[]string{"samples_per_second", "tokens_per_second"},
		},
		"Lightning": {
			"with_lightning.py", "val_loss", `g["trainer"].callback_metrics["val_loss"]`, 72,
			[]string{"samples_per_second"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := commandtest.NewStore()
			path := script(t, c.script)
			whole := train(t, store, 0, activities.Ref{}, python2, "-B", path)
			if whole.err != nil || len(whole.kept) == 0 || len(whole.warnings) > 0 {
				t.Fatalf("undisturbed: %v, %d checkpoints, warnings %q\n%s", whole.err, len(whole.kept), whole.warnings,
					whole.printed)
			}
			for i, one := range whole.steps {
				if one.of != c.steps || i > 0 && one.step < whole.steps[i-1].step {
					t.Errorf("report %d is %+v after %+v, want one of %d steps", i, one, whole.steps[max(0, i-1)], c.steps)
				}
			}
			if last := whole.steps[len(whole.steps)-1].step; last != c.steps {
				t.Errorf("the last step is %d, want %d", last, c.steps)
			}
			for _, metric := range append(c.rates, "loss", c.evaluated) {
				if value, told := whole.last(metric); !told || !(value > 0) {
					t.Errorf("%s is told %t, and %v", metric, told, value)
				}
			}
			got, err := strconv.ParseFloat(fmt.Sprint(whole.values[c.evaluated]), 64)
			if want := plainly(t, python2, path, c.plain); err != nil || got != want {
				t.Errorf("%s is %v (%v), and %v without Spillway", c.evaluated, got, err, want)
			}
			first := train(t, store, 1, activities.Ref{}, python2, "-B", path)
			if len(first.kept) == 0 || first.err == nil || len(first.values) > 0 {
				t.Fatalf("killed: %v, %d checkpoints, result %v\n%s", first.err, len(first.kept), first.values, first.printed)
			}
			second := train(t, store, 0, first.kept[0], python2, "-B", path)
			if second.err != nil || second.steps[0].step == 0 {
				t.Fatalf("resumed: %v, at step %+v\n%s", second.err, second.steps[0], second.printed)
			}
			if diff := cmp.Diff(whole.values, second.values); diff != "" || len(whole.values) < 2 {
				t.Errorf("undisturbed and resumed come to another result (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOnlyTheFirstProcessOfATorchrunReports starts two, which torchrun gives none of its own descriptors.
func TestOnlyTheFirstProcessOfATorchrunReports(t *testing.T) {
	t.Parallel()
	python2 := torchtest.Python2(t)
	path := filepath.Join(t.TempDir(), "ranks.py")
	const text = `
import os, torch.distributed as dist, spillway
dist.init_process_group("gloo")
for step in range(1, 4):
    dist.barrier()
    spillway.progress(step, 3, {"rank": int(os.environ["RANK"]), "ranks": dist.get_world_size()})
dist.destroy_process_group()
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := train(t, commandtest.NewStore(), 0, activities.Ref{}, python2, "-B", "-m", "torch.distributed.run",
		"--standalone", "--nproc-per-node=2", path)
	if got.err != nil {
		t.Fatal(errors.Join(got.err, errors.New(got.printed)))
	}
	var want []step
	for number := 1; number <= 3; number++ {
		want = append(want, step{number, 3, map[string]float64{"rank": 0, "ranks": 2}})
	}
	if diff := cmp.Diff(want, got.steps, cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("reported (-want +got):\n%s\n%s", diff, got.printed)
	}
}
