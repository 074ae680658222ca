package ledger

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
)

// Bounds of what is kept. Beyond them the oldest is forgotten. Runs that go on are all kept.
const (
	maxEnded     = 1000 // runs that nobody keeps
	maxDecisions = 5000
	// Records of a run may come a little after its end, doubled as others are: this many ended runs still tell them apart.
	// Records of runs that ended earlier are ignored.
	maxSettling = 8
)

// Ledger is the account of all runs. Use New; a Ledger must not be used concurrently.
type Ledger struct {
	runs      map[string]*account
	order     []*account // by first event
	settling  []*account // ended runs that still take Records, oldest first
	over      *recent    // ended runs that were forgotten
	ended     int        // runs in order that have ended
	decisions []predictor.Decision
	plan      map[predictor.StageID]map[predictor.Venue]int
	prices    spend.Prices
	kept      tally
	bounds    bounds
	latest    int64 // the latest time of any event
}

// bounds are variables for tests.
type bounds struct{ attempts, looks, runLooks, points, trainings int }

// New returns an empty ledger.
func New() *Ledger {
	return &Ledger{
		runs: map[string]*account{}, over: newRecent(),
		bounds: bounds{
			attempts: maxAttempts, looks: maxLooks, runLooks: maxRunLooks, points: maxPoints,
			trainings: maxTrainings,
		},
	}
}

// Apply accounts for one event. Doubled events count once; what contradicts itself or belongs to a run long over is
// ignored.
func (l *Ledger) Apply(event predictor.Event) {
	if event == nil {
		return
	}
	l.latest = max(l.latest, spend.Nanoseconds(event.When()))
	switch e := event.(type) {
	case predictor.RunStarted:
		l.started(e)
	case predictor.GoalChanged:
		if a := l.runs[e.Run]; a != nil && !a.ended() {
			a.goal = e.Goal
		}
	case predictor.RunEnded:
		l.endedRun(e)
	case predictor.Scheduled:
		if a := l.account(e.Run, e.At); a != nil && (e.Tasks > 0 || e.Expected > 0 || e.Withdrawn > 0) {
			a.scheduled(e)
		}
	case predictor.AttemptStarted:
		l.attemptStarted(e)
	case predictor.Sampled:
		key := attemptKey(e.Task, e.Attempt)
		if a := l.account(e.Run, e.At); a != nil && a.sampled(e, key) {
			l.look(a, e, key)
			l.report(a, e.Stage.Name, e.Task, e.Step, e.Metrics, e.At)
			if e.Training != nil {
				l.train(a, TrainingView{
					Stage: e.Stage.Name, Task: e.Task, Attempt: e.Attempt, Host: e.Host, At: e.At,
					Training: *e.Training,
				})
			}
		}
	case predictor.Record:
		l.recorded(e)
	case predictor.Reused:
		l.reused(e)
	case predictor.HostHeld:
		l.prices.Present(e)
	}
}

// Decided keeps a decision. The same decision again, recognised by its ID among the latest, is ignored.
func (l *Ledger) Decided(decision predictor.Decision) {
	latest := l.decisions[max(0, len(l.decisions)-maxSettling):]
	if decision.ID != "" && slices.ContainsFunc(latest, func(d predictor.Decision) bool { return d.ID == decision.ID }) {
		return
	}
	if len(l.decisions) >= 2*maxDecisions {
		l.decisions = slices.Delete(l.decisions, 0, len(l.decisions)-maxDecisions+1)
	}
	l.decisions = append(l.decisions, decision)
	for _, a := range l.order {
		if !a.ended() && a.about(decision) {
			a.decisions++
		}
	}
}

// SetPlan takes the plan in force, of which the views show the slots.
func (l *Ledger) SetPlan(plan predictor.Plan) {
	l.plan = make(map[predictor.StageID]map[predictor.Venue]int, len(plan.Grants))
	for _, grant := range plan.Grants {
		if l.plan[grant.Stage] == nil {
			l.plan[grant.Stage] = map[predictor.Venue]int{}
		}
		l.plan[grant.Stage][grant.Venue] += grant.Slots
	}
}

// Forecast keeps what is expected of a run, as predictor.State.Forecast returned it at now: as what is expected latest,
// and, if nothing was expected before, as the first forecast, which is the one that the end is compared with.
func (l *Ledger) Forecast(run string, now time.Time, forecast predictor.Forecast) {
	a := l.runs[run]
	if a == nil || a.ended() {
		return
	}
	elapsed := max(0, now.Sub(a.startedAt).Seconds())
	finish := forecast.Finish
	a.latest = RunPrediction{
		FinishSeconds: predictor.Interval{Low: finish.Low + elapsed, Mid: finish.Mid + elapsed, High: finish.High + elapsed},
		Cost:          forecast.Cost, Runs: forecast.Runs, Basis: forecast.Basis, Late: forecast.Late, Dear: forecast.Dear,
		At: now,
	}
	if a.predicted.At.IsZero() {
		a.predicted = a.latest
	}
}

// Expected reports whether a forecast of the run is kept, or none is wanted any more.
func (l *Ledger) Expected(run string) bool {
	a := l.runs[run]
	return a == nil || a.ended() || !a.predicted.At.IsZero()
}

