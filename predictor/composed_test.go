package predictor_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// world serves runs in virtual time with what plans give them, and folds what a real stack would tell. Unlike a
// recorded stream, which has the attempts of the slots that it had, it follows the decisions: one that differs changes
// all that come after it.
type world struct {
	script
	draw    *rand.Rand
	state   predictor.State
	plan    predictor.Plan
	now     float64
	next    map[string]int // by run: which of its stages comes next
	queued  []*task
	running []*execution
	left    map[string]int // by run: tasks of the stage at work that are not done
	spent   map[string]quantity.Money
	told    func(snapshot predictor.Snapshot, plan predictor.Plan, state predictor.State)
}

// script is what happens in a world.
type script struct {
	name     string
	seconds  int
	hosts    func(now float64) []predictor.Host
	venue    predictor.FunctionVenue
	policy   predictor.Policy
	runs     []scriptedRun
	restarts map[float64]string // a host whose process starts anew then, and loses what it ran
}

// scriptedRun is one run: its stages follow each other, but for those that go on beside the one before.
type scriptedRun struct {
	id       string
	pipeline string
	at       float64
	goal     predictor.Goal
	changes  map[float64]predictor.Goal
	stages   []load
}

// load is what one stage of a run has to do.
type load struct {
	stage    string
	tasks    int
	each     float64 // seconds between two tasks; 0 schedules all at once
	reused   int     // results of earlier runs
	poolOnly bool
	beside   bool
	declared quantity.Size
	input    func(draw *rand.Rand, i int) quantity.Bytes
	features func(draw *rand.Rand, i int) map[string]float64
	peak     func(input quantity.Bytes, features map[string]float64) quantity.Bytes
	device   quantity.Bytes // its peak on a GPU
	silent   bool           // its starts and samples do not tell what it holds
	wall     func(draw *rand.Rand, input quantity.Bytes) float64
	cores    float64
	fails    int // every so many-th attempt fails; 0 none
}

type task struct {
	run, name string
	load      *load
	need      predictor.Need
	attempt   int
	scheduled float64
	wall      float64
	after     float64 // not before
}

type execution struct {
	*task
	venue           predictor.Venue
	host            string
	size            quantity.Size
	expected        predictor.Prediction
	began, ends     float64
	cold            bool
	outcome         predictor.Outcome
	cause           predictor.Cause
	took, throttled float64
}

// told is what a start and samples tell of what it holds.
func (e *execution) told() quantity.Size {
	if e.load.silent {
		return quantity.Size{}
	}
	return e.size
}

const (
	worldStep = 0.25
	ticksEach = 4 // steps
)

// play runs the script and tells every plan with the state after it.
func (s script) play(tb testing.TB, told func(predictor.Snapshot, predictor.Plan, predictor.State)) predictor.State {
	tb.Helper()
	w := &world{
		script: s, draw: rand.New(rand.NewPCG(1, 2)), next: map[string]int{}, left: map[string]int{},
		spent: map[string]quantity.Money{}, told: told,
	}
	for step := range s.seconds * ticksEach {
		w.now = float64(step) * worldStep
		w.begin()
		w.finish()
		w.restart()
		w.advance()
		if step%ticksEach == 0 {
			w.observe(step / ticksEach)
			w.tick()
			if step%(60*ticksEach) == 59*ticksEach {
				w.restore(tb)
			}
		}
		w.serve()
	}
	return w.state
}

func (w *world) fold(e predictor.Event) { w.state = predictor.Fold(w.state, e) }

// begin starts the runs that are due and changes goals.
func (w *world) begin() {
	for _, run := range w.runs {
		if run.at == w.now {
			w.fold(predictor.RunStarted{
				Run: run.id, Pipeline: run.pipeline, App: "app", Build: "b1", Goal: run.goal,
				At: after(w.now),
			})
		}
		if goal, changes := run.changes[w.now]; changes {
			w.fold(predictor.GoalChanged{Run: run.id, Goal: goal, At: after(w.now)})
		}
	}
}

