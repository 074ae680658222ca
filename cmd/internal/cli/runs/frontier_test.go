package runs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// frontierStack is a stack of eight cores at 4 cents an hour each, with a run of "scoring" that has ended, one after
// the other with a slot of its pool, and one that goes on.
func frontierStack(t *testing.T, state string) {
	t.Helper()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.SetHosts(predictor.Host{
		ID: "rack", Capacity: quantity.Size{CPU: 8 * quantity.Core, Memory: 32 * quantity.GiB},
		Free: quantity.Size{CPU: 8 * quantity.Core, Memory: 32 * quantity.GiB}, PricePerHour: quantity.USD * 32 / 100,
	})
	stack.SetFunctions(predictor.FunctionVenue{
		Enabled: true, Concurrency: 100, MaxMemory: 10 * quantity.GiB, MaxDuration: 15 * time.Minute,
		Classes:      []quantity.Bytes{quantity.GiB, 1769 * quantity.MiB},
		PerGiBSecond: 16_666_700, PerRequest: 200_000, ColdStart: time.Second,
	})
	begin := time.Now().Add(-time.Hour)
	stage := predictor.StageID{App: "digits", Build: "0123456789ab", Name: "score"}
	start := func(run string, at time.Time) {
		stack.Apply(run, predictor.RunStarted{
			Run: run, Pipeline: "scoring", App: "digits", Build: "0123456789ab", At: at,
		})
		stack.Apply(run, predictor.Scheduled{Run: run, Stage: stage, Tasks: 60, At: at})
	}
	start("done", begin)
	size := quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
	for i := range 60 {
		at := begin.Add(time.Duration(2*i) * time.Second)
		stack.Apply("done", predictor.AttemptStarted{
			Run: "done", Stage: stage, Task: fmt.Sprint("score-", i), Attempt: 1, Venue: predictor.Pool, Host: "rack", At: at,
			Grant: size,
		})
		stack.Apply("done", predictor.Record{
			Run: "done", Pipeline: "scoring", Stage: stage, Task: fmt.Sprint("score-", i), Attempt: 1, Venue: predictor.Pool,
			Host: "rack", Outcome: predictor.Succeeded, ScheduledAt: at, At: at.Add(2 * time.Second), Grant: size,
			Cost:  quantity.USD / 10_000,
			Usage: quantity.Usage{CPU: 2 * time.Second, Wall: 2 * time.Second, PeakMemory: 100 * quantity.MiB},
		})
	}
	stack.Apply("done", predictor.RunEnded{Run: "done", State: predictor.RunSucceeded, At: begin.Add(2 * time.Minute)})
	start("going", time.Now())
}

func TestFrontierTellsWhatARunCouldComeTo(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	frontierStack(t, state)
	frontier := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		return clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"frontier", "--state", state}, args...)...)
	}
	for _, row := range []struct {
		name  string
		args  []string
		wants []string
	}{
		{
			"a run that has ended",
			[]string{"done"},
			[]string{
				"run       done", "what its tasks were measured to take", "measured", "2m00s", "wice as fast (", "alf the money",
			},
		},
		{"a run that goes on", []string{"going"}, []string{"run       going", "present", "from now on", "for score"}},
		{"a pipeline", []string{"scoring", "--input", `{"rows": 7}`}, []string{"pipeline  scoring", "cheapest", "fastest"}},
		{
			"a goal that no plan meets",
			[]string{"going", "--deadline", "1s", "--confidence", "0.95"},
			[]string{"nearest to the goal", "meets the deadline of 1 s in 95 % of cases", "give a"},
		},
		{"a goal that one meets", []string{"scoring", "--budget", "5"}, []string{"for the goal", "budget of $5.00 is kept"}},
	} {
		code, stdout, stderr := frontier(row.args...)
		if code != 0 {
			t.Errorf("%s: %d %s", row.name, code, stderr)
			continue
		}
		clitest.Contains(t, row.name, stdout, row.wants...)
		for line := range strings.Lines(stdout) {
			if len([]rune(strings.TrimRight(line, "\n"))) > 120 {
				t.Errorf("%s: a line is too long: %s", row.name, line)
			}
		}
	}
	large := filepath.Join(t.TempDir(), "input.json") // about as large as an event may be
	if err := os.WriteFile(large, fmt.Appendf(nil, `{"rows": [%s7]}`, strings.Repeat("7, ", 300_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, stdout, stderr := frontier("scoring", "--input", large); code != 0 || !strings.Contains(stdout, "cheapest") {
		t.Errorf("a large input: %d %s%s", code, stdout, stderr)
	}
	code, stdout, stderr := frontier("scoring", "--json")
	var answer whatif.Answer
	if err := json.Unmarshal([]byte(stdout), &answer); code != 0 || err != nil || len(answer.Points) == 0 {
		t.Errorf("--json: %d %v %s %.200s", code, err, stderr, stdout)
	}
	for name, args := range map[string][]string{
		`there is no run or pipeline "nosuch"`: {"nosuch"}, "did you mean digits?": {"digitss"},
		"did you mean going?": {"goin"}, "is not JSON": {"scoring", "--input", "{"}, "--input is for a pipeline": {
			"done", "--input", "{}",
		},
		"deadline": {"done", "--deadline", "-3s"},
	} {
		if code, _, stderr := frontier(args...); code != cli.ExitUsage || !strings.Contains(stderr, name) ||
			!strings.Contains(stderr, "hint: ") {
			t.Errorf("%v: got %d %s, want %d and %q", args, code, stderr, cli.ExitUsage, name)
		}
	}
}
