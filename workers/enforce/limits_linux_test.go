package enforce_test

import (
	"bufio"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// rate is how many cores the group uses in a window of at least a second, and for how long the limit kept it waiting.
func rate(t *testing.T, g *enforce.Group) (cores float64, throttled time.Duration) {
	t.Helper()
	before, began := usage(t, g), time.Now()
	time.Sleep(time.Second)
	after := usage(t, g)
	return (after.CPU - before.CPU).Seconds() / time.Since(began).Seconds(), after.Throttled - before.Throttled
}

// This test is alone on the host's CPUs: it runs before those that are parallel.
func TestTheCPURateFollowsTheSizeUpAndDown(t *testing.T) {
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			e := open(t, mode, 0)
			g := group(t, e, "burner")
			whole := e.Limit().CPU
			resize(t, g, quantity.Size{CPU: whole / 4, Memory: 512 * quantity.MiB})
			start(t, g, "burn")
			for _, cpu := range []quantity.Milli{whole / 4, whole * 3 / 4, whole / 8, whole} {
				held := resize(t, g, quantity.Size{CPU: cpu, Memory: 512 * quantity.MiB})
				if held.CPU != cpu {
					t.Errorf("held after asking for %s cores: got %s", cpu, held.CPU)
				}
				var got float64
				var throttled time.Duration
				eventually(t, fmt.Sprintf("a second at %s cores", cpu), func() bool {
					got, throttled = rate(t, g)
					t.Logf("%s cores: used %.2f, throttled for %s", cpu, got, throttled)
					// On a busy host the group gets less than its limit; then it is not the limit that keeps it waiting.
					return got < 1.2*cpu.Cores() && (got > 0.7*cpu.Cores() || throttled < 100*time.Millisecond)
				})
			}
			resize(t, g, quantity.Size{CPU: whole / 100, Memory: 512 * quantity.MiB}) // also a busy host gives it more
			eventually(t, "that throttling is counted", func() bool { return usage(t, g).Throttled > 0 })
		})
	}
}

func resize(t *testing.T, g *enforce.Group, size quantity.Size) quantity.Size {
	t.Helper()
	held, err := g.Resize(size)
	if err != nil {
		t.Fatal(err)
	}
	return held
}

func TestMemoryIsRaisedAndLoweredUnderLoadWithoutAKill(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			g := group(t, open(t, mode, 0), "grower")
			size := quantity.Size{CPU: 1000, Memory: 96 * quantity.MiB}
			resize(t, g, size)
			child := startGrower(t, g)
			if err := child.hold(32); err != nil {
				t.Fatal(err)
			}
			size.Memory = 256 * quantity.MiB
			if held := resize(t, g, size); held.Memory != size.Memory {
				t.Errorf("raised to %s: got %s", size.Memory, held.Memory)
			}
			if err := child.hold(150); err != nil {
				t.Fatalf("it did not live to hold more than its first limit: %v", err)
			}
			size.Memory = 200 * quantity.MiB
			if held := resize(t, g, size); held.Memory != size.Memory {
				t.Errorf("lowered to %s, above what it uses: got %s", size.Memory, held.Memory)
			}
			size.Memory = 64 * quantity.MiB
			held := resize(t, g, size)
			use := usage(t, g)
			if held.Memory < 150*quantity.MiB || held.Memory > 200*quantity.MiB {
				t.Errorf("lowered to %s, below the %s it uses: held %s, want between its 150 MiB and the 200 MiB before",
					size.Memory, use.Memory, held.Memory)
			}
			if err := child.hold(150); err != nil {
				t.Fatalf("it was killed by a lower limit: %v", err)
			}
			if use.OutOfMemory != 0 {
				t.Errorf("kills: got %d, want none", use.OutOfMemory)
			}
			if again := resize(t, g, size); again.Memory > held.Memory {
				t.Errorf("asked again for less: held %s grew to %s", held.Memory, again.Memory)
			}
		})
	}
}

func TestFileCacheIsReclaimedWhenMemoryIsLoweredAndIsNoWorkingSet(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			var system unix.Statfs_t
			if err := unix.Statfs(filepath.Dir(path), &system); err != nil {
				t.Fatal(err)
			}
			if system.Type == unix.TMPFS_MAGIC || system.Type == unix.RAMFS_MAGIC {
				t.Skipf("%s is in memory, so its files are no cache", path)
			}
			g := group(t, open(t, mode, 0), "reader")
			resize(t, g, quantity.Size{CPU: 1000, Memory: 256 * quantity.MiB})
			cmd := self("cache", path)
			awaitReady(t, g, cmd)
			before := usage(t, g)
			if before.Memory < 64*quantity.MiB || before.WorkingSet > before.Memory-48*quantity.MiB {
				t.Errorf("with 64 MiB of file cache: memory %s, working set %s", before.Memory, before.WorkingSet)
			}
			if before.Peak < 64*quantity.MiB || before.PeakWorkingSet > before.Peak-48*quantity.MiB {
				t.Errorf("with 64 MiB of file cache: peak %s, peak of the working set %s", before.Peak, before.PeakWorkingSet)
			}
			held := resize(t, g, quantity.Size{CPU: 1000, Memory: 40 * quantity.MiB})
			if held.Memory != 40*quantity.MiB {
				t.Errorf("held: got %s, want 40 MiB after reclaiming the cache", held.Memory)
			}
			if after := usage(t, g); after.OutOfMemory != 0 || after.Processes != 1 {
				t.Errorf("after lowering: %d kills, %d processes", after.OutOfMemory, after.Processes)
			}
		})
	}
}

