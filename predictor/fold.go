package predictor

import (
	"cmp"
	"math"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Fold remembers one event. It takes s over, as append does: use only the State it returns.
//
// No event can spoil the state: what is doubled, contradicts itself or belongs to no known run is ignored; numbers out
// of range are cut to it. Events may come in any order; those of one attempt and of one run usually come in theirs.
func Fold(s State, e Event) State {
	m := s.own()
	switch e := e.(type) {
	case RunStarted:
		m.runStarted(e)
	case GoalChanged:
		if r := m.runs[e.Run]; r != nil {
			r.Goal = sane(e.Goal)
		}
	case RunEnded:
		m.runEnded(e)
	case Scheduled:
		m.scheduled(e)
	case BacklogObserved:
		m.backlogObserved(e)
	case Reused:
		m.reused(e)
	case HostStarted:
		m.hostStarted(e)
	case AttemptStarted:
		m.attemptStarted(e)
	case Sampled:
		m.sampled(e)
	case Record:
		m.recorded(e)
	}
	return State{m}
}

func (m *memory) runStarted(e RunStarted) {
	if e.Run == "" {
		return
	}
	m.recent.remove(endKey(e.Run)) // the same ID may start again
	r := m.run(e.Run, at(e.At))
	if r.Known {
		return
	}
	r.Known, r.App, r.Pipeline, r.Goal, r.Started = true, e.App, e.Pipeline, sane(e.Goal), at(e.At)
}

func (m *memory) runEnded(e RunEnded) {
	if e.Run == "" {
		return
	}
	m.recent.add(endKey(e.Run))
	r := m.runs[e.Run]
	if r == nil {
		return
	}
	if e.State == RunSucceeded {
		m.keepPast(r, at(e.At))
	}
	m.drop(r)
}

func (m *memory) scheduled(e Scheduled) {
	now := at(e.At)
	if e.Tasks < 0 || (e.Tasks == 0 && e.Expected <= 0) || m.recent.has(endKey(e.Run)) {
		return
	}
	st := m.stage(e.Stage, now)
	if st == nil {
		return
	}
	tasks, queue := min(e.Tasks, maxTasks), queueOf(e.PoolOnly)
	st.Active = max(st.Active, now)
	st.Declared = saneSize(e.Declared)
	st.Input = max(st.Input, min(e.Input, maxPeakMemory))
	st.Queues[queue].Tasks = min(st.Queues[queue].Tasks+tasks, maxTasks)
	if tasks > 0 {
		st.Queues[queue].Hints.add(now, tasks)
	}
	part := m.share(st, e.Run, now)
	if part == nil {
		return
	}
	part.Queued[queue] = min(part.Queued[queue]+tasks, maxTasks)
	part.Scheduled = min(part.Scheduled+tasks, maxTasks)
	part.Further = min(max(0, part.Further-tasks)+min(max(0, e.Expected), maxTasks), maxTasks)
}

func (m *memory) reused(e Reused) {
	now := at(e.At)
	st := m.stage(e.Stage, now)
	if st == nil || e.Tasks <= 0 {
		return
	}
	if part := m.share(st, e.Run, now); part != nil {
		part.Reused = min(part.Reused+min(e.Tasks, maxTasks), maxTasks)
	}
}

// begun notes that the first attempt of a run has begun, and how long it has waited in the queue.
func (m *memory) begun(run string, queue time.Duration) {
	if r := m.runs[run]; r != nil && !r.Begun {
		r.Begun, r.Waited = true, instant(min(max(queue, 0), maxWall))
	}
}

// backlogObserved moves the estimate to the nearest count that the observation allows. The queue's count may be as old
// as settle, so tasks that were hinted since may be missing from it and tasks that started since may still be in it.
// Without this allowance an observation made just before a burst would erase the burst, and one made just before the
// queue ran empty would bring it back.
func (m *memory) backlogObserved(e BacklogObserved) {
	now := at(e.At)
	if e.Tasks < 0 || (e.Tasks == 0 && m.stages[e.Stage] == nil) {
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
	st.settleShares(queue)
}

// settleShares scales what runs have queued down to what there is.
func (st *stage) settleShares(queue int) {
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
func (m *memory) take(st *stage, run string, queue int, now instant) {
	st.Queues[queue].Tasks = max(0, st.Queues[queue].Tasks-1)
	st.Queues[queue].Starts.add(now, 1)
	if part := st.Shares[run]; part != nil {
		part.Queued[queue] = max(0, part.Queued[queue]-1)
	}
}

func (m *memory) recorded(e Record) {
	key := attemptKey(e.Run, e.Task, e.Attempt)
	if e.Task == "" || !m.recent.add(key) {
		return
	}
	now := at(e.At)
	st := m.stage(e.Stage, now)
	if st == nil {
		return
	}
	st.Active = max(st.Active, now)
	queue := queueOf(e.PoolOnly)
	running, known := m.attempts[key]
	m.exposed(e, cmp.Or(e.Grant.DeviceClass, m.grants[key].DeviceClass, st.Slot.DeviceClass))
	delete(m.attempts, key)
	delete(m.grants, key)
	if !known || running.Lost && !running.Replaced {
		m.take(st, e.Run, queue, now)
	}
	m.begun(e.Run, e.Queue)
	st.model.learn(e, now)
	st.model.trained(e.Training)
	m.charge(st, e, now)
	if running.Replaced {
		return // its task was taken again already
	}
	switch e.Outcome {
	case Failed, OutOfMemory, TimedOut, Lost:
		m.again(st, e.Run, queue)
	case Succeeded, Cancelled, Refused: // done, or hinted anew for the pool's own queue
	}
}

func (m *memory) charge(st *stage, e Record, now instant) {
	if m.runs[e.Run] == nil {
		return
	}
	part := m.share(st, e.Run, now)
	if e.Outcome == Succeeded {
		part.Done = min(part.Done+1, maxTasks)
	}
	cost := min(max(0, e.Cost), maxCost)
	part.Cost = min(part.Cost+cost, maxCost)
	part.run.Spent = min(part.run.Spent+cost, maxCost)
	part.Last = max(part.Last, now)
}

// maxCost bounds what one run is thought to have spent, so that sums cannot overflow.
const maxCost = quantity.Money(math.MaxInt64 / 4)

// queueOf is the index of a stage's queue: 0 for the one that functions poll too, 1 for the pool's own.
func queueOf(poolOnly bool) int {
	if poolOnly {
		return 1
	}
	return 0
}

func sane(goal Goal) Goal {
	goal.Deadline = max(0, goal.Deadline)
	goal.Budget = max(0, goal.Budget)
	if goal.Minimise != Cost && goal.Minimise != Latency {
		goal.Minimise = ""
	}
	return goal
}

func saneSize(size quantity.Size) quantity.Size {
	size.CPU = min(max(0, size.CPU), maxRate)
	size.Memory = min(max(0, size.Memory), maxPeakMemory)
	size.GPU = min(max(0, size.GPU), maxRate)
	size.GPUMemory = min(max(0, size.GPUMemory), maxPeakMemory)
	return size
}
