package agent

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// looked is what an attempt takes now.
type looked struct {
	memory    quantity.Bytes // that cannot be taken away from it
	rate      quantity.Milli // mean share of cores since the last look
	throttled float64        // the part of the time since the last look in which its CPU limit held it back
}

// gauge follows what one attempt takes, from the kernel's numbers about its group. Its methods may be called
// concurrently.
type gauge struct {
	group   *enforce.Group
	counted bool // the kernel counts the group's processes to their end

	mu      sync.Mutex
	started enforce.Usage
	last    enforce.Usage
	lastAt  time.Time
	forgot  bool // the peak is that of a part of its life
}

// newGauge starts to follow the attempt that begins in group now, in this mode.
func newGauge(group *enforce.Group, mode enforce.Mode, now time.Time) *gauge {
	g := &gauge{group: group, counted: mode != enforce.None, lastAt: now}
	// Numbers that cannot be read are zero, and then the child's own count.
	_ = group.ResetPeak()
	g.started, _ = group.Usage()
	g.last = g.started
	return g
}

// sample looks again; ok is false when the kernel's numbers cannot be read.
func (g *gauge) sample(now time.Time) (l looked, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	usage, err := g.group.Usage()
	if err != nil {
		return looked{}, false
	}
	since := now.Sub(g.lastAt)
	l = looked{
		memory: usage.WorkingSet,
		rate:   max(quantity.Usage{CPU: usage.CPU - g.last.CPU, Wall: since}.CPURate(), 0),
	}
	if throttled := usage.Throttled - g.last.Throttled; since > 0 && throttled > 0 {
		l.throttled = min(throttled.Seconds()/since.Seconds(), 1)
	}
	g.last, g.lastAt = usage, now
	return l, true
}

// forget makes the peak start anew, unless the kernel has killed at it. What it has killed and refused is counted on.
func (g *gauge) forget() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.last.OutOfMemory == 0 && g.group.ForgetPeak() == nil {
		g.forgot = true
	}
}

// memory is what the attempt takes now that cannot be taken away from it; ok is false when the kernel's numbers cannot
// be read.
func (g *gauge) memory() (taken quantity.Bytes, ok bool) {
	usage, err := g.group.Usage()
	return usage.WorkingSet, err == nil
}

// killed looks whether the kernel has killed a process of the attempt for memory. Where the numbers cannot be read,
// nothing is known of a kill.
func (g *gauge) killed() bool {
	usage, err := g.group.Usage()
	return err == nil && usage.OutOfMemory > 0
}

// charged is the most that the kernel has counted against the attempt's limit, file cache included.
func (g *gauge) charged() quantity.Bytes {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last.Peak
}

// kills is how many processes of the attempt the kernel has killed for memory.
func (g *gauge) kills() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.last.OutOfMemory
}

// refused tells of the processes and threads that the kernel has not started for the attempt, which may have this many.
func (g *gauge) refused(most int) refusals {
	g.mu.Lock()
	defer g.mu.Unlock()
	return refusals{forks: g.last.ForksRefused, most: most, peak: g.last.PeakProcesses}
}

// usage returns what the attempt took. Answer is what the child said, nil when it said nothing; state is how its
// process ended, nil while it lives. The kernel's numbers count more than the child's own.
func (g *gauge) usage(answer *wire.Answer, state *os.ProcessState, wall time.Duration, now time.Time) quantity.Usage {
	g.sample(now)
	g.mu.Lock()
	defer g.mu.Unlock()
	took := g.last
	usage := quantity.Usage{
		Wall: wall, CPU: took.CPU - g.started.CPU, PeakMemory: took.PeakWorkingSet,
		Throttled: took.Throttled - g.started.Throttled, Active: took.Active - g.started.Active,
		Stalled:  took.MemoryPressure.Some - g.started.MemoryPressure.Some,
		DiskRead: took.Read - g.started.Read, DiskWritten: took.Written - g.started.Written,
	}
	if state != nil && !g.counted { // its processes took more between the last look and their end
		usage.CPU = max(usage.CPU, state.UserTime()+state.SystemTime()-g.started.CPU)
		// the system's own peak is that of the whole life of each process
		if own, ok := state.SysUsage().(*syscall.Rusage); ok && !g.forgot {
			usage.PeakMemory = max(usage.PeakMemory, quantity.Bytes(own.Maxrss)*maxrssUnit)
		}
	}
	if answer == nil {
		return usage
	}
	usage.Squeezed, usage.Fetch, usage.Publish = answer.Squeezed, answer.Fetch, answer.Publish
	if usage.PeakMemory == 0 {
		usage.PeakMemory = answer.PeakMemory
	}
	if answer.Wall > 0 {
		usage.Wall = answer.Wall
	}
	if !g.counted && answer.CPU > 0 {
		usage.CPU = max(usage.CPU, answer.CPU) // in finer steps
	}
	return usage
}

