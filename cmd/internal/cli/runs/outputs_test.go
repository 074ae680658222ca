package runs_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// stored puts a file into the stack's store.
func stored(t *testing.T, stack *clitest.Stack, text string) activities.Ref {
	t.Helper()
	ref, err := stack.Store.Put(t.Context(), strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// ended plays a run of a pipeline to its end, with this result.
func ended(t *testing.T, stack *clitest.Stack, run, pipeline, digest string, result any) {
	t.Helper()
	encoded, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	if stack.Results == nil {
		stack.Results = map[string]json.RawMessage{}
	}
	stack.Results[run] = encoded
	clitest.Finish(stack, run, pipeline, digest, predictor.RunSucceeded, `{}`, clitest.Begin)
}

func TestTheOutputsOfARunThatHasEndedAreListedAndFetched(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	file := func(path, text string) wire.CommandFile {
		return wire.CommandFile{Path: path, Artifact: stored(t, stack, text)}
	}

	c, err := chain.Parse("fit.yaml", []byte("name: fit\ncode: none\nstages:\n  first: {run: x, outputs: {a: a.txt}}\n"+
		"  last: {run: x, after: first, for_each: {n: [1, 2]}, outputs: {b: d/b.txt}}\n"), chain.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := build.NewChains(state).Put(c); err != nil {
		t.Fatal(err)
	}
	ended(t, stack, "fit-1", "fit", c.Digest(), chain.Result{Stages: map[string]chain.StageResult{
		"first": {Tasks: 1, Outputs: map[string][]wire.CommandFile{"a": {file("a.txt", "a")}}},
		"last":  {Tasks: 2, Outputs: map[string][]wire.CommandFile{"b": {file("d/b.txt", "b0"), file("d/b.txt", "b1")}}},
	}})

	single, err := chain.Single("train")
	if err != nil {
		t.Fatal(err)
	}
	made := clitest.Directory(t, map[string]string{"log": "l", "sub/new": "n"})
	changed, err := tree.Pack(t.Context(), stack.Store, made, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	ended(t, stack, "train-1", "train", single.Digest(), chain.Result{Stages: map[string]chain.StageResult{"train": {
		Tasks: 1, Changed: &changed,
		Outputs: map[string][]wire.CommandFile{"model": {file("m/model", "weights")}, "left out": {{}}},
	}}})
	ended(t, stack, "digits-1", "digits", clitest.ServedDigits.Build, map[string]any{
		"accuracy": 0.9, "model": stored(t, stack, "net"), "all": []any{map[string]any{"weights": stored(t, stack, "w")}},
	})
	ended(t, stack, "digits-2", "digits", clitest.ServedDigits.Build, map[string]any{"accuracy": 0.9})

	for _, test := range []struct {
		args string
		want map[string]string
	}{
		{"fit-1", map[string]string{"last/0/d/b.txt": "b0", "last/1/d/b.txt": "b1"}},
		{"fit-1 --all", map[string]string{"first/a.txt": "a", "last/0/d/b.txt": "b0", "last/1/d/b.txt": "b1"}},
		{"train-1", map[string]string{"log": "l", "sub/new": "n", "m/model": "weights"}},
		{"digits-1", map[string]string{"model": "net", "all/0/weights": "w"}},
	} {
		out := filepath.Join(t.TempDir(), "new")
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{},
			append(append([]string{"outputs", "--state", state, "--out", out}, strings.Fields(test.args)...), "--json")...)
		if code != cli.ExitOK {
			t.Fatalf("%s: got exit %d: %s", test.args, code, stderr)
		}
		if diff := cmp.Diff(test.want, clitest.Content(t, out)); diff != "" {
			t.Errorf("%s fetches (-want +got):\n%s", test.args, diff)
		}
	}

	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "outputs", "fit-1", "--state", state)
	if code != cli.ExitOK || stderr != "" {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	clitest.Contains(t, "the list", stdout, "last/0/d/b.txt  2 B", "last/1/d/b.txt  2 B")
	out := filepath.Join(t.TempDir(), "new")
	code, stdout, _ = clitest.Execute(t, t.Context(), cli.Deps{}, "outputs", "digits-2", "--state", state, "--out", out)
	clitest.Contains(t, "a run without files", stdout, "run digits-2 has left no files")
	if _, err := os.Lstat(out); code != cli.ExitOK || err == nil {
		t.Errorf("exit %d, and there is %s, want no directory for nothing", code, out)
	}
}

func TestOutputsAreFetchedIntoNoDirectoryThatOthersCanChangeAndOfNoRunThatGoesOn(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	ended(t, stack, "digits-1", "digits", clitest.ServedDigits.Build, map[string]any{"model": stored(t, stack, "net")})
	clitest.Finish(stack, "digits-2", "digits", clitest.ServedDigits.Build, predictor.RunFailed, `{}`, clitest.Begin)
	stack.Apply("digits-3", predictor.RunStarted{Run: "digits-3", Pipeline: "digits", App: "digits", At: clitest.Begin})
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777); err != nil { //nolint:gosec // that is what is refused
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		code int
		want string
	}{
		{"digits-1 --out " + shared, cli.ExitUsage, "can be written to by others"},
		{"digits-1 --shared-out", cli.ExitUsage, "--shared-out is for --out"},
		{"digits-1 --out " + shared + " --shared-out", cli.ExitOK, "1 output fetched into " + shared},
		{"digits-2", cli.ExitFailure, "is failed and has no result"},
		{"digits-3", cli.ExitFailure, "run digits-3 goes on"},
		{"digits-9", cli.ExitUsage, `there is no run "digits-9"`},
	} {
		args := append([]string{"outputs", "--state", state}, strings.Fields(test.args)...)
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...)
		if code != test.code {
			t.Errorf("%s: got exit %d, want %d: %s", test.args, code, test.code, stderr)
		}
		clitest.Contains(t, test.args, stderr, test.want)
	}
}
