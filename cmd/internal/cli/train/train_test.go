package train_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// twoCPUs is a file of devices.
const twoCPUs = "devices:\n  - {id: cpu, class: cpu, count: 2, memory: 1GiB}\n"

// jsonLines decodes the lines of `train --json`.
func jsonLines(
	t *testing.T, text string,
) (plan predictor.Training, progress []map[string]float64, checkpoints []string, result *display.Trained) {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var line struct {
			Plan       *predictor.Training
			Progress   map[string]float64
			Checkpoint *struct{ Directory string }
			Result     *display.Trained
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		switch {
		case line.Plan != nil:
			plan = *line.Plan
		case line.Progress != nil:
			progress = append(progress, line.Progress)
		case line.Checkpoint != nil:
			checkpoints = append(checkpoints, line.Checkpoint.Directory)
		case line.Result != nil:
			result = line.Result
		default:
			t.Errorf("an unknown line: %s", lines.Text())
		}
	}
	return plan, progress, checkpoints, result
}

func TestTrainHereTellsThePlanTheProgressAndTheResultAsJSON(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "trained")
	code, stdout, stderr := clitest.Execute(t, t.Context(), clitest.Reference(exectest.Options{}), "train",
		clitest.ModelOf(t), "--here", "--json", "--out", out,
		"--partitions", "2", "--devices", clitest.Write(t, "devices.yaml", twoCPUs), "--steps", "30", "--batch", "24",
		"--micro-batches", "4", "--seed", "7")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	plan, progress, checkpoints, result := jsonLines(t, stdout)
	if len(plan.Parts) != 2 || plan.MicroBatches != 4 || plan.Batch != 24 || plan.TotalSteps != 30 ||
		plan.Parts[1].Device != "cpu-2" {
		t.Errorf("the plan is %+v", plan)
	}
	if last := progress[len(progress)-1]; last["step"] != 30 || last["total_steps"] != 30 || last["loss"] == 0 {
		t.Errorf("the last progress is %v", last)
	}
	if result == nil || len(result.Losses) != 30 || result.Losses[29] >= result.Losses[0] ||
		result.Training.StepSeconds <= 0 {
		t.Fatalf("the result is %+v", result)
	}
	for _, path := range []string{result.Model, result.Checkpoint, checkpoints[len(checkpoints)-1]} {
		if _, err := os.Stat(path); err != nil || !strings.HasPrefix(path, out) {
			t.Errorf("%v: %s is not in %s", err, path, out)
		}
	}
}

func TestTrainHereUsesTheGPUsThatTheProcessWasGiven(t *testing.T) {
	t.Parallel()
	gpus := exectest.NewCUDA(exectest.Reference(exectest.Options{}),
		exectest.CUDADevice{Name: "NVIDIA H100", Memory: quantity.GiB},
		exectest.CUDADevice{Name: "NVIDIA H100", Memory: quantity.GiB})
	for name, test := range map[string]struct {
		visible, partitions string
		want                []string
	}{
		"one each":          {"GPU-1,GPU-2", "2", []string{"cuda:0", "cuda:1"}},
		"two parts on one":  {"GPU-1", "2", []string{"cuda:0-0", "cuda:0-1"}},
		"unsplit":           {"GPU-1", "1", []string{"cuda:0"}},
		"none is given":     {"", "1", []string{"cpu"}},
		"CPUs by their own": {"-1", "1", []string{"cpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deps := clitest.Reference(exectest.Options{})
			deps.Executor = func(string, string, string, *slog.Logger) (exec.Executor, error) { return gpus, nil }
			deps.Environment = lookup(map[string]string{training.VisibleGPUs: test.visible})
			code, stdout, stderr := clitest.Execute(t, t.Context(), deps, "train", clitest.ModelOf(t), "--here", "--json",
				"--out", filepath.Join(t.TempDir(), "trained"), "--partitions", test.partitions, "--steps", "4", "--batch", "24")
			if code != cli.ExitOK {
				t.Fatalf("got exit %d: %s", code, stderr)
			}
			plan, _, _, _ := jsonLines(t, stdout)
			var got []string
			for _, part := range plan.Parts {
				got = append(got, part.Device)
			}
			if len(got) != len(test.want) || !strings.HasPrefix(got[0], test.want[0]) || !slices.IsSorted(got) {
				t.Errorf("the parts are on %v; want %v", got, test.want)
			}
		})
	}
}

