package exec

import (
	"syscall"
	"testing"
)

// A process that is being forked holds a copy of every file until it executes its program.
func TestALockEndsThoughACopyOfItsFileIsOpen(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	held, err := lock(directory)
	if err != nil {
		t.Fatal(err)
	}
	duplicate, err := syscall.Dup(int(held.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Close(duplicate) }()
	if _, err := lock(directory); err == nil {
		t.Error("what is held was locked once more")
	}
	if err := unlock(held); err != nil {
		t.Fatal(err)
	}
	again, err := lock(directory)
	if err != nil {
		t.Fatalf("after it was unlocked: %v", err)
	}
	if err := unlock(again); err != nil {
		t.Error(err)
	}
}
