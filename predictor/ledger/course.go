package ledger

import (
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

// course is what a run's times are laid out against.
func (a *account) course() timeline.Run {
	return timeline.Run{EventAt: a.eventAt, StartedAt: a.startedAt, EndedAt: a.endedAt}
}

// Timeline lays out the attempts of a run at now in at most about marks marks. Tasks that no venue has taken yet are not among them.
func (l *Ledger) Timeline(run string, now time.Time, marks int) (view timeline.View, known bool) {
	a := l.runs[run]
	if a == nil {
		return timeline.View{}, false
	}
	return timeline.Lay(a.course(), now, a.attempts(), marks), true
}

// Attempts returns the attempts of a run by when they were scheduled. There are none when it ended long ago.
func (l *Ledger) Attempts(run string) (attempts []timeline.Attempt, known bool) {
	a := l.runs[run]
	if a == nil {
		return nil, false
	}
	attempts = a.attempts()
	timeline.Sort(attempts)
	return attempts, true
}

// Allocation returns what each stage of a run held and used, at about so many points in time, from the run's start to its end.
func (l *Ledger) Allocation(run string, now time.Time, points int) (stages []timeline.Allocation, known bool) {
	a := l.runs[run]
	if a == nil {
		return nil, false
	}
	to := a.endedAt
	if to.IsZero() {
		to = now
	}
	return timeline.Allocate(a.attempts(), a.looks(), a.startedAt, to, points), true
}

// Breakdown returns where the time of a run went until its end, or until now while it goes on.
func (l *Ledger) Breakdown(run string, now time.Time) (breakdown timeline.Breakdown, known bool) {
	a := l.runs[run]
	if a == nil {
		return timeline.Breakdown{}, false
	}
	return timeline.Break(a.course(), now, append(a.attempts(), a.waiting()...)), true
}

// waiting stands for the tasks that a run has put on its queues and that nobody has taken: of each stage, the earliest. A run that has
// succeeded has none, whatever was hinted twice.
func (a *account) waiting() []timeline.Attempt {
	var waiting []timeline.Attempt
	for _, st := range a.stages {
		if since := st.waits(); a.state != predictor.RunSucceeded && since != 0 {
			waiting = append(waiting, timeline.Attempt{Stage: st.id.Name, ScheduledAt: timeOf(since)})
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
	if a == nil {
		return nil, false
	}
	curves = make([]timeline.Curve, 0, len(a.detail.curves))
	for _, c := range a.detail.curves {
		curves = append(curves, timeline.Curve{Stage: c.stage, Task: c.task, Metric: c.metric, Points: slices.Clone(c.points)})
	}
	return curves, true
}
