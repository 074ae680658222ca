package main

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// arrivalFolder makes a folder of sets: eight days of seconds with an hour of gap each day, two hours of buckets of
// machines, and a quarter of an hour of requests.
func arrivalFolder(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	var seconds strings.Builder
	for second := range 8 * 24 * 3600 {
		hour := second / 3600 % 24
		count := 5 + 3*math.Sin(2*math.Pi*float64(hour)/24) + float64(second/60*(second/60%1009)%5)
		if hour == 23 {
			count = 0
		}
		_, _ = fmt.Fprintf(&seconds, "%d\n", int(count))
	}
	var machines, requests strings.Builder
	for bin := range 9 * 288 {
		if bin != 100 {
			_, _ = fmt.Fprintf(&machines, "%d %s\n", 300*(bin+1), strings.Repeat("a,b,|,", 1+bin*31%7)+"c,|,")
		}
	}
	requests.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	for i := range 900 {
		for range 1 + i/7*i%11%3 {
			_, _ = fmt.Fprintf(&requests, "2023-11-16 18:%02d:%02d.5,10,20\n", 15+i/60, i%60)
		}
	}
	for name, text := range map[string]string{
		"twitter_rps/rps.txt": seconds.String(), "nasa_rps/rps.txt.gz": seconds.String(),
		"azure_vm_arrivals/v1.train.txt": machines.String(), "azure_llm_2023/made.csv": requests.String(),
	} {
		writeSet(t, filepath.Join(folder, name), text)
	}
	return folder
}

func writeSet(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(path) //nolint:gosec // of this test
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}()
	buffered := bufio.NewWriter(file)
	if strings.HasSuffix(path, ".gz") {
		zipped := gzip.NewWriter(buffered)
		_, err = zipped.Write([]byte(text))
		if err == nil {
			err = zipped.Close()
		}
	} else {
		_, err = buffered.WriteString(text)
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestForecastPrintsEverySetCaseAndMetric(t *testing.T) {
	t.Parallel()
	folder := arrivalFolder(t)
	code, out, notes := evaluate(t, "forecast", "--data", folder, "--json")
	if code != exitDone || notes != "" {
		t.Fatalf("exit code %d, notes %q", code, notes)
	}
	seen := map[string]int{}
	for _, f := range figuresOf(t, out) {
		name := f.Set + "/" + f.Case
		seen[name]++
		days := strings.HasSuffix(f.Case, "from day 7")
		if want := map[bool]int{true: 4, false: 2}[days]; f.Eval != "forecast" || len(f.Baselines) != want || f.N == 0 {
			t.Errorf("got %+v", f)
		}
		if f.Metric == "pinball_ratio" && math.Min(f.Baselines["last_value"], orOne(f.Baselines["seasonal_day"])) != 1 {
			t.Errorf("%s: the better of the naive rules is not 1: %+v", name, f)
		}
		if f.Metric == "coverage_80" && (f.Ours < 0.5 || f.Ours > 1) {
			t.Errorf("%s: the coverage is %v", name, f.Ours)
		}
		// An hour of gap, a minute on either side, and of the last minute of a day what begins the next.
		if f.Set == "nasa_rps" && days && f.N != 24*60-60-2 {
			t.Errorf("%s: %d minutes are scored, want %d", name, f.N, 24*60-60-2)
		}
	}
	want := map[string]int{"azure_llm_2023/made from minute 10": 4}
	for _, name := range []string{
		"twitter_rps/", "nasa_rps/", "azure_vm_arrivals/machines ", "azure_vm_arrivals/batches ",
	} {
		want[name+"from day 7"], want[name+"first day"] = 4, 4
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
	if _, again, _ := evaluate(t, "forecast", "--data", folder, "--json"); again != out {
		t.Error("a second run printed other figures")
	}
}

func orOne(value float64) float64 {
	if value == 0 {
		return 1
	}
	return value
}

func TestWhatIsWrongWithArrivalsIsSaid(t *testing.T) {
	t.Parallel()
	const header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
	for _, c := range []struct{ name, file, text, want string }{
		{"no second", "twitter_rps/rps.txt", "", "rps.txt: line 1"},
		{"text", "twitter_rps/rps.txt", "3\nfour\n", `rps.txt: line 2: not in the expected format: "four"`},
		{"a negative count", "nasa_rps/rps.txt", "3\n\n-4\n", `line 3: not in the expected format: "-4"`},
		{"two numbers", "nasa_rps/rps.txt", "3 4\n", `line 1: not in the expected format: "3 4"`},
		{"another file", "nasa_rps/other.txt", "3\n", "holds no rps*.txt"},
		{"no request", "azure_llm_2023/a.csv", header, "a.csv: line 2"},
		{"no time", "azure_llm_2023/a.csv", header + "now,1,2\n", `line 2: not in the expected format: "now"`},
		{
			"requests out of order", "azure_llm_2023/a.csv",
			header + "2023-11-16 18:15:46,1,2\n2023-11-16 18:15:45,1,2\n", "line 3",
		},
		{"a column that is absent", "azure_llm_2023/a.csv", "TIMESTAMP\n", `no column "ContextTokens"`},
		{"no bucket", "azure_vm_arrivals/a.dev.txt", "", "a.dev.txt: line 1"},
		{"a bucket again", "azure_vm_arrivals/a.dev.txt", "300 a,|,\n300 a,|,\n", "line 2"},
		{"no flavor", "azure_vm_arrivals/a.dev.txt", "300 a,,|,\n", "line 1"},
		{"no part", "azure_vm_arrivals/a.txt", "300 a,|,\n", "holds no *.train.txt"},
		{"no set", "another/a.txt", "300 a,|,\n", "holds none of the sets"},
	} {
		folder := t.TempDir()
		writeSet(t, filepath.Join(folder, c.file), c.text)
		code, _, notes := evaluate(t, "forecast", "--data", folder)
		if code != exitFailed || !strings.Contains(notes, c.want) {
			t.Errorf("%s: exit code %d, notes %q, want %q in them", c.name, code, notes, c.want)
		}
	}
	folder := t.TempDir()
	writeSet(t, filepath.Join(folder, "nasa_rps/rps.txt"), strings.Repeat("3\n", 100))
	if code, _, notes := evaluate(t, "forecast", "--data", folder); code != exitDone ||
		!strings.Contains(notes, "nasa_rps is skipped: the trace is too short") &&
			!strings.Contains(notes, "from day 7 of nasa_rps is skipped: the trace is too short") {
		t.Errorf("a trace of two minutes: exit code %d, notes %q", code, notes)
	}
}