func TestAStoppedTrainingSaysHowToGoOnAndThenHasTheSameLosses(t *testing.T) {
	t.Parallel()
	train := func(ctx context.Context, options exectest.Options, args ...string) (code int, stdout, stderr string) {
		return clitest.Execute(t, ctx, clitest.Reference(options), append([]string{
			"train", clitest.ModelOf(t), "--here", "--json", "--steps", "40", "--batch", "24", "--checkpoint-every", "1ns",
			"--partitions", "2",
			"--devices", clitest.Write(t, "devices.yaml", twoCPUs), "--micro-batches", "2",
		}, args...)...)
	}
	code, stdout, stderr := train(t.Context(), exectest.Options{}, "--out", filepath.Join(t.TempDir(), "whole"))
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	_, _, _, whole := jsonLines(t, stdout)

	out := filepath.Join(t.TempDir(), "stopped")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	code, _, stderr = train(ctx, exectest.Options{Fail: func(_ context.Context, step int64, _ int) error {
		for step == 25 { // until a checkpoint is complete, which is made meanwhile
			found, err := filepath.Glob(filepath.Join(out, "checkpoints", "step-*"))
			if len(found) > 0 || err != nil {
				stop()
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	}}, "--out", out)
	if code != cli.ExitFailure {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "standard error", stderr,
		"spillway: train: stopped before all of 40 steps were done\n  hint: the same command with --resume "+out+
			"/checkpoints/step-")
	_, after, _ := strings.Cut(stderr, "--resume ")
	checkpoint := strings.Fields(after)[0]

	code, stdout, stderr = train(t.Context(), exectest.Options{}, "--out", out, "--resume", checkpoint)
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	_, _, _, resumed := jsonLines(t, stdout)
	if n := len(resumed.Losses); n == 0 || n >= 40 || !slices.Equal(resumed.Losses, whole.Losses[40-n:]) {
		t.Errorf("the losses after the stop are %v, and without one %v", resumed.Losses, whole.Losses)
	}
}

func TestATrainingForPeopleTellsThePlanAndWhatCame(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := clitest.Execute(t, t.Context(), clitest.Reference(exectest.Options{}), "train",
		clitest.ModelOf(t), "--here", "--out", filepath.Join(t.TempDir(), "out"),
		"--steps", "20", "--batch", "24", "--partitions", "1")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "standard output", stdout, "plan   a step of 24 samples takes", "why    ", "peak memory",
		"step 20/20  loss ", "after 20 steps of 24 samples", "predicted  measured")
}

func TestMorePartsThanCoresShareThem(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := clitest.Execute(t, t.Context(), clitest.Reference(exectest.Options{}), "train",
		clitest.ModelOf(t), "--here", "--json", "--out", filepath.Join(t.TempDir(), "out"),
		"--steps", "2", "--batch", "24", "--partitions", "4")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	if plan, _, _, _ := jsonLines(t, stdout); len(plan.Parts) != 4 {
		t.Errorf("%d parts, want 4", len(plan.Parts))
	}
}

func TestALossThatIsNoNumberEndsATrainingWithItsStep(t *testing.T) {
	t.Parallel()
	options := exectest.Options{NaN: func(step int64) bool { return step == 3 }}
	code, _, stderr := clitest.Execute(t, t.Context(), clitest.Reference(options), "train", clitest.ModelOf(t), "--here",
		"--out", filepath.Join(t.TempDir(), "out"), "--steps", "9", "--batch", "24")
	if code != cli.ExitFailure || strings.Count(stderr, "train:") != 1 {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "standard error", stderr, "step 3")
}

// attempt is the environment of a program of an attempt, with the file of its reports.
func attempt(t *testing.T) (environment map[string]string, reports string) {
	t.Helper()
	reports = clitest.Write(t, "reports", "")
	return map[string]string{wire.ReportEnvironment: reports}, reports
}

func lookup(environment map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, set := environment[name]
		return value, set
	}
}

