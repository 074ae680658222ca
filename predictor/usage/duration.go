package usage

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/spillway-ml/spillway/predictor/fact"
)

// Duration is how long attempts of a stage will take, as learned: a curve over one number at most, the levels of one
// category at most, and how far the attempts lay from these. The zero value knows nothing. It is small enough to travel
// with a plan.
type Duration struct {
	// Feature is what explains the run time, empty where nothing that is known before does.
	Feature string `json:"feature,omitempty"`
	// The curve is Level + Slope (x - Centre) seconds, or Level exp(Slope (ln x - Centre)) where it is a Power.
	Power  bool    `json:"power,omitempty"`
	Level  float64 `json:"level"`
	Slope  float64 `json:"slope,omitempty"`
	Centre float64 `json:"centre,omitempty"`
	// Levels multiply the curve.
	Levels Levels `json:"levels,omitzero"`
	// From and To bound the values of the feature up to which the curve is followed; it is never below Least seconds.
	From  float64 `json:"from,omitempty"`
	To    float64 `json:"to,omitempty"`
	Least float64 `json:"least,omitempty"`
	// Fixed and Away are the variance of the curve relative to that of one attempt: Fixed + Away (x - Centre)^2, for a
	// line divided by the square of what it comes to.
	Fixed float64 `json:"fixed"`
	Away  float64 `json:"away,omitempty"`
	// Below, Middle and Above are the quantiles of 10, 50 and 90 percent of ln(actual / curve), in units of how far an
	// attempt would lie from a curve that is certain.
	Below  float64 `json:"below"`
	Middle float64 `json:"middle"`
	Above  float64 `json:"above"`
	// Attempts is how many run times it rests on.
	Attempts int `json:"attempts"`
	// Cores is with how many cores it takes that long; 0 where that is not known.
	Cores float64 `json:"cores,omitempty"`
}

// RestsOn are those of what is known of an attempt by which its run time is expected: nil where that is nothing.
func (d Duration) RestsOn(known map[string]float64) map[string]float64 {
	var found map[string]float64
	for _, name := range [...]string{d.Feature, d.Levels.Name} {
		if value, told := known[name]; told {
			if found == nil {
				found = make(map[string]float64, 2)
			}
			found[name] = value
		}
	}
	return found
}

// Run times that are told lie between these, in seconds: a clock that ran backwards has measured nothing, and a month
// is the longest that is believed of any attempt.
const leastSeconds = 1e-6

var mostSeconds = fact.MaxWall.Seconds()

// At is how long an attempt with these features takes, in seconds: Low and High bound the middle 80 percent. Mid is the
// median, which every other attempt exceeds; what many attempts take together is that of their mean, which is larger.
// known is false where nothing is learned, or the attempt lacks the feature.
//
// Beyond what was seen the curve is followed only as far as From and To: a line and a power that agree on all that was
// seen differ by as much as they say not far from there. The interval reaches to where the curve would lead.
func (d Duration) At(features Features) (expected fact.Interval, known bool) {
	x := features.Value(d.Feature)
	if d.Attempts == 0 || x == 0 && d.From > 0 {
		return fact.Interval{}, false
	}
	within := min(max(x, d.From), d.To)
	level := math.Log(d.Levels.At(features))
	near, far, unit := d.curve(within)+level, d.curve(x)+level, d.unit(x)
	mid := near + d.Middle*d.unit(within)
	low, high := min(near, far)+d.Below*unit, max(near, far)+d.Above*unit
	return fact.Interval{
		Low: seconds(min(low, mid) - rounding), Mid: seconds(mid), High: seconds(max(high, mid) + rounding),
	}, true
}

// Relative is by what factor an attempt with this input takes longer than those of times do on average, by the curve: 1
// where it is over another feature or over none. The mean of times multiplied by it is what such attempts take on
// average, also where times are those of another venue than the curve's.
func (d Duration) Relative(times Times, input float64) float64 { return d.RelativeOf(times, input, 0) }

