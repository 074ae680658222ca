package usage

import (
	"cmp"
	"math"
	"slices"
)

const (
	// simpler is by how much a feature must lower the cost of limits before it is believed, beside the head-room that all
	// have: what explains the middle of the peaks and not the largest ones makes limits no better.
	simpler = 0.90
	// spread is the ratio between the largest and the smallest value of a feature below which a slope says more about
	// noise than about it.
	spread = 1.5
	// maxPerUnit bounds a slope over bytes of input: text compressed a hundredfold, decoded and held several times over.
	maxPerUnit = 1024
	// ranked is how many features are looked at closely, and priced how many of the explanations that predict best are
	// priced: fits and prices are what takes time (BenchmarkLearnOfManyFeatures).
	ranked, priced = 4, 4
	// byChance is how often noise may be taken for an explanation.
	byChance = 0.05
	// roughly is how often points are weighed anew where fits are only compared.
	roughly = 2
)

// usualPowers are tried of every feature, the likeliest first; see [Term].
var usualPowers = [...]float64{1, 2, 0.5}

// morePowers are tried of what explains already. Two neighbours differ by a quarter, so that over a decade of inputs
// what is true lies within 8 percent of one of them (10^(1/8) is 1.33, half of that on either side of the middle, and
// half again because it is at most half-way between two).
var morePowers = [...]float64{0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 2.75, 3}

// factor is a power of a feature: that of the column of a search, or the order of the attempts.
type factor struct {
	column   int
	exponent float64
}

// inOrder is the column of the order in which attempts came.
const inOrder = -1

// product is one or two factors; the second of one has no exponent.
type product [2]factor

func (p product) double() bool { return p[1].exponent > 0 }

// shape is what an explanation is made of: a sum of products, multiplied by the levels of a category where by is one of
// the kinds of a search, from 1 on.
type shape struct {
	products []product
	by       int
}

// with is the shape with one product more.
func (f shape) with(one product) shape { return shape{append(slices.Clip(f.products), one), f.by} }

// search looks for what explains the peaks of a history.
type search struct {
	stakes  Stakes
	known   int // attempts that were measured to their end
	names   []string
	columns [][]float64 // of the names, in the order of the attempts; 0 where they are not known
	from    []int       // of each column, the first attempt from which on it is known
	rare    int         // how many of the attempts, the first, are kept beyond the latest
	order   []float64   // of the attempts
	largest []float64   // of each column
	varied  []int       // the columns whose values differ
	kinds   []kinds     // by the columns that are categories with several values
	ranked  [][]float64 // the ranks of the columns, once they were asked for
	all     observed    // without columns

	exceeded []bool
	measured observed // those that were not exceeded
	worth    float64  // the variance of a mean of these relative to that of one
	values   map[product]column
}

// column are the values of a product, the largest of which is 1: of all attempts, and of those that were measured.
type column struct{ all, measured []float64 }

func newSearch(h *History, stakes Stakes) *search {
	rare := len(h.Rare)
	n := rare + h.Len()
	s := &search{
		stakes: stakes, known: h.Known(), names: h.Names, values: map[product]column{}, rare: rare,
		from: make([]int, len(h.Names)),
		all:  observed{y: make([]float64, n), weights: make([]float64, n)}, exceeded: make([]bool, n),
		order: make([]float64, n), columns: make([][]float64, len(h.Names)), ranked: make([][]float64, len(h.Names)),
		largest: make([]float64, len(h.Names)),
	}
	weight := 1.0
	for i := n - 1; i >= rare; i-- { // the latest first
		place := h.place(i - rare)
		s.all.y[i], s.all.weights[i], s.exceeded[i] = h.Peaks[place], weight, h.exceeded(place)
		weight *= fade
	}
	for i, kept := range h.Rare {
		s.all.y[i], s.all.weights[i] = kept.Peak, weight // as when it made room: only its like take its place
	}
	for i := range s.order {
		s.order[i] = float64(1 + i)
	}
	for column := range h.Columns {
		s.columns[column] = make([]float64, n)
		for i := range n {
			var value float64
			if i < rare {
				value = h.Rare[i].Values[column]
			} else {
				value = h.Columns[column][h.place(i-rare)]
			}
			if value < 0 {
				s.from[column], value = i+1, 0
			}
			s.columns[column][i] = value
		}
		if IsCategory(h.Names[column]) {
			if found, ok := kindsOf(h.Names[column], s.columns[column]); ok {
				s.kinds = append(s.kinds, found)
			}
			continue
		}
		told := s.columns[column][s.from[column]:]
		low, high := bounds(told)
		if s.largest[column] = high; high > spread*low && high > 0 && (len(told) == n || len(told) >= Enough) {
			s.varied = append(s.varied, column)
		}
	}
	s.measured = observed{y: s.without(s.all.y), weights: s.without(s.all.weights)}
	s.worth = worthOf(s.measured.weights)
	return s
}

