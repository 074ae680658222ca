package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/tuning"
)

// The same seed gives the same figures, the plan is the optimum within a hundredth, and no policy of the same budget is
// faster.
func TestTuningIsEvaluated(t *testing.T) {
	t.Parallel()
	data := recordedTrials(t, 20)
	ask := func() string {
		var out bytes.Buffer
		args := []string{
			"tuning", "--data", data, "--budgets", "1", "--orders", "5", "--jobs", "1", "--episodes", "500", "--json",
		}
		if code := run(t.Context(), args, &out, io.Discard); code != exitDone {
			t.Fatalf("exit code %d: %s", code, out.String())
		}
		return out.String()
	}
	printed := ask()
	if again := ask(); again != printed {
		t.Errorf("the same seed gives\n%s\nand then\n%s", printed, again)
	}
	cases := map[string]bool{}
	for line := range strings.Lines(printed) {
		var f figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		cases[f.Case] = true
		switch {
		case f.N == 0, !(f.Ours >= 0) && !strings.Contains(f.Metric, "_saving"):
			t.Errorf("figure %+v", f)
		case f.Metric == "gap_to_exact" && strings.HasSuffix(f.Case, "right profiles") && f.Ours > 0.01:
			t.Errorf("%s: %g longer than the optimum", f.Case, f.Ours)
		case f.Case == "all, 2R" && f.Metric == "regret" && !(f.Ours < f.Baselines["random"]/2):
			t.Errorf("%+v: want less than half of random search's where the best trials are ahead from the first step on", f)
		case strings.Contains(f.Metric, "_saving") && !strings.Contains(f.Case, "functions only") && f.Ours < -0.011:
			t.Errorf("%s: %s %g: it is worse", f.Case, f.Metric, f.Ours)
		case strings.Contains(f.Metric, "_saving") && f.Ours > f.Baselines["ceiling"]+1e-9:
			t.Errorf("%s: %s %g is above what can be had, %g", f.Case, f.Metric, f.Ours, f.Baselines["ceiling"])
		case f.Metric == "gap_to_exact_mean" && strings.HasSuffix(f.Case, "profiles off") && f.Ours > 0.05:
			t.Errorf("%s: %s %g, want at most a twentieth", f.Case, f.Metric, f.Ours)
		case f.Metric == "met" && f.Ours < 0.8, f.Metric == "cost_over_oracle" && f.Ours > 1.1,
			f.Metric == "spent_most" && f.Ours > 1:
			t.Errorf("figure %+v", f)
		}
	}
	for _, want := range []string{
		"16 trials, right profiles", "4096 trials against uniform", "training against equal",
		"256 trials against held cluster", "study 3, 7R",
		"budgets to be kept with 0.99", "4096 trials against siren", "training against siren offline",
	} {
		if !cases[want] {
			t.Errorf("no case %q in %v", want, cases)
		}
	}
	for _, wrong := range [][]string{
		{"--budgets", "0"},
		{"--orders", "0"},
		{"--jobs", "0"},
		{"--noise", "1"},
		{"--noise", "-0.1"},
		{"--episodes", "0"},
	} {
		args := append([]string{"tuning", "--data", data}, wrong...)
		if code := run(t.Context(), args, io.Discard, io.Discard); code != exitUsage {
			t.Errorf("%v exits with %d, want %d", wrong, code, exitUsage)
		}
	}
}

// TestTuningTellsWhereNoPoolIsLargeEnough, and gives no figure of none.
func TestTuningTellsWhereNoPoolIsLargeEnough(t *testing.T) {
	t.Parallel()
	var out, notes bytes.Buffer
	with := common{data: recordedTrials(t, fewestTrials-1), report: &report{json: true, out: &out}, notes: &notes}
	if err := evaluateSearchers(t.Context(), 1, 1, with); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(notes.String(), "no pool of 18 trials") || out.Len() > 0 {
		t.Errorf("notes %q, figures %s; want a note and no figure", notes.String(), out.String())
	}
}

// recordedTrials writes a pool of trials whose metrics soon grow with their number, and one that is too small.
func recordedTrials(t *testing.T, trials int) (folder string) {
	t.Helper()
	folder = t.TempDir()
	var labels, curves strings.Builder
	labels.WriteString("trial_id,ruleset,workload,framework,study,direction\n")
	curves.WriteString("trial_id,global_step,val_metric\n")
	write := func(id, workload string, number int) {
		fmt.Fprintf(&labels, "%s,external_tuning,%s,jax,3,max\n", id, workload)
		for step := range 27 {
			fmt.Fprintf(&curves, "%s,%d,%d\n", id, 100*(step+1), number*min(step+1, 2))
		}
	}
	for i := range trials {
		write(fmt.Sprintf("many-%d", i), "many", i)
	}
	write("one", "few", 1)
	set := filepath.Join(folder, "algoperf_curves")
	if err := os.Mkdir(set, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"trials.csv": labels.String(), "curves_many.csv": curves.String()} {
		if err := os.WriteFile(filepath.Join(set, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

func TestTheMedianIsTheMiddleOne(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		of   []float64
		want float64
	}{{[]float64{5}, 5}, {[]float64{9, 1}, 5}, {[]float64{3, 1, 2}, 2}, {[]float64{4, 1, 3, 2}, 2.5}} {
		if got := median(test.of); got != test.want {
			t.Errorf("the median of %v is %g, want %g", test.of, got, test.want)
		}
	}
}

// What finds no plan is counted, and no saving is told of it.
func TestASavingOfNothingIsNoFigure(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	reportTuning(&report{json: true, out: &out}, tuning.Case{
		Name: "training",
		Against: map[string]*tuning.Saving{
			"nobody": {None: 3, Cost: []float64{0.5}, CeilingCost: []float64{0.5}},
		},
	})
	figures := figuresOf(t, out.String())
	for _, f := range figures {
		if strings.HasPrefix(f.Metric, "jct") || f.Metric == "without_a_plan" && (f.Ours != 3 || f.N != 3) {
			t.Errorf("figure %+v", f)
		}
	}
	if len(figures) != 4 {
		t.Errorf("%d figures, want three of the cost and how often there is no plan: %s", len(figures), out.String())
	}
}
