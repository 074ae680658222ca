package timeline

import (
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// Lay lays out the attempts of a run at now, in any order, in at most about marks marks: a lane whose attempts are more
// than its share of them is binned. Lanes that need less than their share leave the rest to the others; each has at
// least one mark. What an attempt did before the run's event and after its end is not drawn.
//
// The sum of a lane's bins, each times its width, is the time that its attempts spent in each state, whatever the
// number of bins.
func Lay(run Run, now time.Time, attempts []Attempt, marks int) View {
	view := View{Lanes: []Lane{}}
	view.From, view.To = run.edges(now)
	grouped := lanes(attempts)
	most := share(grouped, marks)
	for _, attempts := range grouped {
		lane := Lane{Stage: attempts[0].Stage, Count: len(attempts)}
		if len(attempts) <= most {
			slices.SortFunc(attempts, byTime)
			lane.Attempts = make([]Attempt, len(attempts))
			for i, attempt := range attempts {
				lane.Attempts[i] = *attempt
			}
		} else {
			lane.Bins = bin(attempts, view.From, view.To, most)
		}
		view.Lanes = append(view.Lanes, lane)
	}
	return view
}

// share is the most marks that any lane has: the largest such that no lane has more and all together have at most
// marks, as water finds its level.
func share(lanes [][]*Attempt, marks int) int {
	counts := make([]int, len(lanes))
	for i, lane := range lanes {
		counts[i] = len(lane)
	}
	slices.Sort(counts)
	most := 1
	for i, count := range counts {
		level := marks / (len(counts) - i)
		if count > level {
			return max(1, level)
		}
		most = count
		marks -= count
	}
	return most // all fit
}

// bin counts attempts over n equal parts of the time from from to to.
func bin(attempts []*Attempt, from, to time.Time, n int) []Bin {
	g := newGrid(int64(to.Sub(from)), n)
	queued, starting, pool, function := g.series(), g.series(), g.series(), g.series()
	bins := make([]Bin, g.n)
	for _, attempt := range attempts {
		m := momentsOf(attempt, from, to)
		queued.add(g, m.scheduled, m.admitted, 1)
		starting.add(g, m.admitted, m.started, 1)
		if attempt.Venue == predictor.Function {
			function.add(g, m.started, m.ended, 1)
		} else {
			pool.add(g, m.started, m.ended, 1)
		}
		if !attempt.EndedAt.IsZero() {
			bins[g.part(m.ended)].end(attempt.Outcome)
		}
	}
	q, s, p, f := queued.means(g), starting.means(g), pool.means(g), function.means(g)
	for i := range bins {
		bins[i].Queued, bins[i].Starting, bins[i].Pool, bins[i].Function = q[i], s[i], p[i], f[i]
	}
	return bins
}

// end counts an attempt that ended.
func (b *Bin) end(outcome predictor.Outcome) {
	b.Ended++
	if outcome != predictor.Succeeded {
		b.Failed++
	}
	if outcome == predictor.OutOfMemory {
		b.OutOfMemory++
	}
}
