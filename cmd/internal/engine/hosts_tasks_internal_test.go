package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/slot"
)

// TestAttackAHostGivesBackTasksOfOthers: when a host is lost, the engine ends the tasks that it says it had, with all
// rights. It believes in those alone that the host was given.
func TestAttackAHostGivesBackTasksOfOthers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	keys, err := access.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	// A token as the port for other machines gives it: the workflow and the run, each behind its length, come first.
	const ofRun = "\x01w\x01r"
	named := func(id string, token []byte) slot.Taken { return slot.Taken{Token: token, Task: wire.Task{ID: id}} }
	got := ownTasks(keys, "a", []slot.Taken{
		named("own", keys.SealTask("a", []byte(ofRun+"Temporal's"))),
		named("of another host", keys.SealTask("b", []byte(ofRun+"Temporal's"))),
		named("made up", []byte("Temporal's")),
		named("none", nil),
	})
	if diff := cmp.Diff([]slot.Taken{named("own", []byte("Temporal's"))}, got); diff != "" {
		t.Errorf("the tasks that are given back (-want +got):\n%s", diff)
	}
}
