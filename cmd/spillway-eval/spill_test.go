package main

import (
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// recordedLoads writes 60 minutes of about 3,000 tasks a minute as twitter_rps has them, and as many stamps.
func recordedLoads(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	for _, name := range []string{"twitter_rps", "azure_llm_2023"} {
		if err := os.Mkdir(filepath.Join(folder, name), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	seconds, err := os.Create(filepath.Join(folder, "twitter_rps", "rps.txt.gz"))
	if err != nil {
		t.Fatal(err)
	}
	zipped := gzip.NewWriter(seconds)
	stamps := strings.Builder{}
	stamps.WriteString("TIMESTAMP,ContextTokens,GeneratedTokens\n")
	for second := range 3600 {
		load := 40 + 20*((second/600)%2) + second%7
		if _, err := fmt.Fprintln(zipped, load); err != nil {
			t.Fatal(err)
		}
		for i := range load / 10 {
			fmt.Fprintf(&stamps, "2023-11-16 18:%02d:%02d.%02d,1,2\n", second/60, second%60, i)
		}
	}
	if err := zipped.Close(); err != nil {
		t.Fatal(err)
	}
	if err := seconds.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "azure_llm_2023", "AzureLLMInferenceTrace_conv.csv"),
		[]byte(stamps.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return folder
}

func TestSpillPrintsEverySetAndMetric(t *testing.T) {
	t.Parallel()
	folder := recordedLoads(t)
	code, out, notes := evaluate(t, "spill", "--data", folder, "--json")
	if code != exitDone || !strings.Contains(notes, "nasa_rps is absent") {
		t.Fatalf("exit code %d, notes %q", code, notes)
	}
	metrics := map[string]bool{}
	costs := map[string]figure{}
	for _, f := range figuresOf(t, out) {
		metrics[f.Set+"/"+f.Case+"/"+f.Metric] = true
		if len(f.Baselines) != 12 {
			t.Errorf("%d baselines of %s: %v", len(f.Baselines), f.Metric, f.Baselines)
		}
		if f.Metric == "cost_usd" {
			costs[f.Set] = f
		}
	}
	for _, want := range []string{
		"twitter_rps/x1/cost_usd", "twitter_rps/x1/slo_miss", "twitter_rps/x1/cost_over_oracle",
		"azure_llm_2023/x10/cost_over_oracle",
	} {
		if !metrics[want] {
			t.Errorf("%s is missing: %v", want, metrics)
		}
	}
	for set, f := range costs {
		bound, oracle := f.Baselines["slot_bound"], f.Baselines["oracle_10min"]
		if !(bound > 0 && bound <= oracle+1e-9) {
			t.Errorf("%s: the bound of %v is above the oracle's %v", set, bound, oracle)
		}
		for _, name := range []string{"functions_only", "static_peak", "mean_tracking", "last_best", "kpa", "hpa_functions"} {
			if f.Baselines[name] < bound {
				t.Errorf("%s: %s costs %v, less than the bound of %v", set, name, f.Baselines[name], bound)
			}
		}
		if f.Ours < bound || f.Ours > f.Baselines["functions_only"] {
			t.Errorf("%s: ours costs %v, the bound %v, functions only %v", set, f.Ours, bound, f.Baselines["functions_only"])
		}
	}
	if _, again, _ := evaluate(t, "spill", "--data", folder, "--json"); again != out {
		t.Error("a second run printed other figures")
	}
}

func TestSpillSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	empty := t.TempDir()
	short := t.TempDir()
	if err := os.Mkdir(filepath.Join(short, "azure_llm_2023"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(short, "azure_llm_2023", "AzureLLMInferenceTrace_conv.csv"),
		[]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.1,1,1\n2023-11-16 18:02:00.1,1,1\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--data", empty}, exitFailed, "holds none of the sets"},
		{[]string{"--data", short}, exitFailed, "2 minutes: at least 20"},
		{[]string{"--data", empty, "--days", "-1"}, exitUsage, "--days -1"},
	} {
		code, _, notes := evaluate(t, append([]string{"spill"}, row.args...)...)
		if code != row.code || !strings.Contains(notes, row.want) {
			t.Errorf("%v: exit code %d, notes %q; want %d and %q", row.args, code, notes, row.code, row.want)
		}
	}
}
