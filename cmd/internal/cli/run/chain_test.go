package run_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workers/spawn"
	"github.com/spillway-ml/spillway/workflows/chain"
)

const churn = `name: churn
code: src
inputs: {raw: data/raw.csv}
stages:
  prepare: {run: x, files: {raw: inputs.raw}, outputs: {clean: clean.csv}}
  train:
    for_each: {lr: [0.1, 0.01]}
    run: [x, "${lr}"]
    files: {clean: prepare.clean}
    outputs: {model: out/model.pt, plots: {path: plots, optional: true}}
`

func TestAllMistakesOfAChainAreToldWithTheirPlaces(t *testing.T) {
	t.Parallel()
	dir := clitest.Directory(t, map[string]string{"bad.yaml": "name: bad\ncode: src\nstages:\n  a: {run: x, memroy: " +
		"1GiB}\n  b: {run: x, after: c}\n"})
	file := filepath.Join(dir, "bad.yaml")
	for _, verb := range []string{"check", "run"} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, verb, file, "--state", t.TempDir())
		if code != cli.ExitUsage || stdout != "" {
			t.Errorf("%s: got exit %d and %q, want 2", verb, code, stdout)
		}
		clitest.Contains(t, verb, stderr,
			file+":2:7: code: there is no src beside the chain",
			file+`:4:15: unknown key "memroy" in stage a; nearest: memory`,
			file+`:5:22: no stage is named "c"`,
			"spillway: "+verb+": "+file+" has 3 mistakes\n  hint: correct the file")
	}
}

func TestARightChainIsListedInItsOrder(t *testing.T) {
	t.Parallel()
	dir := clitest.Directory(t, map[string]string{"churn.yaml": churn, "src/x": "x", "data/raw.csv": "1"})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "check", filepath.Join(dir, "churn.yaml"))
	if want := "chain churn: 2 stages\n  prepare\n  train for each lr, after prepare\n"; code != cli.ExitOK ||
		stdout != want || stderr != "" {
		t.Errorf("got exit %d, %q and %q, want %q", code, stdout, stderr, want)
	}
}

func TestAChainIsSentServedRunAndItsLastOutputsFetched(t *testing.T) {
	t.Parallel()
	dir, out, state := clitest.Directory(t, map[string]string{
		"churn.yaml": churn, "src/x.py": "print(1)",
		"src/.git/config": "c", "data/raw.csv": "1",
	}), t.TempDir(), t.TempDir()
	var event web.Event
	var served web.App
	start, _ := clitest.Starter(t, func(stack *clitest.Stack) {
		stack.OnPublish = func(published web.Event, run string) {
			event = published
			described, err := stack.Stack(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			served = described.Apps[0]
			stack.Results = map[string]json.RawMessage{run: churnResult(t, stack)}
			clitest.Finish(stack, run, "churn", served.Build, predictor.RunSucceeded, `{}`, clitest.Begin)
		}
	})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{StartEngine: start}, "run",
		filepath.Join(dir, "churn.yaml"), "--state", state, "--out", out, "--deadline", "10m")
	if code != cli.ExitOK {
		t.Fatalf("got exit %d: %s%s", code, stdout, stderr)
	}
	clitest.Contains(t, "standard output", stdout, "churn churn-event-1 succeeded", "prepare.clean", "clean.csv",
		"train.model 1", "out/model.pt", "train 1", "loss 0.5")
	clitest.Contains(t, "standard error", stderr, "3 outputs in "+out)
	if event.Pipeline != "churn" || event.Goal == nil || event.Goal.Deadline != 10*time.Minute || !served.Chain ||
		len(served.Stages) != 2 {
		t.Errorf("event %+v for %+v", event, served)
	}
	want := map[string]string{
		"train/0/out/model.pt": "model 0", "train/1/out/model.pt": "model 1",
		"train/1/plots/loss.txt": "loss",
	}
	if diff := cmp.Diff(want, clitest.Content(t, out)); diff != "" {
		t.Errorf("outputs (-want +got):\n%s", diff)
	}
}