// advance schedules the tasks of the stage that is next in every run, and ends runs.
func (w *world) advance() {
	for i := range w.runs {
		run := &w.runs[i]
		if run.at > w.now || w.left[run.id] > 0 || w.next[run.id] > len(run.stages) {
			continue
		}
		if w.next[run.id] == len(run.stages) {
			w.fold(predictor.RunEnded{Run: run.id, State: predictor.RunSucceeded, At: after(w.now)})
			w.next[run.id]++
			continue
		}
		w.call(run)
		for w.next[run.id] < len(run.stages) && run.stages[w.next[run.id]].beside {
			w.call(run)
		}
	}
	for _, t := range w.queued {
		if t.attempt == 1 && t.scheduled == w.now {
			w.hint(t)
		}
	}
}

// call begins the next stage of a run.
func (w *world) call(run *scriptedRun) {
	stage := &run.stages[w.next[run.id]]
	w.next[run.id]++
	w.left[run.id] += stage.tasks
	if stage.reused > 0 {
		w.fold(predictor.Reused{
			Run: run.id, Stage: stageNamed(stage.stage), Tasks: stage.reused, From: "earlier", At: after(w.now),
		})
	}
	for n := range stage.tasks {
		w.schedule(run, stage, n)
	}
}

func (w *world) schedule(run *scriptedRun, stage *load, n int) {
	t := &task{run: run.id, name: fmt.Sprintf("%s-%d", stage.stage, n), load: stage, attempt: 1}
	if stage.input != nil {
		t.need.Input = stage.input(w.draw, n)
	}
	if stage.features != nil {
		t.need.Features = stage.features(w.draw, n)
	}
	t.wall = stage.wall(w.draw, t.need.Input)
	t.scheduled = w.now + float64(int(float64(n)*stage.each/worldStep))*worldStep
	t.after = t.scheduled
	w.queued = append(w.queued, t)
}

// hint tells of a task; the first of those that come one after the other announces the others.
func (w *world) hint(t *task) {
	expected := 0
	if t.load.each > 0 && t.name == t.load.stage+"-0" {
		expected = t.load.tasks - 1
	}
	w.fold(predictor.Scheduled{
		Run: t.run, Stage: stageNamed(t.load.stage), Tasks: 1, PoolOnly: t.load.poolOnly, Input: t.need.Input,
		Declared: t.load.declared, Expected: expected, At: after(w.now),
	})
}

// observe tells samples of what runs and the counts of the queues.
func (w *world) observe(second int) {
	present := map[string]bool{}
	for _, host := range w.hosts(w.now) {
		present[host.ID] = true
	}
	for _, e := range w.running {
		if present[e.host] && second%2 == 0 {
			part := min(1, (w.now-e.began+0.5)/e.took)
			w.fold(predictor.Sampled{
				Run: e.run, Stage: stageNamed(e.load.stage), Task: e.name, Attempt: e.attempt, Venue: e.venue, Host: e.host,
				CPU:    quantity.Milli(1000 * min(e.load.cores, e.size.CPU.Cores())),
				Memory: quantity.Bytes(part * float64(e.load.peak(e.need.Input, e.need.Features))), Grant: e.told(),
				Throttled: e.throttled, At: after(w.now),
			})
		}
	}
	if second%5 > 0 {
		return
	}
	waiting := map[predictor.BacklogObserved]int{}
	for _, t := range w.queued {
		at := after(w.now)
		key := predictor.BacklogObserved{Stage: stageNamed(t.load.stage), PoolOnly: t.load.poolOnly, At: at}
		if t.after <= w.now {
			waiting[key]++
		}
	}
	var counts []predictor.BacklogObserved
	for key, n := range waiting {
		key.Tasks = n
		counts = append(counts, key)
	}
	slices.SortFunc(counts, func(a, b predictor.BacklogObserved) int {
		return cmp.Or(cmp.Compare(a.Stage.Name, b.Stage.Name), cmp.Compare(a.Tasks, b.Tasks))
	})
	for _, count := range counts {
		w.fold(count)
	}
}

