package usage

import (
	"cmp"
	"math"
	"slices"

	"gonum.org/v1/gonum/floats"
	"gonum.org/v1/gonum/mat"
)

// seen is what attempts of one size say, with the middle of those that are remembered.
type seen struct {
	cores, rate, held float64
	fastest           float64 // largest rate
	more              bool    // they could have used more
	counted           bool    // hosts tell what held them back
	active            float64 // 0 where that is not known
	attempts          float64 // that have a run time
	log               float64 // of the run time relative to what their inputs predict
}

// What is thought before anything is seen, as standard deviations, and how far what is told by one size may be from
// what another size would show.
const (
	// An attempt waits evenly, or in one piece: Busy is between nothing and its rate.
	busyDoubt = 0.25
	// Nothing is known of how much of an attempt could run on several cores; seldom does each further core add more
	// than a twentieth of the time that one takes.
	parallelUsual, parallelDoubt = 0.25, 0.5
	contentionDoubt              = 0.05
	// How long a limit held an attempt back tells what it would take with one core, but for what waits meanwhile; where it
	// held back one thread, nothing of the attempt does.
	heldDoubt, aloneDoubt = 0.10, 0.03
	// How much of each period attempts compute in tells for which part of their time they do, as far as periods are alike.
	denseDoubt = 0.10
	// Cores that are used may only spin, and threads that wait for a limit may wait for each other next.
	rateDoubt, demandDoubt = 0.15, 0.15
	// A core that was not used up tells that there was nothing for a second one.
	alone = 0.10
	// leastDoubt is how well two run times can be compared on a host that does other work as well. One run time differs
	// from another of its kind by about hostDoubt there, which counts as much as what hostTold run times tell.
	leastDoubt, hostDoubt, hostTold = 0.02, 0.10, 2
	// limitPeriod is for how many seconds a limit of CPU holds before it is made up anew: what an attempt computes in
	// less is held back by no limit above its mean.
	limitPeriod = 0.100
)

// row says that the sum of the values with these factors is this, give or take a standard deviation.
type row struct {
	by         [3]float64
	is, spread float64
}

// Learn finds the curve that attempts follow: by linear regression with what is thought before (Bayes), from the run
// times at different sizes relative to what times says of their inputs, which are compared with each other, and from
// what each size tells by itself: cores used, and for how long a limit held attempts back. Counted says that hosts tell
// the latter; else an attempt that used nearly all of less than one core is taken to have been held back. What running
// attempts tell counts while no other has ended.
func (t *Tries) Learn(times Duration, counted bool) Speed {
	var sizes []seen
	errors := make([]float64, 0, maxTried*maxTries)
	seconds := 0.0
	for _, tried := range t.Sizes {
		if t.Attempts-tried.Last > triesFade || len(tried.Rates.Values) == 0 {
			continue
		}
		at := tried.seen(counted)
		logs := tried.Times.relative(times)
		at.attempts = float64(len(logs))
		if len(logs) > 0 {
			at.log = median(slices.Clone(logs))
			for _, value := range logs {
				errors = append(errors, math.Abs(value-at.log))
			}
		}
		seconds = max(seconds, tried.Times.Quantile(0.5))
		sizes = append(sizes, at)
	}
	if len(sizes) == 0 {
		sizes = t.running()
	}
	if len(sizes) == 0 {
		return Speed{}
	}
	s := Speed{}
	rate, fastest, compared := rates(sizes)
	s.Rate, s.Dense = rate, dense(sizes, rate)
	largest := slices.MaxFunc(sizes, func(a, b seen) int { return cmp.Compare(a.cores, b.cores) })
	s.Most, s.Far = largest.cores, max(1, largest.cores)
	if largest.more || slices.ContainsFunc(t.Sizes, func(tried Tried) bool {
		now := tried.now()
		return tried.is(largest.cores) && t.holds(tried, alone) && now.more
	}) {
		s.Far *= Beyond
	}
	// An attempt that computes a part of the time is slowed where that fills the time for which a limit holds: as often
	// as it computes at all, where one moment says nothing of the next, and for as long as it keeps a core busy.
	busy := row{[3]float64{1, 0, 0}, s.Rate * fastest, busyDoubt * max(s.Rate, alone)}
	if s.Dense > 0 {
		busy.is, busy.spread = min(1, s.Rate/s.Dense), denseDoubt
	}
	if seconds > 0 {
		busy.is *= min(1, seconds/limitPeriod)
	}
	rows := []row{
		busy,
		{[3]float64{0, 1, 0}, parallelUsual, parallelDoubt},
		{[3]float64{0, 0, 1}, 0, contentionDoubt},
	}
	for _, at := range sizes {
		rows = append(rows, at.rows(s, compared)...)
	}
	direct := s.compare(sizes, errors)
	if s.Sizes = len(direct); s.Sizes > 0 {
		s.Sizes++
	}
	if !s.solve(append(rows, direct...)) {
		return Speed{} // numbers so far apart tell nothing
	}
	if s.Sizes > 0 {
		s.Rate = s.rateOf(sizes)
	}
	return s
}

