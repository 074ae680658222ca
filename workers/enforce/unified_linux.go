package enforce

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/cgroup"
	"github.com/spillway-ml/spillway/workers/procfs"
)

var (
	neededControllers = []string{"cpu", "memory"}
	usefulControllers = []string{"cpu", "memory", "pids", "io"}
)

// ownerSuffix names the cgroup that this process moves to when it is the only one of its own: a v2 cgroup with
// processes of its own cannot hold groups to limits.
const ownerSuffix = "-owner"

// candidate is a v2 cgroup in which groups could be made.
type candidate struct {
	directory directory
	refusal   string   // why it cannot be written; empty when it can
	top       bool     // the root of the hierarchy, where processes and groups may be side by side
	offered   []string // controllers
	enabled   []string // controllers that groups in it have already
	others    int      // processes in it without this one
	holdsSelf bool
	limit     quantity.Size
}

// site is where groups are made and what that takes.
type site struct {
	directory directory
	enable    []string // controllers to be enabled
	move      bool     // this process moves into a cgroup of its own first
}

// chooseSite picks the innermost of the candidates, which are this process's cgroup and those around it, where groups
// can be held to limits. A cgroup with a limit is not left: who set it meant this process and all it starts.
func chooseSite(candidates []candidate) (chosen site, refusal string) {
	var reasons []string
	for _, c := range candidates {
		enable := missing(usefulControllers, c.enabled)
		enable = slices.DeleteFunc(enable, func(name string) bool { return !slices.Contains(c.offered, name) })
		lacking := missing(neededControllers, c.offered)
		s := site{directory: c.directory, enable: enable}
		switch {
		case c.refusal != "":
			reasons = append(reasons, c.refusal)
		case len(lacking) > 0:
			reasons = append(reasons, fmt.Sprintf("%s lacks the controllers %s", c.directory, strings.Join(lacking, ", ")))
		case c.top || c.others == 0 && !c.holdsSelf:
			return s, ""
		case c.others == 0:
			s.move = true
			return s, ""
		default:
			reasons = append(reasons, fmt.Sprintf("%s has %d other processes; start this one in a cgroup of its own "+
				"(systemd-run --scope -p Delegate=yes, with --user for a user)", c.directory, c.others))
		}
		if !c.limit.IsZero() {
			return site{}, strings.Join(append(reasons, fmt.Sprintf(
				"%s limits this process to %s, and its limits are not evaded", c.directory, c.limit)), "; ")
		}
	}
	return site{}, strings.Join(reasons, "; ")
}

// candidates looks at the cgroup of this process and those around it.
func candidates(h cgroup.Hierarchy, name string) []candidate {
	var all []candidate
	self := os.Getpid()
	for i, around := range h.Around() {
		d := directory(around)
		if i == 0 && name != "" && strings.HasSuffix(string(d), name+ownerSuffix) {
			continue // this program was executed anew in the cgroup it had moved to
		}
		text, err := d.text("cgroup.procs")
		c := candidate{
			directory: d, refusal: d.writable("cgroup.procs", "cgroup.subtree_control"), top: !d.has("cgroup.type"),
			offered: d.words("cgroup.controllers"), enabled: d.words("cgroup.subtree_control"),
			others: len(parsePIDs(text, self)), holdsSelf: len(parsePIDs(text, 0)) > len(parsePIDs(text, self)),
			limit: unifiedLimit(d),
		}
		if err != nil && c.refusal == "" {
			c.refusal = err.Error()
		}
		all = append(all, c)
	}
	return all
}

// unifiedLimit is the limit that one cgroup sets; zero fields mean none.
func unifiedLimit(d directory) quantity.Size {
	var s quantity.Size
	if words := d.words("cpu.max"); len(words) == 2 {
		quota, err := parseNumber([]byte(words[0]))
		period, periodErr := parseNumber([]byte(words[1]))
		if err == nil && periodErr == nil {
			s.CPU = cpuLimit(quota, period)
		}
	}
	for _, name := range []string{"memory.max", "memory.high"} {
		if n, err := d.number(name); err == nil {
			s.Memory = tighterOf(s.Memory, memoryLimit(n))
		}
	}
	return s
}

