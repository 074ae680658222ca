package predictor

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// course is how one stage of a run would go on with n function slots.
//
// It is the offer that Decide spills with, seen from a stage at work: with the attempts that run now, the environments
// that are warm, and the tasks that only the pool takes. With N, P, w, f and c as in offer, h warm environments, Q
// tasks for the pool only, and what runs now equal to A tasks at the pool and B at functions, while i of the slots have
// nothing to do, which may be for want of room:
//
//	T(n) = max( (N + Q + A + B + i W/w + max(0, n-h) c/f) / (P/w + n/f),  (Q + A + i W/w) w/P,  stragglers )
//
// in seconds until the stage is done, or as soon as functions alone are done with N and B where Q is 0
//
//	k(n) = min( (n T(n) - max(0, n-h) c) / f - B,  N )                                         tasks that functions take
//
// Stragglers are the attempts that run now, a task that an idle pool slot takes once it has room (W + w), and one that
// a function takes last (f, or c + f where it starts for it). Without Q, A, B and h, and with a task for every pool
// slot, it is the offer itself: TestACourseWithoutHistoryIsTheOffer. TestACourseAgreesWithServingTheTasksOneByOne holds
// it against a queue.
type course struct {
	offer
	id        StageID
	held      int            // h
	poolOnly  float64        // Q
	atPool    float64        // A
	atVenue   float64        // B
	running   int            // attempts at functions
	longest   float64        // seconds until the last attempt that runs now ends
	idle      int            // pool slots that have nothing to do
	part      float64        // the part of the waiting tasks that belongs to the run
	committed quantity.Money // what the run's attempts that run at functions will cost
	variation float64        // of the time that a task takes
	after     Interval       // seconds of the run that follow the stage
	chosen    int            // function slots that the decision gives
}

// done is T(n) without the attempts that run longer than the backlog lasts.
func (c course) done(n int) float64 {
	if c.tasks == 0 {
		n = min(n, c.running) // slots have nothing to take
	}
	rate := float64(c.slots)/c.wall + float64(n)/c.function
	switch {
	case c.stuck(n):
		return noPool
	case rate == 0:
		return 0
	}
	waiting := float64(c.idle) * c.wait / c.wall // what idle slots would do if there were room
	together := (c.tasks + c.poolOnly + c.atPool + c.busy(n) + waiting + float64(c.started(n))*c.cold/c.function) / rate
	if n > 0 && c.poolOnly == 0 { // before the pool has room
		together = min(together, (c.tasks+c.busy(n)+float64(c.started(n))*c.cold/c.function)*c.function/float64(n))
	}
	if c.slots > 0 {
		only := c.atPool
		if c.poolOnly > 0 {
			only += c.poolOnly + waiting
		}
		together = max(together, only*c.wall/float64(c.slots))
	}
	switch {
	case c.poolOnly > 0, n == 0 && c.tasks > 0 && (c.idle > 0 || c.wait > 0):
		together = max(together, c.wait+c.wall)
	case c.idle > 0 && c.wait == 0 && c.tasks > 0: // one takes a task now
		together = max(together, c.wall)
	}
	if n > 0 && c.tasks > 0 {
		last := c.function
		if c.started(n) > 0 {
			last += c.cold
		}
		together = max(together, last)
	}
	return together
}

// stuck reports whether nobody takes some of the tasks.
func (c course) stuck(n int) bool {
	return c.slots == 0 && (c.poolOnly > 0 || n == 0 && c.tasks > 0)
}

// duration is T(n).
func (c course) duration(n int) float64 { return max(c.done(n), c.longest) }

// started is how many environments n slots start.
func (c course) started(n int) int { return max(0, n-c.held) }

// busy is B as far as n slots serve it: the attempts of slots that are taken away end by themselves.
func (c course) busy(n int) float64 {
	if c.running == 0 {
		return 0
	}
	return c.atVenue * min(1, float64(n)/float64(c.running))
}

// spilled is k(n).
func (c course) spilled(n int) float64 {
	if n == 0 {
		return 0
	}
	return max(0, min((float64(n)*c.done(n)-float64(c.started(n))*c.cold)/c.function-c.busy(n), c.tasks))
}

// cost is what the run pays for its part of the stage from now on.
func (c course) cost(n int) quantity.Money {
	if c.class == 0 {
		return c.committed
	}
	return min(maxCost, c.committed+c.bill(c.spilled(n), c.started(n), c.function).Times(c.part))
}