// rateOf is the rate, or less where run times say of a small size that it takes less time than that leaves to it.
func (s Speed) rateOf(sizes []seen) float64 {
	rate := s.Rate
	for _, at := range sizes {
		if at.attempts > 0 && at.cores < 1 {
			rate = min(rate, at.cores*(1+dot(s.terms(at.cores), s.values())))
		}
	}
	return rate
}

// LearnTimes learns how long attempts take with as many cores as the newest had, and how fast they are with others:
// see [LearnDuration] and [Tries.Learn]. Where attempts had several sizes, each is learned by the other in turn, so
// that what hangs together with the input is told apart from what does with the size.
func LearnTimes(times *Times, tries *Tries, width float64, counted bool) (Duration, Speed) {
	cores := times.Reference()
	duration, _ := LearnDuration(times, width)
	speed := tries.Learn(duration, counted)
	if times.Mixed(cores) {
		for range turns {
			brought := times.At(cores, speed)
			duration, _ = LearnDuration(&brought, width)
			speed = tries.Learn(duration, counted)
		}
	}
	duration.Cores = cores
	return duration, speed
}

// turns is how often each is learned by the other: with inputs that are as many times as large as there are more cores,
// three are within a tenth (TestSpeedsAreToldApartFromInputs).
const turns = 3

// seen is the middle of what attempts of this size took.
func (t *Tried) seen(counted bool) seen {
	at := seen{
		cores: t.Cores, rate: t.Rates.Quantile(0.5), held: t.Held.Quantile(0.5), fastest: t.Rates.Largest(),
		active: t.Active.Quantile(0.5),
	}
	if at.cores == 0 { // no limit: it had what it took
		at.cores = max(1, at.fastest)
	}
	if !counted && t.Cores > 0 && t.Cores < 1 && at.rate >= nearly*t.Cores {
		at.held = 1 - t.Cores
	}
	at.counted = counted
	at.more = counted && at.several() > alone || !counted && t.Cores > 1 && at.rate >= nearly*t.Cores
	return at
}

// running is what running attempts take, where nothing else is known.
func (t *Tries) running() (sizes []seen) {
	for _, tried := range t.Sizes {
		if t.holds(tried, 0) {
			sizes = append(sizes, tried.now())
		}
	}
	return sizes
}

// now is what a running attempt of this size takes, as hosts tell.
func (t *Tried) now() seen {
	now := t.Running
	at := seen{cores: t.Cores, rate: now.Rate, held: now.Held, fastest: now.Rate, counted: true}
	at.more = at.several() > alone
	return at
}

// nearly is the part of a limit that an attempt uses which is held back by it.
const nearly = 0.95

