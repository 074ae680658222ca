package engine

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestAFileWithTheURLOfADatabaseIsPrivate also has a pipe that nobody writes to, which would hold up a start for ever.
func TestAFileWithTheURLOfADatabaseIsPrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	const url = "postgres://me:sesame@localhost/db"
	if got, err := LedgerURL(file("private", url, 0o600)); err != nil || got != url {
		t.Errorf("got %q, %v; want the URL", got, err)
	}
	for path, want := range map[string]string{
		file("open", url, 0o604): "chmod 600", file("changed by the group", url, 0o620): "chmod 600",
		pipe: "is no file", dir: "is no file", filepath.Join(dir, "nowhere"): "no such file",
		file("long", strings.Repeat("x", 5000), 0o600): "more than 4096 bytes",
	} {
		_, err := LedgerURL(path)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}
