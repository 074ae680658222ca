package spend

import (
	"math"
	"math/bits"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Owner is who spends: a stage of a run. What belongs to one stage of one run has one Owner, shared by pointer. Names
// may be filled in later.
type Owner struct {
	// Run and Pipeline are the run's; Stage is the stage's name over all builds of its app, "digits/score".
	Run, Pipeline, Stage string
}

// Sums are what was spent. All are at least 0.
type Sums struct {
	// Attempts is how many ended, Tasks how many of them finished their task, Reused how many results were taken from
	// earlier runs.
	Attempts, Tasks, Reused int
	// Held is for how long attempts held their grants, over all attempts.
	Held time.Duration
	// Pool and Function are what attempts cost at each venue, Wasted the part of it of those that did not succeed.
	Pool, Function, Wasted quantity.Money
	// Idle is what hosts cost while nobody held them.
	Idle quantity.Money
}

// Add adds other to s; money as Money.Plus does.
func (s *Sums) Add(other Sums) {
	s.Attempts += other.Attempts
	s.Tasks += other.Tasks
	s.Reused += other.Reused
	s.Held += min(other.Held, 1<<63-1-max(0, s.Held))
	s.Pool = s.Pool.Plus(other.Pool)
	s.Function = s.Function.Plus(other.Function)
	s.Wasted = s.Wasted.Plus(other.Wasted)
	s.Idle = s.Idle.Plus(other.Idle)
}

// Span is what was spent evenly over some time. Times are nanoseconds since 1970.
type Span struct {
	// Owner is nil for what nobody caused.
	Owner *Owner
	Venue predictor.Venue
	Host  string
	// From and To bound the time; To is not before From, and a span may be a point in time.
	From, To int64
	// Counted is when what cannot be divided happened: Attempts, Tasks and Reused.
	Counted int64
	Sums
}

// Within returns the part of the span from since up to until.
//
// Money and time are divided in proportion to time. What was spent by t is rounded once, and a part is the difference
// of two such amounts:
//
//	spent(t) = amount x (t - From) / (To - From), rounded half up;  part(since, until) = spent(until) - spent(since)
//
// So the parts of adjacent windows sum to the part of both, and those of all windows to the whole, to the picodollar.
// The method of the largest remainder (pricing.Apportion) would not do: it divides one window and the rest of the span,
// and knows nothing of how the rest is divided by somebody else.
func (s Span) Within(since, until int64) Sums {
	if since <= s.From && until > s.To {
		return s.counted(since, until, s.Sums)
	}
	part := func(amount int64) int64 { return s.spent(amount, until) - s.spent(amount, since) }
	money := func(amount quantity.Money) quantity.Money { return quantity.Money(part(int64(amount))) }
	return s.counted(since, until, Sums{
		Attempts: s.Attempts, Tasks: s.Tasks, Reused: s.Reused, Held: time.Duration(part(int64(s.Held))),
		Pool: money(s.Pool), Function: money(s.Function), Wasted: money(s.Wasted), Idle: money(s.Idle),
	})
}

// counted is sums without what did not happen in the window.
func (s Span) counted(since, until int64, sums Sums) Sums {
	if s.Counted < since || s.Counted >= until {
		sums.Attempts, sums.Tasks, sums.Reused = 0, 0, 0
	}
	return sums
}

// spent is how much of amount was spent before t. What was spent at a point in time was not before it.
func (s Span) spent(amount, t int64) int64 {
	switch {
	case amount == 0 || t <= s.From:
		return 0
	case t >= s.To:
		return amount
	}
	return prorated(amount, t-s.From, s.To-s.From)
}

// prorated is Money.Prorated by one fraction, without its allocations where no intermediate needs more than 128 bits.
func prorated(amount, of, in int64) int64 {
	if amount >= 0 && of >= 0 && in > 0 {
		high, low := bits.Mul64(uint64(amount), uint64(of))
		if high < uint64(in)/2 { // so the quotient is less than the largest int64
			quotient, rest := bits.Div64(high, low, uint64(in))
			if rest >= uint64(in)-rest { // half or more
				quotient++
			}
			return min(int64(quotient), math.MaxInt64/2)
		}
	}
	return int64(quantity.Money(amount).Prorated(quantity.Fraction{Of: of, In: in}))
}

// each calls visit with the parts of the span in each step of time: an hour, a minute. The parts sum to the span.
func (s Span) each(step int64, visit func(Span)) {
	for at := floor(s.From, step); ; at += step {
		part := s
		part.From, part.To = max(s.From, at), min(s.To, at+step)
		if last := s.To <= at+step; last {
			part.Sums = s.Within(at, 1<<63-1)
			visit(part)
			return
		}
		part.Sums = s.Within(at, at+step)
		visit(part)
	}
}

// floor is the last multiple of step that is not after at.
func floor(at, step int64) int64 {
	rest := at % step
	if rest < 0 {
		rest += step
	}
	return at - rest
}
