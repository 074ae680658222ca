package usage

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Observation is the use during one tick, or the peak of one attempt.
type Observation struct {
	// At orders observations and lets the past fade, from 1678 to 2262. The zero time means pace after the observation
	// before.
	At time.Time
	// Value is the use in the caller's unit, 0 to 1e300: of a tick its peak, where that is known.
	Value float64
	// Exceeded says that the use was more than Value, and that nobody knows how much: a process was killed for it.
	Exceeded bool
}

// Limit is what a Selector advises for the next tick.
type Limit struct {
	// Value is in the unit of the observations, finite and 0 or more; 0 means that nothing is known.
	Value float64
	// Model is what Value rests on; its zero value is the first limit.
	Model WindowModel
	// Samples is how many observations were taken in.
	Samples int
}

// SelectorOptions are what the caller of a Selector may choose. A field of 0 means its default; the defaults are for
// memory.
type SelectorOptions struct {
	// First is the limit until Warm observations are known, such as a declared one. With 0, and once it was too little,
	// the models advise at once; without evidence that is twice the largest use.
	First float64 `json:"first,omitempty"`
	// Warm is how many observations First holds; 30 by default. Models are charged after half of them: what a start looks
	// like says little about what follows, and counting it kept margins at 100% for hours.
	Warm int `json:"warm,omitempty"`
	// OverCost is the price of a tick over the limit, in ticks of a limit that is wholly unused. It is the one knob
	// between slack and risk. By default it is that of a process which is killed for it and loses what it has
	// gathered: 45 in its first day, and with each further day as much again, up to a week: see [Selector.excess].
	OverCost float64 `json:"over_cost,omitempty"`
	// ChangeCost is the price of a change of the limit, in the same unit; 0.5 by default.
	ChangeCost float64 `json:"change_cost,omitempty"`
}

// CPUOverCost is an OverCost for CPU, where a use beyond the limit waits instead of being killed.
const CPUOverCost = 2

const (
	defaultWarm       = 30
	overCostOfADay    = 45
	defaultChangeCost = 0.5
)

// withDefaults replaces zero fields, but for OverCost.
func (o SelectorOptions) withDefaults() SelectorOptions {
	o.Warm = cmp.Or(o.Warm, defaultWarm)
	o.ChangeCost = cmp.Or(o.ChangeCost, defaultChangeCost)
	return o
}

// Validate reports the first field that is not finite, negative, or too large to reckon with.
func (o SelectorOptions) Validate() error {
	for _, field := range []struct {
		name        string
		value, most float64
	}{
		{"first limit", o.First, largestValue},
		{"warm observations", float64(o.Warm), math.MaxInt32},
		{"cost of a tick over", o.OverCost, 1e9},
		{"cost of a change", o.ChangeCost, 1e9},
	} {
		if !(field.value >= 0 && field.value <= field.most) { // NaN fails both
			return fmt.Errorf("options of a selector: the %s is %v; choose a number from 0 to %g", field.name, field.value,
				field.most)
		}
	}
	return nil
}

