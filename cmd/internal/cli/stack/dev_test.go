package stack_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// dev runs `spillway dev` until stop is called, which returns its exit code.
func dev(t *testing.T, deps cli.Deps, args ...string) (out, complaints *clitest.Buffer, stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, complaints = &clitest.Buffer{}, &clitest.Buffer{}
	ended := make(chan int, 1)
	deps.Version = "v0.1.0"
	go func() { ended <- cli.Execute(ctx, append([]string{"dev"}, args...), out, complaints, deps) }()
	return out, complaints, func() int {
		cancel()
		return <-ended
	}
}

func eventually(t *testing.T, out *clitest.Buffer, part string) {
	t.Helper()
	for range 1000 {
		if strings.Contains(out.String(), part) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("still no %q after 10 s:\n%s", part, out)
}

func TestDevServesFollowsAndStops(t *testing.T) {
	t.Parallel()
	var stack *clitest.Stack
	start, configs := clitest.Starter(t, func(started *clitest.Stack) { stack = started })
	out, complaints, stop := dev(t, cli.Deps{StartEngine: start}, "--state", t.TempDir(), "--app",
		clitest.Script(t, "tiny"), "--predictor", "off", "--http-port", "7499")
	eventually(t, out, "spillway trigger tiny")
	eventually(t, out, "pipeline      tiny")
	clitest.Finish(stack, "tiny-1", "tiny", "0123456789ab", predictor.RunSucceeded, "{}", time.Now())
	eventually(t, out, "run tiny-1 succeeded in 4.0 s for $0.000002000 (pool 1, function 1)")
	if code := stop(); code != cli.ExitOK || complaints.String() != "" {
		t.Errorf("got exit %d, stderr %q", code, complaints)
	}
	clitest.Contains(t, "standard output", out.String(), "spillway v0.1.0 is ready", "stopping")
	config := (*configs)[0]
	if !config.Ports.Usual || config.Ports.HTTP != 7499 || !config.Policy.Static || config.Functions.Enabled {
		t.Errorf("the stack was started with %+v", config)
	}
}

func TestDevTellsWhichRunsGoOnThatBeganBefore(t *testing.T) {
	t.Parallel()
	start, _ := clitest.Starter(t, func(started *clitest.Stack) {
		for _, run := range []string{"tiny-1", "tiny-2", "tiny-3", "tiny-4"} {
			started.Apply(run, predictor.RunStarted{Run: run, Pipeline: "tiny", App: "tiny", At: clitest.Begin})
		}
		clitest.Finish(started, "tiny-5", "tiny", "0123456789ab", predictor.RunSucceeded, "{}", clitest.Begin)
		started.Apply("tiny-6", predictor.RunStarted{Run: "tiny-6", Pipeline: "tiny", At: time.Now().Add(time.Hour)})
	})
	out, complaints, stop := dev(t, cli.Deps{StartEngine: start}, "--state", t.TempDir(), "--app",
		clitest.Script(t, "tiny"))
	eventually(t, out, "spillway trigger tiny")
	if code := stop(); code != cli.ExitOK {
		t.Errorf("got exit %d", code)
	}
	said := complaints.String()
	clitest.Contains(t, "standard error", said, "note: 4 runs from before this start go on: ", "; and 1 more")
	if strings.Contains(said, "tiny-5") || strings.Contains(said, "tiny-6") {
		t.Errorf("got %q, want neither a run that has ended nor one that began since", said)
	}
}

// TestAttackALoginLinkIsPrintedOnATerminalOnly: others may read what is printed to a file or a journal while the link
// is good.
func TestAttackALoginLinkIsPrintedOnATerminalOnly(t *testing.T) {
	t.Parallel()
	start, _ := clitest.Starter(t, nil)
	out, _, stop := dev(t, cli.Deps{StartEngine: start}, "--state", t.TempDir(), "--app", clitest.Script(t, "tiny"))
	eventually(t, out, "spillway trigger tiny")
	if code := stop(); code != cli.ExitOK {
		t.Errorf("got exit %d", code)
	}
	if said := out.String(); strings.Contains(said, "login=") || !strings.Contains(said, "spillway open") {
		t.Errorf("got %q, want the address without a code, and how to log in", said)
	}
}

func TestStagesOfRootAreWarnedOfOnce(t *testing.T) {
	t.Parallel()
	start, _ := clitest.Starter(t, nil)
	out, complaints, stop := dev(t, cli.Deps{StartEngine: start, Root: true}, "--state", t.TempDir(), "--app",
		clitest.Script(t, "tiny"))
	eventually(t, out, "spillway trigger tiny")
	if code := stop(); code != cli.ExitOK {
		t.Errorf("got exit %d", code)
	}
	if said := complaints.String(); strings.Count(said, "\n") != 1 || !strings.Contains(said, "stages run as root") {
		t.Errorf("got %q, want one line that warns of stages that run as root", said)
	}
}

func TestStagesRunAsNoUserWhoIsRootOrUnknown(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"root", "no such user", ""} {
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{Root: true}, "dev", "--state", t.TempDir(),
			"--stage-user", name)
		if code != cli.ExitUsage {
			t.Errorf("--stage-user %q: got exit %d, want %d", name, code, cli.ExitUsage)
		}
		clitest.Contains(t, "standard error", stderr, "--stage-user", "leave the flag out")
	}
}

func TestDevReloadsAnAppWhoseBinaryChanged(t *testing.T) {
	t.Parallel()
	var stack *clitest.Stack
	start, _ := clitest.Starter(t, func(started *clitest.Stack) { stack = started })
	binary, state := clitest.Script(t, "tiny"), t.TempDir()
	out, _, stop := dev(t, cli.Deps{StartEngine: start}, "--state", state, "--app", binary)
	eventually(t, out, "pipeline      tiny")
	before, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, []byte("#!/bin/sh\nexit 1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	eventually(t, out, "stays in service")
	if err := os.WriteFile(binary, append(before, "# changed\n"...), 0o700); err != nil {
		t.Fatal(err)
	}
	// The engine in memory does not know the new build, which shows that it was asked to serve it.
	eventually(t, out, "serve the new build")
	_ = stack
	if code := stop(); code != cli.ExitOK {
		t.Errorf("got exit %d", code)
	}
}

func TestDevIsRefusedWhereAStackRuns(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	clitest.StartStack(t, state, web.App{App: wire.App{Name: "x"}})
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "dev", "--state", state)
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	clitest.Contains(t, "standard error", stderr, "a stack runs on "+state+" already", "use another state directory")
}

func TestDevSaysWhyTheStackDoesNotStart(t *testing.T) {
	t.Parallel()
	deps := cli.Deps{StartEngine: func(context.Context, engine.Config) (cli.RunningEngine, error) {
		return nil, errors.New("port 4222 is taken")
	}}
	code, _, stderr := clitest.Execute(t, t.Context(), deps, "dev", "--state", t.TempDir())
	if code != cli.ExitFailure {
		t.Errorf("got exit %d, want 1", code)
	}
	clitest.Contains(t, "standard error", stderr, "spillway: dev: start the stack: port 4222 is taken")
}
