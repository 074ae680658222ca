package slot

import (
	"slices"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// checkpoints are those of an attempt from which a retry may go on: the newest that the server has had for so long that
// no heartbeat with an older one can arrive any more, and all that are newer. The first may be the one from which the
// attempt itself has gone on. They are numbered from 1 as they come: the same bytes may come again.
type checkpoints struct {
	newest int // its number; 0 where there is none
	// acknowledged are those that the server is known to have had, the oldest first, from the last on that it has had for
	// so long.
	acknowledged []acknowledged
	made         []madeCheckpoint // the oldest first, up to the newest
}

// acknowledged is when the server was first known to have a checkpoint.
type acknowledged struct {
	number int
	at     time.Time
}

// madeCheckpoint is a checkpoint, and what was stored for it alone.
type madeCheckpoint struct {
	refs []activities.Ref
	at   time.Time // when it was told
}

// add adds the newest checkpoint.
func (c *checkpoints) add(at time.Time, refs []activities.Ref) {
	c.newest++
	c.made = append(c.made, madeCheckpoint{refs, at})
}

// acknowledge notes that the server has the checkpoint of this number now, where a heartbeat is on its way for no
// longer than late. It returns those that no retry will ask for any more, without what later ones hold as well.
func (c *checkpoints) acknowledge(number int, now time.Time, late time.Duration) (superseded []madeCheckpoint) {
	if n := len(c.acknowledged); n == 0 || c.acknowledged[n-1].number < number {
		c.acknowledged = append(c.acknowledged, acknowledged{number, now})
	}
	for len(c.acknowledged) > 1 && now.Sub(c.acknowledged[1].at) >= late {
		c.acknowledged = c.acknowledged[1:]
	}
	oldest := c.newest - len(c.made) + 1
	if settled := c.acknowledged[0]; now.Sub(settled.at) >= late {
		oldest = max(oldest, settled.number)
	}
	older := oldest - (c.newest - len(c.made) + 1)
	superseded, c.made = c.made[:older], slices.Clone(c.made[older:])
	held := map[activities.Ref]bool{}
	for _, one := range c.made {
		for _, ref := range one.refs {
			held[ref] = true
		}
	}
	for i := range superseded {
		superseded[i].refs = slices.DeleteFunc(superseded[i].refs, func(ref activities.Ref) bool { return held[ref] })
	}
	return slices.DeleteFunc(superseded, func(one madeCheckpoint) bool { return len(one.refs) == 0 })
}
