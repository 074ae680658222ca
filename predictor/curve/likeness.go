package curve

import (
	"math"
	"slices"
)

// analogue is an earlier run at a pace, as the run may go on.
type analogue struct {
	run *earlier
	// shift is the logarithm of how many times as many steps are taken.
	shift float64
	// gap is by how much the rank is above that of the earlier run now, far the mean square of it so far.
	gap, far, weight float64
}

// likeness is which earlier runs a run is like.
type likeness struct {
	workload *Workload
	// share is how far they are believed, 0 to 1; the rest is what the run alone says.
	share     float64
	analogues []analogue
}

const (
	// paceStep and mostPaces say which paces are tried: from a sixtieth to sixty times the steps, as between the smallest
	// and the largest batch that are used; steps of a seventh are finer than what curves tell apart. Around the same pace,
	// where runs of one configuration are, there are finer ones.
	paceStep  = 0.15
	mostPaces = 28
	// compared is how many points are compared, evenly over the logarithm of the step.
	compared = 12
	// alike is the least distance that is told apart, in ranks: that of two runs of the same configuration.
	alike = 0.005
	// nearest is which of the nearest runs has a weight of about a half: three runs make a quantile.
	nearest = 3
	// stranger is a distance, in ranks, at which a run says little, and doubt is how much the run alone is believed
	// beside one that is near: a tenth.
	stranger = 0.1
	doubt    = 0.1
)

// fine are the paces that are tried around the same one, as logarithms.
var fine = [...]float64{-0.1, -0.06, -0.03, 0, 0.03, 0.06, 0.1}

// paces are the logarithms of the paces that are tried, in order, and how much of the logarithm each stands for.
func paces() (shifts, widths []float64) {
	for k := -mostPaces; k <= mostPaces; k++ {
		if k == 0 {
			shifts = append(shifts, fine[:]...)
			continue
		}
		shifts = append(shifts, float64(k)*paceStep)
	}
	for i := range shifts {
		before, after := max(0, i-1), min(len(shifts)-1, i+1)
		widths = append(widths, (shifts[after]-shifts[before])/2)
	}
	return shifts, widths
}

// like compares a run with the earlier ones that had not ended by now. None tells of a run that is better than any of
// them ever was.
func (w *Workload) like(t trace) likeness {
	if w.Runs() == 0 || t.lowest() <= w.levels[0] {
		return likeness{}
	}
	now := math.Log(t.last())
	seen := t.settled().thinned(compared)
	n := len(seen.steps)
	logs, ranks, weight := make([]float64, n), make([]float64, n), make([]float64, n)
	total := 0.0
	for i, step := range seen.steps {
		logs[i], ranks[i] = math.Log(step), w.rank(seen.best[i])
		weight[i] = math.Sqrt(step / t.last()) // between even over the steps and even over their logarithm
		total += weight[i]
	}
	l := likeness{workload: w}
	shifts, widths := paces()
	var nearestOf []float64
	for r := range w.runs {
		run, least := &w.runs[r], math.Inf(1)
		for k, shift := range shifts {
			if run.ended(now - shift) {
				continue
			}
			a := analogue{run: run, shift: shift}
			for i := range logs {
				a.gap = ranks[i] - run.at(logs[i]-shift)
				a.far += weight[i] * a.gap * a.gap / total
			}
			usual := shift / w.paces
			a.weight = widths[k] * math.Pow(1+usual*usual/3, -2) // of Student, 3 degrees: some workloads have several paces
			least = math.Min(least, a.far)
			l.analogues = append(l.analogues, a)
		}
		if !math.IsInf(least, 1) {
			nearestOf = append(nearestOf, least)
		}
	}
	if len(l.analogues) > 0 {
		l.weigh(nearestOf)
	}
	return l
}

// weigh gives each analogue the weight of its distance, by a kernel as wide as the distance of one of the nearest runs.
func (l *likeness) weigh(nearestOf []float64) {
	slices.Sort(nearestOf)
	width := nearestOf[min(nearest, len(nearestOf))-1] + alike*alike
	sum, like := 0.0, 0.0
	for i := range l.analogues {
		a := &l.analogues[i]
		a.weight *= math.Exp(-(a.far - nearestOf[0]) / (2 * width))
		sum += a.weight
	}
	kept := l.analogues[:0]
	for _, a := range l.analogues {
		if a.weight /= sum; a.weight > 1e-5 {
			kept = append(kept, a)
		}
	}
	l.analogues = kept
	for _, far := range nearestOf {
		like += math.Exp(-far / (2 * stranger * stranger))
	}
	l.share = like / (like + doubt)
}

const (
	// between is how far a step is from that of an analogue even where it is alike, as a logarithm: measurements are a
	// percent of the run apart or more. further is how much of the way from now on is added to it.
	between = 0.01
	further = 0.03
)

// reaches is when the analogues reach a loss: as often as not the gap to an analogue stays as it is, or closes.
func (l *likeness) reaches(last, loss float64) mass {
	var raw mass
	now, asked := math.Log(last), l.workload.rank(loss)
	for _, a := range l.analogues {
		for _, level := range []float64{loss, l.workload.loss(asked - a.gap)} {
			raw.add(math.Log(a.run.crosses(level))+a.shift-now, a.weight/2)
		}
	}
	return raw.spread(func(u float64) float64 { return between + further*u })
}

// apart is by which part of what it will gain a run differs from one that is alike: a tenth, as runs of one
// configuration do; scores3 stand for a normal distribution, with its variance.
const apart = 0.1

var scores3 = [...]float64{-1.2247, 0, 1.2247}

// values are the losses of the analogues at u, or at their ends, and how far they are believed. An analogue that has
// ended by u tells that it gets no worse from there; how much better, alone tells: without that, a run that goes on
// where shorter ones stopped would get no better, and surely so.
func (l *likeness) values(t trace, u float64, alone *ensemble, into []weighted) (all []weighted, share float64) {
	var beyond []float64 // by score; nil while none has ended
	for _, a := range l.analogues {
		at := math.Log(t.last()) + u - a.shift
		ended := !math.IsInf(u, 1) && a.run.ended(at)
		if ended && beyond == nil {
			beyond = alone.thirds(u)
		}
		rank := a.run.at(at)
		for _, gap := range []float64{0, a.gap} {
			loss := l.workload.loss(rank + gap)
			if !finite(loss) {
				loss = l.workload.levels[0]
			}
			gain := math.Max(0, t.lowest()-loss)
			off := math.Hypot(apart*gain, math.Min(t.noise, gain))
			for k, score := range scores3 {
				reached := math.Min(t.lowest(), loss+score*off)
				if ended {
					reached = math.Min(reached, beyond[k])
				}
				into = append(into, weighted{reached, l.share * a.weight / 2 / float64(len(scores3))})
			}
		}
		share += l.share * a.weight
	}
	return into, share
}
