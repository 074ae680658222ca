package forecast

import (
	"cmp"
	"fmt"
	"math"
	"time"
)

// Options are what the caller of a Forecaster may choose. A field of 0 means its default.
type Options struct {
	// Bucket is how long a bucket of time is, from a millisecond to a day; a minute by default. Buckets begin at whole
	// multiples of it since 1970.
	Bucket time.Duration `json:"bucket_ns,omitempty"`
	// Horizon is how many buckets ahead is forecast, from 1 to 1,440; 10 by default. It is how long it takes until what
	// is decided now helps, in buckets.
	Horizon int `json:"horizon_buckets,omitempty"`
	// Remember is how long a history periods are found in, 4 weeks by default: four cycles of a week. A period is found
	// once two cycles of it are within. At least two buckets, at most ten years.
	Remember time.Duration `json:"remember_ns,omitempty"`
}

const (
	defaultBucket   = time.Minute
	defaultHorizon  = 10
	defaultRemember = 28 * 24 * time.Hour
	longestHorizon  = 1440
	longestRemember = 3653 * 24 * time.Hour
)

func (o Options) withDefaults() Options {
	o.Bucket = cmp.Or(o.Bucket, defaultBucket)
	o.Horizon = cmp.Or(o.Horizon, defaultHorizon)
	o.Remember = cmp.Or(o.Remember, max(defaultRemember, 2*o.Bucket))
	return o
}

// Validate reports the first field that is out of its range.
func (o Options) Validate() error {
	o = o.withDefaults()
	switch {
	case o.Bucket < time.Millisecond || o.Bucket > 24*time.Hour:
		return fmt.Errorf("options of a forecast: a bucket is %v; choose from 1ms to 24h", o.Bucket)
	case o.Horizon < 1 || o.Horizon > longestHorizon:
		return fmt.Errorf("options of a forecast: the horizon is %d buckets; choose from 1 to %d", o.Horizon, longestHorizon)
	case o.Remember < 2*o.Bucket || o.Remember > longestRemember:
		return fmt.Errorf("options of a forecast: %v are remembered; choose from two buckets to ten years", o.Remember)
	}
	return nil
}

const (
	// fineRoom and coarseRoom are how many blocks are remembered: fine ones of one bucket, coarse ones as long as it
	// takes for Remember. Two thousand divide four weeks into blocks of 20 minutes, which is how sharp the edge of a day
	// is; a thousand buckets show a period of an hour of minutes seventeen times.
	fineRoom, coarseRoom = 1024, 2016
	// largestCount bounds what is believed of a bucket.
	largestCount = 1e12
	// strangeMost is how many observations in a row must be out of time before the clock is believed: fewer are strays.
	strangeMost = 64
)

// Forecaster folds the counts of arrivals of one stage, bucket by bucket, and forecasts those of the next.
//
// Counts are looked at as z = 2 sqrt(count + 3/8), in which a Poisson count has a standard deviation of 1 whatever its
// mean (Anscombe, Biometrika 1948, https://doi.org/10.1093/biomet/35.3-4.246). For a few leads up to the horizon (the
// others lie between them) the members of an ensemble each say a z; they are averaged with weights by their recent
// pinball loss at the median. The errors give a normal distribution; recurring bursts are a second one beside it, with
// the chance that the bucket is in a burst. What the two promised is then held against what came: the level that is
// asked of them follows the one at which what was promised came true ([Distribution]).
//
// A bucket of which nothing is told is missing, not empty: where an engine was down, nobody knows what came. So a
// caller that is up tells zeros too.
//
// It takes 19 KB in memory at a horizon of 10 buckets, 150 bytes more for each further bucket, and about half as much
// again as JSON, however long it observes (TestAForecastTakesNoMoreThanItsDocumentSays). The zero value is only good to
// be read into; see [New]. A Forecaster has one owner; copies share state, [Forecaster.Clone] does not.
type Forecaster struct {
	options Options
	// seen is how many buckets were observed, newest the last of them, strange how many in a row were out of time.
	seen, newest int64
	strange      int

	now    current
	fine   history // z less its slower mean: what repeats within hours
	coarse history // z outside of bursts: what repeats within weeks
	cycles cycles
	far    excursion
	bursts bursts
	knots  []knot
}