// Snapshot is a run as it stood when the Snapshot was made: it does not change any more, so that it may be looked at
// while the ledger takes in more.
type Snapshot struct {
	view   RunView // all but Static
	static comparison
	of     *comparison // which static is a copy of; the ledger's
}

// Run is the run's ID.
func (s Snapshot) Run() string { return s.view.Run }

// View completes the view of the run, which takes its time for one of many attempts.
func (s *Snapshot) View() RunView {
	view := s.view
	view.Static = s.static.static()
	return view
}

// Learn takes over what the views of runs were completed with, so that it is not computed again.
func (l *Ledger) Learn(runs ...Snapshot) {
	for i := range runs {
		if s := &runs[i]; s.of.of != nil && s.static.of == nil {
			*s.of = s.static
		}
	}
}

// Snapshot returns one run, in little time; known is false when there is none of that ID, or none any more.
func (l *Ledger) Snapshot(id string) (one Snapshot, known bool) {
	a := l.runs[id]
	if a == nil {
		return Snapshot{}, false
	}
	return l.snapshot(a), true
}

// Run returns one run; known is false when there is none of that ID, or none any more.
func (l *Ledger) Run(id string) (view RunView, known bool) {
	one, known := l.Snapshot(id)
	if !known {
		return RunView{}, false
	}
	view = one.View()
	l.Learn(one)
	return view, true
}

// Runs returns the runs that match, by their places.
func (l *Ledger) Runs(query Query) Part {
	found, end := l.Select(query)
	part := Part{Runs: make([]RunView, len(found)), End: end}
	for i := range found {
		part.Runs[i] = found[i].View()
	}
	l.Learn(found...)
	return part
}