// sample publishes what the attempt takes now, and gives it more memory when it comes close to its limit. An attempt
// that outgrew its grant, where nothing holds it, is counted with what it takes, so that its neighbours are not
// admitted into memory that is not there.
func (r *running) sample() {
	a := r.agent
	now := a.now()
	r.mu.Lock()
	gauge := r.gauge
	r.mu.Unlock()
	l, ok := gauge.sample(now)
	if !ok {
		return
	}
	r.tellCrowded(gauge.refused(a.enforcer.Processes()))
	r.mu.Lock()
	r.used = l.memory
	held := r.grant
	r.mu.Unlock()
	r.room.resize(func(held, _ quantity.Size) quantity.Size {
		held.Memory = max(held.Memory, l.memory)
		return held
	})
	if sizing, known := a.sizing(r.try.Task.Stage); known && !sizing.Live.IsZero() {
		r.resize(sizing, now)
	}
	if r.borrows {
		r.follow(l.memory, now)
		r.lend()
	} else {
		r.change(now, func(held, free quantity.Size) quantity.Size {
			held.Memory = predictor.Relief(held.Memory, r.admitted.Memory, r.expected, l.memory, free.Memory)
			return held
		})
	}
	state, task, news := r.try.State(), r.try.Task, r.try.News()
	if news != nil && !r.planned {
		// What the plan of a training took, which held the whole model and several at once, is bounded by the limit and
		// tells nothing of what the training takes.
		r.planned = true
		gauge.forget()
	}
	a.recorder.Tell(predictor.Sampled{
		Run: task.Run, Stage: task.Stage, Task: task.ID, Attempt: r.try.Number, Venue: predictor.Pool, Host: a.id,
		CPU: l.rate, Memory: l.memory, Throttled: l.throttled, GPU: a.gpus.sample(r.gpus), Grant: held,
		Step: state.Step, Of: state.Of, Metrics: state.Metrics, NotFinite: state.NotFinite,
		Training: news, At: now,
	})
}

// tellCrowded says once, where the attempt's own lines are, that it was refused processes: it may go on for hours with
// fewer workers than it was told to have.
func (r *running) tellCrowded(refused refusals) {
	if refused.forks == 0 || r.crowded || r.lines == nil {
		return
	}
	r.crowded = true
	_, _ = fmt.Fprintf(r.lines.Stderr(), "spillway: %s\n", refused) // it never fails
	r.agent.logger.Warn("an attempt was refused processes", "run", r.try.Task.Run, "task", r.try.Task.ID,
		"reason", refused.String())
}

// usage is what the attempt took, with what the end of its process adds; f is told what the kernel killed.
func (r *running) usage(
	f *finish, process *exec.Cmd, wall time.Duration, now time.Time, input quantity.Bytes,
) quantity.Usage {
	r.mu.Lock()
	gauge := r.gauge
	r.mu.Unlock()
	var state *os.ProcessState
	if f.exit != nil {
		state = process.ProcessState
	}
	usage := gauge.usage(f.answer, state, wall, now)
	f.kills, f.enforced = gauge.kills(), gauge.counted
	f.refusals = gauge.refused(r.agent.enforcer.Processes())
	r.tellCrowded(f.refusals)
	r.closeLoan(f.kills > 0, usage.PeakMemory, gauge.charged(), now)
	usage.Input = input
	if f.answer != nil {
		usage.Output = quantity.Bytes(len(f.answer.Output)) + f.answer.Written
	}
	return usage
}
