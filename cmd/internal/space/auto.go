package space

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// firstAfter is when the first collection comes, and every after which each next one does; what is too old elsewhere
	// is forgotten as often.
	firstAfter = 10 * time.Minute
	every      = time.Hour
	// restoreAgain is after how long it is tried again to put back what another server was about to remove.
	restoreAgain = 5 * time.Second
	// lookEvery is how often it is asked how much room is left.
	lookEvery = time.Second
	// leastPause and workShare bound the collections that are asked for: each pause is at least that long, and the
	// share of the time that goes into them at most one part in so many.
	leastPause = time.Second
	workShare  = 20
)

// pause is how long to wait after a collection that took so long.
func pause(took time.Duration) time.Duration { return min(max(workShare*took, leastPause), every) }

// Run collects now and then, when it is asked for, and when the disk fills, until ctx ends. Then artifacts are
// refused as well, and scarce is told: with what is free when that begins, and with none when it ends.
func (c *Collector) Run(ctx context.Context, scarce func(free *quantity.Bytes)) {
	if c.options.Several && !c.restore(ctx) {
		return
	}
	next := time.NewTimer(firstAfter)
	defer next.Stop()
	age := time.NewTimer(firstAfter)
	defer age.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	rested := time.NewTimer(0) // fires when a collection that is asked for may come
	defer rested.Stop()
	room := roomWatch{collector: c, tell: scarce}
	room.look(ctx)
	var asked <-chan struct{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			if room.look(ctx); !room.shrinks() {
				continue
			}
		case <-rested.C:
			asked = c.ask
			continue
		case <-age.C:
			now, _ := c.clock.now()
			if err := c.options.Age(ctx, now); err != nil && ctx.Err() == nil {
				c.logger.WarnContext(ctx, "what is too old is not forgotten; it is tried again", "error", err)
			}
			age.Reset(every)
			continue
		case <-asked:
		case <-next.C:
		}
		began := time.Now()
		if _, err := c.Collect(ctx, false); err != nil && ctx.Err() == nil {
			c.logger.WarnContext(ctx, "space was not given back; it is tried again", "error", err)
		}
		room.look(ctx)
		room.left = room.free
		asked = nil
		rested.Reset(pause(time.Since(began)))
		next.Reset(every)
	}
}

// restore puts back what another server was about to remove, and reports false when ctx ends before.
func (c *Collector) restore(ctx context.Context) bool {
	for {
		err := c.options.Store.RestoreAll(ctx)
		if err == nil || ctx.Err() != nil {
			return err == nil
		}
		c.logger.WarnContext(ctx, "what another server was about to remove is not put back; it is tried again", "error", err)
		if !wait.For(ctx, restoreAgain) {
			return false
		}
	}
}

// roomWatch has artifacts refused while there is little room.
type roomWatch struct {
	collector *Collector
	tell      func(free *quantity.Bytes)
	scarce    bool
	looked    bool
	free      quantity.Bytes // at the last look
	left      quantity.Bytes // after the last collection; 0 before the first
}

// shrinks reports whether half of the room is used up that was left after the last collection: whoever writes so much
// would fill the disk before the next one comes. As each collection sets the mark anew, few are in vain.
func (r *roomWatch) shrinks() bool {
	if r.left == 0 {
		r.left = r.free
	}
	return r.free < r.left/2
}

// look looks how much room there is.
func (r *roomWatch) look(ctx context.Context) {
	disk, err := DiskOf(r.collector.options.StateDir)
	if err != nil {
		r.collector.logger.DebugContext(ctx, "look how much room there is", "error", err)
		return
	}
	r.free = disk.Free
	was := r.scarce
	r.scarce = disk.Scarce(was)
	if r.scarce {
		r.collector.Ask()
	}
	if r.scarce == was && r.looked {
		return
	}
	first := !r.looked
	r.looked = true
	if !r.scarce { // also what an engine that was killed has left
		if err := r.collector.options.Store.Refuse(""); err != nil {
			r.collector.logger.WarnContext(ctx, "artifacts are still refused", "error", err)
			r.looked = false
			return
		}
		if !first {
			r.tell(nil)
		}
		return
	}
	why := fmt.Sprintf("the disk has %s of %s left; make room on it, or keep less with --keep-for or --keep-bytes",
		disk.Free, disk.Size)
	if err := r.collector.options.Store.Refuse(why); err != nil {
		r.collector.logger.WarnContext(ctx, "artifacts are not refused", "error", err)
	}
	r.tell(&disk.Free)
}
