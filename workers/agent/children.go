package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// errUnavailable says that this host does not have a build: no fault of the stage.
var errUnavailable = errors.New("the build is not on this host")

// children starts processes and keeps the idle ones as long as the plan has slots for them. An idle child serves any
// stage of its build.
type children struct {
	builds    activities.Builds
	groups    *enforce.Enforcer
	start     starter
	artifacts string
	server    string // the parameter server; empty where there is none
	extra     map[string]string
	user      *spawn.User // as whom they run; nil for this process's
	logger    *slog.Logger
	// maxIdle bounds the idle children, because their memory is reserved for nobody.
	maxIdle int
	// patience is how long a child may take from its start until it is ready.
	patience time.Duration

	// lack is told of builds that this host can never run, and why.
	lack func(b build, why string)

	mu    sync.Mutex
	idle  []*child      // the longest idle first
	busy  map[build]int // that were taken and not given back
	slots map[build]int // that the plan has for the stages of a build
	made  atomic.Int64  // groups
}

// take returns an idle child of b, or starts one, which makes it cold, and waits until it is ready. It is held to what
// limit says, which is asked when there is something to hold; enter is told its group before a new child starts. The
// caller gives it back or kills it. One that is to see GPUs is always a new one. When a new child is not ready, its
// output comes with the error.
func (s *children) take(
	ctx context.Context, b build, stage string, gpus []string, limit func() quantity.Size, enter func(*enforce.Group),
) (c *child, cold bool, output string, err error) {
	for len(gpus) == 0 {
		c := s.pick(ctx, b, stage, gpus != nil)
		if c == nil {
			break
		}
		size := limit()
		held, err := c.group.Resize(size)
		if err != nil {
			c.kill(ctx)
			return nil, false, "", err
		}
		if held.Memory <= max(size.Memory, enforce.MinimumMemory) {
			enter(c.group)
			s.count(b, 1)
			return c, false, "", nil
		}
		c.kill(ctx) // it has kept more of its last attempt than this one may hold
	}
	path, err := s.builds.Path(ctx, b.app, b.digest)
	if errors.Is(err, activities.ErrUnfit) {
		s.lack(b, err.Error())
	}
	if err != nil {
		return nil, true, "", fmt.Errorf("%w: %s of %s: %w", errUnavailable, b.digest, b.app, err)
	}
	size := limit()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), path) // it outlives the attempt
	cmd.Env = environment(s.user.Lookup(os.LookupEnv), b, s.artifacts, size, s.groups.Mode() != enforce.None, s.extra,
		gpus)
	if s.user != nil {
		cmd.Dir = "/" // it may have no right to this process's directory
	}
	group, err := s.group(ctx, size)
	if err != nil {
		return nil, true, "", err
	}
	enter(group)
	c, err = startChild(ctx, cmd, b, newOutput(s.logger.With("app", b.app, "build", b.digest)), group, s.start)
	if err != nil {
		removeGroup(ctx, group)
		return nil, true, "", err
	}
	c.stage, c.told = stage, gpus != nil
	if err := c.ready(ctx, s.patience); err != nil {
		c.kill(ctx)
		return nil, true, c.output.text(), err
	}
	s.count(b, 1)
	return c, true, "", nil
}

// group makes a group of size.
func (s *children) group(ctx context.Context, size quantity.Size) (*enforce.Group, error) {
	group, err := s.groups.Group("slot-" + strconv.FormatInt(s.made.Add(1), 10))
	if err != nil {
		return nil, err
	}
	if _, err := group.Resize(size); err != nil {
		removeGroup(ctx, group)
		return nil, err
	}
	return group, nil
}

// strangersMemory is the most that an idle child may hold to serve another stage than it did. A stage that finds the
// memory of another is measured with it, and its limit is then too large for all its attempts; a new child costs some
// ten milliseconds once. Where nothing is held, the pages of the program itself are counted too.
const strangersMemory, programMemory = 16 * quantity.MiB, 32 * quantity.MiB

// serves reports whether c, which is idle, may run stage of b.
func (s *children) serves(c *child, b build, stage string) bool {
	if c.build != b || c.stage == stage {
		return c.build == b
	}
	usage, err := c.group.Usage()
	most := strangersMemory
	if s.groups.Mode() == enforce.None {
		most += programMemory
	}
	return err == nil && usage.WorkingSet <= most
}

// pick takes an idle child of b: one that ran stage before where there is one, else one that holds little; among those
// the one that was idle for the shortest time, because its memory is warm.
// One that was told nothing of GPUs, as there was no driver then, serves nobody any more once there is one.
func (s *children) pick(ctx context.Context, b build, stage string, told bool) *child {
	for {
		s.mu.Lock()
		at := -1
		for i, c := range slices.Backward(s.idle) {
			if same := c.stage == stage; (at < 0 || same) && (c.told || !told) && s.serves(c, b, stage) {
				at = i
				if same {
					break
				}
			}
		}
		if at < 0 {
			s.mu.Unlock()
			return nil
		}
		c := s.idle[at]
		s.idle = slices.Delete(s.idle, at, at+1)
		s.mu.Unlock()
		if c.alive() {
			c.output.reset()
			c.stage = stage
			return c
		}
		c.kill(ctx)
	}
}

// count notes that children of b are taken, or fewer are.
func (s *children) count(b build, taken int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.busy == nil {
		s.busy = make(map[build]int)
	}
	if s.busy[b] += taken; s.busy[b] <= 0 {
		delete(s.busy, b)
	}
}

// stop kills a child that was taken.
func (s *children) stop(ctx context.Context, c *child) {
	s.count(c.build, -1)
	c.kill(ctx)
}

// give makes c idle and kills the longest idle child when there are too many.
func (s *children) give(ctx context.Context, c *child) {
	s.count(c.build, -1)
	s.mu.Lock()
	s.idle = append(s.idle, c)
	var surplus []*child
	if n := len(s.idle) - s.maxIdle; n > 0 {
		surplus = slices.Clone(s.idle[:n])
		s.idle = slices.Delete(s.idle, 0, n)
	}
	s.mu.Unlock()
	killAll(ctx, surplus)
}

// obey takes over how many slots the plan has here for the stages of each build.
func (s *children) obey(slots map[build]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.slots = slots
}

// reap kills the idle children for which the plan has no slots, those that have been idle longest. For how long a stage
// without work keeps a slot, and a child in it, the plan decides alone.
func (s *children) reap(ctx context.Context) { killAll(ctx, s.surplus()) }

// surplus takes those out that are to be killed.
func (s *children) surplus() (surplus []*child) {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := make(map[build]int)
	for _, c := range s.idle {
		over[c.build]++
	}
	for b := range over {
		over[b] -= max(0, s.slots[b]-s.busy[b])
	}
	s.idle = slices.DeleteFunc(s.idle, func(c *child) bool {
		if over[c.build]--; over[c.build] < 0 {
			return false
		}
		surplus = append(surplus, c)
		return true
	})
	return surplus
}

// idles tells how many children are idle.
func (s *children) idles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle)
}

func killAll(ctx context.Context, all []*child) {
	for _, c := range all {
		c.kill(ctx)
	}
}
