package simulate_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
)

// bursts are ten minutes of a task a second of half a core-second, with sixty at once in the middle of each minute.
func bursts(t *testing.T) string {
	t.Helper()
	var text strings.Builder
	text.WriteString("timestamp,work\n")
	for second := range 600 {
		n := 1
		if second%60 == 30 {
			n = 60
		}
		for range n {
			fmt.Fprintf(&text, "%d,0.5\n", 1795687200+second)
		}
	}
	return clitest.Write(t, "trace.csv", text.String())
}

func execute(t *testing.T, wantCode int, args ...string) (stdout, stderr string) {
	t.Helper()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append([]string{"simulate"}, args...)...)
	if code != wantCode {
		t.Fatalf("got exit %d, want %d: %s%s", code, wantCode, stdout, stderr)
	}
	return stdout, stderr
}

func simulated(t *testing.T, args ...string) display.Simulation {
	t.Helper()
	stdout, _ := execute(t, cli.ExitOK, append(args, "--json")...)
	var got display.Simulation
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatalf("%v in %s", err, stdout)
	}
	return got
}

func TestEachPolicyHasARow(t *testing.T) {
	t.Parallel()
	got := simulated(t, "--trace", bursts(t))
	if got.Tasks != 1190 || got.Seconds != 599 || got.CoreSeconds != 595 || got.Hosts != 1 || got.Impossible != 0 {
		t.Errorf("got %+v", got)
	}
	best := 0
	for i, name := range []string{"ours", "static", "mean", "kpa", "hpa", "functions"} {
		score := got.Scores[i]
		if score.Policy != name || score.Cost <= 0 || score.Cost != score.HostCost+score.FunctionCost ||
			!(score.P50 >= 0.5 && score.P50 <= score.P95 && score.P95 <= score.P99) {
			t.Errorf("row %d, want %s: %+v", i, name, score)
		}
		if score.Best {
			best++
		}
	}
	if best != 1 {
		t.Errorf("%d are the best", best)
	}
	static, functions := got.Scores[1], got.Scores[5]
	if static.OnFunctions != 0 || static.FunctionCost != 0 || static.Late < 0.4 || static.MostHosts != 1 {
		t.Errorf("one host for sixty tasks at once: %+v", static)
	}
	if functions.OnFunctions != 1 || functions.HostCost != 0 || functions.MostHosts != 0 || functions.Late != 0 {
		t.Errorf("functions: %+v", functions)
	}
}

// The prices are those of the flags: 599 seconds of one host at $36 an hour cost $5.99.
func TestFlagsSetWhatIsAssumed(t *testing.T) {
	t.Parallel()
	got := simulated(t, "--trace", bursts(t), "--policy", "static,functions", "--host-price", "36", "--slo", "100ms",
		"--function-price-factor", "2", "--function-cold-start", "0s")
	usual := simulated(t, "--trace", bursts(t), "--policy", "functions", "--function-cold-start", "0s")
	if len(got.Scores) != 2 || got.Scores[0].Cost.USD() < 5.99 || got.Scores[0].Cost.USD() > 6.2 {
		t.Errorf("got %+v", got.Scores)
	}
	if twice := got.Scores[1].Cost.USD() / usual.Scores[0].Cost.USD(); twice < 1.999 || twice > 2.001 {
		t.Errorf("at twice the price functions cost %v times as much", twice)
	}
	if got.Impossible != got.Tasks || got.Scores[1].Late != 1 {
		t.Errorf("tasks of 500 ms end within 100 ms: %+v", got)
	}
}

func TestCountsByTheMinuteAreSpread(t *testing.T) {
	t.Parallel()
	trace := clitest.Write(t, "counts.csv", "timestamp,count\n2026-11-26T10:00:00Z,30\n2026-11-26T10:02:00Z,30\n")
	args := []string{"--trace", trace, "--work", "2", "--policy", "static"}
	got, again := simulated(t, args...), simulated(t, args...)
	if got.Tasks != 60 || got.Seconds != 180 || got.CoreSeconds != 120 || got.Scores[0].Late != 1 {
		t.Errorf("got %+v", got)
	}
	if got.Scores[0] != again.Scores[0] {
		t.Errorf("the same trace comes to %+v and %+v", got.Scores[0], again.Scores[0])
	}
	if other := simulated(t, append(args, "--seed", "2")...); other.Scores[0].P99 == got.Scores[0].P99 {
		t.Errorf("another seed draws the same times: %v", other.Scores[0].P99)
	}
}

