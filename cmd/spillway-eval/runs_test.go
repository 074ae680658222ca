package main

import (
	"strings"
	"testing"
)

func TestRunsPrintsEveryCaseAndMetric(t *testing.T) {
	t.Parallel()
	code, out, notes := evaluate(t, "runs", "--pipelines", "4", "--runs", "3", "--json")
	if code != exitDone || notes != "" {
		t.Fatalf("exit code %d, notes %q", code, notes)
	}
	seen := map[string]int{}
	for _, f := range figuresOf(t, out) {
		seen[f.Case]++
		if f.Eval != "runs" || f.Set != "simulated" || len(f.Baselines) != 1 || f.N == 0 {
			t.Errorf("got %+v", f)
		}
		if f.Case == "all" && f.N != 4*2*3 {
			t.Errorf("%d moments of two runs each of four pipelines, want three of each run", f.N)
		}
		if f.Metric == "forecast_known" && f.Case == "at 0%" && f.Ours != 1 {
			t.Errorf("%v of the runs whose pipeline has run before are forecast at their start, want all", f.Ours)
		}
	}
	for _, name := range []string{"all", "at 0%", "at 25%", "at 50%", "second runs", "later runs", "models"} {
		if seen[name] != 6 {
			t.Errorf("%d metrics of %q, want 6", seen[name], name)
		}
	}
	if _, again, _ := evaluate(t, "runs", "--pipelines", "4", "--runs", "3", "--json"); again != out {
		t.Error("a second run printed other figures")
	}
	if _, other, _ := evaluate(t, "runs", "--pipelines", "4", "--runs", "3", "--seed", "2", "--json"); other == out {
		t.Error("another seed printed the same figures")
	}
}

func TestAWorldThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--pipelines", "0"}, {"--pipelines", "7"}, {"--runs", "1"}, {"--data", "testdata"}} {
		code, out, notes := evaluate(t, append([]string{"runs"}, args...)...)
		if code != exitUsage || out != "" || !strings.Contains(notes, "spillway-eval runs: ") {
			t.Errorf("%v: exit code %d, %q, %q", args, code, out, notes)
		}
	}
}
