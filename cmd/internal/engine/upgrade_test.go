package engine_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// upgradeFrom names the environment variable with the commit whose engine begins the runs.
const upgradeFrom = "SPILLWAY_UPGRADE_FROM"

// upgradeLimit bounds one run on either engine.
const upgradeLimit = 5 * time.Minute

// buildCommit builds commands of an earlier commit outside of this tree, and returns the directory of their binaries.
func buildCommit(t *testing.T, commit string, commands ...string) string {
	t.Helper()
	tree, binaries := filepath.Join(t.TempDir(), "tree"), t.TempDir()
	do := func(dir, name string, arguments ...string) {
		command := exec.CommandContext(t.Context(), name, arguments...)
		command.Dir = dir
		if output, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(arguments, " "), err, output)
		}
	}
	do(".", "git", "worktree", "add", "--quiet", "--detach", tree, commit)
	t.Cleanup(func() {
		if output, err := exec.Command("git", "worktree", "remove", "--force", tree).CombinedOutput(); err != nil {
			t.Errorf("remove the worktree of %s: %v\n%s", commit, err, output)
		}
	})
	for i, command := range commands {
		if _, err := os.Stat(filepath.Join(tree, command)); err != nil { // where this folder was until 2026-11-23
			commands[i] = strings.Replace(command, "/internal/engine/", "/internal/wire/", 1)
		}
	}
	do(tree, "go", append([]string{"build", "-o", binaries + string(filepath.Separator)}, commands...)...)
	return binaries
}

// half is a chain whose second stage waits for a file in a directory, so that its runs can be left half-way.
func half(t *testing.T, gate string) chain.Chain {
	t.Helper()
	return packedChain(t, fmt.Sprintf(`name: half
code: none
stages:
  first: {run: [sh, -c, "echo one > a"], outputs: {a: a}}
  second:
    for_each: {i: {to: 4}}
    run: [sh, -c, 'touch "$1/begun-$2"; while ! test -e "$1/open"; do sleep 0.1; done; cat a > b', sh, %q, "${i}"]
    files: {a: first.a}
    outputs: {b: b}
  third: {run: "printf '{\"result\": {\"lines\": %%d}}\\n' $(cat all/* | wc -l) > $SPILLWAY_REPORT",
          files: {all/: second.b}}
`, gate))
}