func TestGrowingPastTheLimitKillsTheWholeGroupAndNoNeighbour(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := open(t, mode, 0)
			greedy, modest := group(t, e, "greedy"), group(t, e, "modest")
			size := quantity.Size{CPU: 1000, Memory: 64 * quantity.MiB}
			resize(t, greedy, size)
			resize(t, modest, size)
			companion := start(t, greedy, "wait")
			neighbour, child := startGrower(t, modest), startGrower(t, greedy)
			if err := errors.Join(neighbour.hold(16), child.hold(16)); err != nil {
				t.Fatal(err)
			}
			if err := child.hold(128); err == nil {
				t.Fatal("it holds twice its limit")
			}
			if err := companion.Wait(); err == nil || companion.ProcessState.Sys().(syscall.WaitStatus).Signal() !=
				syscall.SIGKILL {
				t.Errorf("the other process of the group ended with %v, want it killed", err)
			}
			// the kernel charges a little past a limit
			if u := usage(t, greedy); u.OutOfMemory == 0 || u.Peak > size.Memory*9/8 || u.Peak < size.Memory*3/4 {
				t.Errorf("usage of the greedy group: %d kills, peak %s, want some kills and a peak at %s", u.OutOfMemory, u.Peak,
					size.Memory)
			}
			if u := usage(t, modest); u.OutOfMemory != 0 || u.Processes != 1 {
				t.Errorf("usage of its neighbour: %d kills, %d processes, want none and one", u.OutOfMemory, u.Processes)
			}
			if err := neighbour.hold(20); err != nil {
				t.Errorf("the neighbour: %v", err)
			}
			if err := greedy.ResetPeak(); err != nil {
				t.Fatal(err)
			}
			if u := usage(t, greedy); u.OutOfMemory != 0 {
				t.Errorf("kills after a reset: got %d, want none", u.OutOfMemory)
			}
			next := startGrower(t, greedy) // the group can be used again
			if err := next.hold(16); err != nil {
				t.Errorf("the next child of the group: %v", err)
			}
		})
	}
}

func TestAPeakStartsAnewAfterAReset(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			g := group(t, open(t, mode, 0), "peaks")
			resize(t, g, quantity.Size{CPU: 1000, Memory: 256 * quantity.MiB})
			large := startGrower(t, g)
			if err := large.hold(128); err != nil {
				t.Fatal(err)
			}
			if err := g.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if u := usage(t, g); u.PeakWorkingSet < 128*quantity.MiB {
				t.Errorf("peak of a child that held 128 MiB and is gone: got %s", u.PeakWorkingSet)
			}
			if err := g.ResetPeak(); err != nil {
				t.Fatal(err)
			}
			small := startGrower(t, g)
			if err := small.hold(32); err != nil {
				t.Fatal(err)
			}
			if u := usage(t, g); u.Peak < 32*quantity.MiB || u.Peak > 96*quantity.MiB {
				t.Errorf("peak of a child that holds 32 MiB after one that held 128: got %s", u.Peak)
			}
		})
	}
}

func TestSizesThatCannotBeHeldAreRefused(t *testing.T) {
	t.Parallel()
	for _, offer := range enforce.Detect() {
		if !offer.Usable {
			continue
		}
		e := open(t, offer.Mode, 0)
		g, limit := group(t, e, "refuser"), e.Limit()
		fits := quantity.Size{CPU: 100, Memory: 64 * quantity.MiB}
		held := resize(t, g, fits)
		for _, size := range []quantity.Size{
			{},
			{CPU: 100},
			{Memory: quantity.MiB},
			{CPU: -1, Memory: quantity.MiB},
			{CPU: 1, Memory: -1},
			{CPU: limit.CPU + 1, Memory: quantity.MiB},
			{CPU: 1, Memory: limit.Memory + 1},
		} {
			got, err := g.Resize(size)
			if !errors.Is(err, enforce.ErrSize) || got != held {
				t.Errorf("%s: Resize(%+v): got %v, %v, want ErrSize and %v", offer.Mode, size, got, err, held)
			}
		}
		tiny := resize(t, g, quantity.Size{CPU: 1, Memory: 1})
		want := quantity.Size{CPU: enforce.MinimumCPU, Memory: enforce.MinimumMemory}
		if offer.Mode == enforce.None {
			want = quantity.Size{}
		}
		if tiny != want {
			t.Errorf("%s: the smallest size: got %v, want %v", offer.Mode, tiny, want)
		}
	}
}

func awaitReady(t *testing.T, g *enforce.Group, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("the child said %q: %v", line, err)
	}
}

// TestAPeakBelowAnEarlierOneIsKnownThoughNobodyLooked has one process take much and then less, and give both back
// before anybody looks, as attempts do that share a child.
func TestAPeakBelowAnEarlierOneIsKnownThoughNobodyLooked(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			g := group(t, open(t, mode, 0), "breathing")
			breathing := startHolder(t, g, "breathe")
			for _, mib := range []int{128, 64, 32} {
				if err := g.ResetPeak(); err != nil {
					t.Fatal(err)
				}
				if err := breathing.hold(mib); err != nil {
					t.Fatal(err)
				}
				held := quantity.Bytes(mib) * quantity.MiB
				if u := usage(t, g); u.PeakWorkingSet < held || u.PeakWorkingSet > held+24*quantity.MiB {
					t.Errorf("peak of a child that has held %s, and less now: got %s", held, u.PeakWorkingSet)
				}
			}
			if err := g.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}
