package timeline

import (
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Allocate returns what each stage held and used from from to to, at no more than points points, which is at least 1.
// Attempts and looks may be in any order; looks of no attempt are ignored.
//
// An attempt holds its grant from its admission to its end: up to each look the grant that the look saw, after the last
// look, and where there is none, Attempt.Grant. Its use is what the looks say, each about the time since the one
// before. After the last look the rest of the CPU time of an ended attempt is spread over the rest of its run, an
// attempt that goes on is taken to use what it was last seen to use, and the memory is that of the last look. An ended
// attempt without looks uses its mean CPU and its peak of memory as long as it ran; of one that goes on and was not
// looked at, nothing is known, and nothing is counted as used.
func Allocate(attempts []Attempt, looks []Look, from, to time.Time, points int) []Allocation {
	if to.Before(from) {
		to = from
	}
	g := newGrid(int64(to.Sub(from)), points)
	seen := lookedAt(looks)
	allocations := []Allocation{}
	for _, lane := range lanes(attempts) {
		sum := newTotals(g)
		for _, attempt := range lane {
			sum.count(attempt, momentsOf(attempt, from, to))
			sum.follow(attempt, seen[subject{attempt.Stage, attempt.Task, attempt.Number}], from, to)
		}
		allocations = append(allocations, Allocation{
			Stage: lane[0].Stage, From: from, Step: time.Duration(g.span / int64(g.n)), Points: sum.points(),
		})
	}
	return allocations
}

// subject is which attempt was looked at.
type subject struct {
	stage, task string
	number      int
}

// lookedAt sorts looks by attempt and time.
func lookedAt(looks []Look) map[subject][]Look {
	seen := map[subject][]Look{}
	for _, look := range looks {
		of := subject{look.Stage, look.Task, look.Attempt}
		seen[of] = append(seen[of], look)
	}
	for _, looks := range seen {
		slices.SortFunc(looks, func(a, b Look) int { return a.At.Compare(b.At) })
	}
	return seen
}

// totals are the series of one stage. CPU is in thousandths of cores, so that grants sum without rounding.
type totals struct {
	grid                                                           grid
	pool, function, grantedCPU, usedCPU, grantedMemory, usedMemory series
	gpus, busyGPUs, usedGPUMemory                                  series
}

func newTotals(g grid) totals {
	return totals{
		g, g.series(), g.series(), g.series(), g.series(), g.series(), g.series(), g.series(), g.series(), g.series(),
	}
}

func (t totals) count(attempt *Attempt, m moments) {
	if attempt.Venue == predictor.Function {
		t.function.add(t.grid, m.admitted, m.ended, 1)
	} else {
		t.pool.add(t.grid, m.admitted, m.ended, 1)
	}
}

// follow adds what the attempt held and used from look to look.
func (t totals) follow(attempt *Attempt, looks []Look, from, to time.Time) {
	m := momentsOf(attempt, from, to)
	held, used := m.admitted, m.started
	spent := time.Duration(0) // of CPU time, as far as looks tell; at the true times, which may be before from
	last := attempt.StartedAt
	var memory quantity.Bytes
	var cpu float64
	grant := attempt.Grant // of one that runs, what it was admitted with
	for _, look := range looks {
		if last.IsZero() || !look.At.After(last) || (!attempt.EndedAt.IsZero() && look.At.After(attempt.EndedAt)) {
			continue
		}
		until := min(m.ended, max(used, int64(max(0, min(look.At.Sub(from), to.Sub(from))))))
		t.grant(held, until, look.Grant)
		t.use(used, until, float64(look.CPU), look.Memory)
		t.busyGPUs.add(t.grid, used, until, float64(max(0, look.GPUBusy)))
		t.usedGPUMemory.add(t.grid, used, until, float64(max(0, look.GPUMemory)))
		held, used = max(held, until), until
		spent += time.Duration(float64(look.CPU) / float64(quantity.Core) * float64(look.At.Sub(last)))
		last, cpu, memory = look.At, float64(look.CPU), look.Memory
		if attempt.EndedAt.IsZero() && !look.Grant.IsZero() {
			grant = look.Grant
		}
	}
	t.grant(held, m.ended, grant)
	switch {
	case attempt.EndedAt.IsZero():
		t.use(used, m.ended, cpu, memory)
	case attempt.StartedAt.IsZero():
	default:
		over := attempt.StartedAt.Add(attempt.Wall).Sub(last)
		if over <= 0 {
			return
		}
		if last.Equal(attempt.StartedAt) {
			memory = attempt.PeakMemory
		}
		t.use(used, m.computed, float64(max(0, attempt.CPU-spent))/float64(over)*float64(quantity.Core), memory)
	}
}

func (t totals) grant(a, b int64, size quantity.Size) {
	t.grantedCPU.add(t.grid, a, b, float64(max(0, size.CPU)))
	t.grantedMemory.add(t.grid, a, b, float64(max(0, size.Memory)))
	t.gpus.add(t.grid, a, b, float64(max(0, size.GPU)))
}

func (t totals) use(a, b int64, cpu float64, memory quantity.Bytes) {
	t.usedCPU.add(t.grid, a, b, max(0, cpu))
	t.usedMemory.add(t.grid, a, b, float64(max(0, memory)))
}

func (t totals) points() []Held {
	points := make([]Held, t.grid.n)
	fill := func(s series, set func(*Held, float64)) {
		for i, mean := range s.means(t.grid) {
			set(&points[i], mean)
		}
	}
	fill(t.pool, func(h *Held, mean float64) { h.Pool = mean })
	fill(t.function, func(h *Held, mean float64) { h.Function = mean })
	fill(t.grantedCPU, func(h *Held, mean float64) { h.GrantedCPU = mean / float64(quantity.Core) })
	fill(t.usedCPU, func(h *Held, mean float64) { h.UsedCPU = mean / float64(quantity.Core) })
	fill(t.grantedMemory, func(h *Held, mean float64) { h.GrantedMemory = mean })
	fill(t.usedMemory, func(h *Held, mean float64) { h.UsedMemory = mean })
	fill(t.gpus, func(h *Held, mean float64) { h.GPUs = mean / float64(quantity.Core) })
	fill(t.busyGPUs, func(h *Held, mean float64) { h.BusyGPUs = mean / float64(quantity.Core) })
	fill(t.usedGPUMemory, func(h *Held, mean float64) { h.UsedGPUMemory = mean })
	return points
}
