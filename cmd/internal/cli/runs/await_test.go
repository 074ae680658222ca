package runs_test

import (
	"strings"
	"sync/atomic"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
)

func TestARunThatWasJustTriggeredIsWaitedFor(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"show --follow", "logs"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			state := t.TempDir()
			stack := clitest.StartStack(t, state, clitest.ServedDigits)
			code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "trigger", "digits", "--id", "soon",
				"--state", state)
			if code != cli.ExitOK {
				t.Fatalf("got exit %d: %s", code, stderr)
			}
			clitest.Contains(t, "standard output", stdout, "run digits-soon is triggered")
			var asked atomic.Int32
			stack.Asked = func() {
				if asked.Add(1) == 3 {
					clitest.Finish(stack, "digits-soon", "digits", "0123456789ab", predictor.RunSucceeded, `{}`, clitest.Begin)
				}
			}
			args := append(strings.Fields(verb), "digits-soon", "--state", state)
			code, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, args...)
			if code != cli.ExitOK {
				t.Errorf("got exit %d: %s", code, stderr)
			}
			const told = "run \"digits-soon\" has not started yet: its event was taken; waiting for the run\n"
			if strings.Count(stderr, told) != 1 {
				t.Errorf("standard error is %q, want %q once", stderr, told)
			}
		})
	}
}

func TestARunThatIsOnItsWayIsToldFromNone(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	clitest.StartStack(t, state, clitest.ServedDigits)
	clitest.Execute(t, t.Context(), cli.Deps{}, "trigger", "digits", "--id", "soon", "--state", state)
	for args, want := range map[string]string{
		"show digits-soon":             "run \"digits-soon\" has not started yet: its event was taken\n  hint: ask again",
		"logs digits-soon --no-follow": "run \"digits-soon\" has not started yet",
		"show digits-never --follow":   "there is no run \"digits-never\"\n  hint: `spillway runs` lists them",
	} {
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append(strings.Fields(args), "--state", state)...)
		if code != cli.ExitUsage {
			t.Errorf("%s: got exit %d, want %d", args, code, cli.ExitUsage)
		}
		clitest.Contains(t, args, stderr, want)
	}
}
