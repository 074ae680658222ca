package enforce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/cgroup"
)

// legacyControllers are the v1 controllers that are used where they are mounted. A thread enters them in this order,
// and leaves in the opposite one, so that it spends the least time at the CPU limit.
var legacyControllers = []string{"memory", "pids", "blkio", "freezer", "cpuacct", "cpu"}

// detectLegacy tells whether v1 can be used: it is when it can hold CPU or memory.
func detectLegacy(all []cgroup.Hierarchy) Offer {
	offer := Offer{Mode: Legacy}
	writable, reasons := usableHierarchies(all)
	for _, h := range writable {
		offer.Controllers = append(offer.Controllers, h.Controllers...)
	}
	offer.Usable = slices.Contains(offer.Controllers, "cpu") || slices.Contains(offer.Controllers, "memory")
	if !offer.Usable {
		reasons = append(reasons, "neither cpu nor memory can be held")
	}
	if lacking := missing(legacyControllers, offer.Controllers); offer.Usable && len(lacking) > 0 {
		reasons = append(reasons, "without "+strings.Join(lacking, ", "))
	}
	offer.Reason = strings.Join(reasons, "; ")
	return offer
}

// usableHierarchies returns the hierarchies in which this process may make groups, and why not in the others.
func usableHierarchies(all []cgroup.Hierarchy) (usable []cgroup.Hierarchy, reasons []string) {
	if len(all) == 0 {
		return nil, []string{"no cgroup v1 hierarchy shows the cgroup of this process"}
	}
	for _, h := range all {
		if refusal := directory(h.Own).writable("tasks"); refusal != "" {
			reasons = append(reasons, refusal)
			continue
		}
		usable = append(usable, h)
	}
	return usable, reasons
}

// legacyTree is the place of an owner in v1: a cgroup below that of this process in each cgroup.Hierarchy, so that the
// limits that this process has hold for the groups too.
type legacyTree struct {
	own       map[string]directory // this process's cgroup by controller
	parents   map[string]directory // the owner's by controller
	bound     quantity.Size
	processes int
}

// openLegacy makes the owner's cgroups.
func openLegacy(
	ctx context.Context, all []cgroup.Hierarchy, name string, processes int, note func([]string) error,
) (*legacyTree, error) {
	usable, _ := usableHierarchies(all)
	t := &legacyTree{own: make(map[string]directory), parents: make(map[string]directory), processes: processes}
	for _, h := range usable {
		for _, controller := range h.Controllers {
			t.own[controller], t.parents[controller] = directory(h.Own), directory(directory(h.Own).file(name))
		}
		for _, around := range h.Around() {
			t.bound = tighter(t.bound, legacyLimit(directory(around)))
		}
	}
	if err := note(t.directories()); err != nil {
		return nil, err
	}
	if err := sweep(ctx, t.directories()); err != nil {
		return nil, err
	}
	for _, path := range t.directories() {
		if err := prepareLegacy(directory(path)); err != nil {
			return nil, errors.Join(err, t.close(ctx))
		}
	}
	return t, nil
}

// prepareLegacy makes one cgroup of an owner.
func prepareLegacy(d directory) error {
	if err := d.make(); err != nil {
		return err
	}
	// Before Linux 5.11 a limit above counts for groups only where this is set; it must be before there are any.
	if n, err := d.number("memory.use_hierarchy"); err == nil && n == 0 {
		return d.write("memory.use_hierarchy", "1")
	}
	return nil
}

