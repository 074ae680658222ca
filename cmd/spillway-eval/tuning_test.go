package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// The same seed gives the same figures, the plan is the optimum within a hundredth, and no policy of the same budget is
// faster.
func TestTuningIsEvaluated(t *testing.T) {
	t.Parallel()
	ask := func() string {
		var out bytes.Buffer
		if code := run(t.Context(), []string{"tuning", "--budgets", "2", "--json"}, &out, io.Discard); code != exitDone {
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
		case f.N == 0, !(f.Ours >= 0) && f.Metric != "jct_saving_median" && f.Metric != "cost_saving_median":
			t.Errorf("figure %+v", f)
		case f.Metric == "gap_to_exact" && strings.HasSuffix(f.Case, "right profiles") && f.Ours > 0.01:
			t.Errorf("%s: %g longer than the optimum", f.Case, f.Ours)
		case strings.HasSuffix(f.Metric, "_median") && strings.Contains(f.Case, "against") && f.Ours < -0.01:
			t.Errorf("%s: %s %g: it is worse", f.Case, f.Metric, f.Ours)
		}
	}
	for _, want := range []string{"16 trials, right profiles", "4096 trials against uniform", "training against equal"} {
		if !cases[want] {
			t.Errorf("no case %q in %v", want, cases)
		}
	}
	for _, wrong := range [][]string{{"--budgets", "0"}, {"--noise", "1"}, {"--noise", "-0.1"}} {
		if code := run(t.Context(), append([]string{"tuning"}, wrong...), io.Discard, io.Discard); code != exitUsage {
			t.Errorf("%v exits with %d, want %d", wrong, code, exitUsage)
		}
	}
}
