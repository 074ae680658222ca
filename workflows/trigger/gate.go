package trigger

import (
	"context"
	"maps"
	"slices"
	"sync"
)

// parallel is how many events of one binding are in hand at a time.
const parallel = 64

// gate counts the runs of one binding that go on. An event takes a place before it is in hand; what is counted is at
// least what goes on, never less, so that a cap is exact within one process.
type gate struct {
	max int // runs at a time; 0 means no cap

	mu       sync.Mutex
	inFlight int // events that have no run yet
	// runs that go on or may go on. True means handed over: nothing is being started under this ID, so that the Starter's
	// answer about it holds.
	runs map[string]bool

	changed chan struct{} // told when a place may have become free
}

func newGate(maxRuns int) *gate {
	return &gate{max: maxRuns, runs: map[string]bool{}, changed: make(chan struct{}, 1)}
}

// wait returns how many events may be taken now, at least one.
func (g *gate) wait(ctx context.Context) (int, error) {
	for {
		if room := g.room(); room > 0 {
			return room, nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-g.changed:
		}
	}
}

func (g *gate) room() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	room := parallel - g.inFlight
	if g.max > 0 {
		room = min(room, g.max-len(g.runs)-g.inFlight)
	}
	return room
}

// take gives a place to an event. Each take is followed by one release.
func (g *gate) take() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inFlight++
}

// release takes the place back from an event that is no longer in hand; its run, if it has one, keeps its own.
func (g *gate) release() {
	g.mu.Lock()
	g.inFlight--
	g.mu.Unlock()
	g.tell()
}

// begin counts a run that is about to be started. Until handOver its event still holds its place as well.
func (g *gate) begin(run string) {
	if g.max == 0 {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.runs[run] = false
}

// handOver says that nothing is being started as run any more: from now on the Starter is asked whether it goes on.
func (g *gate) handOver(run string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, counted := g.runs[run]; counted {
		g.runs[run] = true
	}
}

// end says that run is over.
func (g *gate) end(run string) {
	g.mu.Lock()
	_, counted := g.runs[run]
	delete(g.runs, run)
	g.mu.Unlock()
	if counted {
		g.tell()
	}
}

// handedOver are the runs that the Starter can be asked about.
func (g *gate) handedOver() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	runs := slices.Collect(maps.Keys(g.runs))
	return slices.DeleteFunc(runs, func(run string) bool { return !g.runs[run] })
}

func (g *gate) tell() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// count is how many runs are counted against the cap.
func (g *gate) count() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.runs)
}
