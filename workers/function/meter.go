package function

import (
	"maps"
	"sync"
	"time"
)

// samplePeriod is how often the memory of busy environments is measured.
const samplePeriod = 50 * time.Millisecond

// meter samples the memory of environments while at least one of them is busy, where the kernel does not hold it. A nil
// meter does nothing.
type meter struct {
	table   *processTable // used by the sampling goroutine only
	wake    chan struct{}
	closing chan struct{}
	ended   sync.WaitGroup

	mu   sync.Mutex
	envs map[int]*environment // by process group
	busy int
}

func newMeter() *meter {
	m := &meter{
		table:   newProcessTable(),
		wake:    make(chan struct{}, 1),
		closing: make(chan struct{}),
		envs:    make(map[int]*environment),
	}
	m.ended.Go(m.run)
	return m
}

// close stops the sampling.
func (m *meter) close() {
	if m == nil {
		return
	}
	close(m.closing)
	m.ended.Wait()
}

// add makes env, which has started, known to the meter.
func (m *meter) add(env *environment) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.envs[env.pid] = env
}

// remove makes the meter forget env.
func (m *meter) remove(env *environment) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.envs, env.pid)
}

// begin asks for samples until the function that it returns is called.
func (m *meter) begin() (end func()) {
	if m == nil {
		return func() {}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.busy++
	select {
	case m.wake <- struct{}{}:
	default:
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.busy--
	}
}

// run samples until close; it sleeps while nothing is busy.
func (m *meter) run() {
	for {
		select {
		case <-m.wake:
		case <-m.closing:
			return
		}
		if !m.sampleWhileBusy() {
			return
		}
	}
}

// sampleWhileBusy reports whether the meter goes on.
func (m *meter) sampleWhileBusy() bool {
	ticker := time.NewTicker(samplePeriod)
	defer ticker.Stop()
	for m.sample() {
		select {
		case <-ticker.C:
		case <-m.closing:
			return false
		}
	}
	return true
}

// sample measures every environment and reports whether any is busy.
func (m *meter) sample() bool {
	m.mu.Lock()
	if m.busy == 0 {
		m.mu.Unlock()
		return false
	}
	groups := maps.Clone(m.envs)
	m.mu.Unlock()
	for pgid, resident := range m.table.resident(groups) {
		groups[pgid].observe(resident)
	}
	return true
}