func TestAStoredChainIsRunByItsName(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	c, err := chain.Parse("c.yaml", []byte("name: kept\ncode: none\nstages: {only: {run: x}}\n"), chain.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := build.NewChains(state).Put(c); err != nil {
		t.Fatal(err)
	}
	start, configs := clitest.Starter(t, func(stack *clitest.Stack) {
		stack.OnPublish = func(event web.Event, run string) {
			stack.Results = map[string]json.RawMessage{run: json.RawMessage(
				`{"stages":{"only":{"tasks":1,"values":[{"best":3}]}}}`)}
			clitest.Finish(stack, run, event.Pipeline, c.Digest(), predictor.RunSucceeded, `{}`, clitest.Begin)
		}
	})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{StartEngine: start}, "run", "kept", "--state", state)
	if code != cli.ExitOK || len((*configs)[0].Apps) != 0 {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	poolHasAllCPUs(t, (*configs)[0])
	clitest.Contains(t, "standard output", stdout, "kept kept-event-1 succeeded", "best 3")
	code, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "run", "kep", "--state", state)
	if code != cli.ExitUsage {
		t.Errorf("got exit %d, want 2", code)
	}
	clitest.Contains(t, "standard error", stderr, "did you mean kept?")
}

// churnResult is the result of a run whose second task has left plots.
func churnResult(t *testing.T, stack *clitest.Stack) json.RawMessage {
	t.Helper()
	file := func(path, text string) wire.CommandFile {
		ref, err := stack.Store.Put(t.Context(), strings.NewReader(text))
		if err != nil {
			t.Error(err)
		}
		return wire.CommandFile{Path: path, Artifact: ref}
	}
	plots, err := tree.Pack(t.Context(), stack.Store, clitest.Directory(t, map[string]string{"loss.txt": "loss"}),
		tree.Options{})
	if err != nil {
		t.Error(err)
	}
	result := chain.Result{Stages: map[string]chain.StageResult{
		"prepare": {Tasks: 1, Outputs: map[string][]wire.CommandFile{"clean": {file("clean.csv", "clean")}}},
		"train": {
			Tasks: 2, Values: []map[string]any{{"loss": 0.7}, {"loss": 0.5}},
			Outputs: map[string][]wire.CommandFile{"plots": {{}, {Path: "plots", Artifact: plots, Tree: true}}},
		},
	}}
	for i := range 2 {
		outputs := result.Stages["train"].Outputs
		outputs["model"] = append(outputs["model"], file("out/model.pt", "model "+strconv.Itoa(i)))
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		t.Error(err)
	}
	return encoded
}

// TestARunThatDoesNotStartMakesNoDirectory: nothing will be put into it.
// What no host can give is told before anything is sent, also where the driver of a host that has just begun answers
// late.
func TestAChainWhoseGPUNoHostHasIsRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	text := "name: c\ncode: none\nstages:\n  prepare: {run: x}\n  train: {run: x, gpu: {class: h100, count: 2}}\n"
	file := filepath.Join(clitest.Directory(t, map[string]string{"c.yaml": text}), "c.yaml")
	host := predictor.Host{ID: "h", Capacity: quantity.Size{
		CPU: quantity.Core, Memory: quantity.GiB, GPU: quantity.Core, GPUMemory: 80 * quantity.GiB, DeviceClass: "h100",
	}}
	unknown := predictor.Host{
		ID: "h", Capacity: quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}, GPUsUnknown: true,
	}
	for name, first := range map[string]predictor.Host{"known": host, "not known yet": unknown} {
		start, _ := clitest.Starter(t, func(stack *clitest.Stack) {
			stack.SetHosts(first)
			stack.OnPublish = func(web.Event, string) { t.Errorf("%s: it is started", name) }
			time.AfterFunc(300*time.Millisecond, func() { stack.SetHosts(host) })
		})
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{StartEngine: start}, "run", file, "--state", t.TempDir())
		if code != cli.ExitUsage {
			t.Errorf("%s: exit %d", name, code)
		}
		clitest.Contains(t, name, stderr, "gpu of stage train: it asks for 2 GPU on h100, and the GPUs that a host of the "+
			"pool has for attempts are: 1 h100 with 80 GiB")
		if waited := strings.Contains(stderr, "waiting for the driver"); waited != first.GPUsUnknown {
			t.Errorf("%s: %s", name, stderr)
		}
	}
}

