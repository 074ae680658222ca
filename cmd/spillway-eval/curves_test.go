package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCurvesPrintsEverySetCaseAndMetric(t *testing.T) {
	t.Parallel()
	code, out, notes := evaluate(t, "curves", "--data", "testdata", "--json")
	if code != exitDone || strings.Count(notes, "\n") != 3 ||
		strings.Count(notes, "mlperf made, ") != strings.Count(notes, "after 20 % of the steps: no run has points enough") {
		t.Fatalf("exit code %d, notes %q", code, notes)
	}
	seen := map[string]int{}
	figures := map[string]figure{}
	for _, f := range figuresOf(t, out) {
		seen[f.Set+"/"+f.Case]++
		figures[f.Set+"/"+f.Case+"/"+f.Metric] = f
		if f.Eval != "curves" || f.N == 0 || f.Unit != "ratio" || f.Ours < 0 || f.Ours > 5 {
			t.Errorf("got %+v", f)
		}
		if f.Metric == "coverage_80" {
			continue
		}
		want := 5
		if f.Case == "warm" {
			want++
		}
		if len(f.Baselines) != want {
			t.Errorf("%s of %s/%s has the baselines %v", f.Metric, f.Set, f.Case, f.Baselines)
		}
		if strings.HasPrefix(f.Metric, "error_p50") && f.Baselines["multiple_hindsight"] > f.Baselines["twice_seen"]+0.02 {
			t.Errorf("%s of %s/%s: the best multiple is worse than 2: %v", f.Metric, f.Set, f.Case, f.Baselines)
		}
	}
	want := map[string]int{}
	for _, set := range []string{"made", "mlperf made", "nanogpt", "pollux cifar10"} {
		for _, of := range []string{"cold", "warm", "level at 90 %"} {
			want[set+"/"+of] = 7
		}
	}
	want["mlperf made/cold"], want["mlperf made/warm"] = want["mlperf made/cold"]-2, want["mlperf made/warm"]-2
	want["mlperf made/level at 90 %"] -= 2
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
	// The runs were made by one power law, so that the family finds the level, and earlier runs help.
	if f := figures["made/level at 90 %/error_p50_60"]; f.Baselines["power"] > 0.3 {
		t.Errorf("a power law is off by %v on power laws", f.Baselines["power"])
	}
	if cold, warm := figures["made/cold/error_p50_20"], figures["made/warm/error_p50_20"]; warm.Ours >= cold.Ours {
		t.Errorf("off by %v with earlier runs and by %v without", warm.Ours, cold.Ours)
	}
	if _, again, _ := evaluate(t, "curves", "--data", "testdata", "--json"); again != out {
		t.Error("a second run printed other figures")
	}
	if _, other, _ := evaluate(t, "curves", "--data", "testdata", "--json", "--seed", "2"); other == out {
		t.Error("another seed printed the same figures")
	}
}

func TestWhatIsWrongWithCurvesIsSaid(t *testing.T) {
	t.Parallel()
	const trials = "trial_id,workload,framework\na,w,jax\n"
	const header = "trial_id,global_step,val_loss\n"
	rows := strings.Repeat("b,1,2\n", 5)
	for _, c := range []struct{ name, trials, curves, want string }{
		{"an empty file", trials, "", "curves_x.csv: line 1"},
		{"no point", trials, header, "curves_x.csv: line 2"},
		{"a column that is absent", trials, "trial_id,global_step\n", `no column "val_loss"`},
		{"text for a number", trials, header + "a,1,two\n", `line 2: not in the expected format: "two" is not a number`},
		{"a negative step", trials, header + "a,-1,2\n", `line 2: not in the expected format: "-1" is negative`},
		{"a step that is no number", trials, header + "a,NaN,2\n", `"NaN" is not a finite number`},
		{"a line that is cut short", trials, header + "a,1\n", "line 2"},
		{"a run of no workload", trials, header + rows, `no table says which workload "b" is of`},
		{"no table of runs", "", header + "a,1,2\n", "trials"},
	} {
		data := t.TempDir()
		folder := filepath.Join(data, "algoperf_curves")
		if err := os.MkdirAll(folder, 0o750); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"trials.csv": c.trials, "curves_x.csv": c.curves} {
			if name == "trials.csv" && text == "" {
				continue
			}
			if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		code, out, notes := evaluate(t, "curves", "--data", data)
		if code != exitFailed || out != "" || !strings.Contains(notes, c.want) {
			t.Errorf("%s: exit code %d, %q; want %q", c.name, code, notes, c.want)
		}
	}
	for _, flags := range [][]string{{"--earlier", "0"}, {"--runs", "0"}, {"--seed", "x"}} {
		if code, _, _ := evaluate(t, append([]string{"curves", "--data", "testdata"}, flags...)...); code != exitUsage {
			t.Errorf("%v: exit code %d, want %d", flags, code, exitUsage)
		}
	}
	if code, _, notes := evaluate(t, "curves", "--data", t.TempDir()); code != exitFailed ||
		!strings.Contains(notes, "none of the sets") {
		t.Errorf("an empty folder: exit code %d, %q", code, notes)
	}
}

func TestTheHelpOfCurvesExplainsEveryBaseline(t *testing.T) {
	t.Parallel()
	_, help, _ := evaluate(t, "curves", "--help")
	_, out, _ := evaluate(t, "curves", "--data", "testdata", "--json")
	for _, f := range figuresOf(t, out) {
		for name := range f.Baselines {
			if !strings.Contains(help, " "+name+" ") {
				t.Fatalf("--help says nothing of %s", name)
			}
		}
	}
}