func TestInAnAttemptATrainingReportsAndGoesOnFromTheEarlierCheckpoint(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	run := func(resume string, options exectest.Options, args ...string) (code int, text, stderr string) {
		environment, reports := attempt(t)
		if resume != "" {
			environment[wire.ResumeEnvironment] = resume
		}
		deps := clitest.Reference(options)
		deps.Environment = lookup(environment)
		code, _, stderr = clitest.Execute(t, t.Context(), deps,
			append([]string{
				"train", clitest.ModelOf(t), "--out", out, "--steps", "12", "--batch", "24", "--checkpoint-every",
				"1ns",
			}, args...)...)
		written, err := os.ReadFile(reports)
		if err != nil {
			t.Fatal(err)
		}
		return code, string(written), stderr
	}
	lost := errors.New("the host is lost")
	code, text, _ := run("", exectest.Options{Fail: func(_ context.Context, step int64, _ int) error {
		if step == 8 {
			return lost
		}
		return nil
	}})
	if code != cli.ExitFailure {
		t.Fatalf("got exit %d", code)
	}
	var checkpoint string
	for line := range strings.Lines(text) {
		var told struct{ Checkpoint string }
		if err := json.Unmarshal([]byte(line), &told); err != nil {
			t.Fatal(err)
		}
		if told.Checkpoint != "" {
			checkpoint = told.Checkpoint
		}
	}
	if checkpoint == "" {
		t.Fatalf("no checkpoint is reported in %s", text)
	}
	code, text, stderr := run(checkpoint, exectest.Options{})
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "the reports", text, `"progress":12`, `"training":{`, `"result":{`, `"steps":12`)
	if strings.Contains(text, `"losses"`) {
		t.Errorf("the result of a stage has the losses: %s", text)
	}
}

// Five attempts at a batch that is larger than the data cost five probes and tell nothing more than the first.
func TestInAnAttemptWhatCannotBeTrainedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	const final = `{"retry": false}`
	for name, c := range map[string]struct {
		batch   string
		options exectest.Options
		want    bool
	}{
		"more samples than there are": {batch: "300", want: true},
		"a host that is lost": {batch: "24", options: exectest.Options{
			Fail: func(context.Context, int64, int) error { return errors.New("the host is lost") },
		}},
		"a model that fails once it trains": {batch: "24", options: exectest.Options{
			Fail: func(_ context.Context, step int64, _ int) error {
				if step < 4 {
					return nil
				}
				return fmt.Errorf("a sample of the data: %w", exec.ErrRequest)
			},
		}},
	} {
		environment, reports := attempt(t)
		deps := clitest.Reference(c.options)
		deps.Environment = lookup(environment)
		code, _, stderr := clitest.Execute(t, t.Context(), deps, "train", clitest.ModelOf(t), "--out",
			filepath.Join(t.TempDir(), "out"), "--steps", "12", "--batch", c.batch)
		written, err := os.ReadFile(reports)
		if err != nil {
			t.Fatal(err)
		}
		if code == cli.ExitOK || strings.Contains(string(written), final) != c.want {
			t.Errorf("%s: exit %d, reports %s; want %s: %t\n%s", name, code, written, final, c.want, stderr)
		}
	}
}

