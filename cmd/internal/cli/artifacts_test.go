package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// victim is a directory of another user with one file in it.
type victim struct{ dir, precious string }

func newVictim(t *testing.T) victim {
	t.Helper()
	dir := t.TempDir()
	v := victim{dir, filepath.Join(dir, "precious")}
	if err := os.WriteFile(v.precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	return v
}

// isUnharmed fails when anything in the directory is not as it was.
func (v victim) isUnharmed(t *testing.T) {
	t.Helper()
	if content, err := os.ReadFile(v.precious); err != nil || string(content) != "precious" {
		t.Errorf("the file of another is %.40q, %v", content, err)
	}
	if entries, err := os.ReadDir(v.dir); err != nil || len(entries) != 1 {
		t.Errorf("in the directory of another is %v, %v", entries, err)
	}
}

// plant makes links in a directory.
func plant(t *testing.T, dir string, links map[string]string) {
	t.Helper()
	for link, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
}

// packedIn makes an artifact store with a file, and a packed directory that has it as "precious".
func packedIn(t *testing.T) (store activities.Store, file, packed activities.Ref) {
	t.Helper()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if file, err = store.Put(t.Context(), strings.NewReader("model")); err != nil {
		t.Fatal(err)
	}
	dir := directoryOf(t, map[string]string{"precious": "model"})
	if packed, err = tree.Pack(t.Context(), store, dir, tree.Options{}); err != nil {
		t.Fatal(err)
	}
	return store, file, packed
}

func TestAttackAPlantedLinkLeadsNoOutputAway(t *testing.T) {
	t.Parallel()
	store, output, packed := packedIn(t)
	out, victim := t.TempDir(), newVictim(t)
	plant(t, out, map[string]string{"model.part": victim.precious, "model": victim.precious, "score": victim.dir})
	root, err := os.OpenRoot(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if err := receive(t.Context(), store, root, "model", output, false); err != nil {
		t.Errorf("beside planted links: %v", err)
	}
	if content, err := os.ReadFile(filepath.Join(out, "model")); err != nil || string(content) != "model" {
		t.Errorf("the output is %q, %v", content, err)
	}
	if err := receive(t.Context(), store, root, "score/precious", output, false); err == nil {
		t.Error("an output went through a link to another directory")
	}
	for _, name := range []string{"score", "score/below"} {
		if err := receive(t.Context(), store, root, name, packed, true); err == nil {
			t.Errorf("a packed directory went through a link to another directory, as %s", name)
		}
	}
	victim.isUnharmed(t)
}

func TestAttackAPlantedLinkLeadsNoTrainedModelAway(t *testing.T) {
	t.Parallel()
	store, _, packed := packedIn(t)
	out, victim := t.TempDir(), newVictim(t)
	plant(t, out, map[string]string{"precious": victim.precious, "checkpoints": victim.dir})
	left := chain.StageResult{Outputs: map[string][]wire.CommandFile{trainedOutput: {{Artifact: packed, Tree: true}}}}
	if err := fetchTrained(t.Context(), store, left, out, false); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(out, "precious")); err != nil || string(content) != "model" {
		t.Errorf("the model is %q, %v", content, err)
	}
	if left, err := filepath.Glob(filepath.Join(out, ".spillway-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	victim.isUnharmed(t)
}

func TestAttackAPlantedLinkLeadsNoLogAway(t *testing.T) {
	t.Parallel()
	dir, victim := t.TempDir(), newVictim(t)
	plant(t, dir, map[string]string{"spillway.log": victim.precious})
	if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // that others can write to it is the attack
		t.Fatal(err)
	}
	if _, log, err := openLog(dir, "info"); err == nil {
		_ = log.Close()
		t.Error("the log was opened through a link")
	}
	victim.isUnharmed(t)
}

func TestTheLogMayLieElsewhereByALinkOfOnesOwn(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), filepath.Join(t.TempDir(), "log")
	plant(t, dir, map[string]string{"spillway.log": elsewhere})
	_, log, err := openLog(dir, "info")
	if err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Error(err)
	}
}
