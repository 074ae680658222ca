package tune_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// trials are how a tuning of the input ends: the second trial is the best, the first failed.
func trials(t *testing.T, in chain.SingleInput, ended string) runs.Tuning {
	t.Helper()
	s, err := search.New(in.Tuning.Space, in.Tuning.Options.WithDefaults())
	if err != nil {
		t.Fatal(err)
	}
	of := runs.Tuning{
		Stage: "train", Name: "train", Space: in.Tuning.Space, Options: in.Tuning.Options.WithDefaults(),
		Objective: in.Tuning.Objective, Begun: 3, Best: new(1), Ended: ended, Spent: 3 * quantity.USD / 1000,
		StartedAt: clitest.Begin, Counts: map[runs.TrialState]int{
			runs.TrialFailed: 1, runs.TrialFinished: 1, runs.TrialStopped: 1,
		},
	}
	for number := range 3 {
		job, found := s.Next()
		if !found || job.Trial != number {
			t.Fatalf("job %+v, want the first of trial %d", job, number)
		}
		trial := runs.Trial{Number: number, Configuration: job.Configuration, Jobs: []runs.TrialJob{{
			To: job.To, Task: "train-" + string(rune('0'+number)), Spent: quantity.USD / 1000, StartedAt: clitest.Begin,
			EndedAt: clitest.Begin.Add(2 * time.Second),
		}}}
		switch number {
		case 0:
			trial.State, trial.Why = runs.TrialFailed, "exit code 1: out of\x1b[31m luck"
		case 1:
			trial.State, trial.Jobs[0].Objective = runs.TrialStopped, new(0.25)
			trial.Jobs = append(trial.Jobs, runs.TrialJob{
				Rung: 1, From: job.To, To: 9, Task: "train-3", Objective: new(0.125), Spent: quantity.USD / 1000,
				StartedAt: clitest.Begin,
			})
		case 2:
			trial.State, trial.Why = runs.TrialStopped, "rung 0: 2nd of 3, the best went on"
			trial.Jobs[0].Objective = new(0.5)
		}
		of.Trials = append(of.Trials, trial)
	}
	return of
}

// play makes the stack run a tuning, and returns what it was started with once it was.
func play(t *testing.T, stack *clitest.Stack, state predictor.RunState) *chain.SingleInput {
	t.Helper()
	in := &chain.SingleInput{}
	stack.OnPublish = func(event web.Event, run string) {
		if err := json.Unmarshal(event.Input, in); err != nil {
			t.Error(err)
			return
		}
		stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: event.Pipeline, App: event.Pipeline, At: clitest.Begin})
		ended := runs.EndedDone
		if state == predictor.RunCancelled {
			ended = runs.EndedCancelled
		}
		tuning := trials(t, *in, ended)
		stack.SetTunings(run, tuning)
		changed, err := tree.Pack(t.Context(), stack.Store, clitest.Directory(t, map[string]string{"model": "w"}),
			tree.Options{})
		if err != nil {
			t.Error(err)
		}
		result, err := json.Marshal(chain.Result{
			Stages: map[string]chain.StageResult{event.Pipeline: {Tasks: 1, Changed: &changed}},
			Tuned:  &chain.Tuned{Trial: 1, Objective: 0.125, Arguments: in.Best(tuning).Arguments, Ended: runs.EndedDone},
		})
		if err != nil {
			t.Error(err)
		}
		stack.Results = map[string]json.RawMessage{run: result}
		stack.Apply(run, predictor.RunEnded{Run: run, State: state, At: clitest.Begin.Add(4 * time.Second)})
	}
	return in
}

