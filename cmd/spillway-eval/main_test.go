package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// evaluate runs the program with its output and notes.
func evaluate(t *testing.T, args ...string) (code int, out, notes string) {
	t.Helper()
	var o, n bytes.Buffer
	code = run(t.Context(), args, &o, &n)
	return code, o.String(), n.String()
}

func figuresOf(t *testing.T, text string) []figure {
	t.Helper()
	var all []figure
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		var f figure
		decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&f); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		all = append(all, f)
	}
	return all
}

func TestSizingPrintsEverySetCaseAndMetric(t *testing.T) {
	t.Parallel()
	code, out, notes := evaluate(t, "sizing", "--data", "testdata", "--json")
	if code != exitDone || notes != "" {
		t.Fatalf("exit code %d, notes %q", code, notes)
	}
	seen := map[string]int{}
	for _, f := range figuresOf(t, out) {
		seen[f.Set+"/"+f.Case]++
		if f.Eval != "sizing" || len(f.Baselines) != 7 || f.Published != nil {
			t.Errorf("got %+v", f)
		}
		if f.Unit == "ratio" && (f.Ours < 0 || f.Ours > 1) {
			t.Errorf("%s of %s/%s is %v, want a ratio", f.Metric, f.Set, f.Case, f.Ours)
		}
		if f.Set == "alibaba_genai_2026" && f.Case == "all" && f.N != 3*(320-uncounted) {
			t.Errorf("%d ticks count, want those of three containers; the short one does not", f.N)
		}
		if f.Metric == "over_limit" && f.Baselines["hindsight"] != 0 {
			t.Errorf("hindsight was over its limit in %v of the ticks of %s/%s", f.Baselines["hindsight"], f.Set, f.Case)
		}
		if f.Metric == "mean_slack" && f.Set == "alibaba_genai_2026" && f.Ours >= f.Baselines["static"] {
			t.Errorf("%s: our slack of %v is not below that of the static limit, %v", f.Case, f.Ours, f.Baselines["static"])
		}
	}
	want := map[string]int{}
	for _, name := range []string{
		"alibaba_genai_2026/all", "alibaba_genai_2026/half_a", "alibaba_genai_2026/half_b", "alibaba_genai_2026/censored",
		"planetlab_cpu/all", "planetlab_cpu/half_a", "planetlab_cpu/half_b",
		"cluster_capacity/cpu", "cluster_capacity/mem", "cluster_capacity/mem over_cost=300",
	} {
		want[name] = 3
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
	if _, again, _ := evaluate(t, "sizing", "--data", "testdata", "--json"); again != out {
		t.Error("a second run printed other figures")
	}
}

func TestTheTwoHalvesAreTheWhole(t *testing.T) {
	t.Parallel()
	_, out, _ := evaluate(t, "sizing", "--data", "testdata", "--json")
	ticks := map[string]int{}
	for _, f := range figuresOf(t, out) {
		if f.Set == "planetlab_cpu" && f.Metric == "mean_slack" {
			ticks[f.Case] = f.N
		}
	}
	if ticks["half_a"] == 0 || ticks["half_b"] == 0 || ticks["half_a"]+ticks["half_b"] != ticks["all"] {
		t.Errorf("ticks: %v", ticks)
	}
}

func TestTheCurveTradesSlackForTicksOver(t *testing.T) {
	t.Parallel()
	code, out, notes := evaluate(t, "sizing", "--data", "testdata", "--json", "--curve")
	if code != exitDone {
		t.Fatalf("exit code %d: %s", code, notes)
	}
	first, last := map[string]float64{}, map[string]float64{}
	for _, f := range figuresOf(t, out) {
		switch {
		case f.Set == "planetlab_cpu" && f.Case == "all over_cost=1":
			first[f.Metric] = f.Ours
		case f.Set == "planetlab_cpu" && f.Case == "all over_cost=1000":
			last[f.Metric] = f.Ours
		}
	}
	if first["mean_slack"] >= last["mean_slack"] || first["over_limit"] <= last["over_limit"] {
		t.Errorf("at the lowest price %v, at the highest %v", first, last)
	}
}

func TestTheTableNamesSetsAndPolicies(t *testing.T) {
	t.Parallel()
	_, out, _ := evaluate(t, "sizing", "--data", "testdata")
	for _, want := range []string{
		"sizing / planetlab_cpu / all (n = 1548)", "mean_slack", "spillway", "hindsight", "vpa",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the table lacks %q:\n%s", want, out)
		}
	}
}