// detectUnified tells whether v2 can be used.
func detectUnified(h *cgroup.Hierarchy) Offer {
	offer := Offer{Mode: Unified}
	if h == nil {
		offer.Reason = "no cgroup2 file system shows the cgroup of this process; mount one, or boot with cgroup_no_v1=all"
		return offer
	}
	offer.Controllers = directory(h.Own).words("cgroup.controllers")
	if !kernelAtLeast(5, 7) {
		offer.Reason = "this kernel cannot start a process in a cgroup; Linux 5.7 or newer is needed"
		return offer
	}
	chosen, refusal := chooseSite(candidates(*h, ""))
	if refusal != "" {
		offer.Reason = refusal
		return offer
	}
	offer.Usable, offer.Controllers = true, chosen.directory.words("cgroup.controllers")
	return offer
}

// kernelAtLeast compares the running kernel's version.
func kernelAtLeast(major, minor int) bool {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return false
	}
	var gotMajor, gotMinor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &gotMajor, &gotMinor); err != nil {
		return false
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}

// unifiedTree is the place of an owner in v2: its cgroup, in which each group is one.
type unifiedTree struct {
	site      site
	parent    directory
	mover     directory // where this process has moved; empty when it has not
	bound     quantity.Size
	processes int
}

// openUnified makes the owner's cgroup.
func openUnified(
	ctx context.Context, h cgroup.Hierarchy, name string, processes int, note func([]string) error,
) (*unifiedTree, error) {
	chosen, refusal := chooseSite(candidates(h, name))
	if refusal != "" {
		return nil, errors.New(refusal)
	}
	t := &unifiedTree{site: chosen, parent: directory(chosen.directory.file(name)), processes: processes}
	for d := chosen.directory; ; d = directory(filepath.Dir(string(d))) {
		t.bound = tighter(t.bound, unifiedLimit(d))
		if len(d) <= len(h.Mount) {
			break
		}
	}
	if err := note([]string{string(t.parent)}); err != nil {
		return nil, err
	}
	if err := sweep(ctx, []string{string(t.parent)}); err != nil {
		return nil, err
	}
	if err := t.prepare(name); err != nil {
		return nil, errors.Join(err, t.close(ctx))
	}
	return t, nil
}

// prepare makes the parent and gives its groups their controllers.
func (t *unifiedTree) prepare(name string) error {
	if t.site.move {
		mover := directory(t.site.directory.file(name + ownerSuffix))
		if err := mover.make(); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		t.mover = mover
		if err := mover.write("cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
			return err
		}
	}
	if err := enableControllers(t.site.directory, t.site.enable); err != nil {
		return err
	}
	if err := t.parent.make(); err != nil {
		return err
	}
	offered := t.parent.words("cgroup.controllers")
	return enableControllers(t.parent, slices.DeleteFunc(slices.Clone(usefulControllers), func(name string) bool {
		return !slices.Contains(offered, name)
	}))
}

// enableControllers enables controllers for the groups in d. Only the needed ones must succeed.
func enableControllers(d directory, names []string) error {
	for _, name := range names {
		if err := d.write("cgroup.subtree_control", "+"+name); err != nil && slices.Contains(neededControllers, name) {
			return err
		}
	}
	return nil
}

func (t *unifiedTree) limit() quantity.Size { return t.bound }

func (t *unifiedTree) close(ctx context.Context) error {
	if err := sweep(ctx, []string{string(t.parent)}); err != nil {
		return err
	}
	if t.mover == "" {
		return nil
	}
	// Back to where this process came from, which must have no controllers enabled to take it.
	for _, name := range t.site.enable {
		if err := t.site.directory.write("cgroup.subtree_control", "-"+name); err != nil &&
			slices.Contains(neededControllers, name) {
			return err
		}
	}
	if err := t.site.directory.write("cgroup.procs", strconv.Itoa(os.Getpid())); err != nil {
		return err
	}
	return t.mover.removeEmpty()
}