// directories are the paths of the owner's cgroups, each once: cpu and cpuacct often share a hierarchy.
func (t *legacyTree) directories() []string {
	var all []string
	for d := range maps.Values(t.parents) {
		all = append(all, string(d))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// legacyLimit is the limit that one cgroup sets; zero fields mean none.
func legacyLimit(d directory) quantity.Size {
	var s quantity.Size
	quota, err := d.number("cpu.cfs_quota_us")
	period, periodErr := d.number("cpu.cfs_period_us")
	if err == nil && periodErr == nil {
		s.CPU = cpuLimit(quota, period)
	}
	if n, err := d.number("memory.limit_in_bytes"); err == nil {
		s.Memory = memoryLimit(n)
	}
	return s
}

func (t *legacyTree) limit() quantity.Size { return t.bound }

func (t *legacyTree) close(ctx context.Context) error { return sweep(ctx, t.directories()) }

func (t *legacyTree) group(name string) (control, error) {
	g := &legacyGroup{by: make(map[string]directory), watched: make(chan struct{})}
	for _, controller := range legacyControllers {
		parent, mounted := t.parents[controller]
		if !mounted {
			continue
		}
		d := directory(parent.file(name))
		g.by[controller] = d
		if slices.ContainsFunc(g.places, func(p place) bool { return p.inside == d }) {
			continue
		}
		if err := d.make(); err != nil {
			return nil, errors.Join(err, g.removeAll())
		}
		g.places = append(g.places, place{inside: d, outside: t.own[controller]})
	}
	if err := g.configure(t.processes); err != nil {
		return nil, errors.Join(err, g.removeAll())
	}
	return g, nil
}

// place is a group's cgroup in one hierarchy, and that of this process there.
type place struct{ inside, outside directory }

// legacyGroup is one cgroup in each v1 hierarchy.
type legacyGroup struct {
	by     map[string]directory // by controller
	places []place              // each hierarchy once

	mu      sync.Mutex // orders starts and kills for memory
	kills   int64      // for memory, that have been answered
	events  *os.File   // tells of kills for memory; nil without the memory controller
	peak    *os.File   // the kernel's peak, which is read often; nil without the memory controller
	watched chan struct{}
}

// configure sets what holds for the life of the group and watches for kills.
func (g *legacyGroup) configure(processes int) error {
	if d, mounted := g.by["pids"]; mounted {
		if err := d.write("pids.max", strconv.Itoa(processes)); err != nil {
			return err
		}
	}
	memory, mounted := g.by["memory"]
	if !mounted {
		close(g.watched)
		return nil
	}
	if err := memory.writeIfPresent("memory.swappiness", "0"); err != nil { // the limit is one of all its memory
		return err
	}
	events, err := outOfMemoryEvents(memory)
	if err != nil {
		return err
	}
	g.events = events
	go g.watch()
	if g.peak, err = os.Open(memory.file("memory.max_usage_in_bytes")); err != nil {
		return fmt.Errorf("read a cgroup: %w", err)
	}
	return nil
}

// outOfMemoryEvents returns a file from which a read returns when the kernel has run out of the group's memory.
// Source: https://docs.kernel.org/admin-guide/cgroup-v1/memory.html, section 10.
func outOfMemoryEvents(memory directory) (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch for kills in %s: %w", memory, err)
	}
	events := os.NewFile(uintptr(fd), "eventfd")
	knob, err := os.Open(memory.file("memory.oom_control"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch for kills: %w", err), events.Close())
	}
	err = memory.write("cgroup.event_control", fmt.Sprintf("%d %d", fd, knob.Fd()))
	if err = errors.Join(err, knob.Close()); err != nil {
		return nil, errors.Join(err, events.Close())
	}
	return events, nil
}

// watch kills the rest of the group when the kernel has killed one of its processes for memory.
func (g *legacyGroup) watch() {
	defer close(g.watched)
	counter := make([]byte, 8)
	for {
		if _, err := g.events.Read(counter); err != nil {
			return // closed
		}
		// The event comes just before the kill. When memory is found after all, nobody is killed.
		for pause := time.Millisecond; pause < time.Second; pause *= 2 {
			if answered, err := g.answerKills(); answered || err != nil {
				break
			}
			time.Sleep(pause)
		}
	}
}

// answerKills kills the group when a process of it was killed for memory since the last call.
func (g *legacyGroup) answerKills() (answered bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n, err := g.outOfMemory()
	if err != nil || n <= g.kills {
		return false, err
	}
	g.kills = n
	return true, g.killOnce()
}

// outOfMemory counts the processes that were killed for memory.
func (g *legacyGroup) outOfMemory() (int64, error) {
	d, mounted := g.by["memory"]
	if !mounted {
		return 0, nil
	}
	text, err := d.text("memory.oom_control")
	if err != nil {
		return 0, err
	}
	return value(text, "oom_kill"), nil
}

// start forks while the calling thread is in the group: a child begins in the cgroups of the thread that forks it. The
// first thread of a process must not enter: the memory of the whole process would count for the group, and be killed
// with it.
func (g *legacyGroup) start(cmd *exec.Cmd) error {
	// What died for memory must not be taken for the new child.
	if _, err := g.answerKills(); err != nil {
		return err
	}
	runtime.LockOSThread()
	if unix.Gettid() != unix.Getpid() {
		return g.startHere(cmd)
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // another thread, as the first one is locked too
		started <- g.startHere(cmd)
	}()
	err := <-started
	runtime.UnlockOSThread()
	return err
}

// startHere starts cmd from the calling thread, which the caller has locked. It unlocks the thread once it is outside
// again.
func (g *legacyGroup) startHere(cmd *exec.Cmd) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	thread := strconv.Itoa(unix.Gettid())
	var err error
	entered := 0
	for ; entered < len(g.places) && err == nil; entered++ {
		err = g.places[entered].inside.write("tasks", thread)
	}
	started := false
	if err == nil {
		err = cmd.Start()
		started = err == nil
	}
	var stuck error
	for _, p := range slices.Backward(g.places[:entered]) {
		stuck = errors.Join(stuck, p.outside.write("tasks", thread))
	}
	if stuck == nil {
		runtime.UnlockOSThread()
		return err
	}
	// The thread stays locked: it ends with its goroutine instead of taking other work into the group.
	if started {
		stuck = errors.Join(stuck, cmd.Process.Kill())
		_ = cmd.Wait() // it was killed before it did anything for the caller
	}
	return errors.Join(err, stuck)
}

func (g *legacyGroup) setCPU(cpu quantity.Milli) (quantity.Milli, error) {
	d, mounted := g.by["cpu"]
	if !mounted {
		return 0, nil
	}
	quota := int64(-1)
	if cpu > 0 {
		quota = quotaMicroseconds(cpu)
		if n, err := d.number("cpu.cfs_period_us"); err == nil && n != periodMicroseconds {
			if err := d.write("cpu.cfs_period_us", strconv.Itoa(periodMicroseconds)); err != nil {
				return 0, err
			}
		}
	}
	return cpu, d.write("cpu.cfs_quota_us", strconv.FormatInt(quota, 10))
}

// setMemory sets the limit. The kernel refuses, after it has reclaimed what it can, a limit below the use; then a
// little above the use is tried, further above each time, as the use may grow meanwhile.
func (g *legacyGroup) setMemory(want, held quantity.Bytes) (quantity.Bytes, error) {
	d, mounted := g.by["memory"]
	if !mounted {
		return 0, nil
	}
	if held > 0 && want >= held {
		return want, errors.Join(limitSwap(d, want), limitMemory(d, want))
	}
	target := want
	for growth := quantity.Bytes(0); ; growth = 2*growth + quantity.MiB {
		err := limitMemory(d, target)
		if err == nil {
			break
		}
		use, useErr := d.number("memory.usage_in_bytes")
		if !errors.Is(err, unix.EBUSY) || useErr != nil {
			return held, errors.Join(err, useErr)
		}
		target = memoryTarget(want, quantity.Bytes(use)+growth, held)
		if target == held {
			return held, nil
		}
	}
	if err := limitSwap(d, target); err != nil && !errors.Is(err, unix.EBUSY) { // some was swapped out before
		return target, err
	}
	return target, nil
}

func limitMemory(d directory, limit quantity.Bytes) error {
	return d.write("memory.limit_in_bytes", strconv.FormatInt(int64(limit), 10))
}

// limitSwap limits memory and swap together, where the kernel counts swap. It must not be below the limit of memory.
func limitSwap(d directory, limit quantity.Bytes) error {
	return d.writeIfPresent("memory.memsw.limit_in_bytes", strconv.FormatInt(int64(limit), 10))
}

func (g *legacyGroup) read() (reading, error) {
	var r reading
	pids, err := g.pids()
	if err != nil {
		return reading{}, err
	}
	r.usage.Processes = len(pids)
	if d, mounted := g.by["cpuacct"]; mounted {
		n, err := d.number("cpuacct.usage")
		if err != nil {
			return reading{}, err
		}
		r.usage.CPU = time.Duration(n)
	}
	if d, mounted := g.by["cpu"]; mounted {
		text, err := d.text("cpu.stat")
		if err != nil {
			return reading{}, err
		}
		r.usage.Throttled = time.Duration(value(text, "throttled_time"))
		r.usage.Active = time.Duration(value(text, "nr_periods")) * periodMicroseconds * time.Microsecond
	}
	if d, mounted := g.by["blkio"]; mounted {
		// The file is there where the kernel was built to throttle devices.
		if text, err := os.ReadFile(d.file("blkio.throttle.io_service_bytes_recursive")); err == nil {
			r.usage.Read, r.usage.Written = parseLegacyIO(text)
		}
	}
	if d, mounted := g.by["pids"]; mounted {
		r.usage.ForksRefused, r.usage.PeakProcesses = d.forksRefused(), d.peakProcesses()
	}
	d, mounted := g.by["memory"]
	if !mounted {
		return r, nil
	}
	use, useErr := d.number("memory.usage_in_bytes")
	peak, peakErr := d.number("memory.max_usage_in_bytes")
	stat, statErr := d.text("memory.stat")
	kills, killsErr := g.outOfMemory()
	r.usage.Memory, r.peak, r.usage.OutOfMemory = quantity.Bytes(use), quantity.Bytes(peak), kills
	r.reclaimable = quantity.Bytes(value(stat, "total_inactive_file"))
	return r, errors.Join(useErr, peakErr, statErr, killsErr)
}

// parseLegacyIO sums lines such as "8:0 Read 4096" over devices.
func parseLegacyIO(text []byte) (read, written quantity.Bytes) {
	for line := range bytes.Lines(text) {
		fields := bytes.Fields(line)
		if len(fields) != 3 {
			continue
		}
		n, err := parseNumber(fields[2])
		if err != nil {
			continue
		}
		switch string(fields[1]) {
		case "Read":
			read += quantity.Bytes(n)
		case "Write":
			written += quantity.Bytes(n)
		}
	}
	return read, written
}

func (g *legacyGroup) peakMemory() quantity.Bytes {
	if g.peak == nil {
		return 0
	}
	return readPeak(g.peak)
}

func (g *legacyGroup) resetPeak() bool {
	d, mounted := g.by["memory"]
	return mounted && d.write("memory.max_usage_in_bytes", "0") == nil
}

// freezeLegacy asks a freezer cgroup to freeze or thaw and reads whether it has. Asking again helps one that is stuck
// between.
func freezeLegacy(d directory, frozen bool) (bool, error) {
	want := "THAWED"
	if frozen {
		want = "FROZEN"
	}
	if err := d.write("freezer.state", want); err != nil {
		return false, err
	}
	state, err := d.text("freezer.state")
	return string(bytes.TrimSpace(state)) == want, err
}

func (g *legacyGroup) kill() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.killOnce()
}

// killOnce kills all processes; the caller holds mu.
func (g *legacyGroup) killOnce() error {
	if freezer, mounted := g.by["freezer"]; mounted {
		return killFrozen(func(frozen bool) (bool, error) { return freezeLegacy(freezer, frozen) }, g.pids)
	}
	pids, err := g.pids()
	return errors.Join(err, killAll(pids))
}

func (g *legacyGroup) pids() ([]int, error) { return g.places[0].inside.pids() }

func (g *legacyGroup) remove() error { return g.removeAll() }

// removeAll removes the cgroups that have been made and stops watching.
func (g *legacyGroup) removeAll() error {
	var left error
	for _, p := range g.places {
		left = errors.Join(left, p.inside.removeEmpty())
	}
	if left != nil || g.events == nil {
		return left
	}
	if g.peak != nil {
		_ = g.peak.Close() // it was only read
	}
	if err := g.events.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("stop watching for kills: %w", err)
	}
	<-g.watched
	return nil
}
