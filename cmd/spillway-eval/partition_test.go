package main

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPartitionPrintsEverySetCaseAndMetric(t *testing.T) {
	t.Parallel()
	code, out, notes := evaluate(t, "partition", "--data", filepath.Join("testdata", "partition"), "--json")
	if code != exitDone || notes != "" {
		t.Fatalf("exit code %d, notes %q", code, notes)
	}
	seen := map[string]int{}
	for _, f := range figuresOf(t, out) {
		name, _, _ := strings.Cut(f.Case, ",")
		seen[f.Set+"/"+name+"/"+f.Metric]++
		if f.Eval != "partition" || f.Published != nil || f.N == 0 || (f.Ours <= 0 && f.Metric != "plan_ms") {
			t.Errorf("got %+v", f)
		}
		bound, bounded := f.Baselines["lower_bound"]
		for policy, value := range f.Baselines {
			// The bounds of loads hold for all, and no other plan of these small graphs may be better than ours.
			if bounded && (value < bound*(1-1e-9) || f.Ours > value*(1+1e-9) && policy != "lower_bound") {
				t.Errorf("%s of %s: %s has %v, ours %v, the bound is %v", f.Metric, f.Case, policy, value, f.Ours, bound)
			}
		}
	}
	want := map[string]int{
		"dnn_partitioning/throughput Made/branch/max_load": 1, "dnn_partitioning/throughput Made/branch/plan_ms": 1,
		"dnn_partitioning/latency Made/branch/makespan": 1, "dnn_partitioning/latency Made/branch/block_latency": 1,
		"dnn_partitioning/latency Made/branch/plan_ms": 1, "dnn_partitioning/latency Made/branch/exact_ratio": 1,
		"pipedream_profiles/made on 4/batch_time": 2, "pipedream_profiles/made on 16/batch_time": 2,
		"pipedream_profiles/made on 4/step_time": 1, "pipedream_profiles/made on 16/step_time": 1,
		"pipedream_profiles/made on 4/plan_ms": 1, "pipedream_profiles/made on 16/plan_ms": 1,
		"dapple_profiles/made-pbs-1 on 16/step_time": 1, "dapple_profiles/made-pbs-1 on 16/plan_ms": 1,
		"piper/made on 3/step_time": 1, "piper/made on 3/plan_ms": 1,
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
}

func TestPartitionComparesWithTheOracleAndThePersonInTheirModel(t *testing.T) {
	t.Parallel()
	_, out, _ := evaluate(t, "partition", "--data", filepath.Join("testdata", "partition"), "--json")
	for _, f := range figuresOf(t, out) {
		if f.Metric != "max_load" {
			continue
		}
		// By hand: 2+3+4 with the way out of layers 1 and 2, 0.25+0.5; 3+2+4 with the same ways in.
		for name, want := range map[string]float64{
			"oracle": 9.75, "contiguous": 9.75, "expert_here": 9.75,
			"one_device": 18,
		} {
			if math.Abs(f.Baselines[name]-want) > 1e-9 {
				t.Errorf("%s is %v, want %v", name, f.Baselines[name], want)
			}
		}
		if _, empty := f.Baselines["pipedream"]; empty {
			t.Error("an empty cell of the oracle became a figure")
		}
	}
}

func TestCallsOfPartsWaitForAllTheirInputs(t *testing.T) {
	t.Parallel()
	w, err := readWorkload(filepath.Join("testdata", "partition", "dnn_partitioning", "latency-inputs", "Made",
		"branch.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		assignment []int
		want       float64 // ms
	}{
		{"two parts", []int{0, 0, 0, 1, 1, 1}, 2 + 3 + 4 + 0.75 + 0.75 + 3 + 2 + 4},
		// The first device runs layers 0 to 2 and then layer 5; the second one what is between.
		{"a part that comes back", []int{0, 0, 0, 1, 1, 0}, 9.75 + 0.75 + 3 + 2 + 0.5 + 0.5 + 4},
		{"one on the CPU", []int{0, 0, 0, 0, 0, 2}, 14 + 0.5 + 40},
	} {
		if got := w.blockLatency(c.assignment) * milliseconds; math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v ms, want %v", c.name, got, c.want)
		}
	}
}

func TestPartitionSaysWhatIsAbsent(t *testing.T) {
	t.Parallel()
	code, _, notes := evaluate(t, "partition", "--data", t.TempDir())
	if code != exitFailed || !strings.Contains(notes, "piper is absent") ||
		!strings.Contains(notes, "holds none of the sets") {
		t.Errorf("exit code %d, notes %q", code, notes)
	}
}