func (t *unifiedTree) group(name string) (control, error) {
	g := &unifiedGroup{directory: directory(t.parent.file(name))}
	if err := g.make(); err != nil {
		return nil, err
	}
	err := errors.Join(
		g.writeIfPresent("pids.max", strconv.Itoa(t.processes)),
		g.writeIfPresent("memory.swap.max", "0"), // so that the limit of memory is one of all its memory
		g.write("memory.oom.group", "1"),         // a stage that lost one process would go on with the rest of itself
	)
	if err == nil {
		g.handle, err = os.Open(string(g.directory))
	}
	if err != nil {
		return nil, errors.Join(err, g.removeEmpty())
	}
	// A reset holds for the file descriptor that wrote it; before Linux 6.12 the file is read-only.
	if file, err := os.OpenFile(g.file("memory.peak"), os.O_RDWR, 0); err == nil {
		g.peak = file
	}
	return g, nil
}

// unifiedGroup is one v2 cgroup.
type unifiedGroup struct {
	directory

	handle *os.File // the directory, into which children are cloned
	peak   *os.File // memory.peak where it can be reset, nil elsewhere

	restarted bool // the processes' own peaks were, in place of one that cannot be reset
}

func (g *unifiedGroup) start(cmd *exec.Cmd) error {
	var attributes syscall.SysProcAttr
	if cmd.SysProcAttr != nil {
		attributes = *cmd.SysProcAttr
	}
	attributes.UseCgroupFD, attributes.CgroupFD = true, int(g.handle.Fd())
	cmd.SysProcAttr = &attributes
	err := cmd.Start()
	if err == nil {
		return nil
	}
	// Of a cgroup that is gone, or that may not be entered, clone3 says what execve says of such a program.
	if refusal := g.writable("cgroup.procs"); refusal != "" {
		return fmt.Errorf("enter a cgroup: %s", refusal)
	}
	return err
}

func (g *unifiedGroup) setCPU(cpu quantity.Milli) (quantity.Milli, error) {
	quota := "max"
	if cpu > 0 {
		quota = strconv.FormatInt(quotaMicroseconds(cpu), 10)
	}
	return cpu, g.write("cpu.max", quota+" "+strconv.Itoa(periodMicroseconds))
}

// setMemory lowers memory.high first. Writing it reclaims what can be, as long as that makes progress, and until it is
// lifted slows down whoever allocates; so the use hardly grows between reading it and writing memory.max, which kills
// at once when it is too low.
func (g *unifiedGroup) setMemory(want, held quantity.Bytes) (quantity.Bytes, error) {
	if held > 0 && want >= held {
		return want, g.write("memory.max", strconv.FormatInt(int64(want), 10))
	}
	if err := g.write("memory.high", strconv.FormatInt(int64(want), 10)); err != nil {
		return held, err
	}
	target, err := g.lowerMemory(want, held)
	return target, errors.Join(err, g.write("memory.high", "max"))
}

func (g *unifiedGroup) lowerMemory(want, held quantity.Bytes) (quantity.Bytes, error) {
	use, err := g.number("memory.current")
	if err != nil {
		return held, err
	}
	target := memoryTarget(want, quantity.Bytes(use), held)
	return target, g.write("memory.max", strconv.FormatInt(int64(target), 10))
}

func (g *unifiedGroup) read() (reading, error) {
	var r reading
	cpu, cpuErr := g.text("cpu.stat")
	current, currentErr := g.number("memory.current")
	memory, memoryErr := g.text("memory.stat")
	events, eventsErr := g.text("memory.events")
	pids, pidsErr := g.pids()
	if err := errors.Join(cpuErr, currentErr, memoryErr, eventsErr, pidsErr); err != nil {
		return reading{}, err
	}
	r.usage = Usage{
		CPU:         time.Duration(value(cpu, "usage_usec")) * time.Microsecond,
		Throttled:   time.Duration(value(cpu, "throttled_usec")) * time.Microsecond,
		Active:      time.Duration(value(cpu, "nr_periods")) * periodMicroseconds * time.Microsecond,
		Memory:      quantity.Bytes(current),
		OutOfMemory: value(events, "oom_kill"),
		Processes:   len(pids),
		CPUPressure: g.pressure("cpu.pressure"), MemoryPressure: g.pressure("memory.pressure"),
		IOPressure: g.pressure("io.pressure"),
	}
	r.reclaimable = quantity.Bytes(value(memory, "inactive_file"))
	r.peak = g.peakMemory()
	if g.restarted {
		r.own = ownPeak(pids, quantity.Bytes(current), quantity.Bytes(value(memory, "anon")))
	}
	if io, err := os.ReadFile(g.file("io.stat")); err == nil { // the controller is optional
		r.usage.Read, r.usage.Written = parseIO(io)
	}
	r.usage.ForksRefused, r.usage.PeakProcesses = g.forksRefused(), g.peakProcesses()
	return r, nil
}

