package memory

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/plan"
)

const (
	// silence is how long an attempt may go without a start, a sample or a Record before it is forgotten, and its task
	// with it: the last resort for what neither a new start of its supervisor nor the end of a lease tells. It is time
	// between ticks, not by the clocks of hosts.
	silence = fact.Instant(10 * time.Minute)
	// unleased is how long the host of an attempt may be without a lease, and the attempt without a sample, before it is
	// lost: as long as a lease lasts. A lease is gone at once when the server that holds it starts anew, and is back
	// within a second.
	unleased = fact.Instant(15 * time.Second)
	// longestStep is the most that the clock moves in one tick: what is more is a clock that was set, or a time in which
	// nobody led.
	longestStep = fact.Instant(5 * time.Second)
	// forgotten is how long a stage of a build is kept without work; its model is kept on.
	forgotten = fact.Instant(time.Hour)
)

// Begin begins a tick of a term at now, and moves the clock to it.
func (m *State) Begin(term uint64, now fact.Instant) {
	if m.Term != term {
		m.Term, m.Tick = term, 0
	}
	m.Tick++
	if m.now > 0 {
		m.Clock += min(max(0, now-m.now), longestStep)
	}
	m.now = now
	m.Full = m.Full.by(now)
}

// Forget drops attempts that went silent and stages that have had nothing to do for long. The hosts are those that have
// a lease now; functions may be silent as long as one of their attempts may take.
func (m *State) Forget(hosts []plan.Host, longest time.Duration) {
	used := m.forgetAttempts(hosts, fact.Instant(longest))
	for id, st := range m.Stages {
		st.Active = min(st.Active, m.now) // a clock that ran ahead must not keep a stage warm for ever
		if !used[id] {
			m.unfollow(st)
		}
		if !used[id] && m.now-st.Active > forgotten && len(st.Shares) == 0 && st.Slots == 0 && st.Functions == 0 {
			delete(m.Stages, id)
		}
	}
}

// forgetAttempts loses the attempts whose host has been gone for too long and forgets those of which nothing was heard
// for longer still. It returns the stages of those that run.
func (m *State) forgetAttempts(hosts []plan.Host, longest fact.Instant) (used map[fact.StageID]bool) {
	for _, host := range hosts {
		m.leased[host.ID] = m.Clock
	}
	for host, seen := range m.leased {
		if m.Clock-seen > silence {
			delete(m.leased, host)
		}
	}
	used = map[fact.StageID]bool{}
	for key, running := range m.Attempts {
		patience := silence // the pool's supervisors send samples
		if running.Venue == fact.Function {
			patience += longest
		}
		switch {
		case m.Stages[running.Stage] == nil, m.Clock-running.Heard > patience:
			m.ran(running, -1)
			m.over(key)
			continue
		case !running.Runs():
			continue
		case running.Venue == fact.Pool && m.Clock-max(running.Heard, m.leased[running.Host]) > unleased:
			m.lose(key, running)
			continue
		}
		used[running.Stage] = true
	}
	return used
}
