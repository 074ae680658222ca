package spawntest

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// Everybodys returns a directory that every user may use, until the test ends.
func Everybodys(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777), os.Chmod(filepath.Dir(dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Program copies this test's binary to where every user can run it, and returns its path.
func Program(t *testing.T) string {
	t.Helper()
	from, err := os.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(Everybodys(t), "program")
	to, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(errors.Join(err, from.Close()))
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Close(), from.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}
