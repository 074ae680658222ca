package ledger

import "github.com/spillway-ml/spillway/predictor"

// maxKept is how many ended runs stay here that somebody else keeps, so that what is looked at most is at hand.
const maxKept = 100

// Begun is a run of which nothing but its start is known.
func Begun(e predictor.RunStarted) RunView {
	a := open(e.Run, e.At)
	a.begin(e)
	return a.view(nil)
}

// Over is the run once it has ended so, as far as its end tells.
func (v RunView) Over(e predictor.RunEnded) RunView {
	v.State, v.EndedAt, v.Error, v.Result, v.Notice = endState(e), e.At, e.Error, asJSON(e.Result), ""
	v.Actual.Seconds = max(0, e.At.Sub(v.StartedAt).Seconds())
	return v
}

// Fuller reports whether the run, which has ended, was told of more fully than another view of it: a stream that has
// lost messages tells of fewer attempts than were kept.
func (v RunView) Fuller(other RunView) bool {
	return v.State != predictor.RunRunning && v.EndedAt.Equal(other.EndedAt) && v.Totals.Attempts > other.Totals.Attempts
}

// EndedRun is a run that has ended, as somebody may keep it.
type EndedRun struct {
	Snapshot

	revision int
}

// Unkept returns ended runs that nobody has kept as they are, by their first words, and at most limit.
func (l *Ledger) Unkept(limit int) (runs []EndedRun) {
	for _, a := range l.order {
		if len(runs) >= limit {
			break
		}
		if a.revision != a.kept {
			runs = append(runs, EndedRun{l.snapshot(a), a.revision})
		}
	}
	return runs
}

// Keep says that somebody keeps these runs, as Unkept returned them. Of all that are kept the newest stay here too.
func (l *Ledger) Keep(runs []EndedRun) {
	for _, run := range runs {
		l.Learn(run.Snapshot)
		if a := l.runs[run.view.Run]; a != nil && a.endedAt.Equal(run.view.EndedAt) {
			a.kept = run.revision
		}
	}
	kept := func(a *account) bool { return a.revision == a.kept && a.settled() }
	for l.ended > maxKept && l.forgetOldest(kept) {
	}
}

// Knows reports whether a run is here.
func (l *Ledger) Knows(run string) bool { return l.runs[run] != nil }

// place is where the run stands in the list of runs.
func (a *account) place() Place { return Place{StartedAt: a.startedAt, Run: a.id} }

// begin takes in the start of a run.
func (a *account) begin(e predictor.RunStarted) {
	a.known, a.stale = true, true
	a.pipeline, a.app, a.build, a.goal, a.event, a.startedAt = e.Pipeline, e.App, e.Build, e.Goal, e.Event, e.At
	a.eventAt, a.retryOf, a.team, a.input = e.EventAt, e.RetryOf, e.Team, inputDigest(e.Input)
	for _, st := range a.stages {
		st.owner.Pipeline = e.Pipeline
	}
}
