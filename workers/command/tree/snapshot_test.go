package tree_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/command/tree"
)

func TestFilesThatWereMadeOrChangedAreFound(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 2<<20)
	dir := plant(t, map[string]string{
		"same": "1", "touched": "1", "rewritten/the same": "1", "same size": "1", "same size and time": "1", "larger": "1",
		"deleted": "1", "large": large, "large touched": large, "link": "-> same", "other link": "-> same",
		"made executable": "1",
	})
	ignore, err := tree.ParseIgnore(strings.NewReader("*.log\n"))
	if err != nil {
		t.Fatal(err)
	}
	before, err := tree.Take(t.Context(), dir, ignore)
	if err != nil {
		t.Fatal(err)
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, content string) {
		if err := os.WriteFile(in(name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	at, err := os.Stat(in("same size and time"))
	if err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(time.Hour)
	write("rewritten/the same", "1")
	write("same size", "2")
	write("same size and time", "2")
	write("larger", "12")
	write("new", "")
	write("left out.log", "")
	for _, err := range []error{
		os.Chtimes(in("touched"), later, later),
		os.Chtimes(in("large touched"), later, later),
		os.Chtimes(in("same size and time"), time.Time{}, at.ModTime()),
		os.Chmod(in("made executable"), 0o700),
		os.Remove(in("deleted")),
		os.Remove(in("other link")),
		os.Symlink("touched", in("other link")),
		os.Mkdir(in("new directory"), 0o700),
		os.WriteFile(in("new directory/x"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got, err := tree.Changed(t.Context(), before, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"large touched", "larger", "made executable", "new", "new directory/x", "other link", "same size",
		"same size and time",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("changed (-want +got):\n%s", diff)
	}
}

func TestNothingChangedWhereNothingWasDone(t *testing.T) {
	t.Parallel()
	dir := plant(t, map[string]string{"a/b": "1", "large": strings.Repeat("x", 2<<20), "out": "-> /etc"})
	before, err := tree.Take(t.Context(), dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := tree.Changed(t.Context(), before, dir); err != nil || len(got) != 0 {
		t.Errorf("changed: got %v, %v, want nothing", got, err)
	}
}
