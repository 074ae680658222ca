package enforce

import (
	"path/filepath"
	"syscall"
	"testing"
)

// TestALockIsGivenBackThoughAForkHoldsItsFile: between fork and exec a child has copies of all files of its parent.
func TestALockIsGivenBackThoughAForkHoldsItsFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	first, err := takeOwnership(path)
	if err != nil {
		t.Fatal(err)
	}
	held, err := syscall.Dup(int(first.file.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(held) }()
	if err := first.release(); err != nil {
		t.Fatal(err)
	}
	second, err := takeOwnership(path)
	if err != nil {
		t.Fatalf("take what was given back: %v", err)
	}
	if err := second.release(); err != nil {
		t.Error(err)
	}
}