// Selector advises limits for a sequence of uses: the memory or CPU of one container tick by tick, or the peaks of a
// stage's attempts.
//
// It is Autopilot's ensemble (Rzadca et al., EuroSys 2020, section 3.2.2, https://doi.org/10.1145/3342195.3387524):
// each WindowModel would have set some limit L for the tick, which turns out to use v, and is charged
//
//	OverCost * over(v, L)  +  max(0, L-v)/L  +  ChangeCost * [L changed]
//
// and the model with the least charges, which halve every twelve hours, sets the next limit. All three terms are
// ratios, so a series in other units gets the same limits in these units. Two things differ from Autopilot.
//
// Ticks over a good limit are too rare to count: one in 3,000 is one in two days. So with b the model's statistic
// without its margin,
//
//	over(v, L) = 1 when v > L;  ((v-b)/(L-b))^2 when b < v <= L;  0 when v <= b:
//
// a use that takes up half of the margin counts as a quarter of a tick over, which is the chance of an excess twice as
// large if excesses have a Pareto tail of index 2 (a heavy one). And before anything was observed, a maximum with
// margin m is charged 0.3 * min(1, (0.10/m)^2) ticks over, as if an excess of 10% had been seen in three of ten such
// series: margins begin at 100% and shrink as quiet ticks are seen (TestMarginsShrinkWithEvidence).
//
// The limit rises at once. It falls when what is held beyond the advice has cost as much as the change does (the
// ski-rental rule: at most twice the cost of knowing how long the advice will last).
//
// Time counts for at most pace between two observations. So a gap of a day ages nothing, a window of two hours holds at
// least thirty observations, and a sequence of attempts hours apart is judged on their number.
//
// The zero value is a Selector with all defaults. It takes about 10 KiB in memory, at most 40 KiB as JSON, and
// allocates only while its windows fill. A Selector has one owner; copies share state and must not both be used.
type Selector struct {
	options SelectorOptions
	samples int
	at      int64 // of the newest observation, in nanoseconds since 1970
	stale   int   // observations in a row that were older
	clock   time.Duration
	limit   float64
	chosen  int     // 1 + the index of the model that set limit; 0 is the first limit
	regret  float64 // what was held beyond the advice since the last change, in ticks of a limit wholly unused
	charges [modelCount]charge
	maxima  maxima
	decayed histogram
	bases   [statisticCount]float64 // for the next tick
}

// charge is what one model would have cost so far.
type charge struct {
	Cost float64 `json:"cost"` // decayed
	Held float64 `json:"held"` // its limit at its last change
}

const (
	// pace is the most time that counts between two observations.
	pace = 4 * time.Minute
	// fading is the half-life of charges and of the percentiles' weights.
	fading = 12 * time.Hour
	// raised is what a use beyond Value is taken for, as a multiple of Value: the step that the Kubernetes Vertical Pod
	// Autoscaler takes after an out-of-memory kill.
	raised = 1.2
	// changed is the part by which a limit must differ to count as changed.
	changed = 0.01
	// priorWeight and priorExcess are the ticks that count as observed before anything was, and by which part they
	// exceeded the maximum.
	priorWeight, priorExcess = 0.3, 0.10
	// largestValue keeps all products of values finite.
	largestValue = 1e300
	// setBack is how many observations in a row may be older than the newest before the clock is believed to have been set
	// back.
	setBack = 8
)

// NewSelector returns a Selector with the given options, or the error of their Validate.
func NewSelector(options SelectorOptions) (*Selector, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	return &Selector{options: options}, nil
}

// Limit is the advice for the next tick. It depends on earlier observations only.
func (s *Selector) Limit() Limit {
	limit := Limit{Value: s.limit, Samples: s.samples}
	if s.samples == 0 {
		limit.Value = s.options.First
	}
	if s.chosen > 0 {
		limit.Model = windowModel(s.chosen - 1)
	}
	return limit
}

// Observe takes in the use of a tick and reports whether it did: a value that is not finite, negative or beyond 1e300
// is left out, and so is one that is not newer than the newest. An exceeded limit counts whenever it comes, and never
// lowers the limit. After eight older observations in a row the clock is taken to have been set back.
func (s *Selector) Observe(o Observation) bool {
	if !(o.Value >= 0 && o.Value <= largestValue) {
		return false
	}
	step, ok := s.advance(o)
	if !ok {
		return false
	}
	use, options := o.Value, s.options.withDefaults()
	options.OverCost = cmp.Or(options.OverCost, s.excess())
	if o.Exceeded {
		use *= raised
	}
	fade := math.Exp2(-float64(step) / float64(fading))
	if s.samples > 0 && s.samples >= options.Warm/2 {
		s.charge(use, fade, options)
	}
	s.samples++
	s.clock += step
	s.maxima.add(s.clock, use)
	s.decayed.add(use, fade)
	s.measure()

	limit, chosen := s.limit, s.chosen
	s.advise(options)
	if o.Exceeded && s.limit < max(limit, use) {
		if s.limit = max(limit, use); limit >= use {
			s.chosen = chosen
		}
	}
	return true
}

