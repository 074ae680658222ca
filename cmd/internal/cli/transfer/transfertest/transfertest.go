// Package transfertest plants links for tests of what is written into directories that others may change.
package transfertest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

// victim is a directory of another user with one file in it.
type victim struct{ Dir, Precious string }

// NewVictim makes such a directory.
func NewVictim(t *testing.T) victim {
	t.Helper()
	dir := t.TempDir()
	v := victim{dir, filepath.Join(dir, "precious")}
	if err := os.WriteFile(v.Precious, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	return v
}

// IsUnharmed fails when anything in the directory is not as it was.
func (v victim) IsUnharmed(t *testing.T) {
	t.Helper()
	if content, err := os.ReadFile(v.Precious); err != nil || string(content) != "precious" {
		t.Errorf("the file of another is %.40q, %v", content, err)
	}
	if entries, err := os.ReadDir(v.Dir); err != nil || len(entries) != 1 {
		t.Errorf("in the directory of another is %v, %v", entries, err)
	}
}

// Plant makes links in a directory.
func Plant(t *testing.T, dir string, links map[string]string) {
	t.Helper()
	for link, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
}

// PackedIn makes an artifact store with a file, and a packed directory that has it as "precious".
func PackedIn(t *testing.T) (store activities.Store, file, packed activities.Ref) {
	t.Helper()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if file, err = store.Put(t.Context(), strings.NewReader("model")); err != nil {
		t.Fatal(err)
	}
	dir := DirectoryOf(t, map[string]string{"precious": "model"})
	if packed, err = tree.Pack(t.Context(), store, dir, tree.Options{}); err != nil {
		t.Fatal(err)
	}
	return store, file, packed
}

// DirectoryOf writes files below a new directory.
func DirectoryOf(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}