// Select returns the runs that match, by their places, in little time. End is as in Part.
func (l *Ledger) Select(query Query) (runs []Snapshot, end Place) {
	var found []*account
	for _, a := range l.order {
		if query.Selects(a.identity()) {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, func(a, b *account) int { return a.place().Compare(b.place()) })
	if query.Limit > 0 && len(found) > query.Limit {
		found = found[:query.Limit]
		end = found[query.Limit-1].place()
	}
	runs = make([]Snapshot, len(found))
	for i, a := range found {
		runs[i] = l.snapshot(a)
	}
	return runs, end
}

// Going lists the runs that go on, the oldest first.
func (l *Ledger) Going() (runs []string) {
	for _, a := range l.order {
		if !a.ended() {
			runs = append(runs, a.id)
		}
	}
	return runs
}

// Goal is the pipeline and the goal of a run that goes on; going is false for one that does not.
func (l *Ledger) Goal(run string) (pipeline string, goal predictor.Goal, going bool) {
	a := l.runs[run]
	if a == nil || a.ended() {
		return "", predictor.Goal{}, false
	}
	return a.pipeline, a.goal, true
}

// Stopped reports whether attempts of a run were ended because its budget had no more for them.
func (l *Ledger) Stopped(run string) bool {
	a := l.runs[run]
	return a != nil && a.stopped
}

// Silent lists the runs that go on and of which nothing was heard since then, the oldest first: what they are and how
// long they have taken, and nothing of their stages.
func (l *Ledger) Silent(since time.Time) (silent []RunView) {
	for _, a := range l.order {
		if !a.ended() && a.last.Before(since) {
			view := a.identity()
			view.Actual.Seconds = max(0, a.last.Sub(a.startedAt).Seconds())
			silent = append(silent, view)
		}
	}
	return silent
}

// Note keeps what somebody should know of a run that goes on, in the place of what was noted before; empty is nothing.
// It reports whether that is another than before.
func (l *Ledger) Note(run, text string) (news bool) {
	a := l.runs[run]
	if a == nil || a.ended() || a.notice == text {
		return false
	}
	a.notice = text
	return true
}

// snapshot is a run as it stands.
func (l *Ledger) snapshot(a *account) Snapshot {
	static := a.comparison(&l.prices)
	return Snapshot{a.view(l.plan), *static, static}
}

// Decisions returns the newest limit decisions, oldest first: those about a run, or all where about is nil. Those about
// a run are about its windows, or about the stages of its build while it ran. A limit of 0 is no limit.
func (l *Ledger) Decisions(about *RunView, limit int) []predictor.Decision {
	found := []predictor.Decision{}
	kept := l.decisions[max(0, len(l.decisions)-maxDecisions):]
	for _, decision := range slices.Backward(kept) {
		if limit > 0 && len(found) >= limit {
			break
		}
		if about == nil || about.concerned(decision) {
			found = append(found, decision)
		}
	}
	slices.Reverse(found)
	return found
}

func (l *Ledger) started(e predictor.RunStarted) {
	if a := l.runs[e.Run]; a != nil && a.ended() && e.At.After(a.endedAt) {
		l.forget(a) // the same ID started again
	}
	l.over.remove(runKey(e.Run))
	a := l.account(e.Run, e.At)
	if a == nil || a.known {
		return
	}
	a.begin(e)
}

func (l *Ledger) attemptStarted(e predictor.AttemptStarted) {
	a := l.account(e.Run, e.At)
	if a == nil {
		return
	}
	key, before := attemptKey(e.Task, e.Attempt), attemptKey(e.Task, e.Attempt-1)
	st, begun := a.attemptStarted(e, key, before)
	if !begun {
		return
	}
	if e.Attempt <= 1 {
		st.taken()
	}
	if i, known := a.detail.places[before]; known && a.detail.attempts.at(int(i)).ended == 0 {
		a.detail.attempts.edit(int(i)).lose(spend.Nanoseconds(e.At) - int64(max(0, e.Queue)))
	}
	if kept, known := l.place(a, key); known {
		kept.stage, kept.task, kept.number = st, e.Task, int32(e.Attempt)
		kept.begin(e)
	}
}

func (l *Ledger) recorded(e predictor.Record) {
	a := l.account(e.Run, e.At)
	if a == nil || e.Task == "" {
		return
	}
	key := attemptKey(e.Task, e.Attempt)
	_, begun := a.detail.places[key]
	st := a.recorded(e, key, attemptKey(e.Task, wholeTask))
	if st == nil {
		return
	}
	if !begun && e.Attempt <= 1 {
		st.taken()
	}
	if st.owner.Pipeline == "" {
		st.owner.Pipeline = e.Pipeline
	}
	l.report(a, e.Stage.Name, e.Task, e.Step, e.Metrics, e.At)
	if e.Training != nil {
		l.train(a, TrainingView{
			Stage: e.Stage.Name, Task: e.Task, Attempt: e.Attempt, Host: e.Host, Outcome: e.Outcome,
			At: e.At, Training: *e.Training,
		})
	}
	if kept, known := l.place(a, key); known {
		kept.stage, kept.task, kept.number = st, e.Task, int32(e.Attempt)
		kept.record(e)
		kept.values = st.valuesOf(e)
	}
}

func (l *Ledger) reused(e predictor.Reused) {
	a := l.account(e.Run, e.At)
	if a == nil || e.Tasks <= 0 {
		return
	}
	st := a.stage(e.Stage)
	at := spend.Nanoseconds(e.At)
	key := keyOf(e.Stage.App, e.Stage.Build, e.Stage.Name, e.From, strconv.Itoa(e.Tasks), strconv.FormatInt(at, 10))
	if st == nil || a.seen.has(key) {
		return
	}
	a.seen.add(key)
	st.reused(e)
}

func (l *Ledger) endedRun(e predictor.RunEnded) {
	a := l.account(e.Run, e.At)
	if a == nil || a.ended() {
		return
	}
	a.end(e)
	l.ended++
	l.settling = append(l.settling, a)
	if len(l.settling) > maxSettling {
		l.settling[0].freeze(&l.prices) // at the prices of its time
		l.settling[0].settle()
		l.settling = slices.Delete(l.settling, 0, 1)
	}
	if l.ended > maxEnded {
		l.forgetOldest(func(*account) bool { return true })
	}
}

// forgetOldest forgets the run that began first of those that have ended and may go; it reports whether there was one.
func (l *Ledger) forgetOldest(may func(*account) bool) bool {
	i := slices.IndexFunc(l.order, func(a *account) bool { return a.ended() && may(a) })
	if i < 0 {
		return false
	}
	l.over.add(runKey(l.order[i].id))
	l.forget(l.order[i])
	return true
}

// account returns the account of a run, opened if there is none; nil when id is empty or the run was over long ago:
// a late word about one that was forgotten would make it a run that goes on, whose end nobody tells again.
func (l *Ledger) account(id string, at time.Time) *account {
	if a := l.runs[id]; a != nil {
		if a.settled() {
			return nil
		}
		a.heard(at)
		if a.ended() {
			a.revision++ // it takes in more
		}
		return a
	}
	if id == "" || l.over.has(runKey(id)) {
		return nil
	}
	a := open(id, at)
	l.runs[id] = a
	l.order = append(l.order, a)
	return a
}

func (l *Ledger) forget(a *account) {
	l.drop(a)
	if a.ended() {
		l.ended--
	}
	same := func(other *account) bool { return other == a }
	delete(l.runs, a.id)
	l.order = slices.DeleteFunc(l.order, same)
	l.settling = slices.DeleteFunc(l.settling, same)
}

// wholeTask stands for the attempt number of a task as a whole; attempts count from 1.
const wholeTask = -1 << 62

// runKey names a run in 64 bits.
func runKey(run string) uint64 { return keyOf(run) }

// attemptKey names an attempt within one run in 64 bits, so that a run of many tasks stays small.
func attemptKey(task string, attempt int) uint64 { return keyOf(task, strconv.Itoa(attempt)) }

// keyOf names something by its parts in 64 bits. Keys are the same in every process, for checkpoints; nobody finds two
// names of one key who does not try some billions.
func keyOf(parts ...string) uint64 {
	text := make([]byte, 0, 128)
	for _, part := range parts {
		text = binary.AppendUvarint(text, uint64(len(part)))
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return binary.BigEndian.Uint64(sum[:])
}
