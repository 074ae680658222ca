package usage

import (
	"math"
	"slices"
)

// point is one attempt as a curve of run times sees it.
type point struct {
	x, y   float64
	weight float64 // of the attempt's age
}

// observed are attempts as a regression sees them: their peaks, the weights of their ages, and the columns of what is
// thought to explain the peaks, of which there are MaxParts at most.
type observed struct {
	y, weights []float64
	columns    [][]float64
}

// since are the attempts from the i-th on, without columns.
func (o observed) since(i int) observed { return observed{y: o.y[i:], weights: o.weights[i:]} }

// fitted is the surface through attempts, and for each of them the ratio of its peak to what the surface through all
// the others says there.
type fitted struct {
	surface
	ratios []float64
}

// fitSurface minimises sum w (y - s)^2 / s^2, where s = base + sum of slope x, over a base and slopes of 0 or more:
// relative errors, because what is spare or missing is measured relative to the need, and otherwise the largest inputs
// alone would decide. The size that each error is relative to is the fitted one, found by reweighting until it settles
// (Wedderburn, Quasi-likelihood functions, generalized linear models, and the Gauss-Newton method, 1974,
// https://doi.org/10.1093/biomet/61.3.439): relative to the observed one, a peak of 3 MB among a hundred of 5 GB weighs
// as much as two million of them. Points that lie far off are given less weight (Huber, Robust estimation of a location
// parameter, 1964, https://doi.org/10.1214/aoms/1177703732), so that one attempt that leaked does not bend the line for
// all; it still counts in the ratios. The points are weighed anew so many rounds.
func fitSurface(of observed, rounds int) fitted {
	var weights [mostAttempts]float64 // a History has no more; on the stack, since there are hundreds of fits
	s := surfaceOf(&of, weights[:len(of.y)], rounds)
	ratios := make([]float64, len(of.y))
	for i, y := range of.y {
		ratios[i] = ratio(y, s.without(&of, i, weights[i]))
	}
	return fitted{surface: s, ratios: ratios}
}

// surfaceOf is the surface of [fitSurface]; weights get those that the points had last.
func surfaceOf(of *observed, weights []float64, rounds int) (s surface) {
	n := len(of.y)
	var rows [3][mostAttempts]float64
	sizes, errors, spare := rows[0][:n], rows[1][:n], rows[2][:n]
	middle, smallest := medianIn(spare, of.y), slices.Min(of.y)
	for i, y := range of.y { // nothing is fitted yet: no few points move the median
		size := max(y, middle)
		weights[i] = of.weights[i] / (size * size)
	}
	s.least(of, weights)
	for range rounds {
		s.all(sizes, of.columns)
		for i, y := range of.y {
			at := sizes[i]
			if sizes[i] < smallest { // a line through 0 says 0 at 0
				sizes[i] = smallest
			}
			errors[i] = math.Abs(y-at) / sizes[i]
		}
		most := huber * max(madToSigma*medianIn(spare, errors), leastSigma)
		for i, size := range sizes {
			weights[i] = of.weights[i] / (size * size)
			if errors[i] > most {
				weights[i] *= most / errors[i]
			}
		}
		s.least(of, weights)
	}
	return s
}

// medianIn is the lower median of values, looked for in a spare row as long as they are (Hoare, Algorithm 65: Find,
// 1961, https://doi.org/10.1145/366622.366647): a fit looks for one in every round, and to sort took a third of its
// time. What is below a pivot is counted instead of branched on (Lomuto's partition; Bentley, Programming Pearls, 1986,
// 11.2), as no processor foresees on which side a value is.
func medianIn(spare, values []float64) float64 {
	copy(spare, values)
	for k := (len(spare) - 1) / 2; ; {
		last := len(spare) - 1
		at := middleOfThree(spare, last/2, last)
		pivot := spare[at]
		spare[at] = spare[last]
		below, same := 0, 0
		for i, value := range spare[:last] {
			spare[i] = spare[below]
			spare[below] = value
			less, equal := 0, 0
			if value < pivot {
				less = 1
			}
			if value == pivot {
				equal = 1
			}
			below, same = below+less, same+equal
		}
		if below <= k && k <= below+same || last == 0 {
			return pivot
		}
		if k < below {
			spare = spare[:below]
			continue
		}
		spare, k = spare[below:last], k-below-1
	}
}

// middleOfThree is the place of the median of the first, the middle and the last value.
func middleOfThree(values []float64, middle, last int) int {
	a, b, c := values[0], values[middle], values[last]
	switch {
	case (a < b) == (b < c):
		return middle
	case (b < a) == (a < c):
		return 0
	}
	return last
}

// Constants of the reweighting: huber gives 95 percent of least squares' efficiency for normal errors, madToSigma makes
// a standard deviation of a median absolute deviation; errors below leastSigma are nobody's concern. Six rounds of
// reweighting lead from the median to a line through 0 over five decades (TestALineThroughZeroIsFoundOverFiveDecades).
const (
	reweightings = 6
	huber        = 1.345
	madToSigma   = 1.4826
	leastSigma   = 0.01
)

// surface is base + sum of slope x.
type surface struct {
	// coefficients are the base, then the slopes.
	coefficients [1 + MaxParts]float64
	// inverse is that of X'WX over the coefficients that are free, 0 elsewhere: it tells how much each point has moved
	// them.
	inverse [1 + MaxParts][1 + MaxParts]float64
	free    [1 + MaxParts]bool
}

