package memory

import (
	"cmp"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Attempt is one that a venue has taken and whose Record has not come.
type Attempt struct {
	Key   uint64       `json:"key"`
	Stage fact.StageID `json:"stage"`
	Run   string       `json:"run"`
	Venue fact.Venue   `json:"venue"`
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

// Holding is what an attempt held when it began, or at its last sample.
type Holding struct {
	quantity.Size
	// Resized says that it had several shares of a core: how long it takes is that of none of them.
	Resized bool `json:"resized,omitempty"`
}

// Progress is the last step that an attempt has reported, and when that was first heard of.
type Progress struct {
	Step int          `json:"step"`
	At   fact.Instant `json:"at"`
	// From is the step that was heard first, and Since when, of an attempt that may have gone on from the checkpoint of
	// one before it; both are 0 of a first attempt, which has taken all of its steps itself.
	From  int          `json:"from,omitempty"`
	Since fact.Instant `json:"since,omitempty"`
}

// ByProgress is how many seconds an attempt takes altogether if it goes on as fast as until its last step, by how many
// steps the attempts of its stage had reported when they ended; known is false where it tells none, or where those
// differ by more than a fifth.
func (m *State) ByProgress(running Attempt) (seconds float64, known bool) {
	st, now := m.Stages[running.Stage], m.steps[running.Key]
	if st == nil {
		return 0, false
	}
	steps, variation := st.Model.Steps.Mean()
	took := now.At.Since(cmp.Or(now.Since, running.Started))
	if now.Step <= now.From || !(took > 0) || !(steps > 0) || variation > mostStepVariation {
		return 0, false
	}
	left := max(0, steps-float64(now.Step)) * took / float64(now.Step-now.From)
	return now.At.Since(running.Started) + left, true
}

// mostStepVariation is how far the numbers of steps may lie from each other, relative to their mean, for one that goes
// on to be expected to come to as many.
const mostStepVariation = 0.2

// Runs reports whether the attempt counts as running.
func (a Attempt) Runs() bool { return !a.Lost && !a.Replaced }

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
	if st := m.Stages[running.Stage]; st != nil {
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
		Key: key, Stage: e.Stage, Run: e.Run, Venue: e.Venue, Host: cmp.Or(e.Supervisor, e.Host),
		Instance: instanceKey(e.Instance),
		PoolOnly: e.PoolOnly, Started: now, Heard: m.Clock,
	}
	m.Attempts[key] = running
	m.ran(running, 1)
	m.hold(key, e.Grant)
}

func (m *State) sampled(e fact.Sampled) {
	key := attemptKey(e.Run, e.Task, e.Attempt)
	running, known := m.Attempts[key]
	if !known || running.Replaced {
		return
	}
	running.Heard = m.Clock
	m.hold(key, e.Grant)
	st := m.Stages[running.Stage]
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

// progressed notes the steps that an attempt reports.
func (m *State) progressed(key uint64, e fact.Sampled) {
	before, told := m.steps[key]
	if e.Step <= before.Step {
		return
	}
	now := Progress{Step: e.Step, At: fact.At(e.At), From: before.From, Since: before.Since}
	if !told && e.Attempt > 1 {
		now.From, now.Since = now.Step, now.At
	}
	m.steps[key] = now
}

// ran notes that one attempt more or less of a run's stage runs from now on.
func (m *State) ran(running Attempt, by int) {
	st := m.Stages[running.Stage]
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
		m.Grants[key] = Holding{Size: grant, Resized: before.Resized || told && before.CPU != grant.CPU}
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