// cycles are the periods that were found, in buckets; 0 where there is none.
type cycles struct {
	// Day is the shortest in the coarse history, Week a multiple of it that explains more, Hour that in the fine one:
	// named after what they usually are.
	Day, Week, Hour float64
	// Bursts are those in which bursts come again.
	Bursts [2]float64
	// Due is at how many observed buckets they are looked for again.
	Due int64
}

// New returns a Forecaster that has observed nothing.
func New(options Options) (*Forecaster, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	options = options.withDefaults()
	f := &Forecaster{
		options: options,
		fine:    newHistory(1, fineRoom),
		coarse:  newHistory(options.coarseWidth(), coarseRoom),
		cycles:  cycles{Due: leastBlocks},
	}
	for _, ahead := range options.leads() {
		f.knots = append(f.knots, newKnot(ahead))
	}
	return f, nil
}

// coarseWidth is how many buckets a block of the coarse history has.
func (o Options) coarseWidth() int64 {
	buckets := int64((o.Remember + o.Bucket - 1) / o.Bucket)
	return max(1, (buckets+coarseRoom-1)/coarseRoom)
}

// leads are what is learned about: 1, the horizon, and some between, each at most four times the one before.
func (o Options) leads() []int64 {
	steps := math.Ceil(math.Log(float64(o.Horizon)) / math.Log(4))
	leads := []int64{1}
	for i := 1.0; i <= steps; i++ {
		lead := int64(math.Round(math.Pow(float64(o.Horizon), i/steps)))
		if lead > leads[len(leads)-1] {
			leads = append(leads, lead)
		}
	}
	return leads
}

// Options returns those that it was made with, the defaults filled in.
func (f *Forecaster) Options() Options { return f.options }

// Seen is how many buckets were observed.
func (f *Forecaster) Seen() int64 { return f.seen }

// Newest is the start of the newest bucket that was observed; the zero time when there is none.
func (f *Forecaster) Newest() time.Time {
	if f.seen == 0 {
		return time.Time{}
	}
	return time.Unix(0, f.newest*int64(f.options.Bucket)).UTC()
}

// Clone returns a copy that shares nothing with f.
func (f *Forecaster) Clone() *Forecaster {
	clone := *f
	clone.fine, clone.coarse = f.fine.clone(), f.coarse.clone()
	clone.bursts.List = append([]burst(nil), f.bursts.List...)
	clone.knots = append([]knot(nil), f.knots...)
	for i := range clone.knots {
		clone.knots[i].waiting = append([]claim(nil), f.knots[i].waiting...)
	}
	return &clone
}

// Observe takes the count of arrivals in the bucket that holds at, once that bucket is over. Buckets are told in their
// order; what is left out is missing. It returns whether the count was taken: not where the count is NaN, infinite or
// below 0, nor where the bucket was observed before. A bucket that is older than the newest, or later by more than all
// that is remembered, is not taken either, until 64 such buckets were told in a row: then the clock was wrong before,
// and the rhythm is learned anew. Counts beyond 1e12 are taken as 1e12.
func (f *Forecaster) Observe(at time.Time, count float64) bool {
	if !(count >= 0) || math.IsInf(count, 1) || !reckoned(at) { // NaN fails the first
		return false
	}
	bucket := floorDiv(at.UnixNano(), int64(f.options.Bucket))
	gap := int64(1)
	if f.seen > 0 {
		gap = bucket - f.newest
	}
	switch {
	case gap == 0:
		return false
	case gap < 0 || gap > f.coarse.width*coarseRoom:
		if f.strange++; f.strange < strangeMost {
			return false
		}
		f.restart(bucket)
		gap = 1
	}
	f.strange = 0
	f.fold(bucket, gap, stabilised(math.Min(count, largestCount)))
	return true
}