// at is what the surface comes to for the i-th row of columns.
func (s *surface) at(columns [][]float64, i int) float64 {
	sum := s.coefficients[0]
	for k, column := range columns {
		sum += s.coefficients[1+k] * column[i]
	}
	return sum
}

// all are what the surface comes to for every row of columns.
func (s *surface) all(values []float64, columns [][]float64) {
	for i := range values {
		values[i] = s.coefficients[0]
	}
	for k, column := range columns {
		slope := s.coefficients[1+k]
		for i, x := range column[:len(values)] {
			values[i] += slope * x
		}
	}
}

// slopes reports whether each of so many columns has a slope above 0.
func (s *surface) slopes(columns int) bool {
	return !slices.Contains(s.free[1:1+columns], false)
}

// least makes s the surface of weighted least squares; a coefficient that would be negative is 0: slopes first, then
// the base. A column that is the sum of others has none.
func (s *surface) least(of *observed, weights []float64) {
	n := 1 + len(of.columns)
	squares, products := normal(of, weights)
	*s = surface{}
	for k := range n {
		s.free[k] = true
	}
	for {
		invert(&squares, &s.free, &s.inverse, n)
		worst, lowest := -1, 0.0
		for k := range n {
			s.coefficients[k] = 0
			for m := range n {
				s.coefficients[k] += s.inverse[k][m] * products[m]
			}
			// in units of what the column adds
			if share := s.coefficients[k] * math.Sqrt(squares[k][k]); k > 0 && s.free[k] && share <= lowest {
				worst, lowest = k, share // more input never needs less
			}
		}
		if worst < 0 && s.coefficients[0] < 0 {
			worst = 0
		}
		if worst < 0 {
			return
		}
		s.free[worst] = false
	}
}

// normal are X'WX and X'Wy.
func normal(of *observed, weights []float64) (
	squares [1 + MaxParts][1 + MaxParts]float64, products [1 + MaxParts]float64,
) {
	y := of.y[:len(weights)]
	for i, weight := range weights {
		products[0] += weight * y[i]
		squares[0][0] += weight
	}
	for k, column := range of.columns {
		column = column[:len(weights)]
		others := [2][]float64{column, column} // two or none: sums of one loop wait for each other less than loops do
		copy(others[:], of.columns[:k])
		first, second := others[0][:len(weights)], others[1][:len(weights)]
		var product, sum, square, one, two float64
		for i, weight := range weights {
			weighted := weight * column[i]
			product += weighted * y[i]
			sum += weighted
			square += weighted * column[i]
			one += weighted * first[i]
			two += weighted * second[i]
		}
		products[1+k], squares[1+k][0], squares[0][1+k], squares[1+k][1+k] = product, sum, sum, square
		for m, mixed := range []float64{one, two}[:k] {
			squares[1+k][1+m], squares[1+m][1+k] = mixed, mixed
		}
	}
	return squares, products
}

// invert makes the inverse of a symmetric matrix over the first n rows and columns that are free, 0 elsewhere: by
// elimination, with no exchange of rows, which positive matrices do not need. What the rows before it make up is no
// longer free.
func invert(of *[1 + MaxParts][1 + MaxParts]float64, free *[1 + MaxParts]bool,
	inverse *[1 + MaxParts][1 + MaxParts]float64, n int,
) {
	matrix := *of
	*inverse = [1 + MaxParts][1 + MaxParts]float64{}
	for k := range n {
		if !free[k] {
			continue
		}
		pivot := matrix[k][k]
		if !(pivot > sameColumn*of[k][k]) {
			free[k] = false
			invert(of, free, inverse, n)
			return
		}
		inverse[k][k] = 1
		for m := range n {
			matrix[k][m] /= pivot
			inverse[k][m] /= pivot
		}
		for i := range n {
			if i == k || !free[i] {
				continue
			}
			by := matrix[i][k]
			for m := range n {
				matrix[i][m] -= by * matrix[k][m]
				inverse[i][m] -= by * inverse[k][m]
			}
		}
	}
}

// sameColumn is what must be left of the square of a column once those before it are taken out.
const sameColumn = 1e-9

// without is what the surface through all the other points says at the i-th, in closed form: with the leverage h of
// the point and its residual e, that surface misses it by e / (1 - h) (Allen, The relationship between variable
// selection and data augmentation and a method for prediction, 1974,
// https://doi.org/10.1080/00401706.1974.10489157). Points at the edge of the inputs, where an error is likeliest, have
// the most leverage. Its oracle is TestLeavingOneOutEqualsRefitting.
func (s *surface) without(of *observed, i int, weight float64) float64 {
	var row [1 + MaxParts]float64
	row[0] = 1
	for k, column := range of.columns {
		row[1+k] = column[i]
	}
	leverage := 0.0
	for k := range 1 + len(of.columns) {
		for m := range 1 + len(of.columns) {
			leverage += row[k] * s.inverse[k][m] * row[m]
		}
	}
	at, h := s.at(of.columns, i), leverage*weight
	if h >= mostLeverage { // no other point stands for this one, so nothing tells how wrong the line would be without it
		return at
	}
	return of.y[i] - (of.y[i]-at)/(1-h)
}

// mostLeverage is the leverage from which a point counts as the only one of its kind.
const mostLeverage = 0.999

// The range of ratios; beyond it the line without the point says nonsense.
const leastRatio, mostRatio = 1.0 / 64, 64

func ratio(actual, predicted float64) float64 {
	if !(predicted > 0) {
		return mostRatio
	}
	return min(max(actual/predicted, leastRatio), mostRatio)
}