// RelativeOf is that of attempts whose inputs are so large in the mean and have logarithms with this standard
// deviation: of a curve that is no line, what inputs take in the mean is not what their mean takes.
func (d Duration) RelativeOf(times Times, input, spread float64) float64 {
	if d.Attempts == 0 || d.Feature != InputBytes || !(input > 0) || !times.valid() {
		return 1
	}
	column := slices.Index(times.Names, InputBytes)
	if column < 0 {
		return 1
	}
	followed := func(x float64) float64 { return seconds(d.curve(min(max(x, d.From), d.To))) }
	sum, known := 0.0, 0
	for _, x := range times.Columns[column] {
		if x >= 0 {
			sum, known = sum+followed(x), known+1
		}
	}
	if known == 0 {
		return 1
	}
	// Gauss and Hermite's rule of three points, of a log-normal distribution.
	third := math.Sqrt(3) * min(spread, mostInputSpread)
	usual := math.Log(input) - third*third/6
	mean := followed(math.Exp(usual-third))/6 + followed(math.Exp(usual))*2/3 + followed(math.Exp(usual+third))/6
	return mean / (sum / float64(known))
}

// mostInputSpread is that of inputs that differ by a factor of ten thousand: three points do not tell of more.
const mostInputSpread = 3

// Variation is how far attempts lie from the curve relative to it: the coefficient of variation of what is log-normal
// with such quantiles.
func (d Duration) Variation() float64 {
	deviation := min((d.Above-d.Below)/2/tenth, mostUnit)
	return min(math.Sqrt(math.Expm1(deviation*deviation)), mostUnit)
}

// seconds is the run time with this logarithm.
func seconds(log float64) float64 { return min(max(math.Exp(log), leastSeconds), mostSeconds) }

// curve is the logarithm of what the curve comes to at x.
func (d Duration) curve(x float64) float64 {
	switch {
	case d.Feature == "":
		return math.Log(d.Level)
	case d.Power:
		return math.Log(d.Level) + d.Slope*(math.Log(x)-d.Centre)
	}
	return math.Log(max(d.Level+d.Slope*(x-d.Centre), d.Least))
}

// unit is how far an attempt at x is expected to lie from the curve, where 1 is how far from one that is certain.
func (d Duration) unit(x float64) float64 {
	away, size := 0.0, 1.0
	switch {
	case d.Feature == "":
	case d.Power:
		away = math.Log(x) - d.Centre
	default:
		away, size = x-d.Centre, math.Exp(d.curve(min(max(x, d.From), d.To)))
	}
	return min(math.Hypot(1, math.Sqrt(d.Fixed+d.Away*away*away)/size), mostUnit)
}

// mostUnit keeps an input a million times larger than all others from an interval that is no number.
const mostUnit = 1e3

// String says what it rests on, for reasons: "23 attempts, by input_bytes".
func (d Duration) String() string {
	text := strconv.Itoa(d.Attempts) + " attempts"
	if by := (Term{Feature: d.Feature, Power: 1, By: d.Levels.Name}).String(); by != "" {
		text = fmt.Sprintf("%s, by %s", text, by)
	}
	return text
}

// LearnDuration finds what explains the run times of attempts: over every number, on the attempts of which it was
// known, it fits a line and a power, and it takes the one that is closest to the attempts, each predicted by all the
// others, relative to how close a constant is. It takes the constant where none is closer by more than chance. The
// category that explains best what that leaves over, by more than chance, multiplies it by its levels. Width
// is by what factor the interval is wider than these attempts say, 0 for 1; see [Widened]. ok is false where no run
// time is known.
//
// All is relative, in the logarithm of the run time: a minute more or less is much for a task of seconds and nothing
// for one of a day. The interval is that of the errors of predictions by all others, weighted by age (see
// [ratios.quantile]), wider where the curve is known less.
func LearnDuration(t *Times, width float64) (learned Duration, ok bool) {
	if t == nil || !t.valid() || len(t.Values) == 0 {
		return Duration{}, false
	}
	best := t.best()
	if slices.ContainsFunc(t.Names, IsCategory) && len(best.attempts) >= Enough {
		best = t.byCategory(best)
	}
	if width <= 0 {
		width = 1
	}
	return best.learned(width), true
}

