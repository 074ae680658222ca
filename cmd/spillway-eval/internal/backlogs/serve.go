package backlogs

import (
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Outcome is what became of a backlog.
type Outcome struct {
	// Met says that the deadline was met, Cost what functions took.
	Met  bool
	Cost quantity.Money
	took time.Duration
}

// class is the memory of the functions, that which comes with a core of Lambda's.
const class = 1769 * quantity.MiB

// venue has Lambda's prices (us-east-1, x86).
func (b backlog) venue() predictor.FunctionVenue {
	return predictor.FunctionVenue{
		Enabled: true, Concurrency: concurrency, MaxMemory: class, MaxDuration: 15 * time.Minute,
		Classes: []quantity.Bytes{class}, PerGiBSecond: 16_666_700, PerRequest: 200_000, ColdStart: b.cold,
	}
}

// queue is what a policy that is no part of Spillway sees at a tick.
type queue struct {
	since    time.Duration // the start of the run
	waiting  int
	ended    []time.Duration // run times at the pool, the latest last
	atVenue  []time.Duration // and at functions
	held     int             // function slots
	cores    int
	cold     time.Duration
	deadline time.Duration
}

// tick is how often is decided.
const tick = time.Second

// serve lets the tasks be done in their order by whoever is free first, the pool before functions, and asks at every
// tick how many functions there are to be.
func (b backlog) serve(wanted func(queue) int) (out Outcome) {
	type running struct {
		ends     time.Duration
		wall     time.Duration
		function bool
	}
	q := queue{cores: b.cores, cold: b.cold, deadline: b.deadline}
	for _, t := range b.earlier {
		q.ended = append(q.ended, t.wall)
	}
	venue, waiting, now := b.venue(), b.tasks, time.Duration(0)
	var going []running
	atPool, atVenue, warm := 0, 0, 0
	for len(waiting)+len(going) > 0 {
		if now%tick == 0 && len(waiting) > 0 {
			q.since, q.waiting = now, len(waiting)
			q.held = min(wanted(q), concurrency)
		}
		for len(waiting) > 0 && (atPool < b.cores || atVenue < q.held) {
			next := running{wall: waiting[0].wall, ends: now + waiting[0].wall}
			if atPool < b.cores {
				atPool++
			} else {
				start := b.cold
				if warm > 0 {
					warm, start = warm-1, 0
				}
				atVenue++
				next.function, next.wall = true, time.Duration(float64(waiting[0].wall)*b.slower)
				next.ends = now + start + next.wall
				out.Cost += venue.Price(class, start+next.wall)
			}
			going, waiting = append(going, next), waiting[1:]
		}
		to := now.Truncate(tick) + tick
		for _, r := range going {
			to = min(to, r.ends)
		}
		now = to
		left := going[:0]
		for _, r := range going {
			switch {
			case r.ends > now:
				left = append(left, r)
			case r.function:
				atVenue, warm, q.atVenue = atVenue-1, warm+1, append(q.atVenue, r.wall)
			default:
				atPool, q.ended = atPool-1, append(q.ended, r.wall)
			}
		}
		going = left
	}
	out.took = now
	out.Met = now <= b.deadline
	return out
}

// hindsight holds n functions from the start on.
func (b backlog) hindsight(n int) Outcome { return b.serve(func(queue) int { return n }) }

// cheapest is what the least number of functions that meets the deadline costs, held from the start on; met is false
// where none does.
func (b backlog) cheapest() (out Outcome, met bool) {
	most := min(len(b.tasks), concurrency)
	if alone := b.hindsight(0); alone.Met || !b.hindsight(most).Met {
		return alone, false
	}
	for n := 1; n <= most; n++ { // fewer may meet what more miss, by the order of tasks
		if out = b.hindsight(n); out.Met {
			return out, true
		}
	}
	return out, false
}

// fluid is the rule of Spillway until November 2026, a baseline: the sum of mean times over the slots, with a tenth of
// the time that is left kept in hand; functions stay until the pool alone needs half of it.
func fluid(q queue) int {
	mean := func(times []time.Duration) float64 {
		times = times[max(0, len(times)-32):]
		sum := 0.0
		for _, t := range times {
			sum += t.Seconds() / float64(len(times))
		}
		return sum
	}
	left, wall := (q.deadline - q.since).Seconds(), mean(q.ended)
	atVenue := wall
	if len(q.atVenue) > 0 {
		atVenue = mean(q.atVenue)
	}
	duration := func(n int) float64 {
		done := (float64(q.waiting) + float64(n)*q.cold.Seconds()/atVenue) / (float64(q.cores)/wall + float64(n)/atVenue)
		if n > 0 {
			done = max(done, q.cold.Seconds()+atVenue)
		}
		return done
	}
	most, best := min(q.waiting, concurrency), 0
	for n := range most + 1 {
		if duration(n) <= 0.9*left {
			best = n
			break
		}
		if duration(n) < duration(best) {
			best = n
		}
	}
	if best < q.held && duration(0) > 0.5*left {
		return q.held
	}
	return best
}
