package engine_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/proctest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
)

// probe is a chain of a stage that tries, as whoever it runs as, what a stage of another user must not be able to
// do, and tells what it could; of one that takes more memory than it may; and of one that is no different for any
// user.
const probe = `name: probe
code: none
environment: {STATE: %q}
stages:
  look:
    run: |
      mkdir seen
      : > seen/could
      try() { if "$@" > /dev/null 2>&1; then echo "$*" >> seen/could; fi; }
      for file in keys/token keys/secret temporal.db ledger.db \
        spillway.log stack.json cgroups.lock; do try cat "$STATE/$file"; done
      for dir in . keys builds workspaces chains nats; do try ls "$STATE/$dir"; try touch "$STATE/$dir/mine"; done
      try touch "$STATE/artifacts/mine"
      try cat "/proc/$PPID/environ"
      try kill -0 "$PPID"
      for tasks in $(find /sys/fs/cgroup -maxdepth 2 '(' -name cgroup.procs -o -name tasks ')'); do
        try sh -c 'echo $$ > "$0"' "$tasks"
      done
      id -u > seen/who
      id -G >> seen/who
      grep NoNewPrivs /proc/self/status | cut -f2 >> seen/who
      pwd > "$HOME/home"
      echo printed | tee /dev/stderr > /dev/stdout
      ln -s "$STATE/keys" keys
      echo '{"checkpoint": "seen"}' > "$SPILLWAY_REPORT"
      echo '{"result": {"told": true}}' > "$SPILLWAY_REPORT"
    outputs: {seen: seen/}
  keep:
    run: 'cat seen/who > who; cat seen/could > could'
    files: {seen: look.seen}
    outputs: {who: who, could: could}
`

const steal = `name: steal
code: none
environment: {STATE: %q}
stages:
  take:
    run: 'ln -s "$STATE/keys/token" token'
    outputs: {token: token}
    attempts: 1
`

// installed is a chain in a Python environment of its own, which is made as the user who runs in it.
const installed = `name: installed
code: none
python: {requirements: requirements.txt}
stages:
  tell:
    run: python -c 'import os, sys; print(os.stat(sys.prefix).st_uid, sys.prefix != sys.base_prefix)' > told
    outputs: {told: told}
`

const glut = `name: glut
code: none
stages:
  eat:
    run: exec tail /dev/zero
    memory: 64MiB
    attempts: 1
`

// startForNobody starts an engine whose stages run as nobody, on a state directory that nobody can reach.
func startForNobody(t *testing.T, app string, flags ...string) *testEngine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run stages as another user")
	}
	home := t.TempDir()
	for _, dir := range []string{filepath.Dir(home), home} {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	return startEngine(t, filepath.Join(home, "state"), app, append(flags, "--stage-user", "nobody")...)
}

// TestAttackByAStageOfAnotherUser lets stages that run as nobody try the engine's ports and files, and checks that they
// work and are held as any other.
func TestAttackByAStageOfAnotherUser(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	e := startForNobody(t, "", "--pool-memory", "600MiB")
	run := func(name, text string) (code int, left map[string]string, said string) {
		files := map[string]string{name + ".yaml": text, "requirements.txt": "# nothing else\n"}
		dir, out := directory(t, files), t.TempDir()
		code, stdout, stderr := command(t, t.Context(), e.state, "run", filepath.Join(dir, name+".yaml"), "--out", out)
		return code, contentOf(t, out), stdout + stderr
	}
	code, left, said := run("probe", fmt.Sprintf(probe, e.state))
	if code != cli.ExitOK {
		t.Fatalf("exit code %d\n%s\n%s", code, said, e.printed())
	}
	want := map[string]string{"keep/who": "65534\n65534\n1\n", "keep/could": ""}
	if diff := cmp.Diff(want, left); diff != "" {
		t.Errorf("what a stage of nobody is and could do (-want +got):\n%s", diff)
	}
	if code, left, said = run("steal", fmt.Sprintf(steal, e.state)); code == cli.ExitOK || len(left) > 0 {
		t.Errorf("an output that is a link to the token: got %v, want a refusal\n%s", left, said)
	}
	needPython(t)
	if code, left, said = run("installed", installed); code != cli.ExitOK || left["tell/told"] != "65534 True\n" {
		t.Errorf("in a Python environment: got exit code %d and %v\n%s", code, left, said)
	}
	records := e.followRecords()
	if code, _, said = run("glut", glut); code == cli.ExitOK {
		t.Errorf("what takes all memory ended well:\n%s", said)
	}
	e.until("a stage of nobody is killed at its limit", func() bool {
		return len(records(func(r predictor.Record) bool {
			return r.Stage.Name == "eat" && r.Outcome == predictor.OutOfMemory
		})) > 0
	})
	e.stop()
}

