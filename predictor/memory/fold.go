package memory

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/gang"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Fold remembers one event.
//
// No event can spoil what is remembered: what is doubled, contradicts itself or belongs to no known run is ignored;
// numbers out of range are cut to it. Events may come in any order; those of one attempt and of one run usually come in
// theirs.
func (m *State) Fold(e fact.Event) {
	switch e := e.(type) {
	case fact.RunStarted:
		m.runStarted(e)
	case fact.GoalChanged:
		if r := m.Runs[e.Run]; r != nil {
			r.Goal = fact.SaneGoal(e.Goal)
		}
	case fact.RunEnded:
		m.runEnded(e)
	case fact.Scheduled:
		m.scheduled(e)
	case fact.BacklogObserved:
		m.backlogObserved(e)
	case fact.Reused:
		m.reused(e)
	case fact.HostStarted:
		m.hostStarted(e)
	case fact.AttemptStarted:
		m.attemptStarted(e)
	case fact.Sampled:
		m.sampled(e)
	case fact.Record:
		m.Record(e)
	}
}

func (m *State) runStarted(e fact.RunStarted) {
	if e.Run == "" {
		return
	}
	m.recent.remove(endKey(e.Run)) // the same ID may start again
	r := m.run(e.Run, fact.At(e.At))
	if r.Known {
		return
	}
	r.Known, r.App, r.Pipeline, r.Goal, r.Started = true, e.App, e.Pipeline, fact.SaneGoal(e.Goal), fact.At(e.At)
	r.Input, r.Features = min(max(0, e.InputBytes), fact.MaxPeakMemory), usage.Few(e.Features)
	if len(e.Stages) <= maxCalls {
		r.Calls = e.Stages
	}
}

func (m *State) runEnded(e fact.RunEnded) {
	if e.Run == "" {
		return
	}
	m.recent.add(endKey(e.Run))
	r := m.Runs[e.Run]
	if r == nil {
		return
	}
	if e.State == fact.RunSucceeded {
		m.keepPast(r, fact.At(e.At))
	}
	m.drop(r)
}

// withdrawn takes back what was announced of tasks that will not come. What a stage is thought to be sent for the rest
// of the run would else keep its function slots, and a part of the run's goal.
func (m *State) withdrawn(e fact.Scheduled) {
	if st := m.Stages[e.Stage]; st != nil && st.Shares[e.Run] != nil {
		part := st.Shares[e.Run]
		part.Further = max(0, part.Further-e.Withdrawn)
	}
}

func (m *State) scheduled(e fact.Scheduled) {
	if e.Withdrawn > 0 && e.Tasks == 0 && e.Expected == 0 {
		m.withdrawn(e)
		return
	}
	now := fact.At(e.At)
	if e.Tasks < 0 || (e.Tasks == 0 && e.Expected <= 0) || m.recent.has(endKey(e.Run)) {
		return
	}
	st := m.stage(e.Stage, now)
	if st == nil {
		return
	}
	tasks, queue := min(e.Tasks, maxTasks), queueOf(e.PoolOnly)
	st.Active = max(st.Active, now)
	st.Declared, st.Batches = fact.SaneSize(e.Declared), e.Batches
	if e.Tasks > 0 {
		st.Hosts = min(max(e.Hosts, 0), gang.MostHosts)
	}
	if e.Program != "" {
		st.Model.Program = strings.ToValidUTF8(e.Program[:min(len(e.Program), maxProgram)], "")
		st.Model.Fixed, st.Model.Imports = e.Fixed, saneImports(st.Model.Imports, e.Imports)
		st.Model.Kind = strings.ToValidUTF8(e.Kind[:min(len(e.Kind), maxProgram)], "")
	}
	st.Unfit.Declared = "" // scripts of one name may differ: the latest tells
	if e.PoolOnly {
		st.Unfit.Declared = saneReason(e.Unfit)
	}
	st.Input = max(st.Input, min(e.Input, fact.MaxPeakMemory))
	st.Queues[queue].hinted(tasks, min(e.Input, fact.MaxPeakMemory))
	st.Queues[queue].Tasks = min(st.Queues[queue].Tasks+tasks, maxTasks)
	if tasks > 0 {
		st.Queues[queue].Hints.add(now, tasks)
		m.arrivals.arrived(st.Model.Name, tasks)
	}
	part := m.share(st, e.Run, now)
	if part == nil {
		return
	}
	part.Load.Input += float64(tasks) * float64(min(max(0, e.Input), fact.MaxPeakMemory))
	part.Load.Inputs.add(tasks, e.Input)
	part.Queued[queue] = min(part.Queued[queue]+tasks, maxTasks)
	part.Scheduled = min(part.Scheduled+tasks, maxTasks)
	if (e.Expected > 0 || e.Tuning) && part.Tuning != e.Tuning { // an announcement may be lost
		if part.Tuning = e.Tuning; e.Tuning {
			part.Window = 0 // it has few, whatever a Map before it had
		}
	}
	part.Further = min(max(0, part.Further-tasks)+min(max(0, e.Expected), maxTasks), maxTasks)
}