func (w *world) tick() {
	snapshot := predictor.Snapshot{
		Now: after(w.now), Term: 1, Hosts: w.hosts(w.now), Functions: w.venue, Policy: w.policy,
	}
	for i := range snapshot.Hosts {
		snapshot.Hosts[i].Free = w.free(snapshot.Hosts[i])
	}
	w.plan, w.state = predictor.Decide(w.state, snapshot)
	w.told(snapshot, w.plan, w.state)
}

// restore begins a term with a checkpoint and the plan in force.
func (w *world) restore(tb testing.TB) {
	tb.Helper()
	data := encode(tb, w.state)
	w.state = predictor.State{}
	if err := json.Unmarshal(data, &w.state); err != nil {
		tb.Fatalf("%s: read a checkpoint: %v", w.name, err)
	}
	w.state = predictor.Resume(w.state, w.plan)
}

// free is what attempts leave of a host.
func (w *world) free(host predictor.Host) quantity.Size {
	free := host.Capacity
	for _, e := range w.running {
		if e.venue == predictor.Pool && e.host == host.ID {
			free = free.Minus(e.size)
		}
	}
	return free
}

// serve starts what waits where the plan has a slot and the host has room.
func (w *world) serve() {
	hosts := map[string]predictor.Host{}
	for _, host := range w.hosts(w.now) {
		hosts[host.ID] = host
	}
	for _, placement := range w.plan.Placements {
		host, present := hosts[placement.Host]
		for n := w.occupied(placement.Stage, predictor.Pool, host.ID); present && n < placement.Slots; n++ {
			t := w.take(placement.Stage, true)
			if t == nil {
				break
			}
			size, expected, fits := w.sizing(placement.Stage).For(t.need, host.Capacity)
			if !fits || !size.Fits(w.free(host)) {
				w.queued = slices.Insert(w.queued, 0, t)
				break
			}
			w.start(t, predictor.Pool, host.ID, size, expected)
		}
	}
	for _, grant := range w.plan.Grants {
		for n := w.occupied(grant.Stage, predictor.Function, ""); grant.Venue == predictor.Function && n < grant.Slots; n++ {
			t := w.take(grant.Stage, false)
			if t == nil {
				break
			}
			w.start(t, predictor.Function, "functions", grant.Size, predictor.Prediction{})
		}
	}
}

func (w *world) occupied(stage predictor.StageID, venue predictor.Venue, host string) (n int) {
	for _, e := range w.running {
		if stageNamed(e.load.stage) == stage && e.venue == venue && (venue == predictor.Function || e.host == host) {
			n++
		}
	}
	return n
}

func (w *world) take(stage predictor.StageID, pool bool) *task {
	i := slices.IndexFunc(w.queued, func(t *task) bool {
		return stageNamed(t.load.stage) == stage && t.after <= w.now && (pool || !t.load.poolOnly)
	})
	if i < 0 {
		return nil
	}
	t := w.queued[i]
	w.queued = slices.Delete(w.queued, i, i+1)
	return t
}

func (w *world) sizing(stage predictor.StageID) (found predictor.Sizing) {
	for _, s := range w.plan.Sizings {
		if s.Stage == stage {
			found = s
		}
	}
	return found
}