// advance moves the newest time to that of o and returns the time that counts between them; false refuses o for its
// time.
func (s *Selector) advance(o Observation) (time.Duration, bool) {
	at := s.at + int64(pace)
	if !o.At.IsZero() {
		if year := o.At.Year(); year <= 1677 || year >= 2262 {
			return 0, false
		}
		at = o.At.UnixNano()
	}
	switch {
	case s.samples == 0 || at > s.at:
		step := pace
		if s.samples > 0 && uint64(at)-uint64(s.at) < uint64(pace) { // unsigned: the difference may take all 64 bits
			step = time.Duration(at - s.at)
		}
		s.at, s.stale = at, 0
		return step, true
	case o.Exceeded:
		return 0, true
	case at < s.at:
		if s.stale++; s.stale >= setBack {
			s.at, s.stale = at, 0
			return 0, true
		}
	}
	return 0, false
}

// excess is what a tick over the limit costs a process that is killed for it: work since it began, which it does again,
// or what it serves from. What is lost grows with the time that it has run, as an attempt's does that makes no
// checkpoints (size.Excess), but not beyond what its use shows: nothing of more than the longest window ago counts.
func (s *Selector) excess() float64 {
	const day = 24 * time.Hour
	ran := min(max(s.clock, day), windows[len(windows)-1])
	return overCostOfADay * float64(ran) / float64(day)
}

// charge lets every model pay for the limit that it would have set.
func (s *Selector) charge(use, fade float64, options SelectorOptions) {
	for i := range s.charges {
		base, margin := s.bases[statisticOf(i)], marginOf(i)
		limit, paid := base*(1+margin), &s.charges[i]
		paid.Cost *= fade
		switch {
		case use > limit:
			paid.Cost += options.OverCost
		case limit > 0:
			paid.Cost += (limit - use) / limit
			if use > base {
				excess := (use - base) / (limit - base)
				paid.Cost += options.OverCost * excess * excess
			}
		}
		if math.Abs(limit-paid.Held) > changed*paid.Held {
			paid.Cost += options.ChangeCost
			paid.Held = limit
		}
	}
}

// measure takes the statistics of the past that the models rest on.
func (s *Selector) measure() {
	for i, window := range windows {
		s.bases[i] = s.maxima.last(s.clock, window)
	}
	s.decayed.percentiles(percentiles[:], s.bases[len(windows):])
}

// advise sets the limit for the next tick.
func (s *Selector) advise(options SelectorOptions) {
	largest := s.bases[len(windows)-1]
	if s.samples < options.Warm && options.First >= largest {
		s.limit = options.First
		return
	}
	best, least := 0, math.Inf(1)
	for i := range s.charges {
		if cost := s.charges[i].Cost + options.OverCost*priorOver(i); cost < least {
			best, least = i, cost
		}
	}
	limit := s.bases[statisticOf(best)] * (1 + marginOf(best))
	if s.chosen > 0 && limit < s.limit {
		s.regret += (s.limit - limit) / s.limit
		if s.regret < options.ChangeCost {
			return
		}
	}
	s.limit, s.chosen, s.regret = limit, best+1, 0
}

// priorOver is how many ticks over model i is charged before anything was observed. For a maximum it is the formula of
// an excess of 10%, seen in three of ten series; for a percentile, whose ticks over are many and counted as they are,
// one more than was seen (Laplace's rule of succession).
func priorOver(i int) float64 {
	if i >= maximumModels {
		return 1
	}
	part := priorExcess / marginOf(i)
	return priorWeight * min(1, part*part)
}
