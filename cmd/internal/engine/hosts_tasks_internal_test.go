package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

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
	named := func(id string, token []byte) slot.Taken {
		return slot.Taken{Token: token, Task: wire.Task{Run: "r", ID: id}, Attempt: 1}
	}
	now := time.Now()
	sealed := func(host, proves, id string) []byte {
		given := wire.Given{Run: "r", Task: id, Attempt: 1, At: now}
		return wire.WithProof(keys.ProveGiven(proves, given.Encode()), keys.SealTask(host, []byte(ofRun+"Temporal's")))
	}
	dear := named("own", sealed("a", "a", "own"))
	dear.Running = wire.MostHostPrice
	shown := []slot.Taken{
		named("own", sealed("a", "a", "own")),
		named("of another host", sealed("b", "b", "of another host")),
		named("made up", []byte("Temporal's")),
		named("none", nil),
		named("another's, under an own token", sealed("a", "a", "own")),
		named("proved to another host", sealed("a", "b", "proved to another host")),
		dear,
	}
	unproven := named("unproven", keys.SealTask("a", []byte(ofRun+"Temporal's")))
	got := ownTasks(keys, true, "a", append(slices.Clone(shown), unproven), now)
	if diff := cmp.Diff([]slot.Taken{named("own", []byte("Temporal's"))}, got); diff != "" {
		t.Errorf("the tasks that are given back (-want +got):\n%s", diff)
	}
	got = ownTasks(keys, false, "a", []slot.Taken{unproven, named("made up", []byte("Temporal's"))}, now)
	if diff := cmp.Diff([]slot.Taken{named("unproven", []byte("Temporal's"))}, got); diff != "" {
		t.Errorf("of a version before proofs (-want +got):\n%s", diff)
	}
}
