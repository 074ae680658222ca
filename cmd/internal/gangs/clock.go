package gangs

import (
	"sync"
	"time"

	"github.com/spillway-ml/spillway/predictor/gang"
)

// clock reads the times of gangs by this server's own clock, whichever server has written them: clocks of servers may
// differ by half a minute, and a gang has seconds. What has changed did so when this server saw it. The zero value has
// seen nothing. Its methods may be called concurrently.
type clock struct {
	mu   sync.Mutex
	seen map[string]times // by ID; guarded by mu
}

// times are those of a gang: as they are kept, and by the own clock.
type times struct{ keptHeard, heard, keptUntil, until time.Time }

// own returns kept with its times by the own clock, which is now, and what these are.
func (c *clock) own(kept gang.State, now time.Time) (own gang.State, seen map[string]times) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.seen
	c.seen = make(map[string]times, len(kept.Gangs))
	for _, g := range kept.Gangs {
		t, known := last[g.ID]
		if !known || !t.keptHeard.Equal(g.Heard) {
			t.keptHeard, t.heard = g.Heard, now
		}
		if !known || !t.keptUntil.Equal(g.Until) {
			if t.keptUntil, t.until = g.Until, g.Until; !g.Until.IsZero() {
				t.until = now.Add(g.Lasts())
			}
		}
		c.seen[g.ID] = t
		g.Heard, g.Until = t.heard, t.until
		own.Gangs = append(own.Gangs, g)
	}
	return own, c.seen
}

// keptOf is what is to be kept of what was made of own: times that have not changed stay as they were kept.
func keptOf(own gang.State, seen map[string]times) (kept gang.State) {
	for _, g := range own.Gangs {
		t, known := seen[g.ID]
		if known && t.heard.Equal(g.Heard) {
			g.Heard = t.keptHeard
		}
		if known && t.until.Equal(g.Until) {
			g.Until = t.keptUntil
		}
		kept.Gangs = append(kept.Gangs, g)
	}
	return kept
}