func TestATuningIsStartedShownAndBroughtBack(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	in := play(t, stack, predictor.RunSucceeded)
	dir := clitest.Directory(t, map[string]string{"train.py": "x"})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "tune", "--state", state, "--code", dir,
		"--space", "lr=log:1e-4..1e-1", "--space", "opt=adam|s g d", "--trials", "3", "--most", "9", "--least", "3",
		"--seed", "4", "--eta", "3", "--algorithm", "halving", "--objective", "error", "--time", "10m", "--money", "0.50",
		"--memory", "1GiB", "--budget", "2", "--deadline", "1h", "--env", "RATE={lr}",
		"--", "python", "train.py", "--lr={lr}", "--opt", "{opt}", "--epochs", "{to}")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s", code, stderr)
	}
	var space search.Space
	for _, text := range []string{"lr=log:1e-4..1e-1", "opt=adam|s g d"} {
		p, err := search.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		space = append(space, p)
	}
	want := &chain.Tuning{
		Space: space, Objective: "error", Time: 10 * time.Minute, Money: quantity.USD / 2, Options: search.Options{
			Algorithm: search.Halving, Trials: 3, Least: 3, Most: 9, Eta: 3, Seed: 4,
		},
	}
	if diff := cmp.Diff(want, in.Tuning); diff != "" {
		t.Errorf("the tuning (-want +got):\n%s", diff)
	}
	if in.Memory != quantity.GiB || in.Command.Code.Digest == "" || !in.Command.KeepChanged {
		t.Errorf("the command is %+v", in)
	}
	best := trials(t, *in, "").Trials[1].Configuration
	clitest.Contains(t, "standard output", stdout, "run train-event-1 started",
		"tuning train is done: 3 trials by halving",
		"best      error 0.125 by trial 1 at 9 of 9", "lr="+best["lr"].String()+" opt="+best["opt"].String(),
		"again     spillway run --code "+dir+" --env RATE="+best["lr"].String()+" --memory '1 GiB' -- python train.py --lr="+
			best["lr"].String()+" --opt ",
		" --epochs 9\n",
		"3 begun: 1 finished, 1 stopped, 1 failed; $0.003", "best error", "0.125")
	clitest.Contains(t, "standard error", stderr, "spillway: run train-event-1 succeeded in 4.0 s",
		"`spillway show train-event-1` lists its trials", "brought back 1 file, 1 B: model")
	if got := clitest.Content(t, dir)["model"]; got != "w" {
		t.Errorf("the best trial's file is %q", got)
	}

	// It is listed afterwards.
	code, stdout, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "show", "train-event-1", "--state", state,
		"--trials", "2")
	if code != cli.ExitOK {
		t.Fatalf("show: got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "the trials", stdout, "rung 0: 2nd of 3, the best went on",
		"the best 2 of 3; --trials 3 lists all")
	if strings.Contains(stdout, "luck") {
		t.Errorf("more than two trials are listed:\n%s", stdout)
	}
	_, stdout, _ = clitest.Execute(t, t.Context(), cli.Deps{}, "show", "train-event-1", "--state", state)
	clitest.Contains(t, "all trials", stdout, "exit code 1: out of luck")
	_, stdout, _ = clitest.Execute(t, t.Context(), cli.Deps{}, "show", "train-event-1", "--state", state, "--json")
	var report display.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || len(report.Tunings) != 1 ||
		len(report.Tunings[0].Trials) != 3 || *report.Tunings[0].Best != 1 {
		t.Errorf("the report is %s: %v", stdout, err)
	}
}

func TestATuningWritesOneJSONObject(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	play(t, clitest.StartStack(t, state), predictor.RunSucceeded)
	dir := clitest.Directory(t, map[string]string{"train.py": "x"})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "tune", "--state", state, "--code", dir, "--json",
		"--trials", "3", "--most", "9", "--least", "3", "--space", "lr=0..1.0", "--", "python", "train.py", "{lr}", "{to}")
	var report display.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil || code != cli.ExitOK {
		t.Fatalf("got exit %d, %v in %s\n%s", code, err, stdout, stderr)
	}
	var result chain.Result
	if err := json.Unmarshal(report.Result, &result); err != nil || result.Tuned == nil ||
		result.Tuned.Arguments[1] != "train.py" || result.Tuned.Arguments[3] != "9" {
		t.Errorf("the result is %s", report.Result)
	}
	if len(report.Tunings) != 1 || report.Tunings[0].Counts[runs.TrialFailed] != 1 {
		t.Errorf("the tunings are %+v", report.Tunings)
	}
	clitest.Contains(t, "standard error", stderr, "run train-event-1 started")
}

func TestATuningThatWasCancelledSaysWhatWasBest(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	play(t, clitest.StartStack(t, state), predictor.RunCancelled)
	dir := clitest.Directory(t, map[string]string{"train.py": "x"})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "tune", "--state", state, "--code", dir,
		"--trials", "3", "--most", "9", "--least", "3", "--space", "lr=0..1.0", "--", "python", "train.py", "{lr}", "{to}")
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1: %s", code, stderr)
	}
	clitest.Contains(t, "standard output", stdout, "tuning train was cancelled", "loss 0.125 by trial 1")
	clitest.Contains(t, "standard error", stderr, "`spillway retry train-event-1` goes on from the jobs that were done")
	if _, err := os.Stat(filepath.Join(dir, "model")); err == nil {
		t.Error("files of a run that was cancelled are brought back")
	}
}

