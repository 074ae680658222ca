package slot

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
)

// TestAKillAtAnyTimeLeavesACheckpointToGoOnFrom plays attempts of one task that make checkpoints, some of the same
// bytes and with parts that several hold, and tell them in heartbeats: each may be lost before the server has it, or
// its answer may be, and one that was on its way when the next one was sent may arrive after that. What is superseded
// is deleted at any time later. The attempt is killed between any two of these steps, and the next one goes on from
// what the server has: that is always there, whole.
func TestAKillAtAnyTimeLeavesACheckpointToGoOnFrom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		task := newCheckpointedTask()
		t.Repeat(map[string]func(*rapid.T){
			"make": task.make, "make more": task.make, "beat": task.beat, "beat more": task.beat, "arrive": task.arrive,
			"delete": task.delete, "kill": task.kill, "": task.check,
		})
	})
}

// told is a checkpoint that was stored.
type told struct {
	number int
	refs   []activities.Ref
}

// checkpointedTask is a task with its attempt, the server and the store.
type checkpointedTask struct {
	attempt checkpoints
	newest  told
	server  told // the zero value where it has none
	// late are heartbeats that may still arrive, the one of the last beat and one from before; nil where there is none.
	late       [2]*told
	store      map[activities.Ref]bool
	superseded []activities.Ref
}

func newCheckpointedTask() *checkpointedTask {
	return &checkpointedTask{store: map[activities.Ref]bool{}}
}

func (c *checkpointedTask) make(t *rapid.T) {
	ref := func(kind string, of int) activities.Ref { return activities.Ref{Digest: fmt.Sprint(kind, of)} }
	refs := []activities.Ref{ref("state", rapid.IntRange(0, 5).Draw(t, "state"))}
	for _, part := range rapid.SliceOfNDistinct(rapid.IntRange(0, 5), 0, 3, rapid.ID).Draw(t, "parts") {
		refs = append(refs, ref("part", part))
	}
	for _, one := range refs {
		c.store[one] = true
		// what is put again is not taken for what was superseded
		c.superseded = slices.DeleteFunc(c.superseded, func(old activities.Ref) bool { return old == one })
	}
	c.attempt.add(time.Time{}, slices.Clone(refs))
	c.newest = told{c.attempt.newest, refs}
}

// beat sends a heartbeat.
func (c *checkpointedTask) beat(t *rapid.T) {
	c.late = [2]*told{nil, c.late[0]} // one goroutine sends: what was sent longer ago is over
	sent := c.newest
	switch rapid.SampledFrom([]string{"acknowledged", "answer lost", "late", "lost"}).Draw(t, "heartbeat") {
	case "acknowledged":
		before := c.server
		c.server = sent
		if before.number > 0 && rapid.Bool().Draw(t, "another arrives after it") {
			c.late[1] = &before
		}
		for _, one := range c.attempt.acknowledge(sent.number) {
			c.superseded = append(c.superseded, one.refs...)
		}
	case "answer lost":
		c.server = sent
	case "late":
		c.late[0] = &sent
	}
}

// arrive has a heartbeat arrive last.
func (c *checkpointedTask) arrive(*rapid.T) {
	for i, late := range c.late {
		if late != nil {
			c.server, c.late[i] = *late, nil
			return
		}
	}
}

// delete deletes some of what is superseded.
func (c *checkpointedTask) delete(t *rapid.T) {
	n := rapid.IntRange(0, len(c.superseded)).Draw(t, "how many")
	for _, ref := range c.superseded[:n] {
		delete(c.store, ref)
	}
	c.superseded = c.superseded[n:]
}

// kill ends the attempt; the next one begins with what the server has.
func (c *checkpointedTask) kill(*rapid.T) {
	c.attempt, c.late = checkpoints{}, [2]*told{}
	c.newest = told{refs: c.server.refs}
	if c.server.number > 0 {
		c.attempt.add(time.Time{}, c.server.refs[:1]) // the server does not know what was stored for it alone
		c.newest.number = c.attempt.newest
	}
	c.server.number = c.newest.number
}

// check wants what the next attempt would go on from.
func (c *checkpointedTask) check(t *rapid.T) {
	for _, ref := range c.server.refs {
		if !c.store[ref] {
			t.Fatalf("the server has checkpoint %v, of which %s is gone", c.server.refs, ref.Digest)
		}
	}
}