func (w *world) start(
	t *task, venue predictor.Venue, host string, size quantity.Size, expected predictor.Prediction,
) {
	e := &execution{
		task: t, venue: venue, host: host, size: size, expected: expected, began: w.now, outcome: predictor.Succeeded,
	}
	speed := 1.0
	if cores := size.CPU.Cores(); cores < t.load.cores && venue == predictor.Pool {
		speed = cores / t.load.cores
		e.throttled = 1 - speed
	}
	e.took = t.wall / speed
	if venue == predictor.Function {
		e.took *= max(1, 1769*float64(quantity.MiB)/float64(size.Memory))
		e.cold = w.occupied(stageNamed(t.load.stage), venue, "") >= int(w.now)%3
	}
	peak := t.load.peak(t.need.Input, t.need.Features)
	switch {
	case peak > size.Memory:
		e.outcome, e.cause, e.took = predictor.OutOfMemory, predictor.CauseMemoryLimit, e.took/2
	case t.load.device > size.GPUMemory:
		e.outcome, e.cause, e.took = predictor.OutOfMemory, predictor.CauseDeviceMemory, e.took/2
	case t.load.fails > 0 && w.draw.IntN(t.load.fails) == 0:
		e.outcome, e.cause = predictor.Failed, predictor.CauseError
	}
	e.ends = w.now + e.took
	if e.cold {
		e.ends += 0.4
	}
	w.running = append(w.running, e)
	w.fold(predictor.AttemptStarted{
		Run: t.run, Stage: stageNamed(t.load.stage), Task: t.name, Attempt: t.attempt, Venue: venue, Host: host,
		PoolOnly: t.load.poolOnly, Queue: seconds(w.now - t.scheduled), Grant: e.told(), At: after(w.now),
	})
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// finish writes the Records of what has ended.
func (w *world) finish() {
	var going []*execution
	for _, e := range w.running {
		if e.ends > w.now {
			going = append(going, e)
			continue
		}
		w.record(e)
	}
	w.running = going
}

func (w *world) record(e *execution) {
	peak := min(e.load.peak(e.need.Input, e.need.Features), e.size.Memory)
	line := predictor.Record{
		Run: e.run, Pipeline: "p", Stage: stageNamed(e.load.stage), Task: e.name, Attempt: e.attempt, Venue: e.venue,
		Host: e.host, PoolOnly: e.load.poolOnly, Outcome: e.outcome, Cause: e.cause, ScheduledAt: after(e.scheduled),
		Queue: seconds(e.began - e.scheduled), Cold: e.cold, At: after(w.now), Grant: e.size, Predicted: e.expected,
		Usage: quantity.Usage{
			CPU: seconds(e.took * min(e.load.cores, e.size.CPU.Cores())), Wall: seconds(e.took), PeakMemory: peak,
			GPUPeakMemory: min(e.load.device, e.size.GPUMemory), Input: e.need.Input, Throttled: seconds(e.took * e.throttled),
		},
		Features: e.need.Features, Cost: quantity.Money(e.took * 1e7),
	}
	if e.cold {
		line.Start = 400 * time.Millisecond
	}
	if e.venue == predictor.Function {
		line.Cost = w.venue.Price(e.size.Memory, seconds(e.took))
	}
	w.fold(line)
	if e.outcome == predictor.Succeeded {
		w.left[e.run]--
		return
	}
	t := e.task
	t.attempt++
	t.after = w.now + 1
	if e.outcome == predictor.OutOfMemory {
		t.need.OutOfMemory++
		if e.cause == predictor.CauseDeviceMemory {
			t.need.LargestFailedGPU = max(t.need.LargestFailedGPU, e.size.GPUMemory)
		} else {
			t.need.LargestFailed = max(t.need.LargestFailed, e.size.Memory)
		}
	}
	if e.venue == predictor.Function && e.outcome == predictor.OutOfMemory {
		t.load = &load{}
		*t.load = *e.load
		t.load.poolOnly = true
	}
	w.queued = append(w.queued, t)
}

// restart loses what a host ran; the Records are written when it is back.
func (w *world) restart() {
	host := w.restarts[w.now]
	if host == "" {
		return
	}
	w.fold(predictor.HostStarted{Host: host, Venue: predictor.Pool, Instance: fmt.Sprint(w.now), At: after(w.now)})
	var going []*execution
	for _, e := range w.running {
		if e.host != host {
			going = append(going, e)
			continue
		}
		e.outcome, e.cause = predictor.Lost, predictor.CauseHostLost
		w.record(e)
	}
	w.running = going
}