// saneImports are at most maxImports of these names, sorted, without those that are longer than maxProgram; nil stays
// nil. A hint comes with each task, so where they are those that are known, nothing is made anew.
func saneImports(known, names []string) []string {
	if names == nil {
		return nil
	}
	if known != nil && slices.Equal(known, names) {
		return known
	}
	sane := make([]string, 0, min(len(names), maxImports))
	for _, name := range names[:min(len(names), maxImports)] {
		if name = strings.ToValidUTF8(name, ""); name != "" && len(name) <= maxProgram {
			sane = append(sane, name)
		}
	}
	slices.Sort(sane)
	return slices.Compact(sane)
}

// hinted takes the input of further tasks into the mean. Which of its tasks a queue has given away is not known, so
// those that are left are taken for as large as those that are gone.
func (b *Backlog) hinted(tasks int, input quantity.Bytes) {
	if tasks <= 0 || input <= 0 {
		return
	}
	if b.Tasks <= 0 || b.Input <= 0 {
		b.Input = float64(input)
		return
	}
	b.Input = math.Round(b.Input + (float64(input)-b.Input)*float64(tasks)/float64(b.Tasks+tasks))
}

func (m *State) reused(e fact.Reused) {
	now := fact.At(e.At)
	st := m.stage(e.Stage, now)
	if st == nil || e.Tasks <= 0 {
		return
	}
	if part := m.share(st, e.Run, now); part != nil {
		part.Reused = min(part.Reused+min(e.Tasks, maxTasks), maxTasks)
	}
}

// begun notes that the first attempt of a run has begun, and how long it has waited in the queue.
func (m *State) begun(run string, queue time.Duration) {
	if r := m.Runs[run]; r != nil && !r.Begun {
		r.Begun, r.Waited = true, fact.Instant(min(max(queue, 0), fact.MaxWall))
	}
}

// backlogObserved moves the estimate to the nearest count that the observation allows. The queue's count may be as old
// as countAge, so tasks that were hinted since may be missing from it and tasks that started since may still be in it.
// Without this allowance an observation made just before a burst would erase the burst, and one made just before the
// queue ran empty would bring it back.
func (m *State) backlogObserved(e fact.BacklogObserved) {
	now := fact.At(e.At)
	if e.Tasks < 0 || (e.Tasks == 0 && m.Stages[e.Stage] == nil) {
		return
	}
	st := m.stage(e.Stage, now)
	if st == nil {
		return
	}
	observed, queue := min(e.Tasks, maxTasks), queueOf(e.PoolOnly)
	if observed > 0 {
		st.Active = max(st.Active, now)
	}
	line := &st.Queues[queue]
	least := max(0, observed-line.Starts.count(now))
	most := observed + line.Hints.count(now)
	line.Tasks = min(max(line.Tasks, least), most)
	st.scaleShares(queue)
}

// scaleShares scales what runs have queued down to what there is.
func (st *Stage) scaleShares(queue int) {
	sum := 0
	for _, part := range st.Shares {
		sum += part.Queued[queue]
	}
	if sum <= st.Queues[queue].Tasks {
		return
	}
	for _, part := range st.Shares {
		part.Queued[queue] = int(float64(part.Queued[queue]) * float64(st.Queues[queue].Tasks) / float64(sum))
	}
}

// take removes one task from the queue.
func (m *State) take(st *Stage, run string, queue int, now fact.Instant) {
	st.Queues[queue].Tasks = max(0, st.Queues[queue].Tasks-1)
	st.Queues[queue].Starts.add(now, 1)
	if part := st.Shares[run]; part != nil {
		part.Queued[queue] = max(0, part.Queued[queue]-1)
	}
}

