package slot

import (
	"slices"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// checkpoints are those of an attempt from which a retry may go on: the newest that the server is known to have, the
// one that it had before, since a heartbeat with that may arrive last, and all that are newer. The first may be the one
// from which the attempt itself has gone on. They are numbered from 1 as they come: the same bytes may come again.
type checkpoints struct {
	newest       int              // its number; 0 where there is none
	acknowledged int              // the newest that the server is known to have; 0 where that is none
	made         []madeCheckpoint // the oldest first, up to the newest
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

// acknowledge notes that the server has the checkpoint of this number. It returns those that no retry will ask for any
// more, without what later ones hold as well.
func (c *checkpoints) acknowledge(number int) (superseded []madeCheckpoint) {
	before := c.acknowledged
	c.acknowledged = max(number, before)
	older := max(before-1-(c.newest-len(c.made)), 0)
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
