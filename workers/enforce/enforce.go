// Package enforce holds the processes of an attempt to a size, with what the kernel of the host offers.
//
// An [Enforcer] owns one cgroup per hierarchy, and a [Group] inside it for each child. A child is in its group from its
// first instruction, so nothing that it starts, however often it forks or changes its session, is outside.
//
// What is held, by mode:
//
//   - [Unified] (cgroup v2): CPU by quota, memory by limit without swap, the number of processes. When memory runs out
//     the kernel kills the whole group and nothing else.
//   - [Legacy] (cgroup v1): the same where the hierarchies cpu, memory and pids are mounted. The kernel kills one
//     process for memory; the rest of the group is killed right after. A thread enters the group to fork, because v1
//     cannot clone into one.
//   - [None]: nothing. Processes run at a lower priority and are the first that the host kills for lack of memory;
//     usage is read from /proc. RLIMIT_AS and RLIMIT_DATA are left alone: they count address space, which Go and CUDA
//     reserve by the terabyte. RLIMIT_NPROC counts all processes of the user, the owner's too.
//
// No mode holds disk space: cgroups limit the speed of a device only, and RLIMIT_FSIZE is per file. Who runs commands
// watches their workspace. GPUs are not held either.
//
// Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html and https://docs.kernel.org/admin-guide/cgroup-v1/.
package enforce

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Mode is what the kernel offers to hold processes. The zero value stands for the best usable mode in [Options].
type Mode string

// The modes, best first.
const (
	Unified Mode = "cgroup v2"
	Legacy  Mode = "cgroup v1"
	None    Mode = "none"
)

// DefaultProcesses is how many processes and threads a group may have when [Options] says nothing: a loader of data
// with 16 workers of 128 threads each has half of that, and a fork bomb an eighth of the 32,768 IDs that a kernel gives
// out at least, so the host can still start a shell.
const DefaultProcesses = 4096

const (
	// closeTimeout is how long Close waits for killed processes to be gone; a process in an uninterruptible system call
	// may stay.
	closeTimeout = 30 * time.Second
	namePrefix   = "spillway-"
)

var (
	// ErrOwned is wrapped by the error of [Open] when a live process uses the same state directory.
	ErrOwned = errors.New("another process holds the groups")
	// ErrClosed is wrapped by the errors of an [Enforcer] after Close and of a [Group] after Remove.
	ErrClosed = errors.New("the group is removed")
	// ErrSize is wrapped by the errors of [Group.Resize] about sizes that no group of this host can have.
	ErrSize = errors.New("not a size that can be held")
)

// Offer is what this host offers in one mode.
type Offer struct {
	Mode Mode
	// Usable tells whether this process can hold groups in the mode.
	Usable bool
	// Reason tells why the mode cannot be used and what to do, or what it lacks. Empty when there is nothing to say.
	Reason string
	// Controllers are the kernel's names of what can be held or measured, such as "cpu" and "memory".
	Controllers []string
}

// Detect returns what the host offers this process in each mode, best first. [None] is always usable. It changes
// nothing.
func Detect() []Offer { return detect() }

// Options configures an [Enforcer].
type Options struct {
	// StateDir is an existing directory of the owner. The groups are named after its path; a file in it, cgroups.lock,
	// keeps a second owner out and tells the next one what a crashed one left. One that is copied, with that file, is
	// another. Required.
	StateDir string
	// Mode is the mode to use; empty means the best usable one.
	Mode Mode
	// Processes is how many processes and threads a group may have; 0 means DefaultProcesses.
	Processes int
	// Logger is told about leftovers. Nil means nobody is.
	Logger *slog.Logger
}

// validate explains what is wrong with opts.
func (opts Options) validate() error {
	switch {
	case opts.StateDir == "":
		return errors.New("no state directory for groups; set StateDir")
	case opts.Processes < 0:
		return fmt.Errorf("a limit of %d processes; use a positive number, or 0 for %d", opts.Processes, DefaultProcesses)
	case opts.Mode != "" && opts.Mode != Unified && opts.Mode != Legacy && opts.Mode != None:
		return fmt.Errorf("unknown mode %q; use %q, %q, %q or leave it empty for the best", opts.Mode, Unified, Legacy, None)
	}
	return nil
}

// An Enforcer owns the groups of one owner on this host. Its methods may be called concurrently.
type Enforcer struct {
	mode      Mode
	limit     quantity.Size
	processes int
	tree      tree
	owner     *owner

	mu     sync.Mutex
	groups map[string]*Group
	closed bool
}

// tree is where groups are made: the place of an owner in the hierarchies of one mode.
type tree interface {
	// group makes an empty group.
	group(name string) (control, error)
	// limit is the largest size that the cgroups around the tree leave to a group; zero fields mean no limit.
	limit() quantity.Size
	// close removes what is left and undoes what making the tree changed.
	close(context.Context) error
}

