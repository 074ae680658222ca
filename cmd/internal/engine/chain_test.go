package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// needPython skips the test where there is no Python.
func needPython(tb testing.TB) {
	tb.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "python") {
			tb.Fatalf("this machine has no python3: %v", err)
		}
		tb.Skipf("needs python3: %v", err)
	}
}

// directory makes a directory of files.
func directory(tb testing.TB, files map[string]string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	return dir
}

// contentOf reads the files below a directory, by name.
func contentOf(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		files[name] = string(text)
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return files
}

// command runs the spillway command against an engine's state directory, in this process.
//
//nolint:revive // tb first, as in all tests
func command(
	tb testing.TB, ctx context.Context, state string, arguments ...string,
) (code int, stdout, stderr string) {
	tb.Helper()
	var out, errs output
	arguments = slices.Insert(slices.Clone(arguments), 1, "--state", state)
	code = cli.Execute(ctx, arguments, &out, &errs, cli.Deps{Version: "test", Environment: os.LookupEnv})
	return code, out.String(), errs.String()
}

// squares is a chain of three stages: the first says how far the second fans out, and the last sees all that it left.
const squares = `name: squares
goal: {budget: 1.00}
parameters: {factor: 1}
inputs: {words: words.txt}
environment: {PYTHONHASHSEED: 0}
stages:
  split:
    run: python3 split.py words.txt
    files: {words.txt: inputs.words}
  square:
    for_each: {word: split.result.words, n: {to: 3}}
    run: [sh, -c, 'echo "$1 $(($2 * $2 * $3))" > out.txt; echo "did $1"', sh, "${word}", "${n}", "${factor}"]
    outputs: {row: out.txt}
  gather:
    run: |
      cat rows/* > all.txt
      printf '{"result": {"rows": %d}}\n' "$(wc -l < all.txt)" > "$SPILLWAY_REPORT"
    files: {rows/: square.row}
    outputs: {all: all.txt, log: {path: log/, optional: true}}
`

const split = `import json, os, sys
words = open(sys.argv[1]).read().split()
with open(os.environ["SPILLWAY_REPORT"], "w") as report:
    report.write(json.dumps({"result": {"words": words}}) + "\n")
`

func TestAChainOfCommandsRunsFromItsFileToItsOutputs(t *testing.T) {
	t.Parallel()
	needPython(t)
	e := sharedEngine(t)
	dir, out := directory(t, map[string]string{"squares.yaml": squares, "split.py": split, "words.txt": "alpha beta\n"}),
		t.TempDir()
	code, stdout, stderr := command(t, t.Context(), e.state, "run", filepath.Join(dir, "squares.yaml"), "--input",
		`{"factor": 10}`, "--out", out)
	if code != cli.ExitOK {
		t.Fatalf("exit code %d\n%s\n%s\n%s", code, stdout, stderr, e.printed())
	}
	want := map[string]string{"gather/all.txt": "alpha 10\nalpha 40\nalpha 90\nbeta 10\nbeta 40\nbeta 90\n"}
	if diff := cmp.Diff(want, contentOf(t, out)); diff != "" {
		t.Errorf("outputs of the last stages (-want +got):\n%s", diff)
	}
	for _, text := range []string{
		"stage square: 6 tasks done (pool 6, function 0)", "square.row 5", "gather.all",
		"rows 6",
	} {
		if !strings.Contains(stdout, text) {
			t.Errorf("standard output has no %q:\n%s", text, stdout)
		}
	}
	runs, err := e.client.Runs(t.Context(), web.RunQuery{Pipeline: "squares"})
	if err != nil || len(runs) != 1 || runs[0].Goal.Budget == 0 {
		t.Fatalf("runs: %+v, %v; want one with the budget of the file", runs, err)
	}
	// The name alone runs what was run last, with an artifact in the place of an input.
	other, err := e.client.Put(t.Context(), strings.NewReader("gamma"))
	if err != nil {
		t.Fatal(err)
	}
	run := e.publish("squares", "second", map[string]any{"inputs": map[string]activities.Ref{"words": other}})
	result := succeed[chain.Result](e, run, patience)
	if result.Stages["square"].Tasks != 3 || len(result.Stages["gather"].Values) != 1 ||
		result.Stages["gather"].Values[0]["rows"] != 3.0 {
		t.Errorf("result: %+v, want three tasks and rows", result)
	}
}

