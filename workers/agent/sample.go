package agent

import (
	"os"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// looked is one look at a process.
type looked struct {
	resident, peak quantity.Bytes
	cpu            time.Duration
}

// gauge follows what one attempt takes, from the kernel's numbers about its child. Its methods may be called concurrently.
type gauge struct {
	pid   int
	exact bool // the kernel's peak is that of this attempt

	mu       sync.Mutex
	started  looked
	last     looked
	lastAt   time.Time
	resident quantity.Bytes // the highest that was seen
}

// newGauge starts to follow pid. Fresh says that the process has run no attempt before.
func newGauge(pid int, fresh bool, now time.Time) *gauge {
	g := &gauge{pid: pid, exact: resetPeak(pid) || fresh, lastAt: now}
	g.started, _ = look(pid)
	g.last, g.resident = g.started, g.started.resident
	return g
}

// sample looks again; rate is the mean share of cores since the last look.
func (g *gauge) sample(now time.Time) (l looked, rate quantity.Milli, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	l, ok = look(g.pid)
	if !ok {
		return looked{}, 0, false
	}
	rate = quantity.Usage{CPU: l.cpu - g.last.cpu, Wall: now.Sub(g.lastAt)}.CPURate()
	g.last, g.lastAt, g.resident = l, now, max(g.resident, l.resident)
	return l, max(rate, 0), true
}

// usage returns what the attempt took. Answer is what the child said, nil when it said nothing; state is how it ended, nil while it
// lives. The kernel's numbers count more than the child's own.
func (g *gauge) usage(answer *wire.Answer, state *os.ProcessState, wall time.Duration, now time.Time) quantity.Usage {
	if state == nil {
		g.sample(now)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	usage := quantity.Usage{Wall: wall, CPU: g.last.cpu - g.started.cpu, PeakMemory: g.resident}
	if g.exact {
		usage.PeakMemory = max(g.last.peak, g.resident)
	}
	if state != nil {
		usage.CPU = max(usage.CPU, state.UserTime()+state.SystemTime()-g.started.cpu)
	}
	if answer == nil {
		return usage
	}
	if usage.PeakMemory == 0 {
		usage.PeakMemory = answer.PeakMemory
	}
	if answer.Wall > 0 {
		usage.Wall = answer.Wall
	}
	if answer.CPU > 0 {
		usage.CPU = answer.CPU // in finer steps than the kernel's
	}
	return usage
}
