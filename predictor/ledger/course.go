package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// Detail is what the attempts of a run did, as it was known when the Detail was made: it does not change any more, so
// that it may be laid out while the ledger takes in more.
type Detail struct {
	course   timeline.Run
	state    predictor.RunState
	attempts attempts
	looks    []look
	waiting  []timeline.Attempt
	features map[*stage][]string
	together map[string]bool // stages by whose tasks several workers trained one model
}

// Detail returns what the attempts of a run did. It takes little time, however many there are.
func (l *Ledger) Detail(run string) (detail *Detail, known bool) {
	a := l.runs[run]
	if a == nil || a.dropped {
		return nil, false
	}
	return &Detail{
		course: timeline.Run{EventAt: a.eventAt, StartedAt: a.startedAt, EndedAt: a.endedAt}, state: a.state,
		attempts: a.detail.attempts.snapshot(), looks: slices.Clone(a.detail.looks), waiting: a.waiting(),
		features: a.features(), together: a.together(),
	}, true
}

// left is how an attempt ended of which nothing was heard before its run was over.
func (d *Detail) left() (predictor.Outcome, predictor.Cause) {
	if d.state == predictor.RunCancelled {
		return predictor.Cancelled, predictor.CauseCancelled
	}
	return predictor.Lost, predictor.CauseHostLost
}

// Timeline lays out the attempts at now in at most about marks marks. Tasks that no venue has taken yet are not among
// them.
func (d *Detail) Timeline(now time.Time, marks int) timeline.View {
	return timeline.Lay(d.course, now, d.views(), marks)
}

// Allocation returns what each stage held and used, at about so many points in time, from the run's start to its end.
func (d *Detail) Allocation(now time.Time, points int) []timeline.Allocation {
	to := d.course.EndedAt
	if to.IsZero() {
		to = now
	}
	return timeline.Allocate(d.views(), d.lookViews(), d.course.StartedAt, to, points)
}

// Breakdown returns where the time of the run went until its end, or until now while it goes on.
func (d *Detail) Breakdown(now time.Time) timeline.Breakdown {
	return timeline.Break(d.course, now, append(d.views(), d.waiting...))
}

// AttemptQuery selects attempts of a run. Zero fields select all.
type AttemptQuery struct {
	Run string
	// Stage keeps only attempts of this stage, Outcome those that ended so. Running keeps those that go on.
	Stage   string
	Outcome string
	// Offset is how many to leave out, Limit the most to return; 0 is no limit.
	Offset, Limit int
}

// Running selects, as the Outcome of an AttemptQuery, the attempts that go on.
const Running = "running"

// Attempts returns attempts by when they were scheduled; among equals by stage, task and number. There are none when
// the run ended long ago.
func (d *Detail) Attempts(query AttemptQuery) []timeline.Attempt {
	found := make([]*attempt, 0, d.attempts.count)
	for i := range d.attempts.count {
		if one := d.attempts.at(i); d.selects(query, one) {
			found = append(found, one)
		}
	}
	slices.SortFunc(found, func(a, b *attempt) int {
		return cmp.Or(cmp.Compare(a.scheduled, b.scheduled), cmp.Compare(a.stage.id.Name, b.stage.id.Name),
			cmp.Compare(a.task, b.task), cmp.Compare(a.number, b.number))
	})
	found = found[min(max(query.Offset, 0), len(found)):]
	if query.Limit > 0 {
		found = found[:min(query.Limit, len(found))]
	}
	views := make([]timeline.Attempt, len(found))
	for i, one := range found {
		views[i] = one.view(d)
	}
	return views
}

func (d *Detail) selects(query AttemptQuery, one *attempt) bool {
	if query.Stage != "" && query.Stage != one.stage.id.Name {
		return false
	}
	if query.Outcome == "" {
		return true
	}
	outcome := one.manner.Value().outcome
	if one.ended == 0 && d.state != predictor.RunRunning {
		outcome, _ = d.left()
	}
	return query.Outcome == cmp.Or(string(outcome), Running)
}

// views are the attempts as others see them, in the order in which they were first heard of.
func (d *Detail) views() []timeline.Attempt {
	views := make([]timeline.Attempt, d.attempts.count, d.attempts.count+len(d.waiting))
	for i := range views {
		views[i] = d.attempts.at(i).view(d)
	}
	return views
}

// lookViews are the looks as others see them.
func (d *Detail) lookViews() []timeline.Look {
	views := make([]timeline.Look, len(d.looks))
	for i, look := range d.looks {
		of := d.attempts.at(int(look.attempt))
		views[i] = timeline.Look{
			Stage: of.stage.id.Name, Task: of.task, Attempt: int(of.number), Venue: of.manner.Value().venue,
			At:  spend.Time(look.at),
			CPU: quantity.Milli(look.cpu), Memory: look.memory, Grant: look.grant.Value(),
			GPUMemory: quantity.Bytes(look.gpu.memory) * quantity.MiB, GPUBusy: quantity.Milli(look.gpu.busy),
		}
	}
	return views
}

// waiting stands for the tasks that a run has put on its queues and that nobody has taken: of each stage, the earliest.
// A run that has succeeded has none, whatever was hinted twice.
func (a *account) waiting() []timeline.Attempt {
	var waiting []timeline.Attempt
	for _, st := range a.stages {
		if since := st.waits(); a.state != predictor.RunSucceeded && since != 0 {
			waiting = append(waiting, timeline.Attempt{Stage: st.id.Name, ScheduledAt: spend.Time(since)})
		}
	}
	return waiting
}

// hint says that tasks were put on a queue.
type hint struct {
	at    int64
	tasks int
}

// maxHints bounds the hints of a stage; beyond it the latest two are joined.
const maxHints = 64

// hinted notes that tasks were put on the queue.
func (st *stage) hinted(at time.Time, tasks int) {
	if n := len(st.hints); n >= maxHints {
		st.hints[n-1].tasks += tasks
		return
	}
	st.hints = append(st.hints, hint{at: spend.Nanoseconds(at), tasks: tasks})
}

// taken notes that a venue took a task from the queue for the first time; the earliest is taken to be the first.
func (st *stage) taken() {
	if len(st.hints) == 0 {
		return
	}
	if st.hints[0].tasks--; st.hints[0].tasks <= 0 {
		st.hints = slices.Delete(st.hints, 0, 1)
	}
}

// waits is since when the task that waits longest is on the queue; 0 when none is.
func (st *stage) waits() int64 {
	if len(st.hints) == 0 {
		return 0
	}
	return st.hints[0].at
}

// Curves returns what the tasks of a run reported as progress, in the order of the first reports.
func (l *Ledger) Curves(run string) (curves []timeline.Curve, known bool) {
	a := l.runs[run]
	if a == nil || a.dropped {
		return nil, false
	}
	curves = make([]timeline.Curve, 0, len(a.detail.curves))
	for _, c := range a.detail.curves {
		curves = append(curves, timeline.Curve{
			Stage: c.stage, Task: c.task, Metric: c.metric,
			Points: slices.Clone(c.points),
		})
	}
	return curves, true
}
