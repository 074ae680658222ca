package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// errUnavailable says that this host does not have a build: no fault of the stage.
var errUnavailable = errors.New("the build is not on this host")

// children starts processes and keeps the idle ones for a while. An idle child serves any stage of its build.
type children struct {
	builds    activities.Builds
	start     func(*exec.Cmd) error
	artifacts string
	extra     map[string]string
	logger    *slog.Logger
	// maxIdle bounds the idle children, because their memory is reserved for nobody.
	maxIdle int

	mu   sync.Mutex
	idle []*child // the longest idle first
}

// take returns an idle child of b, or starts one, which makes it cold, and waits until it is ready. The caller gives it back or kills it.
// When a new child is not ready, its output comes with the error.
func (s *children) take(ctx context.Context, b build, size quantity.Size) (c *child, cold bool, output string, err error) {
	if c := s.pick(b); c != nil {
		return c, false, "", nil
	}
	path, err := s.builds.Path(ctx, b.app, b.digest)
	if err != nil {
		return nil, true, "", fmt.Errorf("%w: %s of %s: %w", errUnavailable, b.digest, b.app, err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(ctx), path) // it outlives the attempt
	cmd.Env = environment(os.LookupEnv, b, s.artifacts, size, s.extra)
	c, err = startChild(cmd, b, &tail{logger: s.logger.With("app", b.app, "build", b.digest)}, s.start)
	if err != nil {
		return nil, true, "", err
	}
	if err := c.ready(ctx); err != nil {
		c.kill()
		return nil, true, c.tail.text(), err
	}
	return c, true, "", nil
}

// pick takes the child of b that was idle for the shortest time, because its memory is warm.
func (s *children) pick(b build) *child {
	for {
		s.mu.Lock()
		at := -1
		for i, c := range slices.Backward(s.idle) {
			if c.build == b {
				at = i
				break
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
			c.tail.reset()
			return c
		}
		c.kill()
	}
}

// give makes c idle at now and kills the longest idle child when there are too many.
func (s *children) give(c *child, now time.Time) {
	s.mu.Lock()
	c.idleSince = now
	c.attempts++
	s.idle = append(s.idle, c)
	var surplus []*child
	if n := len(s.idle) - s.maxIdle; n > 0 {
		surplus = slices.Clone(s.idle[:n])
		s.idle = slices.Delete(s.idle, 0, n)
	}
	s.mu.Unlock()
	killAll(surplus)
}

// reap kills the children that are idle since before.
func (s *children) reap(before time.Time) {
	s.mu.Lock()
	n := 0
	for n < len(s.idle) && s.idle[n].idleSince.Before(before) {
		n++
	}
	old := slices.Clone(s.idle[:n])
	s.idle = slices.Delete(s.idle, 0, n)
	s.mu.Unlock()
	killAll(old)
}

// count tells how many children are idle.
func (s *children) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.idle)
}

func killAll(all []*child) {
	for _, c := range all {
		c.kill()
	}
}

// sortedPairs writes variables as the system takes them, in a fixed order.
func sortedPairs(values map[string]string) []string {
	pairs := make([]string, 0, len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		pairs = append(pairs, name+"="+values[name])
	}
	return pairs
}
