package usage

import (
	"cmp"
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Speed is how fast attempts of a stage run with so many cores, relative to one, as learned. The zero value knows
// nothing, and takes an attempt to use one core all the time. It is small enough to travel with a plan.
//
// With a limit of c cores an attempt takes, relative to what it takes with one,
//
//	t(c) = 1 + Busy max(0, Dense/c - 1)                  below one core, and no less than Rate/c
//	t(c) = 1 - Parallel (1 - 1/c) + Contention (c - 1)   from one core on
//
// The second is the universal scalability law (Gunther, A general theory of computational scalability based on
// rational functions, 2008, https://arxiv.org/abs/0808.1431), and that of Amdahl (1967) where Contention is 0. Below
// one core, what the attempt computes takes as much longer as it lacks of what it wants while it computes. A limit
// holds for 100 ms at a time, so that is what it uses of a period in which it runs at all: what waits often is slowed
// by no limit above its mean, and what waits in one piece by any.
type Speed struct {
	// Busy is the part of the time with one core that a smaller limit makes longer, Parallel the part that several cores
	// share; from 0 to 1, Busy somewhat above where the parts of an attempt wait for each other. Dense is how much of a
	// core it uses in each period of a limit in which it runs, from 0 to 1; 0, for 1, where nobody counts periods.
	Busy     float64 `json:"busy,omitempty"`
	Parallel float64 `json:"parallel,omitempty"`
	Dense    float64 `json:"dense,omitempty"`
	// Contention is what each further core adds, 0 or more.
	Contention float64 `json:"contention,omitempty"`
	// Rate is how many cores an attempt uses in the mean where it has one, from 0 to 1.
	Rate float64 `json:"rate,omitempty"`
	// Variance are the variances of Busy, Parallel and Contention, and the covariances of the first with the second and
	// the third, and of the second with the third.
	Variance [6]float64 `json:"variance,omitzero"`
	// Most is the largest size that was seen, in cores; 0 where nothing is known. Far is up to how many the curve is
	// followed: twice that where attempts could have used more, as far as lines over inputs are.
	Most float64 `json:"most,omitempty"`
	Far  float64 `json:"far,omitempty"`
	// Sizes is with how many sizes the run time was compared.
	Sizes int `json:"sizes,omitempty"`
}

// The sizes that are told apart, in cores: a limit is at least a hundredth of a core, and nobody has more than a
// million.
const leastCores, mostCores = 0.01, 1e6

// Known reports whether anything was learned.
func (s Speed) Known() bool { return s.Most > 0 }

// within is a size up to which the curve is followed. Below one core nothing but time is shared, so one core is always
// within.
func (s Speed) within(cores float64) float64 {
	cores = min(max(cores, leastCores), mostCores)
	if math.IsNaN(cores) {
		cores = 1
	}
	return min(cores, max(1, s.Far))
}

// terms are what Busy, Parallel and Contention are multiplied with at so many cores.
func (s Speed) terms(cores float64) [3]float64 {
	if cores < 1 {
		return [3]float64{max(0, cmp.Or(s.Dense, 1)/cores-1), 0, 0}
	}
	return [3]float64{0, -(1 - 1/cores), cores - 1}
}

func (s Speed) values() [3]float64 { return [3]float64{s.Busy, s.Parallel, s.Contention} }

// time is t(c), more than 0.
func (s Speed) time(cores float64) float64 {
	if !s.Known() {
		return max(1, 1/cores)
	}
	t := 1 + dot(s.terms(cores), s.values())
	if cores < 1 {
		return max(t, s.Rate/cores)
	}
	return max(t, 1/cores)
}

func dot(a, b [3]float64) float64 { return a[0]*b[0] + a[1]*b[1] + a[2]*b[2] }

// deviation is the standard deviation of a sum of the values with these factors.
func (s Speed) deviation(f [3]float64) float64 {
	v := s.Variance
	return math.Sqrt(max(0, f[0]*f[0]*v[0]+f[1]*f[1]*v[1]+f[2]*f[2]*v[2]+
		2*(f[0]*f[1]*v[3]+f[0]*f[2]*v[4]+f[1]*f[2]*v[5])))
}

// tenth is by how many standard deviations the quantile of 10 percent lies below the mean of what is normal.
const tenth = 1.2816

// Slower is by what factor an attempt takes longer with to cores than with from, above 0. Beyond Far it
// says the same as there. It is 1 where one of the two is not known (0).
func (s Speed) Slower(from, to float64) float64 {
	if !(from > 0) || !(to > 0) {
		return 1
	}
	return s.time(s.within(to)) / s.time(s.within(from))
}

// Between is by what factor an attempt is faster with to cores than with from: Low and High bound the middle 80
// percent. No more cores make it faster by more than as many times.
func (s Speed) Between(from, to float64) fact.Interval {
	from, to = s.within(from), s.within(to)
	slower := s.Slower(from, to)
	faster := fact.Interval{Low: 1 / slower, Mid: 1 / slower, High: 1 / slower}
	if !s.Known() {
		return faster
	}
	toward, away := s.terms(to), s.terms(from)
	for i := range toward {
		toward[i] -= slower * away[i]
	}
	by := tenth * s.deviation(toward) / s.time(from)
	least, most := min(slower, from/to, 1), max(slower, 1, from/to)
	faster.Low, faster.High = 1/min(slower+by, most), 1/max(slower-by, least)
	return faster
}

// Brought is an interval of what takes time with from cores, as it is with to: as many times as long, and as much less
// certain as the speed is.
func (s Speed) Brought(took fact.Interval, from, to float64) fact.Interval {
	if !(from > 0) || !(to > 0) || from == to || !(took.Mid > 0) {
		return took
	}
	faster := s.Between(from, to)
	mid := took.Mid / faster.Mid
	apart := func(interval, speed float64) float64 {
		return math.Exp(math.Hypot(math.Log(interval), math.Log(speed)))
	}
	low := 0.0
	if took.Low > 0 {
		low = mid / apart(took.Mid/took.Low, faster.High/faster.Mid)
	}
	return fact.Interval{Low: low, Mid: mid, High: mid * apart(took.High/took.Mid, faster.Mid/faster.Low)}
}

// At is how many times as fast an attempt is with so many cores as with one: see [Speed.Between].
func (s Speed) At(cores float64) fact.Interval { return s.Between(1, cores) }

// String says how fast two cores and half of one are, for reasons: "1.9 times as fast on 2 cores as on 1".
func (s Speed) String() string {
	if !s.Known() {
		return "nothing is known of its speed"
	}
	return fmt.Sprintf("%.2g times as fast on 2 cores as on 1, %.2g times on half of one", s.At(2).Mid, s.At(0.5).Mid)
}