func TestARunThatDoesNotStartMakesNoDirectory(t *testing.T) {
	t.Parallel()
	text := "name: c\ncode: none\nstages: {only: {run: x, outputs: {o: o}}}\n"
	file := filepath.Join(clitest.Directory(t, map[string]string{"c.yaml": text}), "c.yaml")
	out := filepath.Join(t.TempDir(), "a", "b")
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "run", file, "--state", t.TempDir(), "--out", out)
	if code != cli.ExitFailure {
		t.Errorf("without an engine: exit %d, %s", code, stderr)
	}
	if _, err := os.Lstat(filepath.Dir(out)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is %s now, %v", filepath.Dir(out), err)
	}
	code, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "run", file, "--state", t.TempDir(), "--out", "/proc/x")
	if code != cli.ExitUsage || !strings.Contains(stderr, "--out: /proc takes nothing new") {
		t.Errorf("where nothing can be made: exit %d, %s", code, stderr)
	}
	out = filepath.Join(file, "out")
	code, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "run", file, "--state", t.TempDir(), "--out", out)
	if code != cli.ExitUsage {
		t.Errorf("below a file: exit %d", code)
	}
	clitest.Contains(t, "standard error", stderr, "--out "+out+": not a directory")
}

func TestAResultThatLeavesItsDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	out := t.TempDir()
	code, stderr := fetchOnly(t, "../../o", out)
	if left := clitest.Content(t, out); code != cli.ExitFailure || len(left) != 0 {
		t.Errorf("got exit %d and %v, want nothing written", code, left)
	}
	clitest.Contains(t, "standard error", stderr, "which is not below a directory")
}

func TestAttackALinkThatIsThereLeadsNoOutputAwayAndIsNamed(t *testing.T) {
	t.Parallel()
	out, away := t.TempDir(), t.TempDir()
	if err := os.Mkdir(filepath.Join(out, "a"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(out, "a", "only")
	if err := os.Symlink(away, link); err != nil {
		t.Fatal(err)
	}
	code, stderr := fetchOnly(t, "o", out)
	if left := clitest.Content(t, away); code != cli.ExitFailure || len(left) != 0 {
		t.Errorf("got exit %d and %v, want nothing written", code, left)
	}
	clitest.Contains(t, "standard error", stderr,
		"fetch only/o: "+link+" is a link that leads to no directory in "+filepath.Dir(link)+
			"\n  hint: remove it; `spillway outputs c-")
}

// fetchOnly runs a chain of one stage, named only, whose output is at path, and fetches it into the directory a of out.
func fetchOnly(t *testing.T, path, out string) (code int, stderr string) {
	t.Helper()
	dir, state := clitest.Directory(t, map[string]string{"c.yaml": "name: c\ncode: none\nstages: {only: {run: x, " +
		"outputs: {o: o}}}\n"}), t.TempDir()
	stack := clitest.StartStack(t, state)
	stack.OnPublish = func(_ web.Event, run string) {
		ref, err := stack.Store.Put(t.Context(), strings.NewReader("x"))
		if err != nil {
			t.Error(err)
		}
		outputs := map[string][]wire.CommandFile{"o": {{Path: path, Artifact: ref}}}
		encoded, err := json.Marshal(chain.Result{Stages: map[string]chain.StageResult{"only": {Tasks: 1, Outputs: outputs}}})
		if err != nil {
			t.Error(err)
		}
		stack.Results = map[string]json.RawMessage{run: encoded}
		clitest.Finish(stack, run, "c", "b", predictor.RunSucceeded, `{}`, clitest.Begin)
	}
	code, _, stderr = clitest.Execute(t, t.Context(), cli.Deps{}, "run", filepath.Join(dir, "c.yaml"), "--state", state,
		"--out", filepath.Join(out, "a"))
	return code, stderr
}

func TestTheChainOfTheReadmeIsRight(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(text), "```yaml\n")
	example, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the README shows no chain")
	}
	dir := clitest.Directory(t, map[string]string{"fit.yaml": example, "raw.csv": "1,2\n"})
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "check", filepath.Join(dir, "fit.yaml"))
	if want := "chain fit: 3 stages\n  prepare\n  train for each lr and seed, after prepare\n  pick, " +
		"after train\n"; code != cli.ExitOK || stdout != want {
		t.Errorf("got exit %d, %q and %q, want %q", code, stdout, stderr, want)
	}
}

// poolHasAllCPUs checks that a stack which serves no app leaves nothing to functions: they run no commands.
func poolHasAllCPUs(t *testing.T, config engine.Config) {
	t.Helper()
	allowed, err := spawn.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if config.Functions.Enabled || !slices.Equal(config.PoolCPUs, allowed) {
		t.Errorf("the pool has CPUs %v of %v, functions are on: %v; want all of them and no functions", config.PoolCPUs,
			allowed, config.Functions.Enabled)
	}
}