// rates is how many cores attempts use in the mean where they have one, and the fastest of them. What used several
// cores at once may have waited besides, which those with one core or less tell; sure says that there are some.
func rates(sizes []seen) (mean, fastest float64, sure bool) {
	small := slices.DeleteFunc(slices.Clone(sizes), func(s seen) bool { return s.cores > 1 })
	if len(small) > 0 {
		sizes = small
	}
	for _, at := range sizes {
		took := at.time(1)
		mean += min(1, at.rate*took) / float64(len(sizes))
		fastest = max(fastest, min(1, at.fastest*took))
	}
	return mean, fastest, len(small) > 0
}

// time is about how long the attempts took at this size relative to one core, by what they tell themselves, where they
// use this rate with one core. Below one core, what they were held back for is what they lack of a core while they
// compute, at most: threads beyond the first are held back, too.
func (s seen) time(rate float64) float64 {
	if s.cores < 1 {
		return 1 / max(1-min(s.held, s.rate*(1/s.cores-1)), s.cores)
	}
	if !(s.rate > rate) {
		return 1 // none used is none saved
	}
	return min(1, max(rate/s.rate, 1/s.cores))
}

// dense is how much of a core attempts use in each period of a limit in which they run at all, by what the small sizes
// tell where there are some, as [rates]: as much as they run while their limit does not hold them back. It is that of
// the fastest: what kept the others waiting may have been a busy host, which tells nothing of what a limit would do. It
// is no less than what a limit tells that held them back, by the same curve. 0 where it is not known.
func dense(sizes []seen, rate float64) float64 {
	small := slices.ContainsFunc(sizes, func(s seen) bool { return s.cores <= 1 && s.active > 0 })
	mean, known, least := 0.0, 0.0, 0.0
	for _, at := range sizes {
		if at.active == 0 || small && at.cores > 1 {
			continue
		}
		took := at.time(rate)
		mean += min(1, at.fastest/max(at.active-max(0, took-1)/took, at.fastest))
		known++
		if at.cores < 1 && took > 1 && rate > 0 {
			least = max(least, 1/max(1, 1/at.cores-(took-1)/rate))
		}
	}
	return max(mean/max(1, known), least)
}

// several is how many threads the limit held back in the mean beside those that it has room for, one at least: as many
// as ran or were held back, without as many as could run. In its first period an attempt may use what was left over, so
// one that is short uses more than its limit in the mean.
func (s seen) several() float64 {
	return max(0, s.rate+s.held-max(1, s.cores)*min(1, s.rate/s.cores))
}

// rows is what attempts of one size tell that use a rate with one core; sure says that they are known to.
func (s seen) rows(of Speed, sure bool) []row {
	at, took := of.terms(s.cores), s.time(of.Rate)
	if s.cores < 1 {
		doubt := heldDoubt
		if s.counted && s.active > 0 && s.several() <= alone {
			doubt = aloneDoubt
		}
		rows := []row{{at, took - 1, doubt * took}}
		if s.rate <= 0 || s.held <= alone || !s.counted {
			return rows // nothing tells whether others wanted a core
		}
		threads := max(2, (s.rate+s.held)*s.cores/s.rate)
		part := min(1, took*s.cores*s.several()/(threads-1))
		return append(rows, row{[3]float64{0, 1, 0}, part, alone + (demandDoubt-alone)*part})
	}
	var rows []row
	if s.cores > 1 {
		doubt := rateDoubt * took
		if sure { // what uses no more cores than one is no faster
			doubt = leastDoubt + rateDoubt*(1-took)
		}
		rows = append(rows, row{at, took - 1, doubt})
	}
	if threads := max(math.Floor(s.cores)+1, s.rate+s.held); s.cores == 1 || s.held > alone {
		part := min(1, s.cores*took*s.several()/(threads-s.cores))
		rows = append(rows, row{[3]float64{0, 1, 0}, part, alone + (demandDoubt-alone)*part})
	}
	return rows
}

