package predictor

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Priorities are Temporal's keys, of which 1 is served first.
const (
	priorityLate   = 1
	priorityTight  = 2
	priorityUsual  = 3
	tightSlack     = 0.5 // the part of the time left that is spare, below which a deadline is tight
	easySlack      = 0.7 // and above which it is no longer
	tasksPerSlot   = 4   // a window this many times the slots keeps them busy between two ticks
	windowCapacity = 2   // windows grow by this factor, so that a growing stage changes its window a few times only
)

// turnWindows writes the windows of runs that were ever told another than the default, and tells those that changed.
// Such a row stays as long as there is work at its stage: a plan or a telling may be lost, and the next one says the
// same. A window grows while its run goes on and never shrinks: a task that was scheduled cannot be taken back.
func (d *decider) turnWindows() {
	for _, w := range d.works {
		slots := w.slots + w.functions*w.stage.Batch.Most()
		for _, id := range slices.Sorted(maps.Keys(w.stage.Shares)) {
			part := w.stage.Shares[id]
			before, priority := cmp.Or(part.Window, d.policy.Window), cmp.Or(part.Priority, priorityUsual)
			part.Window = min(before, d.policy.MaxWindow)
			for part.Window < d.policy.MaxWindow && slots*tasksPerSlot > part.Window {
				part.Window = min(part.Window*windowCapacity, d.policy.MaxWindow)
			}
			part.Priority = d.priority(w, part, priority)
			changed := part.Window != before || part.Priority != priority
			part.Steered = part.Steered || changed || part.Window != d.policy.Window || part.Priority != priorityUsual
			if part.Steered {
				d.windowRow(w, id, part)
			}
			if changed {
				d.decide(plan.Decision{
					Stage: w.stage.ID, Run: id, What: "window",
					From: windowText(before, priority), To: windowText(part.Window, part.Priority),
					Reason: d.windowReason(w, part, priority),
					Inputs: map[string]float64{"slots": float64(slots), "backlog_tasks": float64(w.queued[0] + w.queued[1])},
				})
			}
		}
	}
	slices.SortFunc(d.plan.Windows, func(a, b plan.Window) int {
		return cmp.Or(cmp.Compare(a.Run, b.Run), fact.CompareStages(a.Stage, b.Stage))
	})
}

func (d *decider) windowRow(w *work, run string, part *memory.Share) {
	d.plan.Windows = append(d.plan.Windows, plan.Window{
		Run: run, Stage: w.stage.ID, Tasks: part.Window,
		Priority: part.Priority,
	})
}

// priority is that of the run's tasks by the slack of its deadline: late, tight or usual. It eases later than it
// tightens, so that it does not swing with every attempt.
func (d *decider) priority(w *work, part *memory.Share, before int) int {
	left, limited := d.timeLeft(w.stage, part)
	if !limited {
		return priorityUsual
	}
	if part.Queued[0]+part.Queued[1]+part.Further == 0 {
		return before
	}
	need := w.finish
	switch {
	case need > left:
		return priorityLate
	case need > (1-tightSlack)*left:
		return min(before, priorityTight)
	case need < (1-easySlack)*left:
		return priorityUsual
	default:
		return before
	}
}

func (d *decider) windowReason(w *work, part *memory.Share, before int) string {
	left, limited := d.timeLeft(w.stage, part)
	if limited && part.Priority != before {
		leaves := "the deadline leaves it " + words.Seconds(max(left, 0)) // what follows the stage needs the rest
		if math.IsInf(w.finish, 1) {
			return "no slot works on the backlog, and " + leaves
		}
		return fmt.Sprintf("the backlog takes %s more, and %s", words.Seconds(w.finish), leaves)
	}
	said := fmt.Sprintf("%s need %d tasks in flight each to stay busy", words.Count(w.slots+w.functions, "slot"),
		tasksPerSlot)
	if tasks := w.stage.Batch.Most(); tasks > 1 {
		said += fmt.Sprintf(", for each of the %d tasks of an invoke", tasks)
	}
	return said
}

func windowText(tasks, priority int) string {
	return fmt.Sprintf("%s, priority %d", words.Count(tasks, "task"), priority)
}