// TestStagesAndFunctionsOfAnotherUserRunThePipeline runs the sample at the pool and as functions, both as nobody,
// with its artifacts and its checkpoints; and again as root, as which its artifacts are read as well.
func TestStagesAndFunctionsOfAnotherUserRunThePipeline(t *testing.T) {
	t.Parallel()
	app := buildDigits(t)
	e := startForNobody(t, app, "--value-of-time", "1000")
	seen := map[string]bool{}
	for n := 0; n < 10 && len(seen) < 2; n++ { // until functions were at work
		run := e.publish("digits", fmt.Sprintf("nobody-%d", n), map[string]any{"max_epochs": 1})
		for ended := false; !ended; time.Sleep(20 * time.Millisecond) {
			ended = slices.Contains([]string{"succeeded", "failed"}, e.stateOf(run))
			for _, pid := range proctest.Family(t, e.command.Process.Pid) {
				if venue, user := venueOf(pid), userOf(pid); venue != "" && user != "" {
					seen[venue+" as "+user] = true
				}
			}
		}
		if view := e.wait(run, patience); view.State != predictor.RunSucceeded {
			t.Fatalf("run %s %s: %s\n%s", run, view.State, view.Error, e.printed())
		}
	}
	if want := map[string]bool{"pool as 65534": true, "function as 65534": true}; !cmp.Equal(seen, want) {
		t.Errorf("stages ran as %v, want %v", seen, want)
	}
	e.stop()
	e = startEngine(t, e.state, app)
	if info, err := os.Stat(e.state); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the state directory without another user: %v, %v; want that it is its owner's alone", info.Mode(), err)
	}
	again := e.wait(e.publish("digits", "root", map[string]any{"max_epochs": 1, "shards": 8}), patience)
	if again.State != predictor.RunSucceeded {
		t.Errorf("run %s %s: %s\n%s", again.Run, again.State, again.Error, e.printed())
	}
	e.stop()
}

// venueOf is where a process runs stages; empty for one that runs none, or has ended.
func venueOf(pid int) string {
	environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	switch {
	case bytes.Contains(environment, []byte("SPILLWAY_ROLE=child")):
		return "pool"
	case bytes.Contains(environment, []byte("AWS_LAMBDA_RUNTIME_API=")):
		return "function"
	}
	return ""
}

// userOf is as whom a process runs; empty when it has ended.
func userOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 2 && fields[0] == "Uid:" {
			return fields[2] // the effective one
		}
	}
	return ""
}

// TestAStateDirectoryThatTheUserOfStagesCannotReachIsRefused says at the start what else would fail in the first
// stage.
func TestAStateDirectoryThatTheUserOfStagesCannotReachIsRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can run stages as another user")
	}
	home := t.TempDir()
	if err := os.Chmod(home, 0o700); err != nil { //nolint:gosec // nobody else passes, which is the point
		t.Fatal(err)
	}
	arguments := []string{"dev", "--state", filepath.Join(home, "state"), "--no-ui", "--stage-user", "nobody"}
	start := exec.CommandContext(t.Context(), os.Args[0], append(arguments, ports(false, nil)...)...)
	start.Env = append(os.Environ(), asEngine+"=1")
	said, err := start.CombinedOutput()
	if want := "nobody cannot enter " + home; err == nil || !strings.Contains(string(said), want) {
		t.Errorf("got %v and %q, want a refusal with %q", err, said, want)
	}
}