func TestATrainingByTheEngineIsACommandOfThisBinary(t *testing.T) {
	t.Parallel()
	dir := clitest.Directory(t, map[string]string{
		"code/model.py": "def build(): ...", "code/parts.py": "x = 1",
		"data.csv": "1,2\n",
	})
	out, state := filepath.Join(dir, "out"), t.TempDir()
	stack := clitest.StartStack(t, state)
	var input chain.SingleInput
	var pipeline string
	stack.OnPublish = func(event web.Event, run string) {
		pipeline = event.Pipeline
		if err := json.Unmarshal(event.Input, &input); err != nil {
			t.Error(err)
		}
		stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: pipeline, App: pipeline, At: clitest.Begin})
		stack.Print(clitest.Said(run, pipeline, wire.LogOut, "step 30/30"))
		stack.Results = map[string]json.RawMessage{run: trainedResult(t, stack, pipeline)}
		stack.Apply(run, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: clitest.Begin.Add(4 * time.Second)})
	}
	deps := clitest.Reference(exectest.Options{})
	code, stdout, stderr := clitest.Execute(t, t.Context(), deps, "train", dir+"/code/model.py:build", "--state", state,
		"--data", dir+"/data.csv", "--out", out,
		"--partitions", "3", "--steps", "30", "--optimizer", "adamw", "--learning-rate", "0.01", "--env", "A=b")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	command := input.Command
	if got, want := strings.Join(command.Arguments[1:], " "),
		"train model.py:build --learning-rate=0.01 --optimizer=adamw --partitions=3 --steps=30 --data "+
			"training-inputs/data/data.csv "+
			"--out trained --leave "+out+" --followed lines"; got != want {
		t.Errorf("the arguments are\n%s\nwant\n%s", got, want)
	}
	if binary, err := os.Executable(); err != nil || command.Arguments[0] != binary || pipeline != "train-code" {
		t.Errorf("program %s of %s, %v", command.Arguments[0], pipeline, err)
	}
	if input.CPU != quantity.Core || command.KeepChanged || command.Environment["A"] != "b" || len(command.Files) != 1 ||
		command.Files[0].Path != "training-inputs/data/data.csv" {
		t.Errorf("the pool has one CPU; the input is %+v", input)
	}
	clitest.Contains(t, "standard output", stdout, "step 30/30", "loss   2 -> 1 after 30 steps", "model  "+out+"/model.pt",
		"state  "+out+"/checkpoints/step-30",
		"import torch, model", "torch.load(\""+out+"/model.pt\")")
	if got := clitest.Content(t, out); got["model.pt"] != "weights" || got["checkpoints/step-30/manifest.json"] != "{}" ||
		len(got) != 2 {
		t.Errorf("brought back were %v", got)
	}
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 2 {
		t.Errorf("%v, %v are left in the result directory", err, entries)
	}
}

// trainedResult is what a run that trains leaves.
func trainedResult(t *testing.T, stack *clitest.Stack, pipeline string) json.RawMessage {
	t.Helper()
	ref, err := tree.Pack(t.Context(), stack.Store,
		clitest.Directory(t, map[string]string{"model.pt": "weights", "checkpoints/step-30/manifest.json": "{}"}),
		tree.Options{})
	if err != nil {
		t.Error(err)
	}
	told := display.Trained{
		Loss: 1, Losses: []float64{2, 1}, Seconds: 3,
		Training: predictor.Training{Executor: "torch", Steps: 30, Batch: 64, StepSeconds: 0.1, PredictedStepSeconds: 0.1},
	}
	encoded, err := json.Marshal(chain.Result{Stages: map[string]chain.StageResult{pipeline: {
		Tasks: 1, Outputs: map[string][]wire.CommandFile{"trained": {{Path: "trained", Artifact: ref, Tree: true}}},
		Values: []map[string]any{{"loss": 1, "model": "model.pt", "checkpoint": "checkpoints/step-30", "trained": told}},
	}}})
	if err != nil {
		t.Error(err)
	}
	return encoded
}

func TestATrainingThatFailsByTheEngineEndsWithTheCodeOfTheProgram(t *testing.T) {
	t.Parallel()
	dir, state := clitest.Directory(t, map[string]string{"model.py": "def build(): ..."}), t.TempDir()
	p := clitest.Program{Failure: "stage train: the command ended with exit code 2"}
	p.Play(t, clitest.StartStack(t, state))
	out := filepath.Join(dir, "out")
	code, _, stderr := clitest.Execute(t, t.Context(), clitest.Reference(exectest.Options{}), "train",
		dir+"/model.py:build", "--state", state, "--out", out)
	if code != 2 {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a training that failed leaves %s: %v", out, err)
	}
}

func TestWrongTrainingsAreRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	model := clitest.ModelOf(t)
	file := strings.TrimSuffix(model, ":build")
	full := clitest.Directory(t, map[string]string{"model.pt": "weights"})
	trained := clitest.Directory(t, map[string]string{"checkpoints/step-000000003/manifest.json": "{}"})
	newest := filepath.Join(trained, "checkpoints", "step-000000003")
	for name, test := range map[string]struct{ args, want string }{
		"no model":                   {"", "it needs a model, FILE.py:FUNCTION"},
		"a model without a function": {file, "names no function\n  hint: write " + file + ":build"},
		"a model that is none":       {"model.onnx", "\"model.onnx\" is not a model"},
		"a model that is not there":  {"nowhere.py:build", "nowhere.py: no such file or directory"},
		"no parts": {
			model + " --partitions 0",
			"--partitions 0: it is neither auto nor a whole number in range",
		},
		"steps and epochs":                {model + " --steps 3 --epochs 1", "--steps and --epochs exclude each other"},
		"no steps":                        {model + " --steps 0", "--steps 0: it is not a whole number in range"},
		"a learning rate of no optimizer": {model + " --learning-rate 0.1", "--learning-rate is for --optimizer"},
		"a momentum of adam": {
			model + " --optimizer adam --momentum 0.5",
			"--momentum is for --optimizer momentum",
		},
		"a momentum beyond one": {model + " --optimizer momentum --momentum 1", "--momentum 1 is not below 1"},
		"more micro-batches than samples": {
			model + " --batch 4 --micro-batches 8",
			"a batch of 4 samples cannot be cut into 8 micro-batches",
		},
		"more than samples of usual batch": {model + " --micro-batches 65", "a batch of 64 samples cannot be cut into 65"},
		"no number of hosts":               {model + " --hosts none", "it is neither auto nor a number of hosts"},
		"several hosts without an engine":  {model + " --hosts 2 --here", "--hosts with --here"},
		"replicas that hosts do not divide": {
			model + " --hosts 2 --replicas 3", "3 replicas cannot be divided among 2 hosts",
		},
		"one replica on hosts that is evaluated": {
			model + " --hosts 2 --replicas 1 --validation-data .", "the parts of one replica are not evaluated there",
		},
		"hosts that compile":          {model + " --hosts auto --compile", "--compile with --hosts"},
		"an unknown schedule":         {model + " --schedule pipedream", "it is none of 1f1b, gpipe"},
		"a seed that is none":         {model + " --seed -1", "--seed -1: it is not a seed"},
		"data that is not there":      {model + " --data nowhere", "--data nowhere: no such file or directory"},
		"data in place without data":  {model + " --data-in-place", "--data-in-place is for --data"},
		"a checkpoint that is a file": {model + " --resume " + file, "it is no directory"},
		"a checkpoint that is none": {
			model + " --resume " + full,
			"it is no checkpoint, as it has no manifest.json\n  hint: give the directory of a checkpoint",
		},
		"a result directory as a checkpoint": {model + " --resume " + trained, "hint: the newest one in it is " + newest},
		"the directory of checkpoints as one": {
			model + " --resume " + filepath.Dir(newest), "hint: the newest one in it is " + newest,
		},
		"fewer than no processes for the data": {model + " --data-workers -3", "a number from 0 to 1024"},
		"processes for the data beyond reason": {model + " --data-workers 5000", "a number from 0 to 1024"},
		"a result directory with files": {
			model + " --out " + full,
			"is not empty: it has model.pt\n  hint: give another with --out DIR",
		},
		"a flag of a run with --here": {
			model + " --here --memory 1GiB --no-burst",
			"--memory, --no-burst is not for a training in this process",
		},
		"the memory of no GPU": {
			model + " --gpu-memory 8GiB",
			"--gpu-memory and --gpu-class say which GPU, and nothing how many\n  hint: add --gpu 1",
		},
		"GPUs of a training that is given none": {
			model + " --here --gpu 1", "--gpu is not for a training in this process",
		},
		"code that has not the model": {model + " --code " + full, "is not below --code"},
		"devices of no known class": {
			model + " --here --out " + full + "/x --devices " +
				clitest.Write(t, "tpu.yaml", "devices:\n  - {id: t, class: tpu, memory: 1GiB}\n"),
			"tpu.yaml:2:20: a model cannot be trained on class \"tpu\"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"train", "--state", t.TempDir()}, strings.Fields(test.args)...)
			code, stdout, stderr := clitest.Execute(t, t.Context(), clitest.Reference(exectest.Options{}), args...)
			if code != cli.ExitUsage || stdout != "" {
				t.Errorf("got exit %d, stdout %q, stderr %q; want exit 2", code, stdout, stderr)
			}
			clitest.Contains(t, "standard error", stderr, test.want)
		})
	}
}