// peakMemory reads the kernel's peak; 0 before Linux 5.19, which has none.
func (g *unifiedGroup) peakMemory() quantity.Bytes {
	if g.peak == nil {
		n, err := g.number("memory.peak")
		if err != nil {
			return 0
		}
		return quantity.Bytes(n)
	}
	return readPeak(g.peak)
}

func (g *unifiedGroup) resetPeak() bool {
	if g.peak != nil {
		// Before Linux 6.12 root may open the file for writing, and each write fails.
		if _, err := g.peak.WriteAt([]byte("reset"), 0); err == nil {
			g.restarted = false
			return true
		}
	}
	pids, err := g.pids()
	g.restarted = err == nil && restartOwnPeaks(pids)
	return false
}

// ownPeak is what the peak of a group with these processes comes to by their own, which may be of different times: the
// most anonymous memory that each has had (VmHWM without what it has of files and shared memory), and what the group
// has now (current) besides such memory (anonymous). It is more than the peak where processes share memory or have had
// theirs one after another, and less where one has ended.
// Source: https://man7.org/linux/man-pages/man5/proc_pid_status.5.html
func ownPeak(pids []int, current, anonymous quantity.Bytes) quantity.Bytes {
	private := quantity.Bytes(0)
	for _, pid := range pids {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // gone
		}
		shared := procfs.Kilobytes(status, "RssFile:") + procfs.Kilobytes(status, "RssShmem:")
		private += max(procfs.Kilobytes(status, "VmHWM:")-shared, 0)
	}
	return private + max(current-anonymous, 0)
}

// pressure reads a file of pressure stall information; zero where the kernel was built or booted without.
func (g *unifiedGroup) pressure(name string) Pressure {
	text, err := os.ReadFile(g.file(name))
	if err != nil {
		return Pressure{}
	}
	return parsePressure(text)
}

// parsePressure reads lines such as "some avg10=0.00 avg60=0.00 avg300=0.00 total=12", with the total in microseconds.
func parsePressure(text []byte) Pressure {
	var p Pressure
	for line := range bytes.Lines(text) {
		_, total, found := bytes.Cut(line, []byte("total="))
		n, err := parseNumber(total)
		if !found || err != nil {
			continue
		}
		switch {
		case bytes.HasPrefix(line, []byte("some ")):
			p.Some = time.Duration(n) * time.Microsecond
		case bytes.HasPrefix(line, []byte("full ")):
			p.Full = time.Duration(n) * time.Microsecond
		}
	}
	return p
}

// parseIO sums io.stat over devices: lines such as "8:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6".
func parseIO(text []byte) (read, written quantity.Bytes) {
	for field := range bytes.FieldsSeq(text) {
		key, number, _ := bytes.Cut(field, []byte("="))
		n, err := parseNumber(number)
		if err != nil {
			continue
		}
		switch string(key) {
		case "rbytes":
			read += quantity.Bytes(n)
		case "wbytes":
			written += quantity.Bytes(n)
		}
	}
	return read, written
}

func (g *unifiedGroup) freeze(frozen bool) (bool, error) {
	want := "0"
	if frozen {
		want = "1"
	}
	if err := g.write("cgroup.freeze", want); err != nil {
		return false, err
	}
	events, err := g.text("cgroup.events")
	if err != nil {
		return false, err
	}
	return value(events, "frozen") == int64(want[0]-'0'), nil
}

// kill does not use cgroup.kill: afterwards Linux 6.18, and 6.1 with its later fixes, kill every process that is cloned
// into the cgroup from outside, because they compare its count of kills with that of the cgroup the parent is in. The
// group is to be used again.
func (g *unifiedGroup) kill() error { return killFrozen(g.freeze, g.pids) }

func (g *unifiedGroup) remove() error {
	if err := g.removeEmpty(); err != nil {
		return err
	}
	err := g.handle.Close()
	if g.peak != nil {
		err = errors.Join(err, g.peak.Close())
	}
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("let go of cgroup %s: %w", g.directory, err)
	}
	return nil
}