// Open makes the place of the owner's groups. What a crashed owner of the same state directory left is killed and
// removed first; processes that it started in mode [None] are not found again. While a live process holds the
// directory, the error is [ErrOwned].
func Open(opts Options) (*Enforcer, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	if opts.Processes == 0 {
		opts.Processes = DefaultProcesses
	}
	opts.Logger = cmp.Or(opts.Logger, slog.New(slog.DiscardHandler))
	mode, err := chooseMode(opts.Mode, detect())
	if err != nil {
		return nil, err
	}
	directory, err := filepath.Abs(opts.StateDir)
	if err != nil {
		return nil, fmt.Errorf("find the state directory of the groups: %w", err)
	}
	o, err := takeOwnership(filepath.Join(directory, "cgroups.lock"))
	if err != nil {
		return nil, err
	}
	e := &Enforcer{mode: mode, processes: opts.Processes, owner: o, groups: make(map[string]*Group)}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	name := treeName(directory)
	left, others := o.left(name)
	if len(others) > 0 {
		opts.Logger.Info("the state directory is a copy: the groups of its original are left alone", "directories", others)
	}
	if len(left) > 0 {
		opts.Logger.Info("groups of a crashed owner are removed", "owner_pid", o.record.PID, "directories", left)
		if err := sweep(ctx, left); err != nil {
			return nil, errors.Join(fmt.Errorf("remove the groups that a crashed owner left: %w", err), o.release())
		}
	}
	e.tree, err = openTree(ctx, mode, name, opts.Processes, o.note)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hold processes with %s: %w", mode, err), o.release())
	}
	host, err := HostSize()
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.limit = tighter(host, e.tree.limit())
	return e, nil
}

// chooseMode returns the wanted mode, or the best usable one.
func chooseMode(want Mode, offers []Offer) (Mode, error) {
	for _, offer := range offers {
		switch {
		case want == "" && offer.Usable, want == offer.Mode && offer.Usable:
			return offer.Mode, nil
		case want == offer.Mode:
			return "", fmt.Errorf("this host does not offer %s: %s", want, offer.Reason)
		}
	}
	return "", fmt.Errorf("this system does not offer %s; leave the mode empty for the best", want)
}

// treeName is the name of an owner's cgroups: short, and different for each state directory.
func treeName(stateDir string) string {
	sum := sha256.Sum256([]byte(stateDir))
	return namePrefix + hex.EncodeToString(sum[:6])
}

// Mode returns the mode in use.
func (e *Enforcer) Mode() Mode { return e.mode }

// Limit returns the largest size that [Group.Resize] accepts: what the host has or, where that is less, what the
// cgroups around this process allow. It is read once, by [Open].
func (e *Enforcer) Limit() quantity.Size { return e.limit }

// Processes is how many processes and threads a group may have; in [None] nothing holds it to that.
func (e *Enforcer) Processes() int { return e.processes }

var groupName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// Group makes an empty group without limits of CPU and memory. The name is one of letters, digits, "-" and "_", no
// longer than 64 bytes, and not that of a group that exists.
func (e *Enforcer) Group(name string) (*Group, error) {
	if !groupName.MatchString(name) {
		return nil, fmt.Errorf("group %q: a name has 1 to 64 letters, digits, - and _, and begins with a letter or a digit",
			name)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, fmt.Errorf("make group %s: %w", name, ErrClosed)
	}
	if _, exists := e.groups[name]; exists {
		return nil, fmt.Errorf("make group %s: %w; remove that group first", name, os.ErrExist)
	}
	c, err := e.tree.group(name)
	if err != nil {
		return nil, fmt.Errorf("make group %s: %w", name, err)
	}
	g := &Group{name: name, enforcer: e, control: c}
	e.groups[name] = g
	return g, nil
}

// forget takes a removed group off the books.
func (e *Enforcer) forget(g *Group) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.groups[g.name] == g {
		delete(e.groups, g.name)
	}
}

// Close kills all processes of all groups, removes the groups and lets another owner in. It may be called several
// times; an error means that something is left, which the next [Open] removes.
func (e *Enforcer) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	groups := make([]*Group, 0, len(e.groups))
	for _, g := range e.groups {
		groups = append(groups, g)
	}
	e.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	var left []error
	for _, g := range groups {
		if err := g.Kill(ctx); err != nil {
			left = append(left, err)
			continue
		}
		left = append(left, g.Remove(ctx))
	}
	err := e.tree.close(ctx)
	left = append(left, err)
	if err == nil {
		left = append(left, e.owner.note(nil))
	}
	left = append(left, e.owner.release())
	if err := errors.Join(left...); err != nil {
		return fmt.Errorf("remove the groups: %w", err)
	}
	return nil
}