func TestAnAttemptThatIsStoppedLeavesItsLastCheckpointWithTheCaller(t *testing.T) {
	t.Parallel()
	out, left := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "left")
	environment, _ := attempt(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	deps := clitest.Reference(exectest.Options{Fail: func(_ context.Context, step int64, _ int) error {
		for step == 9 { // until a checkpoint is complete, which is made meanwhile
			found, err := filepath.Glob(filepath.Join(out, "checkpoints", "step-*"))
			if len(found) > 0 || err != nil {
				stop()
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	}})
	deps.Environment = lookup(environment)
	args := []string{"train", clitest.ModelOf(t), "--out", out, "--steps", "40", "--batch", "24", "--partitions", "1"}
	code, _, stderr := clitest.Execute(t, ctx, deps,
		append(args, "--checkpoint-every", "1ns", "--leave", left, "--followed", "lines")...)
	if code != cli.ExitFailure || strings.Contains(stderr, "--resume") {
		t.Errorf("got exit %d: %s; the caller says how to go on", code, stderr)
	}
	checkpoints, err := filepath.Glob(filepath.Join(left, "checkpoints", "*"))
	if err != nil || len(checkpoints) != 1 {
		t.Fatalf("%v, %v are left", err, checkpoints)
	}
	code, stdout, stderr := clitest.Execute(t, t.Context(), clitest.Reference(exectest.Options{}),
		append(args, "--here", "--json", "--resume", checkpoints[0])...)
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	if _, _, _, result := jsonLines(t, stdout); result.Resumed == 0 || int(result.Resumed)+len(result.Losses) != 40 {
		t.Errorf("it went on from step %d and has %d losses", result.Resumed, len(result.Losses))
	}
}

func TestDataInPlaceIsNotSent(t *testing.T) {
	t.Parallel()
	dir, state := clitest.Directory(t, map[string]string{"net.py": "def build(): ...", "data/a.csv": "1"}), t.TempDir()
	p := clitest.Program{Failure: "stage train: the command ended with exit code 1"}
	p.Play(t, clitest.StartStack(t, state))
	code, _, stderr := clitest.Execute(t, t.Context(), clitest.Reference(exectest.Options{}), "train", dir+"/net.py:build",
		"--state", state, "--data", dir+"/data", "--data-in-place",
		"--out", filepath.Join(dir, "out"), "--partitions", "auto", "--cpu", "500m", "--name", "mine", "--json")
	if code != cli.ExitFailure {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	arguments := strings.Join(p.Input.Command.Arguments, " ")
	clitest.Contains(t, "the arguments", arguments, " --data "+dir+"/data ", " --followed json")
	if len(p.Input.Command.Files) != 0 || p.Input.CPU != quantity.Core/2 {
		t.Errorf("the input is %+v", p.Input)
	}
	clitest.Contains(t, "standard error", stderr, "run mine-")
}
