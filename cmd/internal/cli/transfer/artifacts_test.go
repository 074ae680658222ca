package transfer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer/transfertest"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

func TestAttackAPlantedLinkLeadsNoOutputAway(t *testing.T) {
	t.Parallel()
	store, output, packed := transfertest.PackedIn(t)
	out, victim := t.TempDir(), transfertest.NewVictim(t)
	transfertest.Plant(t, out, map[string]string{
		"model.part": victim.Precious, "model": victim.Precious,
		"score": victim.Dir,
	})
	root, err := os.OpenRoot(out)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if err := Receive(t.Context(), store, root, "model", output, false); err != nil {
		t.Errorf("beside planted links: %v", err)
	}
	if content, err := os.ReadFile(filepath.Join(out, "model")); err != nil || string(content) != "model" {
		t.Errorf("the output is %q, %v", content, err)
	}
	if err := Receive(t.Context(), store, root, "score/precious", output, false); err == nil {
		t.Error("an output went through a link to another directory")
	}
	for _, name := range []string{"score", "score/below"} {
		if err := Receive(t.Context(), store, root, name, packed, true); err == nil {
			t.Errorf("a packed directory went through a link to another directory, as %s", name)
		}
	}
	victim.IsUnharmed(t)
}

// TestAttackTheStateDirectoryIsSentToStages packs a directory in which the engine keeps its state, with credentials: as
// code and as an input, and by way of a link.
func TestAttackTheStateDirectoryIsSentToStages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	state := filepath.Join(dir, "my", "st[a]te*")
	for name, content := range map[string]string{
		"train.py": "", "my/data": "", "my/st[a]te*/keys/secret": "secret", tree.IgnoreFile: "!secret\n!keys\n",
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600))
		if err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, what := range []Packing{
		{Path: dir, Code: true, State: state},
		{Path: dir, State: state},
		{Path: link, Code: true, State: state},
		{Path: filepath.Join(dir, "my"), State: state},
	} {
		packed, err := what.into(t.Context(), store)
		if err != nil {
			t.Fatal(err)
		}
		to := t.TempDir()
		if err := tree.Unpack(t.Context(), store, packed.Artifact, to); err != nil {
			t.Fatal(err)
		}
		found := 0
		err = filepath.WalkDir(to, func(path string, entry fs.DirEntry, err error) error {
			if strings.Contains(path, "secret") {
				t.Errorf("%+v: %s was packed", what, path)
			}
			if err == nil && (entry.Name() == "data" || entry.Name() == "train.py") {
				found++
			}
			return err
		})
		if err != nil || found == 0 {
			t.Errorf("%+v: %d of the other files were packed, %v", what, found, err)
		}
	}
}