// best is the curve over one number at most.
func (t *Times) best() curve {
	best, least := constantTime(t.timed(-1)), 1.0
	for column, name := range t.Names {
		if IsCategory(name) {
			continue
		}
		attempts := t.timed(column)
		if len(attempts) < Enough {
			continue
		}
		simple := constantTime(attempts).price()
		if !(simple > rounding) {
			continue // nothing is left to explain
		}
		for _, fit := range []func([]timed, string) (curve, bool){lineOfTime, powerOfTime} {
			next, fits := fit(attempts, name)
			if part := next.price() / simple; fits && part < least && part < 1-chance(attempts, len(t.Names)) {
				best, least = next, part
			}
		}
	}
	return best
}

// byCategory is the simple curve, or one with the levels of the category that is closest by more than chance: beside
// what the simple curve explains, or what is left where the category comes first.
func (t *Times) byCategory(simple curve) curve {
	best, least := simple, (1-chance(simple.attempts, len(t.Names)))*simple.price()
	for column, name := range t.Names {
		if !IsCategory(name) {
			continue
		}
		for _, start := range [...]curve{constantTime(t.timed(-1)), simple} {
			if next, ok := t.levelled(start, column); ok && next.price() < least {
				best, least = next, next.price()
			}
		}
	}
	return best
}

// levelled is the curve with the levels of a category, each fitted in turn to what the other leaves over; ok is false
// where the category explains nothing of it. What the curve explained before is explained anew.
func (t *Times) levelled(start curve, column int) (next curve, ok bool) {
	next, ok = start.levelled(t, column, nil)
	factors := make([]float64, len(t.Values))
	for turn := 0; ok && turn < turns; turn++ {
		divided := *t
		divided.Values = slices.Clone(t.Values)
		for i := range factors {
			factors[i] = next.Levels.of(t.kind(t.Names[column], i))
			divided.Values[i] /= factors[i]
		}
		next, ok = divided.best().levelled(t, column, factors)
	}
	return next, ok && len(next.attempts) >= Enough
}

// chance is by what part the mean of the errors of attempts may differ for one of so many features. Its standard error
// relative to it is sqrt(pi/2 - 1) for normal errors, divided by the root of how many attempts there are, or their
// weights are worth (Kish, Survey Sampling, 1965, 8.2): to ask for one of these is the rule of Breiman et al.
// (Classification and Regression Trees, 1984, 3.4.3). The best of many features is closer by sqrt(2 ln features) by
// chance alone (TestNoiseExplainsNoRunTime).
func chance(attempts []timed, features int) float64 {
	weights := make([]float64, len(attempts))
	for i, a := range attempts {
		weights[i] = a.weight
	}
	return math.Sqrt((math.Pi/2-1)*worthOf(weights)) * max(1, math.Sqrt(2*math.Log(float64(features))))
}

// step is how much one attempt outside or inside of its interval changes the next ones: by 8 percent wider, or by 2
// narrower. What changes within ten attempts is followed; where nothing does, chance moves the width by a fifth or so.
const step = 0.1

// The widths: beyond them it is the Duration that is wrong, and not how far attempts lie from it.
const leastWidth, mostWidth = 0.5, 4

// Widened is the width of intervals after an attempt of which told was expected: wider where it was outside, and
// narrower, by a quarter of that, where it was inside. Whatever attempts take, four of five are inside in the long run
// (Gibbs and Candès, Adaptive conformal inference under distribution shift, 2021, https://arxiv.org/abs/2106.00170,
// here on a logarithm of the width). The errors of past attempts alone do not tell: those that end first are short
// ones, and attempts that start together are alike. A width of 0 is one of which nothing is known, and counts as 1.
func Widened(width float64, told fact.Interval, actual float64) float64 {
	if width <= 0 {
		width = 1
	}
	const missed = 0.2 // of 80 percent
	change := -missed
	if actual < told.Low || actual > told.High {
		change = 1 - missed
	}
	return min(max(width*math.Exp(step*change), leastWidth), mostWidth)
}
