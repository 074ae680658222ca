package spill

import (
	"math"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/provision"
)

// station serves the tasks of one policy, each at the place where it is done first: hosts, in the order of arrival, and
// functions for what hosts would not do within the limit. Times are seconds.
type station struct {
	setting Setting
	spills  bool    // whether it has functions
	began   float64 // the minute
	// services is how long a host of each type takes for a task or a batch.
	services []float64
	// free are for each type of host without batches the times at which its hosts are free, rising.
	free [][]float64
	// batches are for each type with batches the batches that its hosts run or wait for.
	batches [][]batch
	lambda  functions

	served
}

// served is what a station did.
type served struct {
	tasks, missed, spilled, cold int
	// spilledCost is what functions cost, USD.
	spilledCost float64
	// busy is how many tasks were there, at work or waiting, in the mean of each second of the minute and of the next
	// minute, as far as that is known.
	busy []float64
}

// stepSeconds is how many seconds a step has.
const stepSeconds = int(Step / time.Second)

// batch is the last batch of a host: it starts, or started, at start with n tasks.
type batch struct {
	start float64
	n     int
}

func newStation(setting Setting, spills bool) *station {
	services := make([]float64, len(setting.Hosts))
	for i, host := range setting.Hosts {
		services[i] = Step.Seconds() * float64(setting.Batch[i]) / host.Tasks
	}
	return &station{
		setting: setting, spills: spills, services: services,
		free: make([][]float64, len(setting.Hosts)), batches: make([][]batch, len(setting.Hosts)),
		lambda: functions{
			idleFor: setting.Idle.Seconds(), warm: setting.Warm.Seconds(), cold: setting.Cold.Seconds(),
			ramp: float64(setting.Ramp), rampTime: setting.RampTime.Seconds(), tokens: float64(setting.Ramp),
		},
		served: served{busy: make([]float64, 2*stepSeconds)},
	}
}

// hold begins a minute, with so many hosts of each type. Hosts that go finish what they have.
func (s *station) hold(counts []int, now float64) {
	s.began = now
	copy(s.busy, s.busy[stepSeconds:])
	clear(s.busy[stepSeconds:])
	for i, n := range counts {
		if s.setting.Batch[i] > 1 {
			// The one that is free last goes first, so that what waits is not put before those that stay.
			for len(s.batches[i]) > n {
				s.batches[i] = s.batches[i][:len(s.batches[i])-1]
			}
			for len(s.batches[i]) < n {
				s.batches[i] = append(s.batches[i], batch{start: math.Inf(-1)})
			}
			continue
		}
		free := s.free[i]
		slices.Sort(free)
		if len(free) > n {
			free = free[:n]
		}
		for len(free) < n {
			free = append([]float64{now}, free...)
		}
		s.free[i] = free
	}
}

// join is the last batch with one task more, which arrives at t.
func (b batch) join(t, service float64, most int) batch {
	switch {
	case t >= b.start+service: // it has nothing to do
		return batch{start: t, n: 1}
	case t <= b.start && b.n < most: // it waits for others
		return batch{start: b.start, n: b.n + 1}
	default: // it runs, or is full
		return batch{start: b.start + service, n: 1}
	}
}

// arrive serves a task that arrives at t, in this minute and not before the one before it.
func (s *station) arrive(t float64) {
	host, at, end := -1, 0, math.Inf(1)
	for i, service := range s.services {
		if most := s.setting.Batch[i]; most > 1 {
			for j, b := range s.batches[i] {
				if done := b.join(t, service, most).start + service; done < end {
					host, at, end = i, j, done
				}
			}
		} else if len(s.free[i]) > 0 {
			if done := max(t, s.free[i][0]) + service; done < end {
				host, at, end = i, 0, done
			}
		}
	}
	s.tasks++
	limit := s.setting.Limit.Seconds()
	if s.spills && end-t > limit {
		// Also where an environment has to start for it, and the pool would be done sooner: the next ones find it warm.
		if done, cold, may := s.lambda.at(t); may {
			s.lambda.call(t, cold)
			s.spilled++
			cost := s.setting.Function.USD()
			if cold {
				s.cold++
				cost *= (s.lambda.warm + s.lambda.cold) / s.lambda.warm
			}
			s.spilledCost += cost
			s.ended(t, done, limit)
			return
		}
	}
	s.ended(t, end, limit)
	if host < 0 {
		return
	}
	service := s.services[host]
	if most := s.setting.Batch[host]; most > 1 {
		s.batches[host][at] = s.batches[host][at].join(t, service, most)
		return
	}
	// Equal hosts with equal times are free again in the order in which they were taken.
	free := s.free[host]
	copy(free, free[1:])
	free[len(free)-1] = end
}

func (s *station) ended(t, end, limit float64) {
	if end-t > limit {
		s.missed++
	}
	// What waits for longer than a minute is counted for that.
	from, to := t-s.began, min(end-s.began, t-s.began+Step.Seconds())
	for second := int(from); second < len(s.busy) && float64(second) < to; second++ {
		s.busy[second] += min(to, float64(second+1)) - max(from, float64(second))
	}
}

// functions are the environments of a function.
type functions struct {
	warm, cold, idleFor float64
	ramp, rampTime      float64
	tokens, filled      float64
	// running are the ends of calls, rising as long as all take equally long, idle the times since which environments
	// wait, rising.
	running, idle []float64
}

// at is when a call at t would be done, and whether an environment starts for it; may is false where the ramp has no
// room.
func (f *functions) at(t float64) (done float64, cold, may bool) {
	for len(f.running) > 0 && f.running[0] <= t {
		f.idle = append(f.idle, f.running[0])
		f.running = f.running[1:]
	}
	gone := 0
	for gone < len(f.idle) && f.idle[gone] < t-f.idleFor {
		gone++
	}
	f.idle = f.idle[gone:]
	if len(f.idle) > 0 {
		return t + f.warm, false, true
	}
	f.tokens = min(f.ramp, f.tokens+(t-f.filled)*f.ramp/f.rampTime)
	f.filled = t
	return t + f.cold + f.warm, true, f.tokens >= 1
}

func (f *functions) call(t float64, cold bool) {
	end := t + f.warm
	if cold {
		f.tokens--
		end += f.cold
	} else {
		f.idle = f.idle[:len(f.idle)-1] // the one that waited least, so that the others end
	}
	at, _ := slices.BinarySearch(f.running, end)
	f.running = slices.Insert(f.running, at, end)
}

// counts is how many hosts of each type serve in the next step.
func counts(terms provision.Terms, pool []provision.Held) []int {
	serving := make([]int, len(terms.Hosts))
	for _, held := range pool {
		if held.Age >= terms.Delay {
			serving[held.Host]++
		}
	}
	return serving
}
