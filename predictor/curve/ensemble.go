package curve

import "math"

// member is one curve, offset + scale * shape, with its weight.
type member struct {
	shape
	scale, weight float64
}

// ensemble is what a run alone says: curves whose weights sum to 1, or none.
type ensemble struct {
	members []member
	// last is the steps seen, lowest the best loss, and noise the deviation of a loss from its curve.
	last, lowest, noise float64
}

const (
	// mostPoints is how many points are fitted: a fit then takes the same time however long a run is.
	mostPoints = 40
	// misfit is by how much even the right family is off, as a part of what the last half of the steps brought: without
	// it, forty points that happen to lie on a curve would rule out all others.
	misfit = 0.1
	// independent is how many points count at most as evidence, in the tail that is held out and in the whole: errors of
	// neighbours are alike.
	independent = 8
	// annealed is the chance that the learning rate is still to be annealed, which a curve does not show before it
	// happens: then the loss goes on falling as it lately did, by the logarithm of the step or by the step. A third: of
	// what may come, a curve to its end, a logarithm and a line are as likely.
	annealed = 1.0 / 3
)

// fitEnsemble fits all shapes to a run. Where its curve has a break, half of the weight is that of curves since, for
// which there is a rate that stays, and half that of curves through all, for which there are more breaks to come.
func fitEnsemble(t trace) ensemble {
	e := ensemble{last: t.last(), lowest: t.lowest(), noise: t.noise}
	e.fit(t)
	if since := t.regimed(); len(since.steps) < len(t.steps) {
		late := ensemble{last: e.last, lowest: e.lowest, noise: e.noise}
		if late.fit(since); len(late.members) > 0 {
			e.members = append(e.members, late.members...)
			for i := range e.members {
				e.members[i].weight /= 2
			}
		}
	}
	return e
}

// fit adds curves whose weights sum to 1, or none. Each shape is fitted to the first half of the steps and held against
// the second, which is held out, and then fitted to all: weights are the likelihoods of both.
func (e *ensemble) fit(t trace) {
	t = t.settled().thinned(mostPoints)
	n := len(t.steps)
	if n < fewest || t.best[0] == t.best[n-1] {
		return
	}
	x, head := make([]float64, n), 0
	for i, step := range t.steps {
		if x[i] = step / e.last; x[i] <= 0.5 {
			head = i + 1
		}
	}
	head = min(max(head, 2), n-1)
	// Losses are counted from the best in what the last half brought, and errors are relative: the early losses, which
	// are far from where the curve goes, do not decide.
	unit := math.Max(t.best[head-1]-t.best[n-1], 1e-3*(t.best[0]-t.best[n-1]))
	y, weight := make([]float64, n), make([]float64, n)
	for i, best := range t.best {
		y[i] = (best - t.best[n-1]) / unit
		weight[i] = 1 / ((y[i] + 1) * (y[i] + 1))
	}
	e.weigh(x, y, weight, head, math.Hypot(misfit, t.noise/unit))
	e.anneal(x, y, head)
	for i := range e.members {
		e.members[i].scale *= unit
	}
}

// weigh adds every shape that falls.
func (e *ensemble) weigh(x, y, weight []float64, head int, off float64) {
	n := len(x)
	g := make([]float64, n)
	most := math.Inf(-1)
	for _, s := range shapes() {
		for i := range x {
			g[i] = s.value(x[i])
		}
		_, scale, whole := line(g, y, weight)
		if !(scale > 0) {
			continue
		}
		offset, early, _ := line(g[:head], y[:head], weight[:head])
		tail, all := 0.0, 0.0
		for i := head; i < n; i++ {
			d := y[i] - offset - early*g[i]
			tail, all = tail+weight[i]*d*d, all+weight[i]
		}
		log := -0.5*float64(min(n-head, independent))*math.Log(tail/all+off*off) -
			0.5*float64(min(n, independent))*math.Log(whole+off*off)
		e.members = append(e.members, member{s, scale, log})
		most = math.Max(most, log)
	}
	sum := 0.0
	for i := range e.members {
		e.members[i].weight = math.Exp(e.members[i].weight - most)
		sum += e.members[i].weight
	}
	for i := range e.members {
		e.members[i].weight /= sum
	}
}

// anneal adds the lines of the latest half of the steps.
func (e *ensemble) anneal(x, y []float64, head int) {
	from := min(head-1, len(x)-2)
	var late []member
	for _, s := range []shape{{family: logarithm}, {family: straight}} {
		rise := s.value(x[from]) - s.value(x[len(x)-1])
		if scale := (y[from] - y[len(y)-1]) / rise; scale > 0 {
			late = append(late, member{s, scale, annealed / 2})
		}
	}
	if len(late) == 0 {
		return
	}
	for i := range e.members {
		e.members[i].weight *= 1 - annealed
	}
	e.members = append(e.members, late...)
}

// line is the weighted least squares of offset + scale * g: variable projection, the parameters of a curve that are
// linear in closed form for given others (Golub and Pereyra, SIAM J. Numer. Anal. 10, 1973). residual is the weighted
// mean of the squared errors.
// A scale that would be below 0 is 0.
func line(g, y, weight []float64) (offset, scale, residual float64) {
	var w, sg, sy float64
	for i := range g {
		w, sg, sy = w+weight[i], sg+weight[i]*g[i], sy+weight[i]*y[i]
	}
	mg, my := sg/w, sy/w
	var gg, gy, yy float64
	for i := range g {
		dg, dy := g[i]-mg, y[i]-my
		gg, gy, yy = gg+weight[i]*dg*dg, gy+weight[i]*dg*dy, yy+weight[i]*dy*dy
	}
	if !(gg > 0) || gy <= 0 {
		return my, 0, yy / w
	}
	scale = gy / gg
	return my - scale*mg, scale, math.Max(0, yy-scale*gy) / w
}

// ahead is the logarithm of the steps at which a curve reaches a loss, as a multiple of those seen; +Inf where it never
// does. The curve goes on from the best that was seen.
func (m member) ahead(e *ensemble, loss float64) float64 {
	x := m.inverse(m.value(1) - (e.lowest-loss)/m.scale)
	if !(x > 1) {
		return 0
	}
	return math.Log(x)
}

// at is the loss of a curve after a multiple of the steps seen, 1 or more; its logarithm is u.
func (m member) at(e *ensemble, u float64) float64 {
	return e.lowest - m.scale*(m.value(1)-m.value(math.Exp(u)))
}

const (
	// astray is how far the reach of a curve goes wrong for each unit of the logarithm that it is carried on: a quarter,
	// as between carrying on a power of 1 and one of 0.8. nearby is the least, by which the next measurement is away.
	astray = 0.25
	nearby = 0.1
)

// unforeseen is the chance that a loss is reached when no curve tells. A quarter: then never is said as often as it is
// true, and where all families say never it is as likely as not, as it turned out to be.
const unforeseen = 0.25

// reaches is when the run reaches a loss. Of what no curve tells, all that is known is that it takes longer than what
// was seen.
func (e *ensemble) reaches(loss float64) mass {
	if len(e.members) == 0 {
		return lindy()
	}
	var raw mass
	for _, m := range e.members {
		raw.add(m.ahead(e, loss), m.weight)
	}
	reaches := raw.spread(func(u float64) float64 { return math.Hypot(nearby, astray*u) })
	reaches.mix(lindy(), unforeseen)
	return reaches
}
