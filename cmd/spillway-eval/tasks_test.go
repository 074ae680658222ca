package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTasksPrintsEveryCaseAndMetric(t *testing.T) {
	t.Parallel()
	code, out, notes := evaluate(t, "tasks", "--data", "testdata", "--json")
	if code != exitDone || notes != "" {
		t.Fatalf("exit code %d, notes %q", code, notes)
	}
	seen := map[string]int{}
	figures := map[string]figure{}
	for _, f := range figuresOf(t, out) {
		seen[f.Case]++
		figures[f.Case+" "+f.Metric] = f
		if f.Eval != "tasks" || f.Set != "workflow_tasks" || len(f.Baselines) == 0 || f.N == 0 {
			t.Errorf("got %+v", f)
		}
	}
	if diff := cmp.Diff(map[string]int{"made_a": 8, "made_b": 8, "pooled": 8}, seen); diff != "" {
		t.Error(diff)
	}
	wasted := figures["pooled wastage_gbh"]
	if wasted.N != 84 || wasted.Ours >= wasted.Baselines["request"] {
		t.Errorf("%d tasks, %v wasted where the request wastes %v", wasted.N, wasted.Ours, wasted.Baselines["request"])
	}
	sum := figures["made_a wastage_gbh"].Ours + figures["made_b wastage_gbh"].Ours
	if diff := sum - wasted.Ours; diff > 1e-9 || diff < -1e-9 {
		t.Errorf("the workflows waste %v, pooled %v", sum, wasted.Ours)
	}
	if got := figures["pooled failures"].Baselines["request"]; got != 0 {
		t.Errorf("the request fails %v times; it was enough for every task", got)
	}
	if _, again, _ := evaluate(t, "tasks", "--data", "testdata", "--json"); again != out {
		t.Error("a second run printed other figures")
	}
}

func TestWhatIsWrongWithTasksIsSaid(t *testing.T) {
	t.Parallel()
	const header = "process,start_ms,complete_ms,run_ms,cpus,requested_memory_bytes,input_bytes,peak_rss_bytes\n"
	const good = "A,0,5,5,1,100,10,50\n"
	for _, c := range []struct{ name, text, want string }{
		{"an empty file", "", "bad.csv: line 1"},
		{"no task", header, "bad.csv: line 2"},
		{"a column that is absent", "process,start_ms\n", `no column "complete_ms"`},
		{"a line that is cut short", header + good + "A,6,7\n", "line 3"},
		{"text for a number", header + good + "A,6,seven,5,1,100,10,50\n", `line 3: not in the expected format: "seven"`},
		{"NaN", header + good + "A,6,7,1,1,100,10,NaN\n", `bad.csv: line 3: not in the expected format: "NaN"`},
		{"NaN cores", header + good + "A,6,7,1,NaN,100,10,50\n", `bad.csv: line 3: not in the expected format: "NaN"`},
		{"no core", header + good + "A,6,7,1,0,100,10,50\n", "bad.csv: line 3"},
		{"a negative input", header + good + "A,6,7,1,1,100,-10,50\n", `bad.csv: line 3: not in the expected format: "-10"`},
		{"a peak of nothing", header + good + "A,6,7,1,1,100,10,0\n", `bad.csv: line 3: not in the expected format: "0"`},
		{"a peak of 10^18", header + "A,6,7,1,1,100,10,1000000000000000000\n", "bad.csv: line 2"},
		{"a task without a process", header + ",6,7,1,1,100,10,50\n", "bad.csv: line 2"},
		{"an end before its start", header + "A,6,5,1,1,100,10,50\n", "complete at 5 ms, not after its start at 6 ms"},
		{"rows in another order", header + "A,6,7,1,1,100,10,50\n" + good, "bad.csv: line 3: not in the expected format: " +
			"the task starts at 0 ms, before that of the row above, at 6 ms"},
		{"a quote", header + "A,\"6,7\n", "line 2"},
	} {
		folder := filepath.Join(t.TempDir(), taskSet)
		if err := os.MkdirAll(folder, 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "bad.csv"), []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, notes := evaluate(t, "tasks", "--data", filepath.Dir(folder))
		if code != exitFailed || out != "" || !strings.Contains(notes, c.want) || !strings.Contains(notes, "bad.csv") {
			t.Errorf("%s: exit code %d, %q; want %q", c.name, code, notes, c.want)
		}
	}
	for _, c := range []struct{ name, file, text, want string }{
		{"no folder", "", "", "none of the sets"},
		{"no file", "README.md", "", "no such recorded files"},
		{"no gzip", "a.csv.gz", "plain", "a.csv.gz"},
	} {
		folder := t.TempDir()
		if c.file != "" {
			if err := os.MkdirAll(filepath.Join(folder, taskSet), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, taskSet, c.file), []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if code, _, notes := evaluate(t, "tasks", "--data", folder); code != exitFailed || !strings.Contains(notes, c.want) {
			t.Errorf("%s: exit code %d, %q; want %q", c.name, code, notes, c.want)
		}
	}
}

func TestAFileThatWasCutOffIsRefusedWithTheLineBefore(t *testing.T) {
	t.Parallel()
	whole, err := os.ReadFile("testdata/workflow_tasks/made_b.csv.gz")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), taskSet)
	if err := os.MkdirAll(folder, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "cut.csv.gz"), whole[:len(whole)-12], 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, notes := evaluate(t, "tasks", "--data", filepath.Dir(folder))
	if code != exitFailed || !strings.Contains(notes, "cut.csv.gz") || !strings.Contains(notes, "line ") {
		t.Errorf("exit code %d, %q", code, notes)
	}
}