// fold takes z of the bucket that is gap after the newest.
func (f *Forecaster) fold(bucket, gap int64, z float64) {
	inside, sign := f.judge(bucket, gap, z)
	for i := range f.knots {
		f.knots[i].learn(bucket, z, inside, inside && sign > 0)
	}
	if f.seen == 0 {
		f.now.start(z)
	}
	if !inside {
		f.now.observe(z, f.season(bucket), gap, f.seen)
		f.coarse.observe(bucket, z)
	}
	f.fine.observe(bucket, f.now.deviation(z, f.seen))
	f.newest = bucket
	if f.seen++; f.seen >= f.cycles.Due {
		f.search()
		f.cycles.Due = f.seen + min(max(64, f.seen/32), 1440)
	}
	for i := range f.knots {
		f.knots[i].wait(f.claim(&f.knots[i], f.knots[i].ahead))
	}
}

// restart forgets when things were, and keeps how large they were.
func (f *Forecaster) restart(bucket int64) {
	f.newest = bucket - 1
	f.fine, f.coarse = newHistory(1, fineRoom), newHistory(f.coarse.width, coarseRoom)
	f.bursts.List, f.far = nil, excursion{}
	f.adopt(cycles{Due: f.seen + leastBlocks})
	for i := range f.knots {
		f.knots[i].drop()
	}
}

// season is the mean z of the days before at the same time of day; 0 where no day is known.
func (f *Forecaster) season(bucket int64) float64 {
	if mean := f.coarse.profile(bucket, f.cycles.Day); !math.IsNaN(mean) {
		return mean
	}
	return 0
}

// search looks for periods.
func (f *Forecaster) search() {
	found := cycles{Due: f.cycles.Due}
	found.Day, found.Week = f.coarse.periods(f.cycles.Day)
	found.Hour, _ = f.fine.periods(f.cycles.Hour)
	if math.Abs(found.Hour-found.Day) <= float64(f.coarse.width) {
		found.Day = found.Hour // the same, and more exact
	}
	found.Bursts = [2]float64{found.Day, found.Week}
	if len(f.bursts.List) >= leastBursts {
		shares := f.bursts.history(&f.coarse)
		if first, second := shares.periods(f.cycles.Bursts[0]); first > 0 {
			found.Bursts = [2]float64{first, second}
		}
	}
	f.adopt(found)
}

// adopt takes other periods and drops what was learned about those that differ from the ones before.
func (f *Forecaster) adopt(found cycles) {
	before := f.cycles
	f.cycles = found
	for _, one := range []struct {
		before, found float64
		predictors    [2]int
		naive         bool // the naive member rests on it
	}{
		{before.Day, found.Day, [2]int{dayChange, dayLevel}, found.Week == 0},
		{before.Week, found.Week, [2]int{weekChange, weekLevel}, true},
		{before.Hour, found.Hour, [2]int{hourThen, hourNow}, false},
	} {
		// A two-hundredth is less than the shift by which a day that is off by it is wrong after eight cycles.
		if math.Abs(one.before-one.found) <= 0.005*one.before {
			continue
		}
		for i := range f.knots {
			f.knots[i].renew(one.predictors, one.naive)
		}
	}
	if f.seen > 0 && before.Day != found.Day {
		f.now.Level, f.now.Trend = f.now.Means[slowMean]-f.season(f.newest), 0
	}
}

// reckoned says whether a time can be counted in nanoseconds since 1970.
func reckoned(at time.Time) bool { return at.Year() >= 1678 && at.Year() <= 2261 }

// stabilised is z of a count.
func stabilised(count float64) float64 { return 2 * math.Sqrt(count+0.375) }

// counted is the count of z, not below 0.
func counted(z float64) float64 {
	z = math.Max(z, 0)
	return math.Max(0, z*z/4-0.375)
}

// clamp returns what is nearest to value within bound of 0.
func clamp(value, bound float64) float64 { return math.Min(math.Max(value, -bound), bound) }