// without are those of the values of the latest attempts that were measured to their end.
func (s *search) without(values []float64) []float64 {
	if s.known == len(s.exceeded) {
		return values
	}
	measured := make([]float64, 0, s.known)
	for i, exceeded := range s.exceeded[len(s.exceeded)-len(values):] {
		if !exceeded {
			measured = append(measured, values[i])
		}
	}
	return measured
}

// measuredBefore is how many attempts before the i-th were measured to their end.
func (s *search) measuredBefore(i int) (measured int) {
	for _, exceeded := range s.exceeded[:i] {
		if !exceeded {
			measured++
		}
	}
	return measured
}

// best is the explanation that is believed: parts are added to it, one after the other, as long as one is better than
// chance and worth its while. The one that is held is kept where it is hardly worse.
func (s *search) best(held Term) explained {
	nothing := s.explain(shape{}, reweightings)
	nothing.price = nothing.cost()
	best := nothing
	for found := true; found && len(best.products) < MaxParts; {
		if best, found = s.better(best); found {
			best = s.refined(best)
		}
	}
	same, known := s.shapeOf(held)
	if !known {
		return best
	}
	kept := s.explain(same, reweightings)
	if kept.price = kept.cost(); kept.holds() && kept.price < nothing.priceFrom(kept.from) && kept.off < nothing.off &&
		!best.worthwhile(kept) {
		return kept
	}
	return best
}

// shapeOf is that of a term; known is false where it explains nothing, or its features are no longer followed or
// differ.
func (s *search) shapeOf(t Term) (same shape, known bool) {
	if t.By != "" {
		same.by = 1 + slices.IndexFunc(s.kinds, func(k kinds) bool { return k.name == t.By })
		if same.by == 0 {
			return shape{}, false
		}
	}
	for _, part := range t.parts() {
		one := product{{slices.Index(s.names, part.Feature), part.Power}}
		known = slices.Contains(s.varied, one[0].column)
		if part.With != "" {
			one[1] = factor{slices.Index(s.names, part.With), part.WithPower}
			known = known && slices.Contains(s.varied, one[1].column)
		}
		if !known || !(one[0].exponent > 0) {
			return shape{}, false
		}
		same.products = append(same.products, one)
	}
	return same, len(same.products) > 0 || same.by > 0
}

