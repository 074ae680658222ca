package ledger

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// account is one run. Its size grows with its stages, and while it goes on by some bytes for each of its latest
// attempts.
type account struct {
	id, pipeline, app, build string
	known                    bool // its start was seen
	state                    predictor.RunState
	goal                     predictor.Goal
	startedAt, endedAt, last time.Time
	eventAt                  time.Time
	failure, event, retryOf  string
	team                     string
	notice                   string // empty once the run has ended
	input                    string // its digest; empty when it is not known
	revision, kept           int    // how often it took in something since its end, and of which of these it is kept
	result                   json.RawMessage
	stages                   []*stage // in order of first scheduling
	decisions                int
	predicted, latest        RunPrediction
	static                   *comparison // with static sizes, as last made; nil before the first
	stale, frozen            bool        // static is to be made again; it is final
	detail                   detail
	dropped                  bool // detail was dropped, whatever there was of it
	stopped                  bool // attempts were ended because the budget had no more for them

	seen    *recent          // attempts recorded and tasks done; nil once the run is settled
	running map[uint64]going // attempts going on
}

// going is an attempt that goes on: its stage, and the other hosts of its gang with what each costs per hour.
type going struct {
	stage   *stage
	members []predictor.HostShare
}

// stage sums up one stage of a run.
type stage struct {
	id                    predictor.StageID
	owner                 *spend.Owner
	hints                 []hint    // of tasks that were put on the queue and not taken yet
	view                  StageView // what needs no further computing
	pool, function        int       // tasks done
	again                 int       // of view.Refused, those scheduled again for the pool
	announced             int       // tasks that the run said are to come and has not scheduled yet
	wallSum, walls        float64   // of successes
	expected              predictor.Interval
	predictions           float64
	wallErrors, memErrors errorRing
	waited                waits
	memory                map[predictor.Venue]held
	features              []string // see valuesOf; what is there does not change any more
}

// errorRing keeps the latest relative errors, of which the median is shown.
type errorRing struct {
	values []float64
	next   int
}

const maxErrors = 128

func (e *errorRing) add(predicted, actual float64) {
	if !(predicted > 0) || !(actual > 0) || math.IsInf(predicted, 0) {
		return
	}
	value := predictor.RelativeError(predicted, actual)
	if len(e.values) < maxErrors {
		e.values = append(e.values, value)
		return
	}
	e.values[e.next] = value
	e.next = (e.next + 1) % maxErrors
}

// median is that of the kept values, the lower of the middle two; 0 without values.
func (e *errorRing) median() float64 {
	if len(e.values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(e.values))
	return sorted[(len(sorted)-1)/2]
}

func open(id string, at time.Time) *account {
	return &account{
		id: id, state: predictor.RunRunning, startedAt: at, last: at,
		seen: newRecent(), running: map[uint64]going{},
	}
}

func (a *account) ended() bool { return a.state != predictor.RunRunning }

// settled reports whether the run takes no events any more.
func (a *account) settled() bool { return a.seen == nil }

func (a *account) settle() {
	a.seen, a.running, a.detail.places = nil, nil, nil
	a.frozen = true
}

func (a *account) heard(at time.Time) {
	if at.After(a.last) && !a.ended() {
		a.last = at
	}
}

func (a *account) end(e predictor.RunEnded) {
	a.state, a.endedAt, a.failure, a.notice = endState(e), e.At, e.Error, ""
	a.result = asJSON(e.Result)
	a.revision++
	a.stale = true
	clear(a.running)
	for _, st := range a.stages {
		st.view.Running = 0
	}
}

// endState is how a run stands that has ended so.
func endState(e predictor.RunEnded) predictor.RunState {
	if e.State == "" || e.State == predictor.RunRunning {
		return predictor.RunFailed // an end that does not say how is no success
	}
	return e.State
}

// asJSON returns text if it is JSON, and as a JSON string if it is not, as after a cut.
func asJSON(text []byte) json.RawMessage {
	if len(text) == 0 {
		return nil
	}
	if json.Valid(text) {
		return slices.Clone(text)
	}
	quoted, err := json.Marshal(string(text))
	if err != nil {
		return nil // a string always encodes
	}
	return quoted
}

