package memory

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Lasting is how long an attempt takes altogether: a log-normal distribution.
type Lasting struct {
	// Median is in seconds, Spread the standard deviation of the logarithm.
	Median, Spread float64
}

// Left is in how many seconds an attempt ends: the mean, and the coefficient of variation of it.
type Left struct{ Mean, Variation float64 }

// Paced is when an attempt ends by the progress that it reports: Now from now on, and Then from its last report on,
// which was Ago seconds ago.
type Paced struct {
	Now, Then Left
	Ago       float64
}

// Heeds is how much the progress of an attempt of this age counts beside what others like it let expect, from 0 to 1:
// when it was reported, each counts as the inverse of its variance, on logarithms. Where they are further from each
// other than that explains, it is not one like those others: the rest of the distance is added to their variance. A
// word that may be off by as much as it says explains any distance.
func (l Lasting) Heeds(progress Paced, age float64) (part float64) {
	expected, told := l.Beyond(age-progress.Ago), progress.Then
	if !(expected.Mean > 0) || !(told.Mean > 0) {
		return 1
	}
	others, its := expected.Variation*expected.Variation, told.Variation*told.Variation
	if apart := math.Log(expected.Mean / told.Mean); its < 1 {
		others = max(others, apart*apart-its)
	}
	if !(others+its > 0) {
		return 1
	}
	return others / (others + its)
}

// Goes is for how many seconds a running attempt of this age goes on: by its own input, or else as attempts of its
// stage do at its venue that took times, of which that is otherwise; and by the progress that it reports.
func (m *State) Goes(running Attempt, now fact.Instant, age float64, times usage.Times, otherwise float64) float64 {
	left := otherwise
	lasts, known := m.Lasts(running)
	if known {
		left = lasts.Beyond(age).Mean
	}
	told, reports := m.ByProgress(running, now)
	if !reports {
		return left
	}
	if !known {
		lasts = usual(times)
	}
	part := lasts.Heeds(told, age)
	if part == 1 || !(left > 0) {
		return told.Now.Mean
	}
	return math.Pow(left, 1-part) * math.Pow(told.Now.Mean, part)
}

// usual is how long attempts take that took such times, with what is thought of their spread before.
func usual(times usage.Times) Lasting {
	mean, variation := times.Mean()
	n := float64(len(times.Values))
	square := n*math.Log1p(variation*variation) + usage.UsualScatterTimes*usage.UsualScatter*usage.UsualScatter
	square /= n + usage.UsualScatterTimes
	return Lasting{Median: max(mean, leastSpread) * math.Exp(-square/2), Spread: math.Sqrt(square)}
}