// compare is what run times at different sizes tell: that at each, as many times that at the one seen most.
func (s Speed) compare(sizes []seen, errors []float64) []row {
	first := -1
	for i, at := range sizes {
		if at.attempts > 0 && (first < 0 || at.attempts > sizes[first].attempts ||
			at.attempts == sizes[first].attempts && math.Abs(math.Log(at.cores)) < math.Abs(math.Log(sizes[first].cores))) {
			first = i
		}
	}
	if first < 0 {
		return nil
	}
	// The mean and not the median of the errors: what happens seldom to one of many is all there is where there is one.
	free := float64(max(0, len(errors)-len(sizes)))
	scale := absToSigma * floats.Sum(errors) / max(1, free)
	spread := max(leastDoubt, math.Sqrt((hostTold*hostDoubt*hostDoubt+free*scale*scale)/(hostTold+free)))
	from := sizes[first]
	away := s.terms(from.cores)
	var rows []row
	for i, at := range sizes {
		if i == first || at.attempts == 0 {
			continue
		}
		ratio := math.Exp(min(max(at.log-from.log, -mostLog), mostLog))
		by := s.terms(at.cores)
		for k := range by {
			by[k] -= ratio * away[k]
		}
		rows = append(rows, row{by, ratio - 1, spread * ratio * from.time(1) * math.Sqrt(1/at.attempts+1/from.attempts)})
	}
	return rows
}

// absToSigma makes a mean absolute error that of a normal standard deviation.
const absToSigma = 1.2533

// mostLog bounds by what factor run times may differ because of the size.
const mostLog = 10

// sure is a standard deviation for what must be so.
const sure = 1e-4

// solve fits the values to rows, each within what it can be; ok is false where they are too far apart to.
func (s *Speed) solve(rows []row) (ok bool) {
	bounds := [3][2]float64{{0, 2}, {0, 1}, {0, 1}}
	var fixed [3]bool
	for range len(fixed) + 1 {
		mean, variance, ok := regress(rows)
		if !ok {
			return false
		}
		s.Busy, s.Parallel, s.Contention, s.Variance = mean[0], mean[1], mean[2], variance
		worst, by := -1, 0.0
		for i, value := range mean {
			if out := max(bounds[i][0]-value, value-bounds[i][1]); !fixed[i] && out > by {
				worst, by = i, out
			}
		}
		if worst < 0 {
			break
		}
		bound := row{is: min(max(mean[worst], bounds[worst][0]), bounds[worst][1]), spread: sure}
		bound.by[worst] = 1
		rows, fixed[worst] = append(rows, bound), true
	}
	clamped := s.values()
	for i := range clamped {
		clamped[i] = min(max(clamped[i], bounds[i][0]), bounds[i][1])
	}
	s.Busy, s.Parallel, s.Contention = clamped[0], clamped[1], clamped[2]
	return true
}

// regress is the mean and the variance (see [Speed.Variance]) of the values by weighted least squares.
func regress(rows []row) (mean [3]float64, variance [6]float64, ok bool) {
	precision, weighted := mat.NewSymDense(3, nil), mat.NewVecDense(3, nil)
	for _, r := range rows {
		weight := 1 / (r.spread * r.spread)
		for i := range 3 {
			weighted.SetVec(i, weighted.AtVec(i)+weight*r.by[i]*r.is)
			for k := i; k < 3; k++ {
				precision.SetSym(i, k, precision.At(i, k)+weight*r.by[i]*r.by[k])
			}
		}
	}
	var factor mat.Cholesky
	var solution mat.VecDense
	var covariance mat.SymDense
	if !factor.Factorize(precision) || factor.SolveVecTo(&solution, weighted) != nil ||
		factor.InverseTo(&covariance) != nil {
		return mean, variance, false
	}
	for i := range mean {
		mean[i], variance[i] = solution.AtVec(i), covariance.At(i, i)
	}
	variance[3], variance[4], variance[5] = covariance.At(0, 1), covariance.At(0, 2), covariance.At(1, 2)
	return mean, variance, !floats.HasNaN(mean[:]) && !floats.HasNaN(variance[:])
}