// Record remembers how an attempt ended, and reports whether that was not known yet.
func (m *State) Record(e fact.Record) (news bool) {
	key := attemptKey(e.Run, e.Task, e.Attempt)
	if e.Task == "" || !m.recent.add(key) {
		return false
	}
	now := fact.At(e.At)
	st := m.stage(e.Stage, now)
	if st == nil {
		return false
	}
	st.Active = max(st.Active, now)
	queue := queueOf(e.PoolOnly)
	running, known := m.Attempts[key]
	m.ran(running, -1)
	m.throttled(e)
	device := cmp.Or(e.Grant.DeviceClass, m.Grants[key].DeviceClass, st.Slot.DeviceClass)
	m.exposed(e, device)
	held, told := m.Grants[key]
	resized := held.Resized || told && e.Grant.CPU > 0 && e.Grant.CPU != held.CPU
	m.over(key)
	if !known || running.Lost && !running.Replaced {
		m.take(st, e.Run, queue, now)
	}
	m.begun(e.Run, e.Queue)
	st.Model.learn(e, resized, now)
	st.Model.onDevice(e, device, resized)
	st.Unfit.learn(e, now)
	if st.Live != nil {
		st.Live.Peak = 0 // what has ended is known
	}
	st.Model.trained(e)
	m.charge(st, e, fact.At(e.Ended()))
	m.paid(e.Stage.Team, fact.At(e.Ended()), min(max(0, e.Cost), fact.MaxCost))
	if running.Replaced {
		return true // its task was taken again already
	}
	m.trail(report{
		run: e.Run, task: e.Task, stage: e.Stage, attempt: e.Attempt, step: e.Step, metrics: e.Metrics,
		notFinite: e.NotFinite, curve: e.Curve,
	})
	m.trailed(st, e)
	switch part := st.Shares[e.Run]; {
	case e.Outcome == fact.Succeeded:
	case e.Outcome == fact.Refused, e.Next == fact.NextPool:
		if part != nil {
			part.unscheduled(e.Usage.Input) // it is hinted anew for the pool's own queue
		}
	case e.Outcome == fact.Cancelled, e.Next == fact.NextNothing:
		if part != nil {
			part.Ceased = min(part.Ceased+1, maxTasks)
		}
	case e.Outcome == fact.Failed, e.Outcome == fact.OutOfMemory, e.Outcome == fact.TimedOut, e.Outcome == fact.Lost:
		m.again(st, e.Run, queue)
	}
	return true
}

// unscheduled takes a task off those that were scheduled, with its input: it is told of twice, and done once.
func (s *Share) unscheduled(input quantity.Bytes) {
	if s.Scheduled == 0 {
		return
	}
	s.Scheduled--
	s.Load.Input = max(0, s.Load.Input-float64(min(max(0, input), fact.MaxPeakMemory)))
	s.Load.Inputs = s.Load.Inputs.Less(InputsOf(1, input))
}

func (m *State) charge(st *Stage, e fact.Record, now fact.Instant) {
	if m.Runs[e.Run] == nil {
		return
	}
	part := m.share(st, e.Run, now)
	if e.Outcome == fact.Succeeded {
		part.Done = min(part.Done+1, maxTasks)
		own, workers := e.Training.OwnPart(e.Usage.Wall)
		for range workers {
			part.Load.took(own, e.Usage.Input)
		}
	}
	cost := min(max(0, e.Cost), fact.MaxCost)
	part.Cost = min(part.Cost+cost, fact.MaxCost)
	part.Run.Spent = min(part.Run.Spent+cost, fact.MaxCost)
	part.Last = max(part.Last, now)
}

// took adds the run time of a task, and its input.
func (l *Load) took(wall time.Duration, input quantity.Bytes) {
	if wall > 0 && wall <= fact.MaxWall {
		l.Fed.add(1, input)
		l.Done, l.Busy = min(l.Done+1, maxTasks), l.Busy+microseconds(wall.Seconds())
		l.Longest = max(l.Longest, microseconds(wall.Seconds()))
		log := math.Log(max(wall.Seconds(), 1e-6))
		away := log - l.Logs // Welford's recurrence, numerically stable (Technometrics 4(3), 1962)
		l.Logs = microseconds(l.Logs + away/float64(l.Done))
		l.Scatter = microseconds(l.Scatter + away*(log-l.Logs))
	}
}

// queueOf is the index of a stage's queue: 0 for the one that functions poll too, 1 for the pool's own.
func queueOf(poolOnly bool) int {
	if poolOnly {
		return 1
	}
	return 0
}