// followable are those of the numbers that were known of an attempt by which run times of the stage are followed, or
// will be as soon as one has ended.
func (m *Model) followable(told map[string]float64) map[string]float64 {
	if len(told) == 0 {
		return nil
	}
	names := m.Walls[fact.Pool].Names
	kept := make(map[string]float64, min(len(told), usage.MaxFeatures))
	for _, name := range names {
		if value, known := told[name]; known {
			kept[name] = value
		}
	}
	if room := usage.MaxFeatures - max(1, len(names)); room > 0 && len(kept) < len(told) {
		for _, name := range slices.Sorted(maps.Keys(told)) {
			if _, known := kept[name]; known || room == 0 || len(name) > usage.MaxFeatureName {
				continue
			}
			kept[name] = told[name]
			room--
		}
	}
	maps.DeleteFunc(kept, func(_ string, value float64) bool { return math.IsNaN(value) || math.IsInf(value, 0) })
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// Lasts is how long a running attempt takes by its own input, with the cores that it has; known is false where nothing
// that is known of it explains the run times of its stage, or such predictions have fallen from use.
func (m *State) Lasts(running Attempt) (lasts Lasting, known bool) {
	st := m.Stages[running.Stage()]
	if st == nil || st.Model.WallFallen {
		return Lasting{}, false
	}
	by, given := st.Model.Duration(), m.Given[running.Key]
	features := usage.Features{Input: float64(given.Input), Named: given.Features}
	if by.Feature != "" && !(features.Value(by.Feature) > 0) || by.Feature == "" && features.Value(by.Levels.Name) == 0 {
		return Lasting{}, false
	}
	expected, known := by.At(features)
	if !known || !(expected.Low > 0) {
		return Lasting{}, false
	}
	lasts = Lasting{Median: expected.Mid, Spread: math.Log(expected.High/expected.Low) / 2 / usage.Normal80}
	switch running.Venue {
	case fact.Pool:
		lasts.Median *= st.Model.Speed().Slower(by.Cores, m.Grants[running.Key].CPU.Cores())
	case fact.Function:
		lasts.Median *= st.Model.slowdown(by, size.ClassCores(st.Class))
	}
	return lasts, lasts.Median > 0 && !math.IsInf(lasts.Median, 0)
}

// slowdown is by what factor attempts take longer at functions with so many cores than by lets expect of the pool: by
// those that have ended there, or else by the speed with so many cores.
func (m *Model) slowdown(by usage.Duration, cores float64) float64 {
	there := m.Times(fact.Function, cores)
	column := slices.Index(there.Names, by.Feature)
	if column < 0 || column >= len(there.Columns) || len(there.Columns[column]) != len(there.Values) {
		return m.Speed().Slower(cmp.Or(by.Cores, 1), cores)
	}
	took, expected := 0.0, 0.0
	for i, x := range there.Columns[column] {
		features := there.FeaturesOf(i)
		if at, known := by.At(features); known && x > 0 {
			took, expected = took+there.Values[i], expected+at.Mid
		}
	}
	if !(expected > 0) {
		return m.Speed().Slower(cmp.Or(by.Cores, 1), cores)
	}
	return took / expected
}

// AtFunctions is by what factor attempts take longer at functions than what is learned at the pool lets expect there,
// of their inputs and with their cores; 0 where none has ended there. The mean of the logarithms of n counts as n
// beside the pool's word, which counts as two: one is a draw.
func (m *Model) AtFunctions() float64 {
	there, by := m.Walls[fact.Function], m.Duration()
	if len(there.Values) == 0 {
		return 0
	}
	cores := there.Reference()
	there = m.Times(fact.Function, cores)
	sum, n := 0.0, float64(usage.UsualScatterTimes)
	for i, took := range there.Values {
		if expected, known := by.At(there.FeaturesOf(i)); known && took > 0 {
			sum, n = sum+math.Log(took/expected.Mid/m.Speed().Slower(by.Cores, cores)), n+1
		}
	}
	return math.Exp(sum / n)
}

// unlike is how probable it is that an attempt is like none before. One that has outlived what was expected of it by
// far is that rather than one that ends now.
const unlike = 1e-3

// Beyond is what is left of it at an age, in seconds. Of T, log-normal with the parameters mu and s, which has passed
// a:
//
//	E[T^k | T > a] = exp(k mu + k^2 s^2 / 2) Q(z - k s) / Q(z),   z = (ln a - mu) / s
//
// where Q is the upper tail of the standard normal distribution. An attempt that is like none before goes on for as
// long again as it has run, in the mean of an exponential distribution; how probable that is grows as it outlives the
// others.
func (l Lasting) Beyond(age float64) Left {
	mu, s := math.Log(l.Median), min(max(l.Spread, leastSpread), mostSpread)
	if age <= 0 {
		return Left{Mean: math.Exp(mu + s*s/2), Variation: math.Sqrt(math.Expm1(s * s))}
	}
	z := (math.Log(age) - mu) / s
	lives := tail(z)
	first := math.Exp(mu+s*s/2) * tail(z-s)      // times lives, as the next
	second := math.Exp(2*mu+2*s*s) * tail(z-2*s) //
	mean := max(0, first-age*lives)
	square := max(0, second-2*age*first+age*age*lives)
	sum := lives + unlike
	mean, square = (mean+unlike*age)/sum, (square+unlike*2*age*age)/sum
	return Left{Mean: mean, Variation: math.Sqrt(max(0, square/(mean*mean)-1))}
}

// leastSpread keeps a distribution from being a point: no two attempts take the same time.
const leastSpread = 1e-3

// mostSpread keeps what is expected of one whose interval says nothing from being beyond all times: of two in three it
// is off by a factor of twenty.
const mostSpread = 3

// tail is the probability that a standard normal variable is larger than z.
func tail(z float64) float64 { return math.Erfc(z/math.Sqrt2) / 2 }
