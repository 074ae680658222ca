package events_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// A run is started whatever is expected of it, and what is expected is said, with a warning where its goal is too
// little.
func TestATriggerSaysWhatIsExpectedOfTheRun(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.OnPublish = func(event web.Event, run string) {
		begins := predictor.RunStarted{Run: run, Pipeline: "digits", App: "digits", At: clitest.Begin}
		if event.Goal != nil {
			begins.Goal = *event.Goal
		}
		stack.Apply(run, begins)
		if event.ID == "first" {
			return // nothing is known of its pipeline yet
		}
		forecast := predictor.Forecast{
			Finish: predictor.Interval{Low: 60, Mid: 80, High: 100}, Cost: predictor.Interval{Low: 0.1, Mid: 0.2, High: 0.3},
			Runs: 4, Basis: "its input and 4 earlier runs",
		}
		if begins.Goal.Deadline > 0 {
			forecast.Late = 0.9
		}
		stack.Forecast(run, clitest.Begin, forecast)
	}
	const expected = "expected to end after 80.0 s (60.0 s to 1m40s) for $0.2000 ($0.1000 to $0.3000); " +
		"rests on its input and 4 earlier runs\n"
	for args, want := range map[string]string{
		"trigger digits --id first": "",
		"trigger digits --id next":  expected,
		"trigger digits --id late --deadline 30s": expected + "warning: it will probably miss its deadline of 30s (90%); " +
			"`spillway goal digits-late` shows what else could be had, and --deadline 1m50s there gives enough\n",
	} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append(strings.Fields(args), "--state", state)...)
		_, said, _ := strings.Cut(stdout, "\n")
		if code != cli.ExitOK || stderr != "" || said != want {
			t.Errorf("%s: exit %d, %q, and after its name:\n%s\nwant:\n%s", args, code, stderr, said, want)
		}
	}
	for id, want := range map[string]string{"json": "its input and 4 earlier runs", "first": ""} {
		_, stdout, _ := clitest.Execute(t, t.Context(), cli.Deps{}, "trigger", "digits", "--id", id, "--json",
			"--deadline", "30s", "--state", state)
		var got struct {
			web.Published

			Forecast ledger.RunPrediction
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || got.Run != "digits-"+id ||
			got.Forecast.Basis != want || want != "" && got.Forecast.Late != 0.9 {
			t.Errorf("%s: %v: %s", id, err, stdout)
		}
	}
}

// TestATriggerDoesNotWaitForARunThatDoesNotBegin: its event is durable, and the run begins when there is room.
func TestATriggerDoesNotWaitForARunThatDoesNotBegin(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	clitest.StartStack(t, state, clitest.ServedDigits)
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "trigger", "digits", "--id", "1", "--state", state)
	if code != cli.ExitOK || stderr != "" || strings.Count(stdout, "\n") != 1 {
		t.Errorf("exit %d, %q: %s", code, stderr, stdout)
	}
}
