package outlook

import (
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/spill"
)

// Course is how one stage of a run would go on with n function slots.
//
// It is the offer that Decide spills with, seen from a stage at work: with the attempts that run now, the environments
// that are warm, and the tasks that only the pool takes. With N, P, w, f and c as in [spill.Offer], h warm
// environments, Q tasks for the pool only, and what runs now equal to A tasks at the pool and B at functions, while i
// of the slots have nothing to do, which may be for want of room:
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
type Course struct {
	spill.Offer
	Stage     fact.StageID
	Held      int            // h
	PoolOnly  float64        // Q
	AtPool    float64        // A
	AtVenue   float64        // B
	Running   int            // attempts at functions
	Longest   float64        // seconds until the last attempt that runs now ends
	Idle      int            // pool slots that have nothing to do
	Part      float64        // the part of the waiting tasks that belongs to the run
	Committed quantity.Money // what the run's attempts that run at functions will cost
	Variation float64        // of the time that a task takes
	After     fact.Interval  // seconds of the run that follow the stage
	Chosen    int            // function slots that the decision gives
	Undecided quantity.Money // what they would cost the run where its tasks are only announced; 0 once some wait
}

// done is T(n) without the attempts that run longer than the backlog lasts.
func (c Course) done(n int) float64 {
	if c.Tasks == 0 {
		n = min(n, c.Running) // slots have nothing to take
	}
	rate := float64(c.Slots)/c.Wall + float64(n)/c.Function
	switch {
	case c.Stuck(n):
		return spill.NoPool
	case rate == 0:
		return 0
	}
	waiting := float64(c.Idle) * c.Wait / c.Wall // what idle slots would do if there were room
	together := (c.Tasks + c.PoolOnly + c.AtPool + c.busy(n) + waiting + float64(c.started(n))*c.Cold/c.Function) / rate
	if n > 0 && c.PoolOnly == 0 { // before the pool has room
		together = min(together, (c.Tasks+c.busy(n)+float64(c.started(n))*c.Cold/c.Function)*c.Function/float64(n))
	}
	if c.Slots > 0 {
		only := c.AtPool
		if c.PoolOnly > 0 {
			only += c.PoolOnly + waiting
		}
		together = max(together, only*c.Wall/float64(c.Slots))
	}
	switch {
	case c.PoolOnly > 0, n == 0 && c.Tasks > 0 && (c.Idle > 0 || c.Wait > 0):
		together = max(together, c.Wait+c.Wall)
	case c.Idle > 0 && c.Wait == 0 && c.Tasks > 0: // one takes a task now
		together = max(together, c.Wall)
	}
	if n > 0 && c.Tasks > 0 {
		last := c.Function
		if c.started(n) > 0 {
			last += c.Cold
		}
		together = max(together, last)
	}
	return together
}

// Stuck reports whether nobody takes some of the tasks.
func (c Course) Stuck(n int) bool {
	return c.Slots == 0 && (c.PoolOnly > 0 || n == 0 && c.Tasks > 0)
}

// duration is T(n).
func (c Course) duration(n int) float64 { return max(c.done(n), c.Longest) }

// started is how many environments n slots start.
func (c Course) started(n int) int { return max(0, n-c.Held) }

// busy is B as far as n slots serve it: the attempts of slots that are taken away end by themselves.
func (c Course) busy(n int) float64 {
	if c.Running == 0 {
		return 0
	}
	return c.AtVenue * min(1, float64(n)/float64(c.Running))
}

// spilled is k(n).
func (c Course) spilled(n int) float64 {
	if n == 0 {
		return 0
	}
	return max(0, min((float64(n)*c.done(n)-float64(c.started(n))*c.Cold)/c.Function-c.busy(n), c.Tasks))
}

// cost is what the run pays for its part of the stage from now on.
func (c Course) cost(n int) quantity.Money {
	if c.Class == 0 {
		return c.Committed
	}
	return min(fact.MaxCost, c.Committed+c.Bill(c.spilled(n), c.started(n), c.Function).Times(c.Part))
}

// finish is in how many seconds the run ends as far as the stage is concerned.
func (c Course) finish(n int) fact.Interval {
	return c.predicted(n).Plus(c.After)
}

func (c Course) predicted(n int) fact.Interval {
	took := spill.Spread(c.duration(n), c.Variation, c.Tasks+c.PoolOnly+c.AtPool+c.busy(n))
	took.High = max(took.High, c.Longest)
	return took
}
