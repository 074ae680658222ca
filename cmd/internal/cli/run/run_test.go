package run_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestRunStartsAStackForTheOccasionAndEndsIt(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	var event web.Event
	start, configs := clitest.Starter(t, func(stack *clitest.Stack) {
		stack.OnPublish = func(published web.Event, run string) {
			event = published
			clitest.Finish(stack, run, "tiny", "0123456789ab", predictor.RunSucceeded, `{"accuracy":0.97}`, clitest.Begin)
		}
	})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{StartEngine: start}, "run", "tiny", "--state", state,
		"--app", clitest.Script(t, "tiny"),
		"--id", "7", "--input", `{"a":1}`, "--deadline", "10m", "--budget", "0.50", "--minimise", "cost", "--no-burst",
		"--host-price", "2")
	if code != cli.ExitOK || stderr != "" {
		t.Fatalf("got exit %d, stderr %q", code, stderr)
	}
	clitest.Contains(t, "standard output", stdout,
		"run tiny-7 of tiny started", "stage score: 2 tasks done (pool 1, function 1)",
		"score at function: 0 slots -> 1 slot: 2 tasks wait 2 s",
		"tiny tiny-7 succeeded", "time      4.0 s", "accuracy  0.9700", "score      1+1")
	want := web.Event{
		Pipeline: "tiny", ID: "7", Input: json.RawMessage(`{"a":1}`),
		Goal: &predictor.Goal{Deadline: 10 * time.Minute, Budget: quantity.USD / 2, Minimise: predictor.Cost},
	}
	if diff := cmp.Diff(want, event); diff != "" {
		t.Errorf("event (-want +got):\n%s", diff)
	}
	config := (*configs)[0]
	if config.Functions.Enabled || config.HostPrice != 2*quantity.USD || config.Ports.Usual || config.StateDir != state ||
		len(config.Apps) != 1 {
		t.Errorf("the stack was started with %+v", config)
	}
	if _, err := os.Stat(filepath.Join(state, "stack.json")); err == nil {
		t.Error("the stack still runs")
	}
}

func TestRunWritesOneJSONObjectAndFailsWithTheRun(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.OnPublish = func(_ web.Event, run string) {
		clitest.Finish(stack, run, "digits", clitest.ServedDigits.Build, predictor.RunFailed, `{"score":{"accuracy":0.5}}`,
			clitest.Begin)
	}
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "digits", "--state", state, "--json")
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	var report display.Report
	if err := json.Unmarshal([]byte(stdout), &report); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	if report.State != predictor.RunFailed || report.Error != "stage score: no luck" || *report.Accuracy.Actual != 0.5 ||
		*report.WallSeconds.Actual != 4 ||
		len(report.Decisions) != 1 || len(report.Stages) != 1 || !cmp.Equal(report.Venues["pool"].CPUs, []int{0}) {
		t.Errorf("got %s", stdout)
	}
	clitest.Contains(t, "standard error", stderr, "stage score started", "digits-event-1 failed")
	if code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "digits", "--state", state, "--json",
		"--quiet"); code != cli.ExitFailure || stderr != "" {
		t.Errorf("quiet: got exit %d, stderr %q", code, stderr)
	}
}

func TestFlagsOfTheStackAreRefusedWhenOneRuns(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	clitest.StartStack(t, state, clitest.ServedDigits)
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "digits", "--state", state, "--no-burst",
		"--pool-cpus", "0")
	if code != cli.ExitUsage {
		t.Errorf("got exit %d, want 2", code)
	}
	clitest.Contains(t, "standard error", stderr, "--no-burst, --pool-cpus can only be said when it starts")
}

func TestRunOnARunningStackRegistersTheApp(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.OnPublish = func(_ web.Event, run string) { t.Errorf("run %s was started", run) }
	// The engine in memory knows no other app, so that it refuses this one: that shows that it was asked.
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "tiny", "--state", state, "--app",
		clitest.Script(t, "tiny"))
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	clitest.Contains(t, "standard error", stderr, "serve app tiny: register "+filepath.Join(state, "builds", "tiny@"))
}

func TestAnEventThatIsDeadIsToldAtOnce(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.OnPublish = func(web.Event, string) {
		stack.AddDead(web.DeadLetter{Sequence: 3, Event: "9", Reason: "shards: -1 is less than 0"})
	}
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", "digits", "--state", state, "--id", "9")
	if code != cli.ExitUsage {
		t.Errorf("got exit %d, want 2", code)
	}
	clitest.Contains(t, "standard error", stderr, "the event cannot start a run: shards: -1 is less than 0")
}

