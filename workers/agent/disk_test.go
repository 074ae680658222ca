package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
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

func TestAPartOfAGangThatFindsNoRoomIsNoFailedAttempt(t *testing.T) {
	t.Parallel()
	a := &Agent{logger: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1), now: time.Now}
	a.commands.Root = t.TempDir()
	if ended, why := a.partFailed(errors.New("no such program")); ended != gang.Ended || why == "" || a.diskFull.Load() {
		t.Errorf("another error: got %s, %q", ended, why)
	}
	full := fmt.Errorf("unpack: %w", syscall.ENOSPC)
	if ended, why := a.partFailed(full); ended != gang.Gone || why != full.Error() || !a.diskFull.Load() {
		t.Errorf("no room: got %s, %q, and the host says that it is full: %t", ended, why, a.diskFull.Load())
	}
}

func TestADiskIsFullByWhatIsLeftOfIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		of   disk
		want bool
	}{
		{disk{size: quantity.TiB}, true},
		{disk{size: quantity.TiB, free: quantity.GiB - 1}, true},
		{disk{size: quantity.TiB, free: quantity.GiB}, false}, // a large one, by how much
		{disk{size: quantity.GiB, free: quantity.GiB/20 - 1}, true},
		{disk{size: quantity.GiB, free: quantity.GiB / 20}, false}, // a small one, by which part
		{disk{size: quantity.TiB, free: quantity.TiB, files: 1000, freeFiles: 9}, true},
		{disk{size: quantity.TiB, free: quantity.TiB, files: 1000, freeFiles: 10}, false},
		{disk{}, false}, // a file system that does not tell
	} {
		if got := c.of.full(); got != c.want {
			t.Errorf("%+v: full %t, want %t", c.of, got, c.want)
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
	now := time.Now()
	a := &Agent{
		logger: slog.New(slog.DiscardHandler), changed: make(chan struct{}, 1), now: func() time.Time { return now },
	}
	a.commands.Root = root
	look := func(when string, foundNoRoom, want bool) {
		t.Helper()
		now = now.Add(diskPause / 2)
		a.lookAtDisk(foundNoRoom)
		if got := a.diskFull.Load(); got != want {
			t.Errorf("%s: full %t, want %t", when, got, want)
		}
	}
	look("one attempt wrote more than there was, and that is removed", true, true)
	look("soon after", false, true)
	look("later", false, false)
	filler := filepath.Join(root, "filler")
	if err := os.WriteFile(filler, make([]byte, 8<<20), 0o600); !isDiskFull(err) {
		t.Fatalf("write more than there is room for: %v", err)
	}
	look("nothing has met it yet", false, false)
	look("an attempt found no room", true, true)
	for range 3 {
		look("it is as full as before", false, true)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	look("there is room again", false, false)
}
