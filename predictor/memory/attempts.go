package memory

import (
	"cmp"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Attempt is one that a venue has taken and whose Record has not come.
type Attempt struct {
	Key uint64 `json:"key"`
	// In is the stage's own ID, see Stage: with a copy of it an attempt would be larger than what a map holds in its
	// place, and each would be allocated (TestFoldingAnAttemptAllocatesNothing).
	In    *fact.StageID `json:"stage"`
	Run   string        `json:"run"`
	Venue fact.Venue    `json:"venue"`
	// Host is that of the process that supervises it, Instance names the start of that process; both are unknown of
	// attempts at functions that an earlier build started.
	Host     string `json:"host,omitempty"`
	Instance uint32 `json:"instance,omitempty"`
	PoolOnly bool   `json:"pool_only,omitempty"`
	Starving uint8  `json:"starving,omitempty"` // samples in a row in which its limit of CPU held it back
	// Lost says that its supervisor is gone: it does not run, and its task counts as waiting until somebody takes it
	// again. Replaced says that somebody has. Such an attempt is kept until its Record comes, so that its task is counted
	// once.
	Lost     bool         `json:"lost,omitempty"`
	Replaced bool         `json:"replaced,omitempty"`
	Started  fact.Instant `json:"started"`
	Heard    fact.Instant `json:"heard"` // the clock at its start or last sample
}

// Given is what was known of an attempt before it ran: its input in bytes, and the numbers by name that run times of
// its stage are followed by, or may be. The zero value is that of one whose start does not tell.
type Given struct {
	Input    quantity.Bytes     `json:"input,omitempty"`
	Features map[string]float64 `json:"features,omitempty"`
}

// Holding is what an attempt held when it began, or at its last sample.
type Holding struct {
	quantity.Size
	// Resized says that it had several shares of a core: how long it takes is that of none of them.
	Resized bool `json:"resized,omitempty"`
	// Others is what it costs that the other hosts of its gang hold their parts for an hour; 0 where it is on one host.
	Others quantity.Money `json:"others_per_hour_picodollars,omitempty"`
}

// Stage is the stage of the attempt; the zero StageID of the zero Attempt.
func (a Attempt) Stage() fact.StageID {
	if a.In == nil {
		return fact.StageID{}
	}
	return *a.In
}

// Runs reports whether the attempt counts as running.
func (a Attempt) Runs() bool { return !a.Lost && !a.Replaced }

// Age is for how many seconds an attempt has run. A host's clock may be an hour off: no attempt is older than the call
// of its stage or the first of its run, and one that is yet to begin is as old as it can be.
func (m *State) Age(running Attempt, now fact.Instant) float64 {
	began := running.Started
	if st := m.Stages[running.Stage()]; st != nil && st.Shares[running.Run] != nil {
		called := st.Shares[running.Run].First
		if r := st.Shares[running.Run].Run; r.Known && r.Begun {
			called = max(called, r.Started+r.Waited)
		}
		if began = max(began, called); running.Started > now {
			began = called
		}
	}
	return now.Since(began)
}

// hostStarted loses what an earlier instance of a supervisor ran.
func (m *State) hostStarted(e fact.HostStarted) {
	if e.Host == "" || e.Instance == "" {
		return
	}
	instance := instanceKey(e.Instance)
	for key, running := range m.Attempts {
		theirs := running.Host == e.Host || running.Venue == fact.Function && running.Instance == 0
		if theirs && running.Venue == e.Venue && running.Instance != instance && running.Runs() {
			m.lose(key, running)
		}
	}
}

// instanceKey names an instance in little room; 0 is that of which nothing is known.
func instanceKey(instance string) uint32 {
	if instance == "" {
		return 0
	}
	return max(1, uint32(hash(fnvOffset, instance)>>32))
}

// lose puts the task of an attempt back that does not run any more.
func (m *State) lose(key uint64, running Attempt) {
	m.ran(running, -1)
	running.Lost = true
	m.Attempts[key] = running
	if st := m.Stages[running.Stage()]; st != nil {
		m.again(st, running.Run, queueOf(running.PoolOnly))
	}
}

func (m *State) attemptStarted(e fact.AttemptStarted) {
	now := fact.At(e.At)
	key := attemptKey(e.Run, e.Task, e.Attempt)
	if _, known := m.Attempts[key]; known || m.recent.has(key) {
		return
	}
	st := m.stage(e.Stage, now)
	if st == nil || (e.Venue != fact.Pool && e.Venue != fact.Function) {
		return
	}
	st.Active = max(st.Active, now)
	m.begun(e.Run, e.Queue)
	before := attemptKey(e.Run, e.Task, e.Attempt-1)
	last, known := m.Attempts[before]
	if !known || last.Lost {
		m.take(st, e.Run, queueOf(e.PoolOnly), now)
	} // else its venue died without a word, and its task never came back through the queue's count
	if known {
		m.ran(last, -1)
		last.Replaced = true
		m.Attempts[before] = last
	}
	if len(m.Attempts) >= maxAttempts {
		return
	}
	running := Attempt{
		Key: key, In: &st.ID, Run: e.Run, Venue: e.Venue, Host: cmp.Or(e.Supervisor, e.Host),
		Instance: instanceKey(e.Instance),
		PoolOnly: e.PoolOnly, Started: now, Heard: m.Clock,
	}
	m.Attempts[key] = running
	m.ran(running, 1)
	m.hold(key, e.Grant)
	if others := othersOf(e.Members); others > 0 {
		held := m.Grants[key]
		held.Others = others
		m.Grants[key] = held
	}
	if e.Input > 0 || len(e.Features) > 0 {
		m.Given[key] = Given{Input: min(max(0, e.Input), fact.MaxPeakMemory), Features: st.Model.followable(e.Features)}
	}
}

// othersOf is what the other hosts of a gang cost per hour.
func othersOf(members []fact.HostShare) (perHour quantity.Money) {
	for _, one := range members {
		perHour = min(perHour+min(max(one.PerHour, 0), fact.MaxCost), fact.MaxCost)
	}
	return perHour
}

// over forgets what is known of an attempt besides that it was there.
func (m *State) over(key uint64) {
	delete(m.Attempts, key)
	delete(m.Grants, key)
	delete(m.Given, key)
	delete(m.steps, key)
}

func (m *State) sampled(e fact.Sampled) {
	key := attemptKey(e.Run, e.Task, e.Attempt)
	running, known := m.Attempts[key]
	if !known || running.Replaced {
		return
	}
	running.Heard = m.Clock
	m.hold(key, e.Grant)
	st := m.Stages[running.Stage()]
	if st == nil {
		return
	}
	st.Active = max(st.Active, fact.At(e.At))
	if running.Lost { // it lives
		running.Lost = false
		m.ran(running, 1)
		m.take(st, running.Run, queueOf(running.PoolOnly), fact.At(e.At))
	}
	m.progressed(key, e)
	m.trail(report{
		run: e.Run, task: e.Task, stage: e.Stage, attempt: e.Attempt, step: e.Step, metrics: e.Metrics,
		notFinite: e.NotFinite,
	})
	st.Model.plans(e.Training)
	running.Starving++
	if e.Venue != fact.Pool || !(e.Throttled > throttledShare) {
		running.Starving = 0
	}
	if running.Starving >= starvedSamples {
		running.Starving = 0
		st.Model.heldBack(e)
	}
	m.Attempts[key] = running
	m.follow(st, e)
}

// ran notes that one attempt more or less of a run's stage runs from now on.
func (m *State) ran(running Attempt, by int) {
	st := m.Stages[running.Stage()]
	if st == nil || st.Shares[running.Run] == nil || !running.Runs() {
		return
	}
	part := st.Shares[running.Run]
	part.Running = max(0, part.Running+by)
	part.Load.Most = max(part.Load.Most, part.Running)
}

// hold notes what an attempt holds; an event that does not tell changes nothing.
func (m *State) hold(key uint64, grant quantity.Size) {
	if grant = fact.SaneSize(grant); !grant.IsZero() {
		before, told := m.Grants[key]
		m.Grants[key] = Holding{
			Size: grant, Resized: before.Resized || told && before.CPU != grant.CPU, Others: before.Others,
		}
	}
}

// again puts a task back that will be tried again. When that was its last try, the next observation of the backlog
// corrects the count.
func (m *State) again(st *Stage, run string, queue int) {
	part := st.Shares[run]
	if part == nil {
		return
	}
	st.Queues[queue].Tasks = min(st.Queues[queue].Tasks+1, maxTasks)
	part.Queued[queue] = min(part.Queued[queue]+1, maxTasks)
}