func TestACommandBringsItsFilesBackAndPrintsAsItDoesAlone(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	dir := directory(t, map[string]string{"run.sh": "echo line 1; printf 'no end'; echo noise >&2; echo old >>log; " +
		"mkdir -p m; echo weights >m/model; echo $EXTRA >extra", "log": "first\n"})
	code, stdout, stderr := command(t, t.Context(), e.state, "run", "--code", dir, "--env", "EXTRA=more", "--output",
		"extra=extra", "--", "sh", "run.sh", "--epochs", "3")
	if code != cli.ExitOK || stdout != "line 1\nno end\n" {
		t.Errorf("exit code %d, standard output %q, want that of the program\n%s", code, stdout, stderr)
	}
	got := contentOf(t, dir)
	want := map[string]string{"run.sh": got["run.sh"], "log": "first\nold\n", "m/model": "weights\n", "extra": "more\n"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	for _, text := range []string{"noise\n", "brought back 3 files", "extra, log, m/model"} {
		if !strings.Contains(stderr, text) {
			t.Errorf("standard error has no %q:\n%s", text, stderr)
		}
	}
}

func TestACommandThatFailsGivesItsExitCodeAndLastWords(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	code, stdout, stderr := command(t, t.Context(), e.state, "run", "--code", "none", "--attempts", "1", "--", "sh", "-c",
		"echo 'no such column: price' >&2; exit 41")
	if code != 41 || stdout != "" {
		t.Errorf("exit code %d and %q, want those of the program", code, stdout)
	}
	runs, err := e.client.Runs(t.Context(), web.RunQuery{Pipeline: "sh"})
	if err != nil || len(runs) != 1 || runs[0].State != predictor.RunFailed ||
		!strings.Contains(runs[0].Error, "exit code 41: no such column: price") {
		t.Errorf("runs: %+v, %v; want one that failed with its exit code and last words", runs, err)
	}
	if !strings.Contains(stderr, "no such column: price") {
		t.Errorf("standard error: %s", stderr)
	}
	code, _, stderr = command(t, t.Context(), e.state, "run", "--code", "none", "--", "no-such-program")
	if code != cli.ExitFailure || !strings.Contains(stderr, "no-such-program") {
		t.Errorf("a program that is not there: exit code %d, %s", code, stderr)
	}
}

func TestAnInterruptedCommandIsCancelled(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan string, 1)
	go func() {
		code, _, stderr := command(t, ctx, e.state, "run", "--code", "none", "--name", "sleeper", "--", "sleep", "600")
		ended <- fmt.Sprintf("%d %s", code, stderr)
	}()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		runs, err := e.client.Runs(t.Context(), web.RunQuery{Pipeline: "sleeper"})
		if err == nil && len(runs) == 1 && len(runs[0].Stages) == 1 && runs[0].Stages[0].Running == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the command never ran: %v\n%s", err, e.printed())
		}
	}
	interrupt()
	select {
	case said := <-ended:
		if !strings.HasPrefix(said, "1 ") || !strings.Contains(said, "cancelling run sleeper-") ||
			!strings.Contains(said, "cancelled in") {
			t.Errorf("got %s, want exit code 1 and a run that was cancelled", said)
		}
	case <-time.After(patience):
		t.Fatal("an interrupted command goes on")
	}
	if running, cancelled := e.runsOf("sleeper"); running != 0 || cancelled != 1 {
		t.Errorf("%d runs go on and %d have ended, want one that has ended", running, cancelled)
	}
}

// packedChain reads a chain of this text without any local files.
func packedChain(tb testing.TB, text string) chain.Chain {
	tb.Helper()
	c, err := chain.Parse("chain.yaml", []byte(text), chain.Checks{})
	if err != nil {
		tb.Fatal(err)
	}
	if c, err = c.With(nil); err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestAChainThatIsKilledWithItsEngineFinishes(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	e := startEngine(t, state, "")
	marks := t.TempDir()
	c := packedChain(t, `name: slow
code: none
stages:
  first: {run: [sh, -c, "echo one > a"], outputs: {a: a}}
  second:
    for_each: {i: {to: 4}}
    run: [sh, -c, 'echo begun > "$1/$2"; sleep 1; cat a > b', sh, "`+marks+`", "${i}"]
    files: {a: first.a}
    outputs: {b: b}
  third: {run: "cat all/* > sum; printf '{\"result\": {\"lines\": %d}}\\n' $(wc -l < sum) > $SPILLWAY_REPORT",
          files: {all/: second.b}}
`)
	if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run := e.publish("slow", "k", struct{}{})
	for deadline := time.Now().Add(patience); len(contentOf(t, marks)) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the second stage never began\n%s", e.printed())
		}
	}
	e.kill()
	e = startEngine(t, state, "")
	result := succeed[chain.Result](e, run, patience)
	if result.Stages["third"].Values[0]["lines"] != 4.0 {
		t.Errorf("result: %+v, want 4 lines", result)
	}
}

