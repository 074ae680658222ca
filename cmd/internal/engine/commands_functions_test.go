package engine_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workers/function"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// startWithRunner starts an engine whose functions run commands: its pool has one CPU, and functions another, and an
// hour of earlier finish is worth so much that a backlog spills.
func startWithRunner(t *testing.T, flags ...string) *testEngine {
	t.Helper()
	needPython(t)
	if function.Python() == "" {
		t.Skip("needs a python3 that functions find")
	}
	cpus, err := spawn.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if len(cpus) < 2 {
		t.Skip("the pool and functions need a CPU each")
	}
	return startEngine(t, t.TempDir(), "", append([]string{
		"--pool-cpus", strconv.Itoa(cpus[0]), "--function-cpus", strconv.Itoa(cpus[1]), "--value-of-time", "1000",
		"--function-cold-start", "0s",
	}, flags...)...)
}

// buildRunner compiles what runs commands as functions, once, and has engines find it.
func buildRunner(t *testing.T) {
	t.Helper()
	binaries.Lock()
	defer binaries.Unlock()
	path := filepath.Join(binaries.dir, "spillway-runner")
	if _, err := os.Stat(path); err != nil {
		build := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../spillway-runner")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if said, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the runner: %v\n%s", err, said)
		}
	}
	t.Setenv(engine.RunnerVariable, path)
}

// rows is a chain whose second stage fans out 40 tasks, each of some CPU, and reports a checkpoint halfway.
const rows = `name: rows
stages:
  count:
    run: [python3, count.py]
  row:
    for_each: {n: {to: 40}}
    run: [python3, row.py, "${n}"]
    after: [count]
    outputs: {row: row.txt}
  all:
    run: cat rows/* | sort -n > all.txt
    files: {rows/: row.row}
    outputs: {all: all.txt}
`

const rowPython = `import hashlib, json, os, sys, time

n = int(sys.argv[1])
resumed = os.environ.get("SPILLWAY_RESUME")
report = open(os.environ["SPILLWAY_REPORT"], "a", buffering=1)
digest = open(resumed).read() if resumed else str(n)
for part in range(1 if resumed else 0, 2):
    end = time.process_time() + 0.15
    while time.process_time() < end:
        hashlib.sha256(b"x" * 65536).digest()
    digest = hashlib.sha256(f"{digest} {part}".encode()).hexdigest()
    if part == 0:
        open("half", "w").write(digest)
        report.write(json.dumps({"checkpoint": "half", "progress": 1, "of": 2}) + "\n")
open("row.txt", "w").write(f"{n} {digest}\n")
report.write(json.dumps({"progress": 2, "of": 2}) + "\n")
print("row", n)
`

func rowsChain(t *testing.T) string {
	t.Helper()
	return filepath.Join(directory(t, map[string]string{
		"rows.yaml": rows, "row.py": rowPython, "count.py": "import time; time.sleep(0.1)\n",
	}), "rows.yaml")
}

// runRows runs the chain and returns what it left, and how it went.
func (e *testEngine) runRows(t *testing.T) (map[string]string, ledger.RunView) {
	t.Helper()
	out := t.TempDir()
	code, stdout, stderr := command(t, t.Context(), e.state, "run", rowsChain(t), "--out", out)
	if code != cli.ExitOK {
		t.Fatalf("exit code %d\n%s\n%s\n%s", code, stdout, stderr, e.printed())
	}
	runs, err := e.client.Runs(t.Context(), web.RunQuery{Pipeline: "rows"})
	if err != nil || len(runs) == 0 {
		t.Fatalf("runs: %v, %v", runs, err)
	}
	newest := slices.MaxFunc(runs, func(a, b ledger.RunView) int { return a.StartedAt.Compare(b.StartedAt) })
	return contentOf(t, out), newest
}

