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
)

// measuredStack is a stack of eight cores at 4 cents an hour each, with a stage whose tasks took a second, and one of
// which none has ended.
func measuredStack(t *testing.T, state string) {
	t.Helper()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.SetHosts(predictor.Host{
		ID: "rack", Capacity: quantity.Size{CPU: 8 * quantity.Core, Memory: 32 * quantity.GiB},
		PricePerHour: quantity.USD * 32 / 100,
	})
	stack.SetFunctions(predictor.FunctionVenue{
		Enabled: true, Concurrency: 1000, MaxMemory: 10 * quantity.GiB, MaxDuration: 15 * time.Minute,
		Classes:      []quantity.Bytes{quantity.GiB, 1769 * quantity.MiB, 10 * quantity.GiB},
		PerGiBSecond: 16_666_700, PerRequest: 200_000, ColdStart: time.Second,
	})
	at := time.Now().Add(-2 * time.Hour).Truncate(time.Minute)
	stage := predictor.StageID{App: "digits", Build: "0123456789ab", Name: "score"}
	stack.Apply("r", predictor.RunStarted{Run: "r", Pipeline: "digits", App: "digits", Build: "0123456789ab", At: at})
	for i := range 100 {
		at := at.Add(time.Duration(i) * time.Minute)
		stack.Apply("r", predictor.Scheduled{Run: "r", Stage: stage, Tasks: 240, At: at})
		stack.Apply("r", predictor.Record{
			Run: "r", Pipeline: "digits", Stage: stage, Task: fmt.Sprint("score-", i), Attempt: 1, Venue: predictor.Pool,
			Host: "rack", Outcome: predictor.Succeeded, At: at, Grant: quantity.Size{CPU: quantity.Core},
			Usage: quantity.Usage{CPU: time.Second, Wall: time.Second, PeakMemory: 100 * quantity.MiB},
		})
	}
	stage.Name = "fit"
	stack.Apply("r", predictor.Scheduled{Run: "r", Stage: stage, Tasks: 1, At: at.Add(100 * time.Minute)})
}

func TestCompareTellsWhereAStageCostsLess(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	measuredStack(t, state)
	compare := func(args ...string) (code int, stdout, stderr string) {
		t.Helper()
		return clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"compare", "--state", state}, args...)...)
	}
	picture := filepath.Join(t.TempDir(), "score.svg")
	code, stdout, stderr := compare("score", "--rate", "4", "--svg", picture)
	if code != 0 {
		t.Fatalf("%d %s", code, stderr)
	}
	clitest.Contains(t, "the table", stdout, "digits/score", "a million tasks at 4 a second, as asked", "hosts",
		"containers", "functions", "the cheapest", "functions are in time at the least cost below",
		"hosts are in time at the least cost from", "fargate-x86", "rack at $0.32")
	for line := range strings.Lines(stdout) {
		if len([]rune(strings.TrimRight(line, "\n"))) > 120 {
			t.Errorf("a line is too long: %s", line)
		}
	}
	drawn, err := os.ReadFile(picture)
	if err != nil || !strings.HasPrefix(string(drawn), "<svg") || strings.Contains(string(drawn), "NaN") ||
		strings.Contains(string(drawn), "Inf") {
		t.Errorf("the picture: %v, %.80s", err, drawn)
	}
	clitest.Contains(t, "the note", stderr, "the picture is written to "+picture)
	if strings.Count(string(drawn), `<text class="m e"`) < 6 {
		t.Error("the picture has too few numbers on its y axes")
	}
	if code, stdout, _ = compare("score", "--rate", "4", "--svg", "-"); code != 0 || stdout != string(drawn) {
		t.Errorf("--svg -: %d %.80s", code, stdout)
	}
	_, stdout, _ = compare("score", "--rate", "100000", "--within", "500ms")
	clitest.Contains(t, "what is beyond all", stdout, "100,000 a second", "more than the 1,000 that there are",
		"nothing is in time", "(late)", "(too many)")
	_, stdout, _ = compare("score")
	clitest.Contains(t, "the rate's source", stdout, "as in the latest minutes (", " tasks in ")
	code, stdout, stderr = compare("digits/score", "--json", "--host", "c7i.4xlarge", "--within", "3s")
	var told struct {
		Source string  `json:"rate_source"`
		Within float64 `json:"within_seconds"`
		Host   struct {
			Slots int
			Price int64 `json:"price_per_hour_picodollars"`
		}
		At struct {
			Rate float64 `json:"tasks_per_second"`
			Ways []struct {
				Way     string
				Million float64 `json:"usd_per_million"`
			}
		}
		Cheapest []struct{ Way string }
	}
	if err := json.Unmarshal([]byte(stdout), &told); err != nil || code != 0 {
		t.Fatalf("--json: %d %v %s", code, err, stderr)
	}
	if told.At.Rate < 3.9 || told.At.Rate > 4.1 || told.Within != 3 || told.Host.Slots != 16 ||
		told.Host.Price != 714_000_000_000 || len(told.At.Ways) != 3 || len(told.Cheapest) == 0 {
		t.Errorf("--json: got %+v", told)
	}
	for _, test := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"scoer"}, 2, "did you mean"},
		{[]string{"fit"}, 1, "no attempt of digits/fit has succeeded yet"},
		{[]string{"score", "--host", "c9.huge"}, 2, "c7i.xlarge"},
		{[]string{"score", "--container", "boat"}, 2, "fargate-x86"},
		{[]string{"score", "--rate", "0"}, 2, "rate"},
		{[]string{"score", "--svg", "-", "--json"}, 2, "standard output"},
		{nil, 2, "the name of a stage"},
	} {
		code, _, stderr := compare(test.args...)
		if code != test.code || !strings.Contains(stderr, test.says) {
			t.Errorf("%q: got %d %s, want %d and %q", test.args, code, stderr, test.code, test.says)
		}
	}
}

func TestShowForecastAdvisesOnThePool(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	measuredStack(t, state)
	show := func(args ...string) string {
		t.Helper()
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			append([]string{"show", "r", "--forecast", "--state", state}, args...)...)
		if code != 0 {
			t.Fatalf("%d %s", code, stderr)
		}
		return stdout
	}
	clitest.Contains(t, "the advice", show(), "the pool", "held and the rest in functions would cost $", "advised", "now",
		"functions alone", "what hindsight pays")
	var told struct{ Pool *predictor.Capacity }
	if err := json.Unmarshal([]byte(show("--json")), &told); err != nil || told.Pool == nil || told.Pool.Held < 2 ||
		told.Pool.Held > 7 || told.Pool.Now != 8 || told.Pool.Day.Mean <= 0 || told.Pool.Day.Mean >= told.Pool.DayNow.Mean {
		t.Errorf("--json: %v, %+v", err, told.Pool)
	}
}