func TestStoredChainsAreServedAgainAndKeepTheirNames(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	e := startEngine(t, state, buildApp(t, 0))
	bound := packedChain(t, "name: bound\ncode: none\non: {subject: files.new}\nparameters: {n: 1}\nstages:\n  only: "+
		"{run: \"test ${n} = 2\"}\n")
	unbound := packedChain(t, "name: unbound\ncode: none\nstages: {only: {run: [\"true\"]}}\n")
	taken := packedChain(t, "name: echo\ncode: none\nstages: {only: {run: [\"true\"]}}\n")
	wrong := packedChain(t, "name: wrong\ncode: none\non: {subject: bad..subject}\nstages: {only: {run: [\"true\"]}}\n")
	single, err := chain.Single("bound")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []chain.Chain{bound, unbound, bound} {
		if app, err := e.client.RegisterChain(t.Context(), c); err != nil || app.Build != c.Digest() || !app.Chain {
			t.Fatalf("register %s: %+v, %v", c.Name(), app, err)
		}
	}
	for want, c := range map[string]chain.Chain{
		"is served by app": taken, "is that of a chain": single,
		"bad..subject": wrong,
	} {
		if _, err := e.client.RegisterChain(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("register %s: got %v, want that it is refused: %s", c.Name(), err, want)
		}
	}
	e.stop()
	e = startEngine(t, state, "")
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pipelines := stack.Pipelines()
	if !slices.Contains(pipelines, "bound") || !slices.Contains(pipelines, "unbound") ||
		slices.Contains(pipelines, "wrong") {
		t.Errorf("after a restart there are %v, want bound and unbound but not wrong", pipelines)
	}
	e.publishRaw("files.new", "one", `{"n": 2}`)
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		runs, err := e.client.Runs(t.Context(), web.RunQuery{Pipeline: "bound"})
		if err == nil && len(runs) == 1 && runs[0].State != predictor.RunRunning {
			if runs[0].State != predictor.RunSucceeded {
				t.Errorf("the run %s: %s", runs[0].State, runs[0].Error)
			}
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no run was started: %v\n%s", err, e.printed())
		}
	}
}

// TestChainsThatNothingNeedsAreServedWhenTheyAreWanted restarts an engine that has seen five chains, of one of which a
// run goes on.
func TestChainsThatNothingNeedsAreServedWhenTheyAreWanted(t *testing.T) {
	t.Parallel()
	state, gate := t.TempDir(), t.TempDir()
	e := startEngine(t, state, "")
	listens := packedChain(t, "name: listens\ncode: none\non: {subject: files.new}\nstages: {only: {run: [\"true\"]}}\n")
	chains := []chain.Chain{half(t, gate), listens}
	for _, name := range []string{"named", "told", "retried"} {
		chains = append(chains, packedChain(t, "name: "+name+"\ncode: none\nstages: {only: {run: [\"true\"]}}\n"))
	}
	for _, c := range chains {
		if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	earlier := e.publish("retried", "r", struct{}{})
	succeed[chain.Result](e, earlier, patience)
	going := e.publish("half", "g", struct{}{})
	e.until("the chain begins", func() bool {
		begun, err := filepath.Glob(filepath.Join(gate, "begun-*"))
		return err == nil && len(begun) > 0
	})
	e.kill()
	e = startEngine(t, state, "")
	bindings, err := e.client.Bindings(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	served := map[string]bool{}
	for _, binding := range bindings {
		served[binding.Pipeline] = true
	}
	// An engine that was killed may not know any more that the event of the one that ended was dealt with.
	if delete(served, "retried"); !maps.Equal(served, map[string]bool{"half": true, "listens": true}) {
		t.Errorf("after a restart %v are served, want those of a run that goes on and with a subject of its own", served)
	}
	stack, err := e.client.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"half", "listens", "named", "retried", "told"}, stack.Pipelines()); diff != "" {
		t.Errorf("pipelines that can be run (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(gate, "open"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if result := succeed[chain.Result](e, going, patience); result.Stages["third"].Values[0]["lines"] != 4.0 {
		t.Errorf("the chain: %+v, want 4 lines", result)
	}
	succeed[chain.Result](e, e.publish("named", "n", struct{}{}), patience)
	again, err := e.client.Retry(t.Context(), earlier, web.Retry{})
	if err != nil {
		t.Fatal(err)
	}
	succeed[chain.Result](e, again.Run, patience)
	e.publishRaw("events.told", "one", `{}`)
	e.until("the run of an event", func() bool {
		runs, err := e.client.Runs(t.Context(), web.RunQuery{Pipeline: "told", State: predictor.RunSucceeded})
		return err == nil && len(runs) == 1
	})
}

func TestAResultThatTheLedgerCutsIsReadWhole(t *testing.T) {
	t.Parallel()
	e := sharedEngine(t)
	c := packedChain(t, "name: sixty\ncode: none\nstages:\n  many: {run: 'echo ${i} > out', for_each: {i: {to: 60}}, "+
		"outputs: {out: out}}\n")
	if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	run := e.publish("sixty", "w", struct{}{})
	if view := e.wait(run, patience); view.State != predictor.RunSucceeded || len(view.Result) != 0 {
		t.Fatalf("the run %s: %s, with %d bytes of its result; want a success whose result is not kept", view.State,
			view.Error, len(view.Result))
	}
	encoded, err := e.client.Result(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	var result chain.Result
	if err := json.Unmarshal(encoded, &result); err != nil {
		t.Fatal(err)
	}
	for i, file := range result.Stages["many"].Outputs["out"] {
		text, err := activities.ReadAll(t.Context(), e.client, file.Artifact.Digest)
		if want := fmt.Appendf(nil, "%d\n", i+1); err != nil || !bytes.Equal(text, want) {
			t.Errorf("output %d: got %q (%v), want %q", i, text, err, want)
		}
	}
}
