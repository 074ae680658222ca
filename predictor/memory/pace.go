package memory

import (
	"cmp"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// Pace is how long tasks take of a stage of which no attempt has ended, by the progress of those that run at the pool;
// see [State.PaceOf]. The zero value says nothing.
type Pace struct {
	// Attempts is how many of those that run say how far they are; 0 where nothing is known.
	Attempts int
	// Log is the logarithm of how many seconds a task takes in the mean, and Doubt the standard deviation of it: what all
	// tasks have in common. Spread is that of the logarithms of tasks about it.
	Log, Doubt, Spread float64
}

// Mean is how many seconds a task takes in the mean.
func (p Pace) Mean() float64 { return min(math.Exp(p.Log), fact.MaxWall.Seconds()) }

// High is how many seconds nine tasks in ten take at most.
func (p Pace) High() float64 {
	return min(math.Exp(p.Log+usage.Normal80*math.Hypot(p.Spread, p.Doubt)), fact.MaxWall.Seconds())
}

// firstPart is which part of an attempt goes as fast or as slow as it goes there: what is read first is cached later,
// what is compiled first is not compiled again.
const firstPart = 1.0 / 8

// firstDoubt is the variance of the time that is left of an attempt of whose stage none has ended. Nobody has seen how
// its parts differ: each eighth of it is taken to be off from the others as tasks are from each other, by s. With a
// part p that is done, what is left has the variance
//
//	s^2 / 8 (1 / (1-p) + 1 / p)
//
// relative to the square of its mean: it is off by nine tenths at a hundredth, by a sixth half-way. That is the formula
// of [State.ByProgress] for what is known of the pace, with s^2 / 8 for each whole attempt.
func firstDoubt(pace, did, ahead float64) float64 {
	all := did + ahead
	return usage.UsualScatter * usage.UsualScatter * firstPart * all * pace * pace * ahead * (1 + ahead/did)
}

// ended reports whether any attempt of the stage has, of which the run time is known.
func (m *Model) ended() bool {
	for _, times := range m.Walls {
		if len(times.Values) > 0 {
			return true
		}
	}
	return false
}

// PaceOf is how long tasks of a stage take with so many cores, by the progress of the attempts that run at the pool; 0
// cores is as many as each has. known is false where attempts have ended, which say it better, and where none of those
// that run says how far it is and how much there is to do.
//
// Each attempt takes as long as it has run and has left (ByProgress), which is known as well as what is left of it: of
// the logarithm with the variance v. Tasks vary by s^2 besides, of which the usual spread is worth two of them. So each
// counts as 1/(v + s^2), and their mean is known to one divided by the sum of these. An attempt that says nothing, and
// has run for longer than that mean, is taken to go on for as long again, which may be off by as much as it is.
func (m *State) PaceOf(id fact.StageID, cores float64, now fact.Instant) (pace Pace, known bool) {
	st := m.Stages[id]
	if st == nil || st.Model.ended() || len(m.steps) == 0 {
		return Pace{}, false
	}
	var logs, variances, silent []float64
	for _, running := range m.runningAt(id) {
		age := m.Age(running, now)
		slower := st.Model.Speed().Slower(m.Grants[running.Key].CPU.Cores(), cores)
		told, reports := m.ByProgress(running, now)
		if !reports {
			silent = append(silent, age*slower)
			continue
		}
		takes := age + told.Now.Mean
		off := told.Now.Variation * told.Now.Mean / takes
		logs, variances = append(logs, math.Log(max(takes, leastSpread)*slower)), append(variances, math.Log1p(off*off))
	}
	if len(logs) == 0 {
		return Pace{}, false
	}
	pace = paceBy(logs, variances)
	for _, age := range silent {
		if age > pace.Mean() {
			logs, variances = append(logs, math.Log(2*age)), append(variances, math.Ln2)
		}
	}
	reported := pace.Attempts
	pace = paceBy(logs, variances)
	pace.Attempts = reported
	return pace, true
}

// paceBy weighs the logarithms of times that are known with these variances.
func paceBy(logs, variances []float64) (pace Pace) {
	square := usage.UsualScatter * usage.UsualScatter
	for range 2 { // with the usual spread of tasks first, and then with what they tell of it
		sum, weights := 0.0, 0.0
		for i, log := range logs {
			weight := 1 / (variances[i] + square)
			sum, weights = sum+weight*log, weights+weight
		}
		pace = Pace{Attempts: len(logs), Log: sum / weights, Doubt: math.Sqrt(1 / weights), Spread: math.Sqrt(square)}
		square = usage.UsualScatterTimes * usage.UsualScatter * usage.UsualScatter
		for i, log := range logs {
			square += max(0, (log-pace.Log)*(log-pace.Log)-variances[i])
		}
		square /= usage.UsualScatterTimes + float64(len(logs))
	}
	return pace
}

// runningAt are the attempts of a stage that run at the pool, by key: sums of them must not depend on the order of a
// map.
func (m *State) runningAt(id fact.StageID) []Attempt {
	var found []Attempt
	for _, running := range m.Attempts {
		if running.Stage() == id && running.Venue == fact.Pool && running.Runs() {
			found = append(found, running)
		}
	}
	slices.SortFunc(found, func(a, b Attempt) int { return cmp.Compare(a.Key, b.Key) })
	return found
}