// TestRunsThatAnEarlierEngineBeganFinish begins a pipeline, a Map, a training, a chain and a single command with the
// engine and the apps of an earlier commit, kills that engine while all go on, and finishes them with this one.
func TestRunsThatAnEarlierEngineBeganFinish(t *testing.T) {
	commit := os.Getenv(upgradeFrom)
	if commit == "" {
		t.Skip("builds an earlier engine: make upgrade-check FROM=COMMIT")
	}
	built := buildCommit(t, commit, "./cmd/spillway", "./cmd/digits", "./cmd/internal/engine/testdata/app")
	state, gate := t.TempDir(), t.TempDir()
	e := startEngineOf(t, filepath.Join(built, "spillway"), state, filepath.Join(built, "app"), "--no-burst", "--app",
		filepath.Join(built, "digits"))
	single, err := chain.Single("waiter")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []chain.Chain{half(t, gate), single} {
		if _, err := e.client.RegisterChain(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	const shards, steps = 300, 3000 // about a minute of work each, so that both are half-way when all have begun
	linked := e.publish("half", "u", struct{}{})
	waits := `touch "$0/begun-single"; while ! test -e "$0/open"; do sleep 0.1; done`
	waiter := e.publish("waiter", "u", chain.SingleInput{Command: loopwire.Command{Arguments: []string{
		"sh", "-c", waits,
		gate,
	}}})
	e.until("the chain and the command begin", func() bool {
		begun, err := filepath.Glob(filepath.Join(gate, "begun-*"))
		return err == nil && len(begun) >= 2
	})
	counting := e.publish("count", "u", map[string]int{"steps": steps, "milliseconds": 20})
	fanned := e.publish("fan", "u", fanInput{Shards: shards, Milliseconds: 200})
	trained := e.publish("digits", "u", map[string]int{"shards": 6, "max_epochs": 1})
	for _, run := range []string{counting, fanned, trained} {
		e.until(run+" begins", func() bool {
			view, err := e.client.Run(t.Context(), run)
			return err == nil && len(view.Stages) > 0 && view.Stages[0].Running+view.Stages[0].Done > 0
		})
	}
	runs := []string{linked, waiter, counting, fanned, trained}
	for _, run := range runs {
		if view, err := e.client.Run(t.Context(), run); err != nil || view.State != predictor.RunRunning {
			t.Errorf("run %s is %s before the upgrade (%v), want that it goes on", run, view.State, err)
		}
	}
	e.kill()
	if err := os.WriteFile(filepath.Join(gate, "open"), nil, 0o600); err != nil {
		t.Fatal(err)
	}

	e = startEngine(t, state, "")
	succeed[fanResult](e, fanned, upgradeLimit).check(t, shards)
	if began := succeed[int](e, counting, upgradeLimit); began < 0 || began > steps {
		t.Errorf("the counting stage began at %d of %d", began, steps)
	}
	if result := succeed[chain.Result](e, linked, upgradeLimit); result.Stages["third"].Values[0]["lines"] != 4.0 {
		t.Errorf("the chain: %+v, want 4 lines", result)
	}
	if result := succeed[chain.Result](e, waiter, upgradeLimit); result.Stages["waiter"].Tasks != 1 {
		t.Errorf("the single command: %+v, want one task", result)
	}
	if report := succeed[map[string]json.RawMessage](e, trained, upgradeLimit); len(report) == 0 {
		t.Error("the training has an empty report")
	}
	if listed, err := e.client.Runs(t.Context(), web.RunQuery{}); err != nil || len(listed) != len(runs) {
		t.Errorf("%d runs (%v), want %d: none lost, none doubled", len(listed), err, len(runs))
	}
	e.stop()
}

// giveBack gives the files of a state directory the names that an engine of before knows them by, as deploy/README.md
// says that it is done on the way back.
func giveBack(t *testing.T, state string) {
	t.Helper()
	for _, name := range []string{"hosts.json", "keys/tokens.json", "keys/join", "payload-keys.json"} {
		path := filepath.Join(state, name)
		if err := os.Rename(path+access.TakenIn, path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
}

// TestServersAndAgentsOneVersionApartWorkTogether upgrades a server and then its agent from an earlier commit to this
// one, and goes back in the same order, as deploy/README.md says; then it goes forward again in the order that is not
// advised. On each step a run has to end on the agent, with the state directories of the steps before. Only where the
// server has gone back the agent is started anew with a token, since what it was given since is not known there.
func TestServersAndAgentsOneVersionApartWorkTogether(t *testing.T) {
	commit := os.Getenv(upgradeFrom)
	if commit == "" {
		t.Skip("builds an earlier engine: make upgrade-check FROM=COMMIT")
	}
	built := buildCommit(t, commit, "./cmd/spillway", "./cmd/internal/engine/testdata/app")
	earlier, app := filepath.Join(built, "spillway"), filepath.Join(built, "app")
	if output, err := exec.CommandContext(t.Context(), earlier, "help", "agent").CombinedOutput(); err != nil {
		t.Skipf("commit %s has no agents: %s", commit, output)
	}
	server := &testEngine{t: t, state: t.TempDir(), server: true}
	server.start(earlier, app, listening("0")...)
	join := server.joining()
	port := join[1][strings.LastIndexByte(join[1], ':')+1:]
	agent := newAgent(t, "gpu-1")
	programs := map[string]string{"earlier": earlier, "this": os.Args[0]}
	serves, works, known := "earlier", "", false
	steps := []struct{ server, agent string }{
		{"earlier", "earlier"}, {"this", "earlier"}, {"this", "this"}, // as advised
		{"earlier", "this"}, {"earlier", "earlier"}, // and back
		{"earlier", "this"}, {"this", "this"}, // the agent first
	}
	for i, step := range steps {
		if step.server != serves {
			server.stop()
			if step.server == "earlier" {
				giveBack(t, server.state)
				known = false
			}
			server.launch(programs[step.server], "", listening(port)...)
			serves = step.server
		}
		if step.agent != works || !known {
			if works != "" {
				agent.signal(syscall.SIGTERM)
				<-agent.ended
			}
			agent.program = programs[step.agent]
			if known {
				agent.start(nil)
			} else {
				agent.start(join)
			}
			works, known = step.agent, true
		}
		const shards = 20
		run := server.publish("fan", fmt.Sprintf("step-%d", i), fanInput{Shards: shards, Milliseconds: 20})
		succeed[fanResult](server, run, upgradeLimit).check(t, shards)
		hosts, err := server.client.Hosts(t.Context())
		if err != nil || len(hosts) != 1 || hosts[0].State != web.HostUp {
			t.Errorf("a server of %s commit and an agent of %s: hosts %+v, %v; want one that is up", step.server, step.agent,
				hosts, err)
		}
		t.Logf("a server of %s commit and an agent of %s: the run has ended", step.server, step.agent)
	}
	listed, err := server.client.Runs(t.Context(), web.RunQuery{})
	if err != nil || len(listed) != len(steps) {
		t.Errorf("%d runs (%v), want %d: none lost, none doubled", len(listed), err, len(steps))
	}
	server.stop()
}