// stage returns the stage's sums, begun if there are none; nil for a stage without a name.
func (a *account) stage(id predictor.StageID) *stage {
	for _, st := range a.stages {
		if st.id == id {
			return st
		}
	}
	if id.Name == "" {
		return nil
	}
	st := &stage{
		id: id, view: StageView{Name: id.Name},
		owner: &spend.Owner{Run: a.id, Pipeline: a.pipeline, Stage: id.Charged()},
	}
	a.stages = append(a.stages, st)
	return st
}

func (a *account) scheduled(e predictor.Scheduled) {
	st := a.stage(e.Stage)
	if st == nil {
		return
	}
	if e.Withdrawn > 0 && e.Tasks == 0 && e.Expected == 0 {
		st.withdrawn(e.Withdrawn)
		a.stale = true
		return
	}
	if e.Tasks > 0 {
		st.hinted(e.At, e.Tasks)
	}
	if e.PoolOnly && e.Tasks > 0 && st.again+e.Tasks <= st.view.Refused {
		st.again += e.Tasks // counted already when it was scheduled for both venues
		return
	}
	st.announced = max(0, st.announced-e.Tasks) + max(0, e.Expected)
	st.view.Scheduled += e.Tasks
	if st.announced > 0 || st.view.Expected > 0 {
		st.view.Expected = max(st.view.Expected, st.view.Scheduled+st.announced)
	}
	st.view.Declared = e.Declared
	a.stale = true
}

// withdrawn takes back what was announced of tasks that will not come.
func (st *stage) withdrawn(tasks int) {
	tasks = min(tasks, st.announced)
	st.announced -= tasks
	st.view.Expected = max(0, st.view.Expected-tasks)
}

// reused counts what was taken from an earlier run.
func (st *stage) reused(e predictor.Reused) {
	r := &st.view.Reused
	r.Tasks += max(0, e.Tasks)
	r.Saved = r.Saved.Plus(max(0, e.Saved))
	r.Seconds += positive(e.Wall)
	r.From = e.From
}

// attemptStarted counts an attempt that goes on; begun is false when it is known already, or over.
func (a *account) attemptStarted(e predictor.AttemptStarted, key, before uint64) (st *stage, begun bool) {
	st = a.stage(e.Stage)
	if st == nil || a.seen.has(key) || a.running[key].stage != nil || a.ended() {
		return nil, false
	}
	if lost := a.running[before].stage; lost != nil { // its host died without a Record
		lost.view.Running--
		delete(a.running, before)
	}
	a.running[key] = going{st, e.Members[:min(len(e.Members), gang.MostHosts)]}
	st.view.Running++
	st.view.Grant = e.Grant
	st.holds(e.Venue, e.Grant.Memory, 0)
	return st, true
}

// sampled takes a sample of the attempt of this key; counts is false for one that tells nothing: its run or its attempt
// is over.
func (a *account) sampled(e predictor.Sampled, key uint64) (counts bool) {
	st := a.stage(e.Stage)
	if st == nil || a.seen.has(key) || a.ended() {
		return false
	}
	st.view.PeakMemory = max(st.view.PeakMemory, e.Memory)
	st.holds(e.Venue, e.Grant.Memory, e.Memory)
	if e.GPU != nil {
		st.hasGPUs(e.Grant, e.GPU.Memory)
	}
	st.reported(e.Step, e.Of, e.Metrics)
	return true
}

// hasGPUs takes note of the GPUs of an attempt and of what it was seen to hold of their memory.
func (st *stage) hasGPUs(grant quantity.Size, peak quantity.Bytes) {
	v := &st.view.GPU
	v.Count, v.Class, v.Grant = int(grant.GPU/quantity.Core), grant.DeviceClass, grant.GPUMemory
	v.Peak = max(v.Peak, min(peak, mostMemory))
}

// reported keeps what an attempt of the stage told last.
func (st *stage) reported(step, of int, metrics map[string]float64) {
	if step > 0 {
		st.view.Step, st.view.Of = step, max(0, of)
	}
	if len(metrics) > 0 {
		st.view.Metrics = finite(metrics)
	}
}

