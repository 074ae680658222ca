package size

import (
	"fmt"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Experience is what the attempts of one stage that have ended tell of a quantity, such as their peaks in bytes or
// their run times in seconds: how many there are, and the mean and the sample variance of the natural logarithms. The
// zero value tells nothing.
type Experience struct {
	Attempts       int
	Mean, Variance float64
	// Input is the mean of the natural logarithms of their inputs in bytes; 0 where none had one of more than a byte.
	Input float64
}

// ExperienceOf sums values up; those that are not positive are left out.
func ExperienceOf(values []float64) Experience {
	var e Experience
	squares := 0.0
	for _, value := range values { // Welford's algorithm
		if !(value > 0) || math.IsInf(value, 0) {
			continue
		}
		e.Attempts++
		off := math.Log(value) - e.Mean
		e.Mean += off / float64(e.Attempts)
		squares += off * (math.Log(value) - e.Mean)
	}
	if e.Attempts > 1 {
		e.Variance = squares / float64(e.Attempts-1)
	}
	return e
}

// Prior is what is thought of the peaks of a stage, or of its run times, before enough of its own attempts have ended.
// The logarithms of those of its attempts are normal about that of the stage, and those of stages that are alike normal
// about a common mean: what one stage takes tells a little of what others take, the more the more they have in common.
type Prior struct {
	// Mean is that of stages: the natural logarithm of a number of bytes, or of seconds.
	Mean float64
	// Between is the variance of stages, Within that of the attempts of one.
	Between, Within float64
	// Stages is how many of those that it rests on are the most alike, and Like what these are; Others is how many it
	// rests on besides, which have less in common with it. 0 and empty where nothing is alike.
	Stages, Others int
	Like           string
	// Input is the one, in bytes, for which that holds; 0 where inputs tell nothing.
	Input float64
}

const (
	// usualPeak is what is thought of a process of which nothing is known: an interpreter takes 10 MiB, with libraries for
	// numbers 30 to 100, with those for learning 300.
	usualPeak = 32 * quantity.MiB
	// goPeak is the same of a function in Go, whose program is there without an interpreter: 6 MiB where it does nothing.
	goPeak = 12 * quantity.MiB
	// decade is 10, by which one of ten stages takes more than that, and one of ten less.
	decade = 10
	// alike is by how much, as a ratio, the attempts of a stage differ while nothing tells.
	alike = 1.5
	// believed is how many stages an opinion counts for that is about to be corrected by others, in its mean and in its
	// variances.
	believedMean, believedVariance = 1, 2
	// outer is the standard normal quantile of 0.9.
	outer = 1.2816
)

// What programs in Python take that import these has nothing to do with what they compute: the interpreter and the
// standard library alone take barePeak, with libraries for numbers numbersPeak, with those for learning learningPeak
// (the interpreter, NumPy and PyTorch 1.13: 9, 32 and 227 MiB before anything is done).
const (
	barePeak     = 12 * quantity.MiB
	numbersPeak  = 64 * quantity.MiB
	learningPeak = 300 * quantity.MiB
)

// numbers and learning are the modules that are most used of their kinds.
var (
	numbers = []string{
		"cv2", "lightgbm", "matplotlib", "numpy", "pandas", "polars", "pyarrow", "scipy", "skimage", "sklearn", "xgboost",
	}
	learning = []string{
		"diffusers", "flax", "jax", "keras", "lightning", "pytorch_lightning", "tensorflow", "torch", "torchvision",
		"transformers", "vllm",
	}
)

// shells run small programs, where nothing else was found that they run: a shell that starts others takes 1.4 MiB, and
// most of these no more.
var (
	shells    = []string{"sh", "bash", "dash", "ash", "ksh", "zsh"}
	shellPeak = 4 * quantity.MiB
)

// usualOf is what is thought of a process of this program that imports these modules (nil where that is not known).
func usualOf(program string, imports []string) quantity.Bytes {
	some := func(of []string) bool {
		return slices.ContainsFunc(imports, func(name string) bool { return slices.Contains(of, name) })
	}
	switch {
	case program == fact.GoProgram:
		return goPeak
	case some(learning):
		return learningPeak
	case some(numbers):
		return numbersPeak
	case imports != nil && len(imports) == 0:
		return barePeak
	case imports == nil && slices.Contains(shells, program):
		return shellPeak
	}
	return usualPeak
}

// WeakPrior is what is thought of a stage that this program runs, which imports these modules (nil where that is not
// known), before any stage was seen.
func WeakPrior(program string, imports []string) Prior {
	usual := usualOf(program, imports)
	between, within := math.Log(decade)/outer, math.Log(alike)
	return Prior{Mean: math.Log(float64(usual)), Between: between * between, Within: within * within}
}

// WeakWall is what is thought of the run times of a stage before any stage was seen: a second, where one stage in ten
// takes a hundred times as long and one in ten a hundredth.
func WeakWall() Prior {
	between, within := 2*math.Log(decade)/outer, math.Log(alike)
	return Prior{Between: between * between, Within: within * within}
}

// Learn corrects the prior by stages that have something in common with the one that is asked for, which they are
// called by: the normal model with unknown mean and variance in its conjugate form, in which the prior counts as
// believed stages (Gelman et al., Bayesian Data Analysis, 3rd edition, section 3.3), with each stage's mean weighted by
// how well its attempts tell it (section 5.4). Called once for each set of stages, first for those that have less in
// common, it is a hierarchy: what many stages tell is where few that are more alike begin.
func (p Prior) Learn(like string, stages []Experience) Prior {
	weight, mean, within, told := 0.0, 0.0, 0.0, 0.0
	weightOf := func(e Experience) float64 { return p.Between / (p.Between + p.Within/float64(e.Attempts)) }
	count := 0
	for _, e := range stages {
		if e.Attempts == 0 {
			continue
		}
		count++
		weight += weightOf(e)
		mean += weightOf(e) * e.Mean
		if e.Attempts > 1 {
			within += e.Variance
			told++
		}
	}
	if count == 0 {
		return p
	}
	mean /= weight
	spread := 0.0
	for _, e := range stages {
		if e.Attempts > 0 {
			spread += weightOf(e) * (e.Mean - mean) * (e.Mean - mean)
		}
	}
	shift := mean - p.Mean
	return Prior{
		Mean: (believedMean*p.Mean + weight*mean) / (believedMean + weight),
		Between: (believedVariance*p.Between + spread + believedMean*weight/(believedMean+weight)*shift*shift) /
			(believedVariance + weight),
		Within: (believedVariance*p.Within + within) / (believedVariance + told),
		Stages: count, Others: p.Others + p.Stages, Like: like, Input: p.Input,
	}
}

// Posterior is what is thought of the peak of the next attempt of a stage: its logarithm is normal.
type Posterior struct {
	Mean, Deviation float64
}

// Of is the posterior of the next attempt of a stage with this experience (Gelman et al., section 2.5).
func (p Prior) Of(own Experience) Posterior {
	n := float64(own.Attempts)
	if n == 0 {
		return Posterior{Mean: p.Mean, Deviation: math.Sqrt(p.Between + p.Within)}
	}
	within := (believedVariance*p.Within + (n-1)*own.Variance) / (believedVariance + n - 1)
	precision := 1/p.Between + n/within
	return Posterior{
		Mean:      (p.Mean/p.Between + own.Mean*n/within) / precision,
		Deviation: math.Sqrt(1/precision + within),
	}
}

// Quantile is the peak, in bytes, that is passed as seldom as a standard normal passes z.
func (p Posterior) Quantile(z float64) float64 {
	return min(math.Exp(p.Mean+z*p.Deviation), MostMemory)
}

// enoughForMost is the standard normal quantile of 0.75, with which an attempt of unknown need begins: three of four
// have enough from the start, and the fourth is lent what it lacks where there is room. Higher, what is held for it
// lies idle; lower, more must be lent.
//
// While no attempt of the stage itself has told anything, what is thought spans up to two decades, and three of four
// have enough with 3.5 times what half of them take. Such an attempt begins with enoughForHalf, the median, and is lent
// the rest: there are no more of them than have room for what nine in ten take (TestFirstAttemptsHaveRoomToGrow).
const enoughForMost, enoughForHalf = 0.674, 0.0

// Guessed is s with the memory that an attempt is thought to take, while too few have ended to learn it. Own is what
// those of this stage told that have ended, grown what one has taken that still runs (0 for none): it will take that
// much, or more. It is never below least.
//
// Largest is the largest input among those that have ended; 0 where none had one. An attempt with a larger one is given
// more by what it has beyond that: a byte for each byte, or as much as each byte of the largest took at most. While none
// has ended, that is what it has beyond the input for which the prior holds.
func (s Sizing) Guessed(p Prior, own Experience, largest, grown, least quantity.Bytes) Sizing {
	told := own
	if bound := math.Log(float64(grown)); grown > 0 && (told.Attempts == 0 || bound > told.Mean) {
		off := bound - told.Mean
		told.Attempts++
		told.Mean += off / float64(told.Attempts)
		if n := float64(told.Attempts); n > 1 {
			told.Variance = ((n-2)*told.Variance + off*off*(n-1)/n) / (n - 1)
		}
	}
	next := p.Of(told)
	enough := enoughForMost
	if told.Attempts == 0 {
		enough = enoughForHalf
	}
	limit := max(RoundUp(quantity.Bytes(next.Quantile(enough)), quantity.MiB), least)
	unmet := s.Floor
	low, mid, high := next.Quantile(-outer), next.Quantile(0), next.Quantile(outer)
	s.Expected = Expected{Base: mid, Ratio: fact.Interval{Low: low / mid, Mid: 1, High: high / mid}, Guess: true}
	s.Base.Memory, s.Term = limit, usage.Term{Feature: usage.InputBytes, Power: 1, PerUnit: 1}
	s.Expected.Term = s.Term
	if own.Attempts == 0 {
		largest = quantity.Bytes(p.Input)
	}
	if own.Attempts > 0 || largest > 0 { // what its largest input takes is in what they took
		if largest > 0 {
			s.Term.PerUnit = min(1, float64(limit-least)/float64(largest))
		}
		s.Base.Memory -= quantity.Bytes(s.Term.PerUnit * float64(largest))
		s.Floor = max(s.Floor, limit)
		part := mid / float64(limit)
		s.Expected.Base, s.Expected.Term = part*float64(s.Base.Memory), s.Term.Scaled(part)
	}
	s.Guess = true
	s.Source = fmt.Sprintf("%s: %s (%s to %s)", p.restsOn(own.Attempts), quantity.Bytes(mid), quantity.Bytes(low),
		quantity.Bytes(high))
	if unmet > limit {
		s.Source += fmt.Sprintf("; but one ran out of memory, so at least %s", unmet)
	}
	return s
}

// restsOn says what is known.
func (p Prior) restsOn(own int) string {
	known := "no history"
	if own > 0 {
		known = words.Count(own, "attempt")
	}
	if p.Stages == 0 {
		return known + "; no stage is known that is like it"
	}
	text := fmt.Sprintf("%s; like %s %s", known, words.Count(p.Stages, "other stage"), p.Like)
	if p.Others > 0 {
		text += fmt.Sprintf(", and less so %d more", p.Others)
	}
	if p.Input > 0 {
		text += fmt.Sprintf(", with an input of %s", quantity.Bytes(p.Input))
	}
	return text
}
