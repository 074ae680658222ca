package predictor

import (
	"cmp"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// attempt is one that a venue has taken and whose Record has not come.
type attempt struct {
	Key   uint64  `json:"key"`
	Stage StageID `json:"stage"`
	Run   string  `json:"run"`
	Venue Venue   `json:"venue"`
	// Host is that of the process that supervises it, Instance names the start of that process; both are unknown of
	// attempts at functions that an earlier build started.
	Host     string `json:"host,omitempty"`
	Instance uint32 `json:"instance,omitempty"`
	PoolOnly bool   `json:"pool_only,omitempty"`
	Starving uint8  `json:"starving,omitempty"` // samples in a row in which its limit of CPU held it back
	// Lost says that its supervisor is gone: it does not run, and its task counts as waiting until somebody takes it
	// again. Replaced says that somebody has. Such an attempt is kept until its Record comes, so that its task is counted
	// once.
	Lost     bool    `json:"lost,omitempty"`
	Replaced bool    `json:"replaced,omitempty"`
	Started  instant `json:"started"`
	Heard    instant `json:"heard"` // the clock at its start or last sample
}

// runs reports whether the attempt counts as running.
func (a attempt) runs() bool { return !a.Lost && !a.Replaced }

const (
	// silence is how long an attempt may go without a start, a sample or a Record before it is forgotten, and its task
	// with it: the last resort for what neither a new start of its supervisor nor the end of a lease tells. It is time
	// between ticks, not by the clocks of hosts.
	silence = instant(10 * time.Minute)
	// unleased is how long the host of an attempt may be without a lease, and the attempt without a sample, before it is
	// lost: three leases of five seconds. A lease is gone at once when the server that holds it starts anew, and is back
	// within a second.
	unleased = instant(15 * time.Second)
	// longestStep is the most that the clock moves in one tick: what is more is a clock that was set, or a time in which
	// nobody led.
	longestStep = instant(5 * time.Second)
)

// advance moves the clock to a tick at now.
func (m *memory) advance(now instant) {
	if m.now > 0 {
		m.clock += min(max(0, now-m.now), longestStep)
	}
	m.now = now
}

// hostStarted loses what an earlier instance of a supervisor ran.
func (m *memory) hostStarted(e HostStarted) {
	if e.Host == "" || e.Instance == "" {
		return
	}
	instance := instanceKey(e.Instance)
	for key, running := range m.attempts {
		theirs := running.Host == e.Host || running.Venue == Function && running.Instance == 0
		if theirs && running.Venue == e.Venue && running.Instance != instance && running.runs() {
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
func (m *memory) lose(key uint64, running attempt) {
	running.Lost = true
	m.attempts[key] = running
	if st := m.stages[running.Stage]; st != nil {
		m.again(st, running.Run, queueOf(running.PoolOnly))
	}
}

// forgetAttempts loses the attempts whose host has been gone for too long and forgets those of which nothing was heard
// for longer still. It returns the stages of those that run.
func (d *decider) forgetAttempts() (used map[StageID]bool) {
	m := d.memory
	for _, host := range d.hosts {
		m.leased[host.ID] = m.clock
	}
	for host, seen := range m.leased {
		if m.clock-seen > silence {
			delete(m.leased, host)
		}
	}
	used = map[StageID]bool{}
	for key, running := range m.attempts {
		switch {
		case m.stages[running.Stage] == nil,
			m.clock-running.Heard > silence+instant(d.functions.MaxDuration)*functionTurn(running.Venue):
			delete(m.attempts, key)
			delete(m.grants, key)
			continue
		case !running.runs():
			continue
		case running.Venue == Pool && m.clock-max(running.Heard, m.leased[running.Host]) > unleased:
			m.lose(key, running)
			continue
		}
		used[running.Stage] = true
	}
	return used
}

// functionTurn is 1 for functions, which may be silent up to their limit, and 0 for the pool, whose supervisors send
// samples.
func functionTurn(venue Venue) instant {
	if venue == Function {
		return 1
	}
	return 0
}

func (m *memory) attemptStarted(e AttemptStarted) {
	now := at(e.At)
	key := attemptKey(e.Run, e.Task, e.Attempt)
	if _, running := m.attempts[key]; running || m.recent.has(key) {
		return
	}
	st := m.stage(e.Stage, now)
	if st == nil || (e.Venue != Pool && e.Venue != Function) {
		return
	}
	st.Active = max(st.Active, now)
	m.begun(e.Run, e.Queue)
	before := attemptKey(e.Run, e.Task, e.Attempt-1)
	last, known := m.attempts[before]
	if !known || last.Lost {
		m.take(st, e.Run, queueOf(e.PoolOnly), now)
	} // else its venue died without a word, and its task never came back through the queue's count
	if known {
		last.Replaced = true
		m.attempts[before] = last
	}
	if len(m.attempts) >= maxAttempts {
		return
	}
	m.attempts[key] = attempt{
		Key: key, Stage: e.Stage, Run: e.Run, Venue: e.Venue, Host: cmp.Or(e.Supervisor, e.Host),
		Instance: instanceKey(e.Instance),
		PoolOnly: e.PoolOnly, Started: now, Heard: m.clock,
	}
	m.hold(key, e.Grant)
}

func (m *memory) sampled(e Sampled) {
	key := attemptKey(e.Run, e.Task, e.Attempt)
	running, known := m.attempts[key]
	if !known || running.Replaced {
		return
	}
	running.Heard = m.clock
	m.hold(key, e.Grant)
	st := m.stages[running.Stage]
	if st == nil {
		return
	}
	st.Active = max(st.Active, at(e.At))
	if running.Lost { // it lives
		running.Lost = false
		m.take(st, running.Run, queueOf(running.PoolOnly), at(e.At))
	}
	running.Starving++
	if e.Venue != Pool || !(e.Throttled > throttledShare) {
		running.Starving = 0
	}
	if running.Starving >= starvedSamples {
		running.Starving = 0
		st.model.starve(e.Grant.CPU)
	}
	m.attempts[key] = running
	m.follow(st, e)
}

// hold notes what an attempt holds; an event that does not tell changes nothing.
func (m *memory) hold(key uint64, grant quantity.Size) {
	if grant = saneSize(grant); !grant.IsZero() {
		m.grants[key] = grant
	}
}

// again puts a task back that will be tried again. When that was its last try, the next observation of the backlog
// corrects the count.
func (m *memory) again(st *stage, run string, queue int) {
	part := st.Shares[run]
	if part == nil {
		return
	}
	st.Queues[queue].Tasks = min(st.Queues[queue].Tasks+1, maxTasks)
	part.Queued[queue] = min(part.Queued[queue]+1, maxTasks)
}
