package main

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// Few backlogs are of few families, and the same seed gives the same figures.
func TestDeadlinesAreEvaluated(t *testing.T) {
	t.Parallel()
	ask := func() string {
		var out bytes.Buffer
		if code := run(t.Context(), []string{"deadlines", "--backlogs", "3", "--json"}, &out, io.Discard); code != exitDone {
			t.Fatalf("exit code %d: %s", code, out.String())
		}
		return out.String()
	}
	printed := ask()
	if again := ask(); again != printed {
		t.Errorf("the same seed gives\n%s\nand then\n%s", printed, again)
	}
	cases := map[string]int{}
	for line := range strings.Lines(printed) {
		var f figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		cases[f.Case] += f.N
		if f.Metric == "met" && (f.Ours < 0 || f.Ours > 1) || f.Metric == "cost_over_best" && !(f.Ours >= 0) || f.N == 0 {
			t.Errorf("figure %+v", f)
		}
	}
	if cases["all"] != 6 || len(cases) < 2 {
		t.Errorf("cases %v, want three backlogs in two figures, and their families", cases)
	}
	for _, wrong := range [][]string{{"--backlogs", "0"}, {"--confidence", "1"}, {"--confidence", "0.2"}} {
		if code := run(t.Context(), append([]string{"deadlines"}, wrong...), io.Discard, io.Discard); code != exitUsage {
			t.Errorf("%v exits with %d, want %d", wrong, code, exitUsage)
		}
	}
}
