package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
)

func TestWhatCannotBeginOnAFullDiskIsNoFailedAttempt(t *testing.T) {
	t.Parallel()
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		wrapped := fmt.Errorf("fetch the command's code: %w", &os.PathError{Op: "copy_file_range", Path: "w", Err: full})
		for name, f := range map[string]finish{
			"a command": (&running{}).unprepared(t.Context(), wrapped), "a child": unstarted(t.Context(), wrapped, "output"),
		} {
			if ending, _ := ended(f); ending.Outcome != predictor.Lost || ending.Message != wrapped.Error() ||
				!f.diskFull {
				t.Errorf("%s, %v: got %+v, want it lost", name, full, ending)
			}
		}
	}
	for _, full := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		var f finish
		f.collected(wire.CommandResult{}, fmt.Errorf("keep output model: %w",
			&os.PathError{Op: "write", Path: "a", Err: full}))
		if ending, _ := ended(f); ending.Outcome != predictor.Lost {
			t.Errorf("outputs that do not fit on the disk: got %+v, want it lost", ending)
		}
	}
	invalid := fmt.Errorf("%w: %w", command.ErrInvalid, syscall.ENOSPC)
	ending, _ := ended((&running{}).unprepared(t.Context(), invalid))
	if ending.Outcome != predictor.Failed || !ending.Permanent {
		t.Errorf("a command that is not valid: got %+v, want it failed for good", ending)
	}
}

func TestADiskIsFullByWhatIsLeftOfIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size, free quantity.Bytes
		want       bool
	}{
		{quantity.TiB, 0, true},
		{quantity.TiB, quantity.GiB - 1, true},
		{quantity.TiB, quantity.GiB, false}, // a large one, by how much
		{quantity.GiB, quantity.GiB/20 - 1, true},
		{quantity.GiB, quantity.GiB / 20, false}, // a small one, by which part
		{0, 0, false},                            // a file system that does not tell
	} {
		if got := (disk{c.size, c.free}).full(); got != c.want {
			t.Errorf("%s free of %s: full %t, want %t", c.free, c.size, got, c.want)
		}
	}
}

// TestAHostTellsThatItsDiskIsFullUntilItHasRoom fills a small file system.
func TestAHostTellsThatItsDiskIsFullUntilItHasRoom(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := syscall.Mount("tmpfs", root, "tmpfs", 0, "size=4m"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "mount") {
			t.Fatalf("mount a file system: %v, and SPILLWAY_TEST_REQUIRE names mount", err)
		}
		t.Skipf("mount a file system: %v; run it as root", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(root, syscall.MNT_DETACH) })
	a := &Agent{logger: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1)}
	a.commands.Root = root
	look := func(when string, foundNoRoom, want bool) {
		t.Helper()
		a.lookAtDisk(foundNoRoom)
		if got := a.diskFull.Load(); got != want {
			t.Errorf("%s: full %t, want %t", when, got, want)
		}
	}
	look("one attempt wrote more than there was, and that is removed", true, false)
	filler := filepath.Join(root, "filler")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !isDiskFull(err) {
		t.Fatalf("write more than there is room for: %v", err)
	}
	look("nothing has met it yet", false, false)
	look("an attempt found no room", true, true)
	look("it is as full as before", false, true)
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	look("there is room again", false, false)
}