// TestACommandStageSpillsToFunctions has 40 tasks in Python wait at a pool of one CPU: they run at both venues, and
// leave what they leave at the pool alone. Then functions are killed while they run, and each task is in the result
// once all the same.
func TestACommandStageSpillsToFunctions(t *testing.T) {
	buildRunner(t)
	e := startWithRunner(t)
	alone := startEngine(t, t.TempDir(), "", "--no-burst")
	want, _ := alone.runRows(t)
	got, view := e.runRows(t)
	if diff := cmp.Diff(want, got); diff != "" || strings.Count(got["all/all.txt"], "\n") != 40 {
		t.Errorf("outputs at both venues (-pool only +both):\n%s", diff)
	}
	done := map[predictor.Venue]int{}
	for _, s := range view.Stages {
		if s.Name == "row" {
			done = s.Tasks
		}
	}
	if done[predictor.Pool] == 0 || done[predictor.Function] == 0 || done[predictor.Pool]+done[predictor.Function] != 40 {
		t.Errorf("tasks of the stage that fans out: %v, want 40 at both venues", done)
	}
	attempts, err := e.client.Attempts(t.Context(), web.AttemptQuery{Run: view.Run})
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range attempts {
		if a.Venue == predictor.Function && (!strings.Contains(a.Host, "commands-python3") || a.Cost <= 0) {
			t.Errorf("attempt %s at %s for %s, want one of the functions of Python, paid for", a.Task, a.Host, a.Cost)
		}
	}

	ended := make(chan int)
	stop := make(chan struct{})
	go func() {
		random, killed := rand.New(rand.NewPCG(1, 2)), 0
		for killed < 3 {
			select {
			case <-stop:
				ended <- killed
				return
			default:
				killed += int(killFunction(e.state, random))
			}
		}
		<-stop
		ended <- killed
	}()
	again, view := e.runRows(t)
	close(stop)
	killed := <-ended
	if diff := cmp.Diff(want, again); diff != "" {
		t.Errorf("outputs with functions killed (-pool only +killed):\n%s", diff)
	}
	tasks := 0
	for _, n := range view.Totals.Tasks {
		tasks += n
	}
	if killed == 0 || tasks != 42 {
		t.Errorf("%d functions killed and %d tasks done, want some and each task once", killed, tasks)
	}
}

// TestWhatFunctionsCannotRunStaysAtThePool runs commands that functions are not given, and one that a function finds it
// cannot run; each is done at the pool, with the reason.
func TestWhatFunctionsCannotRunStaysAtThePool(t *testing.T) {
	buildRunner(t)
	e := startWithRunner(t)
	chain := func(name, program string) string {
		text := fmt.Sprintf(
			"name: %s\nstages:\n  work:\n    for_each: {n: {to: 12}}\n    run: [python3, work.py, \"${n}\"]\n",
			name)
		return filepath.Join(directory(t, map[string]string{name + ".yaml": text, "work.py": program}), name+".yaml")
	}
	const busy = "\nimport time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass\n"
	for name, c := range map[string]struct{ program, reason string }{
		"third": { // the module is there where the program looks first, which its text does not tell
			"import sys; sys.path.insert(0, 'lib')\ntry:\n    import numpy_of_others\nexcept ImportError: pass" + busy,
			"it imports numpy_of_others, which functions do not have",
		},
		"found": {
			"import importlib, os\nif '/workspaces/' not in os.environ['HOME']: " +
				"importlib.import_module('no_such_' + 'module')" + busy,
			"No module named 'no_such_module'",
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := command(t, t.Context(), e.state, "run", chain(name, c.program))
			if code != cli.ExitOK {
				t.Fatalf("exit code %d\n%s\n%s\n%s", code, stdout, stderr, e.printed())
			}
			runs, err := e.client.Runs(t.Context(), web.RunQuery{Pipeline: name})
			if err != nil || len(runs) != 1 || runs[0].Totals.Tasks[predictor.Pool] != 12 {
				t.Fatalf("runs %+v, %v: want 12 tasks at the pool", runs, err)
			}
			e.until("the reason is told", func() bool {
				_, shown, said := command(t, t.Context(), e.state, "show", runs[0].Run)
				return strings.Contains(shown+said, "functions cannot run this stage: ") &&
					strings.Contains(shown+said, c.reason)
			})
		})
	}
}