func TestAnInterruptCancelsTheRunOfAStackForTheOccasion(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	start, _ := clitest.Starter(t, func(stack *clitest.Stack) {
		stack.OnPublish = func(_ web.Event, run string) {
			stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: "tiny", App: "tiny", At: clitest.Begin})
			time.AfterFunc(50*time.Millisecond, interrupt)
		}
		stack.OnCancel = func(run string) {
			time.AfterFunc(10*time.Millisecond, func() {
				stack.Apply(run, predictor.RunEnded{Run: run, State: predictor.RunCancelled, At: clitest.Begin.Add(time.Second)})
			})
		}
	})
	code, stdout, stderr := clitest.Execute(t, ctx, cli.Deps{StartEngine: start}, "run", "tiny", "--state", t.TempDir(),
		"--app", clitest.Script(t, "tiny"))
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	clitest.Contains(t, "standard output", stdout, "tiny tiny-event-1 cancelled")
	clitest.Contains(t, "standard error", stderr, "cancelling run tiny-event-1")
}

func TestAnInterruptLeavesTheRunOfARunningStackAlone(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.OnPublish = func(_ web.Event, run string) {
		stack.Apply(run, predictor.RunStarted{Run: run, Pipeline: "digits", App: "digits", At: clitest.Begin})
		time.AfterFunc(50*time.Millisecond, interrupt)
	}
	stack.OnCancel = func(run string) { t.Errorf("run %s was cancelled", run) }
	code, _, stderr := clitest.Execute(t, ctx, cli.Deps{}, "run", "digits", "--state", state)
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	clitest.Contains(t, "standard error", stderr, "interrupted while run digits-event-1 goes on",
		"spillway cancel digits-event-1")
}

func TestCommandsOnARunningStack(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	clitest.Finish(stack, "digits-1", "digits", clitest.ServedDigits.Build, predictor.RunSucceeded, `{"accuracy":0.97}`,
		clitest.Begin)
	stack.Apply("digits-2", predictor.RunStarted{
		Run: "digits-2", Pipeline: "digits", App: "digits",
		At: clitest.Begin.Add(time.Minute),
	})
	stack.AddDead(web.DeadLetter{Sequence: 17, Event: "e", Subject: "uploads.a", Reason: "not JSON"})
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"runs", 0, "digits-1  digits    succeeded"},
		{"runs --status failed", 0, "no runs"},
		{"runs --json --limit 1", 0, `"run": "digits-2"`},
		{"runs --limit 1", 0, "2 runs: 1 running, 1 succeeded; $"},
		{"runs --totals --status failed", 0, "0 runs"},
		{"runs --totals --pipeline digits --status running", 0, "1 run: 1 running; $0"},
		{"runs --totals --json", 0, `"succeeded": 1`},
		{"show digits-1", 0, "score at function: 0 slots -> 1 slot: 2 tasks wait 2 s"},
		{"show digits-1 --json", 0, `"failed_attempts": 0`},
		{"show digits-1 --history", 0, `{"events":[]}`},
		{"show digits-1 --follow", 0, "digits digits-1 succeeded"},
		{"show digits-3", 2, `there is no run "digits-3"`},
		{"cancel digits-2", 0, "run digits-2 is told to end"},
		{"cancel digits-1", 1, "has succeeded already"},
		{"trigger digits --id 5", 0, "run digits-5 is triggered by event 5"},
		{"trigger digits --id 6 --json", 0, `"run": "digits-6"`},
		{"trigger digist", 2, "did you mean digits?"},
		{"bindings", 0, "no bindings"},
		{"bind uploads.> digits --filter kind=image --max-runs 2", 0, "binding digits-1: events on uploads.> start digits"},
		{"bindings", 0, "0/2"},
		{"bindings --json", 0, `"kind": "image"`},
		{"unbind digits-1", 0, "binding digits-1 is removed"},
		{"unbind digits-1", 2, `there is no binding "digits-1"`},
		{"dead list", 0, "not JSON"},
		{"dead list --json", 0, `"sequence": 17`},
		{"dead replay 17", 0, "dead letter 17 has started run"},
		{"dead replay 17", 2, "there is no dead letter 17"},
		{"dead list", 0, "no dead letters"},
		{"dead replay --all", 0, "replayed: 0"},
	} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			append(strings.Fields(test.args), "--state", state)...)
		if code != test.code {
			t.Errorf("%s: got exit %d, want %d: %s", test.args, code, test.code, stderr)
		}
		clitest.Contains(t, test.args, stdout+stderr, test.want)
	}
}