// What an invoke cannot end runs on hosts only.
func TestTasksThatAreTooLongForFunctionsStayOnHosts(t *testing.T) {
	t.Parallel()
	got := simulated(t, "--trace", clitest.Write(t, "long.csv", "timestamp,work\n0,1\n10,1000\n"), "--slo", "1h")
	if len(got.Scores) != 5 || len(got.Notes) != 1 || !strings.Contains(got.Notes[0], "nothing runs on functions") {
		t.Errorf("got %+v", got)
	}
	for _, score := range got.Scores {
		if score.OnFunctions != 0 || score.Late != 0 {
			t.Errorf("got %+v", score)
		}
	}
}

func TestTheTableNamesTheBestAndWhatIsAssumed(t *testing.T) {
	t.Parallel()
	picture := filepath.Join(t.TempDir(), "costs.svg")
	stdout, _ := execute(t, cli.ExitOK, "--trace", bursts(t), "--policy", "static,functions", "--svg", picture)
	words := strings.Join(strings.Fields(stdout), " ")
	for _, want := range []string{
		"1190 tasks in 9m59s, 595.0 core-s of work; late is what ends more than 1.0 s after it came",
		"policy cost p50 p95 p99 late hosts at most on functions", "functions best $0.0",
		"hosts are c7i.xlarge with 4 cores (--host) at $0.1785 an hour (--host-price)", "(--function-cold-start)",
	} {
		if !strings.Contains(words, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	drawn, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", ">static<", ">functions<", "class=\"p99\""} {
		if !strings.Contains(string(drawn), want) {
			t.Errorf("no %s in the picture", want)
		}
	}
}

func TestWhatIsWrongIsToldInOneMessage(t *testing.T) {
	t.Parallel()
	backwards := clitest.Write(t, "backwards.csv", "timestamp,work\n10,1\n9,1\n")
	counts := clitest.Write(t, "counts.csv", "timestamp,count\n60,1\n")
	trace := clitest.Write(t, "trace.csv", "timestamp,work\n10,1\n")
	broken := clitest.Write(t, "broken.csv.gz", "timestamp,work\n10,1\n")
	years := clitest.Write(t, "years.csv", "timestamp,work\n10,1\n1795687200,1\n")
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no trace":        {nil, "it needs --trace\n  hint: give the file"},
		"not there":       {[]string{"--trace", "no.csv"}, "--trace no.csv: no such file or directory"},
		"backwards":       {[]string{"--trace", backwards}, "line 3: not in the expected format: 9 is before the row above"},
		"no work":         {[]string{"--trace", counts}, "give the core-seconds of each with --work"},
		"work twice":      {[]string{"--trace", trace, "--work", "1"}, "leave --work out"},
		"no work at all":  {[]string{"--trace", counts, "--work", "0"}, "--work 0: a task takes more"},
		"no gzip":         {[]string{"--trace", broken}, "decompress: not in the expected format"},
		"too long":        {[]string{"--trace", years}, "see whether its times are seconds"},
		"unknown policy":  {[]string{"--trace", trace, "--policy", "best"}, "--policy best: it is none of ours, static"},
		"a policy twice":  {[]string{"--trace", trace, "--policy", "kpa,kpa"}, "--policy names kpa twice"},
		"an unknown host": {[]string{"--trace", trace, "--host", "p9"}, "--host p9: the embedded catalogue has no such host"},
		"no prices":       {[]string{"--trace", trace, "--prices", "no.csv"}, "--prices: "},
	} {
		stdout, stderr := execute(t, cli.ExitUsage, test.args...)
		if stdout != "" || !strings.Contains(stderr, test.want) || strings.Count(stderr, "\n") != 2 {
			t.Errorf("%s: got %q and %q, want %q", name, stdout, stderr, test.want)
		}
	}
}