// better is the best explanation with one product, or one factor, more, or with a category.
//
// It is believed if its error is below that of the simpler one by more than that of the best of so many tries is by
// chance. A number that only grows as attempts come, as that of a shard does, must also explain more than the order in
// which they came: what changes while a Map runs has nothing to do with its shards, and the next Map begins with shard
// 0 again. That the input grows is taken at its word.
func (s *search) better(than explained) (better explained, found bool) {
	if len(s.varied)+len(s.kinds) == 0 {
		return than, false
	}
	orderly := than
	for _, exponent := range usualPowers {
		next := s.explain(than.with(product{{inOrder, exponent}}), reweightings)
		if next.holds() && next.off < orderly.off {
			orderly = next
		}
	}
	var hopeful []try
	for _, one := range s.more(than) {
		if one.explained = s.explain(one.shape, roughly); one.holds() {
			hopeful = append(hopeful, one)
		}
	}
	slices.SortStableFunc(hopeful, func(a, b try) int { return cmp.Compare(a.off, b.off) })
	var believed []try
	for _, one := range hopeful[:min(priced, len(hopeful))] {
		next, reference := s.explain(one.shape, reweightings), orderly
		if s.ofInput(next) {
			reference = than
		}
		if !next.holds() || !next.closer(reference, one.tries) {
			continue
		}
		if next.price = next.cost(); next.worthwhile(than) {
			one.explained = next
			believed = append(believed, one)
		}
	}
	if len(believed) == 0 {
		return than, false
	}
	cheapest := slices.MinFunc(believed, func(a, b try) int {
		return cmp.Compare(a.price*than.priceFrom(b.from), b.price*than.priceFrom(a.from)) // of those that know it
	})
	slices.SortFunc(believed, func(a, b try) int { return cmp.Compare(a.place, b.place) })
	for _, one := range believed { // or the first that is as good: with every attempt, another of these is the best
		if !cheapest.worthwhile(one.explained) && !cheapest.closer(one.explained, 1) {
			return one.explained, true
		}
	}
	return cheapest.explained, true
}

// try is one explanation, and of how many it could be the best by chance: powers of one feature are nearly the same,
// and simpler explanations do not compete with others.
type try struct {
	explained
	tries int
	place int // among all, the likeliest first
}

// more are the explanations with one product or factor more, two features, or a category.
func (s *search) more(than explained) (found []try) {
	singles := len(s.varied) + len(s.kinds)
	pairs := len(s.varied)*(len(s.varied)-1)/2 + len(s.varied)*(len(than.products)+len(s.kinds))
	add := func(of shape, tries int) { found = append(found, try{explained{shape: of}, tries, len(found)}) }
	columns := s.likely(than)
	for _, exponent := range usualPowers {
		for _, column := range columns {
			if than.alone(column) || exponent != 1 && s.isFlag(column) {
				continue // the sum of two powers is nearly a third; those of a flag are all the same
			}
			add(than.with(product{{column, exponent}}), singles)
		}
	}
	for i, column := range columns {
		for _, other := range columns[:i] {
			add(than.with(product{{other, 1}, {column, 1}}), singles+pairs)
			// Neither may be worth much without the other.
			if len(than.products)+2 <= MaxParts && !than.alone(column) && !than.alone(other) {
				add(than.with(product{{other, 1}}).with(product{{column, 1}}), singles+pairs)
			}
		}
		for k, known := range than.products {
			if !known.double() && known[0].column != column {
				next := slices.Clone(than.products)
				next[k][1] = factor{column, 1}
				add(shape{next, than.by}, singles+pairs)
			}
		}
	}
	s.moreByKind(than, columns, func(of shape, alone bool) {
		if alone {
			add(of, singles)
			return
		}
		add(of, singles+pairs)
	})
	return found
}

// moreByKind adds the explanations with a category: alone, and with a column, as neither may be worth much without the
// other.
func (s *search) moreByKind(than explained, columns []int, add func(of shape, alone bool)) {
	if than.by > 0 {
		return
	}
	for k := range s.kinds {
		add(shape{than.products, 1 + k}, true)
		for _, column := range columns {
			if !than.alone(column) {
				add(shape{than.with(product{{column, 1}}).products, 1 + k}, false)
			}
		}
	}
}

// likely are the columns that go up and down with what is not yet explained, those that do so the most first: by the
// correlation of ranks, for which all powers are the same (Spearman, The proof and measurement of association between
// two things, 1904, https://doi.org/10.2307/1412159).
func (s *search) likely(than explained) []int {
	left, found := ranksOf(than.ratios), slices.Clone(s.varied)
	together := make([]float64, len(s.columns))
	for _, column := range s.varied {
		since := left
		if from := s.from[column]; from > 0 {
			since = ranksOf(than.ratios[from:])
		}
		together[column] = correlation(since, s.ranks(column))
	}
	slices.SortStableFunc(found, func(a, b int) int { return cmp.Compare(together[b], together[a]) })
	return found[:min(ranked, len(found))]
}