func TestASetThatIsAbsentIsNoted(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if err := os.CopyFS(filepath.Join(folder, "planetlab_cpu"), os.DirFS("testdata/planetlab_cpu")); err != nil {
		t.Fatal(err)
	}
	code, out, notes := evaluate(t, "sizing", "--data", folder, "--json")
	if code != exitDone || out == "" || strings.Count(notes, "absent") != 2 {
		t.Errorf("exit code %d, notes %q", code, notes)
	}
}

func TestWhatIsWrongIsSaid(t *testing.T) {
	t.Parallel()
	broken := t.TempDir()
	if err := os.MkdirAll(filepath.Join(broken, "planetlab_cpu"), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(broken, "planetlab_cpu", "day.csv"), []byte("a,1,2\nb,1,-2\n"), 0o600); err !=
		nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"weigh"}, exitUsage, `no verb "weigh"`},
		{[]string{"sizing"}, exitUsage, "--data is missing"},
		{[]string{"sizing", "--data", "x", "y"}, exitUsage, `unexpected "y"`},
		{[]string{"sizing", "--dat", "x"}, exitUsage, "-dat"},
		{[]string{"sizing", "--data", t.TempDir()}, exitFailed, "none of the sets"},
		{[]string{"sizing", "--data", broken}, exitFailed, "day.csv: line 2"},
	} {
		code, _, notes := evaluate(t, c.args...)
		if code != c.code || !strings.Contains(notes, c.want) {
			t.Errorf("%v: exit code %d, %q; want %d and %q", c.args, code, notes, c.code, c.want)
		}
	}
}

func TestHelpExplains(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--help"}, {"help"}, {"sizing", "--help"}} {
		code, out, _ := evaluate(t, args...)
		if code != exitDone || !strings.Contains(out, "--data") {
			t.Errorf("%v: exit code %d, %q", args, code, out)
		}
	}
	if code, out, _ := evaluate(t); code != exitUsage || !strings.Contains(out, "sizing") {
		t.Errorf("without a verb: exit code %d, %q", code, out)
	}
}

func TestAnInterruptEndsIt(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	var out, notes bytes.Buffer
	if code := run(ctx, []string{"sizing", "--data", "testdata"}, &out, &notes); code != exitInterrupted || out.Len() > 0 {
		t.Errorf("exit code %d, output %q", code, out.String())
	}
}

func TestAFolderThatIsNotThereIsNamed(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"partition", "sizing", "tasks"} {
		for data, want := range map[string]string{missing: missing + ": there is no such folder", file: file + " is a file"} {
			if code, _, notes := evaluate(t, verb, "--data", data); code != exitFailed || !strings.Contains(notes, want) {
				t.Errorf("%s: exit code %d, %q; want %d and %q", verb, code, notes, exitFailed, want)
			}
		}
	}
}

func TestAnInterruptIsSaidAsOne(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	var out, notes bytes.Buffer
	code := run(ctx, []string{"tasks", "--data", "testdata"}, &out, &notes)
	if code != exitInterrupted || !strings.Contains(notes.String(), "interrupted") ||
		strings.Contains(notes.String(), "context") {
		t.Errorf("exit code %d, %q; want %d and that it was interrupted", code, &notes, exitInterrupted)
	}
}

func TestFlagsAreWrittenWithTwoDashesEverywhere(t *testing.T) {
	t.Parallel()
	for _, v := range verbs() {
		code, out, _ := evaluate(t, v.name, "--help")
		if code != exitDone || !strings.Contains(out, "  --json\n") || strings.Contains(out, "\n  -json") {
			t.Errorf("%s --help: %d %s", v.name, code, out)
		}
		if has := strings.Contains(out, "  --data FOLDER\n"); has == v.simulated {
			t.Errorf("%s --help has --data: %v, want %v", v.name, has, !v.simulated)
		}
	}
}

func TestTheHelpOfTasksExplainsEveryBaseline(t *testing.T) {
	t.Parallel()
	_, out, _ := evaluate(t, "tasks", "--help")
	for name := range taskPolicies() {
		if name != ours && !strings.Contains(out, " "+name+" ") {
			t.Errorf("--help says nothing of %s", name)
		}
	}
}

func TestWhatIsPublishedHasARowOnlyWhereThereIsSome(t *testing.T) {
	t.Parallel()
	value := 1.0
	for name, test := range map[string]struct {
		published *float64
		want      bool
	}{"none": {nil, false}, "some": {&value, true}} {
		var out bytes.Buffer
		r := &report{out: &out}
		r.add(figure{Eval: "e", Set: "s", Case: "c", Metric: "m"}, figure{Eval: "e", Metric: "n", Published: test.published})
		if r.err != nil || strings.Contains(out.String(), "published") != test.want {
			t.Errorf("%s: %v\n%s", name, r.err, &out)
		}
	}
}