func TestWrongTuningsAreRefusedBeforeAnythingStarts(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	stack.OnPublish = func(_ web.Event, run string) { t.Errorf("run %s was started", run) }
	for name, test := range map[string]struct {
		args string
		want string
	}{
		"no command":             {"--space lr=0..1.0", "it needs a command after --"},
		"no program":             {"--space lr=0..1.0 --", "there is no program after --"},
		"a command without --":   {"--space lr=0..1.0 python", `it does not take the argument "python"`},
		"a name before --":       {"--space lr=0..1.0 x -- python", `"x" stands before --`},
		"no space":               {"-- python {lr}", "there is nothing to search\n  hint: say what: --space lr="},
		"a space that is none":   {"--space lr -- python {lr}", "write NAME=LOW..HIGH"},
		"an end that is none":    {"--space lr=0..x -- python {lr}", "the ends of a range are numbers"},
		"the wrong way round":    {"--space lr=2..1 -- python {lr}", "the lower end comes first"},
		"through zero":           {"--space lr=log:0..1 -- python {lr}", "a logarithmic range is above 0"},
		"twice the same":         {"--space lr=0..1 --space lr=0..2 -- python {lr}", "it is there twice"},
		"an empty choice":        {"--space o=a||b -- python {o}", "no empty one"},
		"an unused parameter":    {"--space lr=0..1 -- python x", `"lr" is used nowhere: write {lr}`},
		"an unknown placeholder": {"--space lr=0..1 -- python {lr} {epochs}", "placeholder {epochs} is unknown"},
		"a brace":                {"--space lr=0..1 -- python {lr} {", `"{" is no placeholder`},
		"how far is not said":    {"--space lr=0..1 -- python {lr} {to}", "nothing says how far that is at most"},
		"more at first than all": {"--space lr=0..1 --least 9 --most 3 -- python {lr} {to}", "no more than all"},
		"rungs for nothing":      {"--space lr=0..1 --most 9 --algorithm asha -- python {lr}", "write {to} where"},
		"how far for nothing":    {"--space lr=0..1 --most 9 -- python {lr}", "the command has no {to}"},
		"a seed that is none":    {"--space lr=0..1 --seed x -- python {lr}", "--seed x: it is not a seed"},
		"one configuration":      {"--space lr=5 --space n=2..2 -- python {lr} {n}", "all its trials would be the same"},
		"too many trials":        {"--space lr=0..1 --trials 999999 -- python {lr}", "a tuning has at most"},
		"one rung in one":        {"--space lr=0..1 --eta 1 -- python {lr}", "--eta 1: it is not a whole number in range"},
		"an unknown algorithm":   {"--space lr=0..1 --algorithm grid -- python {lr}", "it is none of asha, random"},
		"no money":               {"--space lr=0..1 --money 0 -- python {lr}", "--money 0: it is zero"},
		"no time":                {"--space lr=0..1 --time 0s -- python {lr}", "--time 0s: it is zero"},
		"a deadline in the past": {"--space lr=0..1 --deadline -1s -- python {lr}", "--deadline -1s: it is negative"},
		"an empty objective":     {"--space lr=0..1 --objective= -- python {lr}", `--objective "": it is empty`},
		"in place":               {"--space lr=0..1 --in-place -- python {lr}", "would write over each other's files"},
		"no name":                {"--space lr=0..1 --name X! -- python {lr}", "give it another name with --name"},
		"no such file":           {"--space lr=0..1 --file a=/nowhere/a -- python {lr}", "--file /nowhere/a: no such file"},
	} {
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			append([]string{"tune", "--state", state}, strings.Fields(test.args)...)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: got exit %d, want 2 and %q:\n%s", name, code, test.want, stderr)
		}
		if strings.Contains(stderr, "from 0 to 0") || strings.Count(stderr, "\n") > 2 {
			t.Errorf("%s: more is said than is wrong:\n%s", name, stderr)
		}
	}
}

func TestEveryTrialOfACommandWithoutTurnsRunsItWhole(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state)
	var in chain.SingleInput
	stack.OnPublish = func(event web.Event, run string) {
		if err := json.Unmarshal(event.Input, &in); err != nil {
			t.Error(err)
		}
		stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: event.Pipeline, App: event.Pipeline, At: clitest.Begin},
			predictor.RunEnded{Run: run, State: predictor.RunFailed, Error: "no luck", At: clitest.Begin})
	}
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "tune", "--state", state, "--code", "none", "--space",
		"lr=0..1.0", "--", "python", "-c", "f({lr}, {{)")
	if code != cli.ExitFailure || !strings.Contains(stderr, "no luck") {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	if strings.Contains(stderr, "the same") {
		t.Errorf("of a range without end it is said that trials are the same: %s", stderr)
	}
	_, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "tune", "--state", state, "--code", "none", "--space",
		"n=2..5", "--", "python", "-c", "f({n})")
	clitest.Contains(t, "a small space", stderr,
		"the space has 4 configurations at most, and 27 trials are drawn from it: some are the same")
	request := runs.TuneRequest{
		Stage: wire.Stage{Name: "python"}, Space: in.Tuning.Space, Options: in.Tuning.Options, Objective: "loss",
		Command: true,
	}
	var err error
	if request.Input, err = json.Marshal(in.Command); err != nil {
		t.Fatal(err)
	}
	if got := request.WithDefaults().Options; got.Algorithm != search.Random || got.Most != 1 || got.Trials != 27 {
		t.Errorf("it is searched with %+v", got)
	}
}