// ranks are those of a column, from the first attempt on of which it is known.
func (s *search) ranks(column int) []float64 {
	if s.ranked[column] == nil {
		s.ranked[column] = ranksOf(s.columns[column][s.from[column]:])
	}
	return s.ranked[column]
}

// ranksOf are the places of values in order; equal ones have the mean of theirs.
func ranksOf(values []float64) []float64 {
	ranks := make([]float64, len(values))
	ranksIn(ranks, make([]int, len(values)), values)
	return ranks
}

// ranksIn makes the ranks in a row as long as the values are, with the help of another.
func ranksIn(ranks []float64, order []int, values []float64) {
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(values[a], values[b]) })
	for from := 0; from < len(order); {
		to := from + 1
		for to < len(order) && values[order[to]] == values[order[from]] {
			to++
		}
		for _, i := range order[from:to] {
			ranks[i] = float64(from+to-1) / 2
		}
		from = to
	}
}

// correlation is that of two rows of ranks; 0 where one has no differences.
func correlation(a, b []float64) float64 {
	middle := float64(len(a)-1) / 2
	var together, squaresA, squaresB float64
	for i := range a {
		awayA, awayB := a[i]-middle, b[i]-middle
		together, squaresA, squaresB = together+awayA*awayB, squaresA+awayA*awayA, squaresB+awayB*awayB
	}
	if squaresA <= 0 || squaresB <= 0 {
		return 0
	}
	return together / math.Sqrt(squaresA*squaresB)
}

// refined is an explanation with other powers, where these are better by more than chance.
func (s *search) refined(found explained) explained {
	for k := range found.products {
		for f := range found.products[k] {
			if found.products[k][f].exponent == 0 || s.isFlag(found.products[k][f].column) {
				continue
			}
			nearest := s.nearest(found, k, f)
			if nearest = s.explain(nearest.shape, reweightings); !nearest.holds() {
				continue
			}
			if !nearest.closer(found, len(morePowers)) {
				continue
			}
			if nearest.price = nearest.cost(); nearest.worthwhile(found) {
				found = nearest
			}
		}
	}
	return found
}

// nearest is the explanation with another power of one factor that predicts best where fits are only compared: from the
// power that it has to either side, until it has become worse twice.
func (s *search) nearest(found explained, k, f int) explained {
	nearest, at := found, found.products[k][f].exponent
	for _, way := range [...]int{-1, 1} {
		worse, last := 0, math.Inf(1)
		for i := slices.Index(morePowers[:], at) + way; i >= 0 && i < len(morePowers) && worse < 2; i += way {
			other := shape{slices.Clone(found.products), found.by}
			other.products[k][f].exponent = morePowers[i]
			next := s.explain(other, roughly)
			if next.holds() && next.off < nearest.off {
				nearest = next
			}
			if !next.holds() || next.off >= last {
				worse++
			}
			last = next.off
		}
	}
	return nearest
}

// isFlag reports whether a column has no other values than 0 and one more: all its powers are the same.
func (s *search) isFlag(column int) bool {
	for _, value := range s.columns[column][s.from[column]:] {
		if value != 0 && value != s.largest[column] {
			return false
		}
	}
	return true
}

// explain fits a surface of this shape, of which the points are weighed anew so often.
//
// Levels and surface are fitted in turn, each to what the other leaves over (backfitting: Breiman and Friedman,
// Estimating optimal transformations for multiple regression and correlation, 1985,
// https://doi.org/10.1080/01621459.1985.10478157). Each attempt is judged by the level that the others of its kind
// have.
//
// What an attempt took that came before a feature was followed tells nothing of it: the surface is that through those
// that came later, and the others are taken for what is explained without the feature. As 0, they would bend it
// (TestWhatEarlierAttemptsDidNotTellIsNotNothing).
func (s *search) explain(of shape, rounds int) explained {
	e := explained{search: s, shape: of, fitted: s.fit(of.products, nil, rounds), from: s.knownFrom(of.products)}
	if of.by > 0 {
		e.level(rounds)
	}
	if e.from > 0 {
		told := shape{slices.DeleteFunc(slices.Clone(of.products), s.late), of.by}
		copy(e.ratios[:e.from], s.explain(told, rounds).ratios)
	}
	e.off = s.mean(0, e.missed)
	return e
}

