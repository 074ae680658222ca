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
// its answer may be, and one that is on its way, as what Temporal's worker holds back, may arrive after any number of
// later ones, until its time is over. What is superseded is deleted at any time later. The attempt is killed between
// any two of these steps, and the next one goes on from what the server has: that is always there, whole.
func TestAKillAtAnyTimeLeavesACheckpointToGoOnFrom(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		task := newCheckpointedTask()
		t.Repeat(map[string]func(*rapid.T){
			"make": task.make, "make more": task.make, "beat": task.beat, "beat more": task.beat, "arrive": task.arrive,
			"pass": task.pass, "delete": task.delete, "kill": task.kill, "": task.check,
		})
	})
}

// told is a checkpoint that was stored.
type told struct {
	number int
	refs   []activities.Ref
}

// late is a heartbeat that may still arrive, until then.
type late struct {
	told  told
	until time.Time
}

// lateness is for how long a heartbeat may be on its way.
const lateness = 5 * time.Second

// checkpointedTask is a task with its attempt, the server and the store.
type checkpointedTask struct {
	attempt    checkpoints
	newest     told
	server     told // the zero value where it has none
	now        time.Time
	late       []late
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
	sent := c.newest
	if rapid.Bool().Draw(t, "another is on its way") {
		c.late = append(c.late, late{sent, c.now.Add(lateness)})
	}
	switch rapid.SampledFrom([]string{"acknowledged", "answer lost", "lost"}).Draw(t, "heartbeat") {
	case "acknowledged":
		c.server = sent
		for _, one := range c.attempt.acknowledge(sent.number, c.now, lateness) {
			c.superseded = append(c.superseded, one.refs...)
		}
	case "answer lost":
		c.server = sent
	}
}

// pass lets time pass.
func (c *checkpointedTask) pass(t *rapid.T) {
	c.now = c.now.Add(time.Duration(rapid.IntRange(1, 3).Draw(t, "seconds")) * time.Second)
	c.late = slices.DeleteFunc(c.late, func(one late) bool { return !c.now.Before(one.until) })
}

// arrive has a heartbeat arrive last.
func (c *checkpointedTask) arrive(t *rapid.T) {
	if len(c.late) > 0 {
		i := rapid.IntRange(0, len(c.late)-1).Draw(t, "which")
		c.server = c.late[i].told
		c.late = slices.Delete(c.late, i, i+1)
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
	c.attempt, c.late = checkpoints{}, nil
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