// finish is in how many seconds the run ends as far as the stage is concerned.
func (c course) finish(n int) Interval {
	return c.predicted(n).plus(c.after)
}

func (c course) predicted(n int) Interval {
	took := spread(c.duration(n), c.variation, c.tasks+c.poolOnly+c.atPool+c.busy(n))
	took.High = max(took.High, c.longest)
	return took
}

// course follows a stage of the run. known is false while nothing is known about how long a task takes.
func (d *decider) course(w *work, run string) (c course, known bool) {
	st := w.stage
	mean, variation, known := st.model.pool()
	if !known {
		return course{}, false
	}
	o, refused, _ := d.offer(w)
	if refused != "" {
		o = offer{
			tasks: float64(w.queued[0]), slots: w.slots, wall: w.wall, wait: w.wait, function: w.wall, venue: d.functions,
		}
		for _, part := range st.Shares {
			o.tasks += float64(part.Further)
		}
	}
	if len(d.hosts) > 0 {
		o.slots = max(o.slots, 1) // every stage with work has one
	}
	c = course{
		offer: o, id: st.ID, held: st.Functions, poolOnly: float64(w.queued[1]), idle: max(0, o.slots-w.running[Pool]),
		part: w.parts()[run], variation: variation, chosen: w.functions,
		after: d.memory.rests(d.memory.runs[run], st.ID.Name).acrossRuns(),
	}
	for _, attempt := range d.attemptsOf(st.ID) {
		age := d.now.since(attempt.Started)
		if attempt.Venue == Pool {
			left := st.model.Walls[Pool].residual(age, mean)
			c.atPool += left / c.wall
			c.longest = max(c.longest, left)
			continue
		}
		left := st.model.Walls[Function].residual(age, c.function)
		c.atVenue += left / c.function
		c.longest = max(c.longest, left)
		c.running++
		if attempt.Run == run && st.Class > 0 {
			c.committed = min(maxCost, c.committed+min(maxCost, d.functions.Price(st.Class, span(age+left))))
		}
	}
	if c.tasks+c.poolOnly+c.atPool+c.atVenue == 0 && w.wait > 0 {
		c.poolOnly = 1 // a host has taken it: see taken
	}
	c.most = c.limit(d, w)
	return c, true
}

// limit is the largest n that is worth a look: what the venue has for the stage once the stages of other runs have
// theirs, but no more than there are tasks; what is held or chosen is looked at in any case.
func (c course) limit(d *decider, w *work) int {
	most := 0
	if d.functions.Enabled && !d.policy.Static && c.class > 0 {
		most = min(int(min(c.tasks, maxSlots)), d.limit(c.class, d.functions.Concurrency, d.functions.Cores))
	}
	return max(most, c.held, w.functions)
}

// attemptsOf lists the attempts of a stage that run now, by key: sums of them must not depend on the order of a map.
func (d *decider) attemptsOf(id StageID) []attempt {
	var found []attempt
	for _, running := range d.memory.attempts {
		if running.Stage == id && running.runs() {
			found = append(found, running)
		}
	}
	slices.SortFunc(found, func(a, b attempt) int { return cmp.Compare(a.Key, b.Key) })
	return found
}

// residual is how many seconds an attempt of this age still takes: the mean of what the longer ones among the values
// took beyond it; 0 when it has outlived them all. Without values it is what is missing to otherwise.
func (s series) residual(age, otherwise float64) float64 {
	if len(s.Values) == 0 {
		return max(0, otherwise-age)
	}
	sum, longer := 0.0, 0
	for _, value := range s.Values {
		if value > age {
			sum += value - age
			longer++
		}
	}
	return sum / float64(max(1, longer))
}

// plus adds two predictions that are independent: their distances from the middle add as squares do.
func (i Interval) plus(other Interval) Interval {
	mid := i.Mid + other.Mid
	return Interval{
		Low: mid - math.Hypot(i.Mid-i.Low, other.Mid-other.Low), Mid: mid,
		High: mid + math.Hypot(i.High-i.Mid, other.High-other.Mid),
	}
}

// from adds what is certain.
func (i Interval) from(start float64) Interval {
	return Interval{Low: start + i.Low, Mid: start + i.Mid, High: start + i.High}
}

// latest is the prediction of the later of two.
func (i Interval) latest(other Interval) Interval {
	return Interval{Low: max(i.Low, other.Low), Mid: max(i.Mid, other.Mid), High: max(i.High, other.High)}
}