// late reports whether a product was not known of all attempts.
func (s *search) late(p product) bool { return s.knownFrom([]product{p}) > 0 }

// knownFrom is the first attempt from which on all factors of products are known.
func (s *search) knownFrom(products []product) (from int) {
	for _, one := range products {
		for _, f := range one {
			if f.exponent > 0 && f.column != inOrder {
				from = max(from, s.from[f.column])
			}
		}
	}
	return from
}

// fit is the surface over products through the peaks, each divided by its factor where there are some.
//
// The limit that an attempt exceeded is replaced by what the attempt is thought to have needed: what the surface
// through the others says there, and at least exceededBy times the limit. This is the imputation step of expectation
// maximisation for censored data, once.
func (s *search) fit(products []product, factors []float64, rounds int) fitted {
	from := s.knownFrom(products)
	all, measured := s.all.since(from), s.measured.since(s.measuredBefore(from))
	var divided, thought [mostAttempts]float64
	if factors != nil {
		all.y = append(divided[:0], all.y...)
		for i, factor := range factors[from:] {
			all.y[i] /= factor
		}
		measured.y = s.without(all.y)
	}
	var columns [2][MaxParts][]float64
	all.columns, measured.columns = columns[0][:len(products)], columns[1][:len(products)]
	for k, one := range products {
		values := s.of(one)
		all.columns[k], measured.columns[k] = values.all[from:], values.measured[len(values.measured)-len(measured.y):]
	}
	if len(measured.y) < len(all.y) {
		var weights [mostAttempts]float64
		fit := surfaceOf(&measured, weights[:len(measured.y)], rounds)
		all.y = append(thought[:0], all.y...)
		for i, exceeded := range s.exceeded[from:] {
			if exceeded {
				all.y[i] = max(all.y[i]*exceededBy, fit.at(all.columns, i))
			}
		}
	}
	fit := fitSurface(all, rounds)
	if from > 0 {
		fit.ratios = append(slices.Repeat([]float64{1}, from), fit.ratios...)
	}
	return fit
}

// mean is that of the attempts from one on that were measured, weighted by their age.
func (s *search) mean(from int, of func(i int) float64) float64 {
	sum, weights := 0.0, 0.0
	for i := from; i < len(s.exceeded); i++ {
		if !s.exceeded[i] {
			sum, weights = sum+s.all.weights[i]*of(i), weights+s.all.weights[i]
		}
	}
	return sum / weights
}

// of are the values of a product.
func (s *search) of(p product) column {
	if known, ok := s.values[p]; ok {
		return known
	}
	values := make([]float64, len(s.order))
	for i := range values {
		values[i] = s.value(p, i)
	}
	if _, high := bounds(values); high > 0 {
		for i := range values {
			values[i] /= high
		}
	}
	found := column{values, s.without(values)}
	s.values[p] = found
	return found
}

// value is that of a product for the i-th attempt, its factors relative to their units.
func (s *search) value(p product, i int) float64 {
	value := 1.0
	for _, f := range p {
		if f.exponent > 0 {
			value *= power(s.column(f)[i]/s.unit(f), f.exponent)
		}
	}
	return value
}

func (s *search) column(f factor) []float64 {
	if f.column == inOrder {
		return s.order
	}
	return s.columns[f.column]
}

// unit is the largest value of a factor.
func (s *search) unit(f factor) float64 {
	if f.column == inOrder {
		return float64(len(s.order))
	}
	return s.largest[f.column]
}