// finite keeps what JSON can hold.
func finite(metrics map[string]float64) map[string]float64 {
	kept := maps.Clone(metrics)
	maps.DeleteFunc(kept, func(_ string, v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
	return kept
}

// recorded sums up an attempt that ended, of its task; nil when it was counted before.
func (a *account) recorded(e predictor.Record, key, task uint64) *stage {
	st := a.stage(e.Stage)
	if st == nil || a.seen.has(key) {
		return nil
	}
	a.stale = true
	a.stopped = a.stopped || e.Outcome == predictor.Failed && e.Cause == predictor.CauseBudget
	a.seen.add(key)
	if a.running[key].stage != nil {
		st.view.Running--
		delete(a.running, key)
	}
	st.add(e)
	if e.Outcome != predictor.Succeeded || a.seen.has(task) {
		return st
	}
	a.seen.add(task)
	st.view.Done++
	if e.Venue == predictor.Function {
		st.function++
	} else {
		st.pool++
	}
	return st
}

// add sums up one attempt. Negative amounts count as nothing.
func (st *stage) add(e predictor.Record) {
	v := &st.view
	v.Attempts++
	v.QueueSeconds += positive(e.Queue)
	v.StartSeconds += positive(e.Start)
	v.RunSeconds += positive(e.Usage.Wall)
	v.CPUSeconds += positive(e.Usage.CPU)
	v.PeakMemory = max(v.PeakMemory, e.Usage.PeakMemory)
	v.Cost += min(max(0, e.Cost), math.MaxInt64/2-v.Cost)
	v.Grant = e.Grant
	if e.Grant.GPU > 0 {
		st.hasGPUs(e.Grant, e.Usage.GPUPeakMemory)
		v.GPU.HeldSeconds += e.Grant.GPU.Cores() * positive(e.Usage.Wall)
		v.GPU.BusySeconds += positive(e.Usage.GPUBusy)
	}
	if e.Outcome != predictor.Refused {
		st.waited.add(positive(e.Queue))
		st.holds(e.Venue, e.Grant.Memory, e.Usage.PeakMemory)
	}
	st.reported(e.Step, e.Of, e.Metrics)
	switch e.Outcome {
	case predictor.Succeeded:
		st.compare(e)
	case predictor.OutOfMemory:
		v.OutOfMemory++
		v.Failed++
	case predictor.Failed, predictor.TimedOut:
		v.Failed++
	case predictor.Lost:
		v.Lost++
	case predictor.Refused:
		v.Refused++
	case predictor.Cancelled:
	}
}

// compare joins what was predicted of an attempt that succeeded to what it took.
func (st *stage) compare(e predictor.Record) {
	wall, peak := e.Usage.Wall.Seconds(), float64(e.Usage.PeakMemory)
	if wall > 0 {
		st.wallSum += wall
		st.walls++
	}
	if expected := e.Predicted.Wall; sound(expected) {
		st.predictions++
		st.expected.Low += (expected.Low - st.expected.Low) / st.predictions
		st.expected.Mid += (expected.Mid - st.expected.Mid) / st.predictions
		st.expected.High += (expected.High - st.expected.High) / st.predictions
		st.wallErrors.add(expected.Mid, wall)
	}
	if expected := memoryPrediction(e); sound(expected) {
		memory := &st.view.PredictedMemory
		memory.Low, memory.Mid, memory.High = max(memory.Low, expected.Low), max(memory.Mid, expected.Mid),
			max(memory.High, expected.High)
		st.memErrors.add(expected.Mid, peak)
	}
}

// memoryPrediction is what was expected of the peak of an attempt where it ran. What a function is invoked with is
// expected of the pool: another meter, whose processes share no pages, says nothing about it.
func memoryPrediction(e predictor.Record) predictor.Interval {
	if e.Venue == predictor.Function {
		return predictor.Interval{}
	}
	return e.Predicted.Memory
}

// sound reports whether an interval predicts something.
func sound(i predictor.Interval) bool {
	return i.Mid > 0 && i.Low >= 0 && i.High >= 0 && !math.IsInf(i.Mid, 0) && !math.IsInf(i.High, 0) &&
		!math.IsInf(i.Low, 0)
}

func positive(d time.Duration) float64 { return max(0, d.Seconds()) }

// about reports whether a decision is about this run's windows, or about a stage of its build.
func (a *account) about(decision predictor.Decision) bool {
	return isAbout(decision, a.id, a.app, a.build, a.team)
}

// concerned reports whether a decision is about this run, and from between its start and its end.
func (v *RunView) concerned(decision predictor.Decision) bool {
	return isAbout(decision, v.Run, v.App, v.Build, v.Team) && !decision.At.Before(v.StartedAt) &&
		(v.State == predictor.RunRunning || !decision.At.After(v.EndedAt))
}

// isAbout reports whether a decision is about a run's windows, or about a stage of its build and team; app is empty
// while the run's start was not seen.
func isAbout(decision predictor.Decision, run, app, build, team string) bool {
	if decision.Run != "" {
		return decision.Run == run
	}
	of := decision.Stage
	return app != "" && of.App == app && of.Build == build && of.Team == team
}

// identity is what is known of the run but for what it took.
func (a *account) identity() RunView {
	return RunView{
		Run: a.id, Pipeline: a.pipeline, App: a.app, Build: a.build, State: a.state, Goal: a.goal, StartedAt: a.startedAt,
		EndedAt: a.endedAt,
		Error:   a.failure, Notice: a.notice, Result: a.result, Event: a.event, EventAt: a.eventAt, RetryOf: a.retryOf,
		Team:  a.team,
		Input: a.input,
	}
}

func (a *account) view(plan map[predictor.StageID]map[predictor.Venue]int) RunView {
	view := a.identity()
	view.Stages, view.Totals.Tasks = make([]StageView, 0, len(a.stages)), bothVenues(0, 0)
	view.Decisions, view.Predicted, view.Latest = a.decisions, a.predicted, a.latest
	for _, st := range a.stages {
		stage := st.finished(plan[st.id], a.ended())
		view.Stages = append(view.Stages, stage)
		view.Totals.add(stage)
		view.Reused.add(stage.Reused)
	}
	end := a.last
	if a.ended() {
		end = a.endedAt
	}
	view.Actual = RunActual{Seconds: max(0, end.Sub(a.startedAt).Seconds()), Cost: view.Totals.Cost}
	return view
}

// add adds what another stage reused. It is from the run of which the last stage that took something did.
func (r *Reuse) add(other Reuse) {
	r.Tasks += other.Tasks
	r.Saved = r.Saved.Plus(other.Saved)
	r.Seconds += other.Seconds
	if other.From != "" {
		r.From = other.From
	}
}

// finished completes the stage's view by what is computed when it is looked at.
func (st *stage) finished(slots map[predictor.Venue]int, ended bool) StageView {
	view := st.view
	view.Tasks = bothVenues(st.pool, st.function)
	view.Slots = bothVenues(0, 0)
	if !ended {
		view.Slots = bothVenues(slots[predictor.Pool], slots[predictor.Function])
	}
	view.PredictedWall = st.expected
	view.Wait, view.Memory = st.waited.view(), st.memoryViews()
	if st.walls > 0 {
		view.ActualWall = st.wallSum / st.walls
	}
	view.WallError, view.WallErrors = st.wallErrors.median(), len(st.wallErrors.values)
	view.MemoryError, view.MemoryErrors = st.memErrors.median(), len(st.memErrors.values)
	view.Metrics = maps.Clone(st.view.Metrics)
	return view
}

func (t *Totals) add(stage StageView) {
	t.QueueSeconds += stage.QueueSeconds
	t.StartSeconds += stage.StartSeconds
	t.RunSeconds += stage.RunSeconds
	t.CPUSeconds += stage.CPUSeconds
	for venue, tasks := range stage.Tasks {
		t.Tasks[venue] += tasks
	}
	t.Attempts += stage.Attempts
	t.Failures += stage.Failed
	t.OutOfMemory += stage.OutOfMemory
	t.Cost += min(stage.Cost, math.MaxInt64/2-t.Cost)
}

// PoolCost is what an attempt costs that held size on the host for held: the part of the host's price that the larger
// of its shares of cores and of memory takes, because whoever holds all the memory leaves no core for others and the
// other way round. It is 0 for a host without a price or without capacity, and never more than the whole host.
func PoolCost(host predictor.Host, size quantity.Size, held time.Duration) quantity.Money {
	return pricing.Host{PerHour: host.PricePerHour, Capacity: host.Capacity}.For(size, held)
}
