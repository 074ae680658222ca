package predictor

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/words"
)

// lookFor is how long one stage is looked at before the next: a server counts anew every five seconds.
const lookFor = fact.Instant(10 * time.Second)

// doubt counts what waits at a stage as nothing where no run is known to have a task there and none runs. A server that
// was killed goes on counting tasks that were done before, until somebody polls their queue: slots for all of these
// would take the pool from what really waits. But hints may be lost, so one such stage at a time has a slot: what the
// queue really holds starts there, and is believed from then on.
func (d *decider) doubt() {
	var doubted []*work
	for _, w := range d.works {
		if w.queued != [2]int{} && len(w.running) == 0 && !w.stage.Owes() {
			doubted = append(doubted, w)
		}
	}
	if len(doubted) == 0 {
		return
	}
	looked := d.lookedAt(doubted)
	for _, w := range doubted {
		w.doubted = w.queued[0] + w.queued[1]
		for queue, tasks := range w.queued {
			w.queued[queue] = min(tasks, 1)
			if w != looked {
				w.queued[queue] = 0
			}
		}
	}
}

// lookedAt is the stage that is looked at: the one of the last tick for lookFor, then the one that waits the longest.
func (d *decider) lookedAt(doubted []*work) *work {
	clock := max(1, d.memory.Clock)
	latest, oldest := doubted[0], doubted[0]
	for _, w := range doubted {
		if w.stage.Looked > latest.stage.Looked {
			latest = w
		}
		if w.stage.Looked < oldest.stage.Looked {
			oldest = w
		}
	}
	if began := latest.stage.Looked; began > 0 && clock-began < lookFor {
		return latest
	}
	oldest.stage.Looked = clock
	return oldest
}

// doubtReason says why a stage whose queue is doubted has no slot, at the pool but for the one that looks.
func (w *work) doubtReason() string {
	return "no run is known to have a task left here, the queue still counts " + words.Count(w.doubted, "task")
}
