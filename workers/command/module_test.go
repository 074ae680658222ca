package command_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
)

// TestAScriptInPythonReportsByTheModuleAndGoesOn runs a script twice: it ends after two steps, and then with the rest.
// It has a module of its own on its path, and starts the process that reports as launchers do, without descriptors.
func TestAScriptInPythonReportsByTheModuleAndGoesOn(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("python3"); err != nil {
		commandtest.Skip(t, "python", err)
	}
	h := newHost(t)
	own := t.TempDir()
	if err := os.WriteFile(filepath.Join(own, "mine.py"), []byte("STEPS = 4\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := `
import os, subprocess, sys
if len(sys.argv) == 1:
    sys.exit(subprocess.call([sys.executable, "-B", "-c", os.environ["SCRIPT"], "child"]))
import mine, spillway
begins = int(open(spillway.resume()).read()) if spillway.resume() else 0
for step in range(begins + 1, mine.STEPS + 1):
    spillway.progress(step, mine.STEPS, {"loss": 1 / step})
    if step == 2:
        open("state", "w").write(str(step))
        spillway.checkpoint("state")
        if not begins:
            sys.exit(3)
spillway.result(loss=0.25)
`
	c := wire.Command{
		Arguments:   []string{"python3", "-B", "-c", script},
		Environment: map[string]string{"PYTHONPATH": own, "SCRIPT": script},
	}
	w := h.prepare(t, c, activities.Ref{})
	first := run(t, w, command.Launch{})
	if err := w.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := []string{`{"metrics":{"loss":1},"step":1}`, `{"metrics":{"loss":0.5},"step":2}`}
	if diff := cmp.Diff(want, first.told); diff != "" || len(first.kept) != 1 || first.err == nil {
		t.Fatalf("the first attempt told (-want +got):\n%s\n%d checkpoints, %v\n%s", diff, len(first.kept), first.err,
			first.output)
	}
	second := run(t, h.prepare(t, c, first.kept[0]), command.Launch{Attempt: 2})
	want = []string{`{"metrics":{"loss":0.3333333333333333},"step":3}`, `{"metrics":{"loss":0.25},"step":4}`}
	if diff := cmp.Diff(want, second.told); diff != "" || second.err != nil {
		t.Errorf("the second attempt told (-want +got):\n%s\n%v\n%s", diff, second.err, second.output)
	}
	if diff := cmp.Diff(map[string]any{"loss": json.Number("0.25")}, second.reported.Values); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
}

// TestTheModuleIsNoFileOfTheAttempt: what an attempt made or changed is brought back, and the module is none of it.
func TestTheModuleIsNoFileOfTheAttempt(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	w := h.prepare(t, wire.Command{
		Arguments: sh(`ls "$PYTHONPATH"/spillway; echo 1 >made`), KeepChanged: true,
	}, activities.Ref{})
	r := run(t, w, command.Launch{})
	if !strings.Contains(r.output, "__init__.py") {
		t.Errorf("got %q, want the files of the module", r.output)
	}
	result, err := w.Collect(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"made": "1\n"}, h.files(t, result.Changed)); diff != "" {
		t.Errorf("brought back (-want +got):\n%s", diff)
	}
	if err := w.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Dir(w.Directory())); !os.IsNotExist(err) {
		t.Errorf("got %v, want the workspace deleted", err)
	}
}
