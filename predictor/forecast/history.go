package forecast

import (
	"math"

	"gonum.org/v1/gonum/dsp/fourier"
)

// history is the latest values of a series in blocks of some buckets each, the mean of each block; NaN where less than
// half of a block was observed.
type history struct {
	// width is how many buckets a block has, at least 1.
	width int64
	// values is a ring: that of block b is at b modulo its length.
	values []float32
	// next is the block that is gathered, seen how many blocks before it have a place in values, at most its length.
	next, seen int64
	// sum is that of the count observed buckets of the block that is gathered.
	sum   float64
	count int64
}

func newHistory(width int64, room int) history {
	return history{width: width, values: make([]float32, room)}
}

func (h *history) clone() history {
	clone := *h
	clone.values = append([]float32(nil), h.values...)
	return clone
}

// observe takes the value of a bucket, which is not before the ones observed earlier.
func (h *history) observe(bucket int64, value float64) {
	block := floorDiv(bucket, h.width)
	if h.seen == 0 && h.count == 0 {
		h.next = block
	}
	h.advance(block)
	h.sum, h.count = h.sum+value, h.count+1
}

// advance closes the blocks before block.
func (h *history) advance(block int64) {
	if h.next >= block {
		return
	}
	room := int64(len(h.values))
	mean := math.NaN()
	if 2*h.count >= h.width {
		mean = h.sum / float64(h.count)
	}
	h.sum, h.count = 0, 0
	if block-h.next > room { // all that is remembered is before the gap
		for i := range h.values {
			h.values[i] = float32(math.NaN())
		}
		h.next, h.seen = block, room
		return
	}
	for ; h.next < block; h.next++ {
		h.values[floorMod(h.next, room)] = float32(mean)
		h.seen = min(h.seen+1, room)
		mean = math.NaN()
	}
}

// block returns the value of a block; NaN where it is not known.
func (h *history) block(block int64) float64 {
	if block >= h.next || block < h.next-h.seen {
		return math.NaN()
	}
	return float64(h.values[floorMod(block, int64(len(h.values)))])
}

// at returns the value at a bucket, which need not be whole, on the line between the middles of two blocks; NaN where
// neither is known.
func (h *history) at(bucket float64) float64 {
	at := (bucket+0.5)/float64(h.width) - 0.5
	below := math.Floor(at)
	left, right := h.block(int64(below)), h.block(int64(below)+1)
	switch part := at - below; {
	case math.IsNaN(left):
		return right
	case math.IsNaN(right) || part == 0:
		return left
	default:
		return left + part*(right-left)
	}
}

// fill sets the closed blocks that begin from a bucket to another to a value.
func (h *history) fill(from, to int64, value float64) {
	first := max(floorDiv(from+h.width-1, h.width), h.next-h.seen)
	for block := first; block <= floorDiv(to, h.width) && block < h.next; block++ {
		h.values[floorMod(block, int64(len(h.values)))] = float32(value)
	}
}

// floorDiv is a/b rounded down, b above 0.
func floorDiv(a, b int64) int64 {
	quotient := a / b
	if a%b < 0 {
		quotient--
	}
	return quotient
}

// floorMod is a modulo b, from 0 to b-1.
func floorMod(a, b int64) int64 { return a - b*floorDiv(a, b) }

// cyclesBack is how many periods back a profile reaches. With cycleFade the eighth has less than a twentieth of the
// weight.
const (
	cyclesBack = 8
	cycleFade  = 0.7
)

// profile is the mean of the values whole periods before a bucket, those of later cycles more, and how many cycles that
// rests on; NaN where no such value is known.
func (h *history) profile(bucket int64, period float64) float64 {
	if period <= 0 {
		return math.NaN()
	}
	sum, weights, weight := 0.0, 0.0, 1.0
	first := math.Max(1, math.Ceil(float64(bucket-(h.next-1)*h.width)/period))
	for k := first; k < first+cyclesBack; k++ {
		if value := h.at(float64(bucket) - k*period); !math.IsNaN(value) {
			sum, weights = sum+weight*value, weights+weight
		}
		weight *= cycleFade
	}
	return sum / weights
}

// between returns the profile at two buckets, the latter after the former, and whether both are known.
func (h *history) between(now, then int64, period float64) (before, after float64, known bool) {
	before, after = h.profile(now, period), h.profile(then, period)
	return before, after, !math.IsNaN(before) && !math.IsNaN(after)
}

// leastBlocks is how many blocks must be known before a period is looked for.
const leastBlocks = 16

// periods finds up to two periods, in buckets: the shortest, and a multiple of it that explains more, as a week does
// beside a day; 0 where there is none. before is what was found earlier: it is kept while it explains nearly as much.
//
// The autocorrelation r of what is known, less its moving mean over half of it, is computed for all lags at once by
// Fourier transforms (Wiener-Khinchin), the sums over pairs of which both are known. A period is a local maximum of r,
// a lag of which two were seen, with a comb, the mean of r there and at twice the lag, of periodShare at least, and of
// more where few cycles were seen: a level that drifts comes back now and then (TestWithoutAPeriodSeldomOneIsFound). Of
// these it is the shortest with four fifths of the largest comb: multiples of a period correlate as well as the period.
func (h *history) periods(before float64) (period, longer float64) {
	n := int(h.seen)
	if n < leastBlocks {
		return 0, 0
	}
	r := h.autocorrelation(n)
	best, low := 0.0, 1.0
	var peaks []int
	for lag := 1; lag < len(r)-1; lag++ {
		low = math.Min(low, r[lag])
		least := periodShare + 2*periodShare*float64(lag)/float64(n)
		if lag >= 2 && r[lag] >= r[lag-1] && r[lag] > r[lag+1] && comb(r, lag) > least && r[lag]-low > periodShare {
			peaks = append(peaks, lag)
			best = math.Max(best, comb(r, lag))
		}
	}
	first := 0
	for _, lag := range peaks {
		near := math.Abs(float64(lag*int(h.width))-before) <= math.Max(float64(h.width), before/16)
		if enough := comb(r, lag) >= 0.8*best; enough && (first == 0 || near) {
			first = lag
		}
	}
	if first == 0 {
		return 0, 0
	}
	period = precise(r, first)
	second, most := 0.0, comb(r, first)
	for k := 2.0; k*period < float64(len(r)-2); k++ {
		lag := int(math.Round(k * period))
		if r[lag] > most+periodShare/2 {
			second, most = k*period, r[lag]
		}
	}
	return period * float64(h.width), second * float64(h.width)
}

// periodShare is the part of the variance that a period explains at least: with less there is nothing to gain, and
// chance gives about 0.1 where levels drift.
const periodShare = 0.2

func comb(r []float64, lag int) float64 {
	if 2*lag < len(r) {
		return (r[lag] + r[2*lag]) / 2
	}
	return r[lag]
}

// precise is a period to a fraction of a block: the top near as many times the lag as are in r, over that number, as
// long as that says the same within a block.
func precise(r []float64, lag int) float64 {
	period := refined(r, lag)
	for times := 2.0; times*period < float64(len(r)-2); times *= 2 {
		at := int(math.Round(times * period))
		for _, near := range []int{at - 1, at + 1} {
			if r[near] > r[at] {
				at = near
			}
		}
		if at+1 >= len(r) || r[at-1] > r[at] || r[at+1] > r[at] || r[at] < 0.5*r[lag] {
			break
		}
		closer := refined(r, at) / times
		if math.Abs(closer-period) > 1/times {
			break
		}
		period = closer
	}
	return period
}

// refined is the top of the parabola through the autocorrelation at a maximum and beside it.
func refined(r []float64, lag int) float64 {
	bend := r[lag-1] - 2*r[lag] + r[lag+1]
	if bend >= 0 {
		return float64(lag)
	}
	return float64(lag) + 0.5*(r[lag-1]-r[lag+1])/bend
}

// autocorrelation returns that of the last n blocks for lags from 0 to n/2.
func (h *history) autocorrelation(n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = h.block(h.next - int64(n-i))
	}
	size := 1
	for size < n+n/2+1 {
		size *= 2
	}
	known, centred := make([]float64, size), make([]float64, size)
	trend := movingMean(values, n/2)
	for i, value := range values {
		if !math.IsNaN(value) {
			known[i], centred[i] = 1, value-trend[i]
		}
	}
	transform := fourier.NewFFT(size)
	products, pairs := selfConvolved(transform, centred), selfConvolved(transform, known)
	variance := products[0] / math.Max(pairs[0], 1)
	r := make([]float64, n/2+1)
	for lag := range r {
		if pairs[lag] > float64(n)/8 && variance > 1e-9*float64(size) {
			r[lag] = products[lag] / pairs[lag] / variance
		}
	}
	return r
}

// selfConvolved is the sum over i of x[i]*x[i+lag], times a constant, by lag.
func selfConvolved(transform *fourier.FFT, x []float64) []float64 {
	spectrum := transform.Coefficients(nil, x)
	for i, c := range spectrum {
		spectrum[i] = complex(real(c)*real(c)+imag(c)*imag(c), 0)
	}
	return transform.Sequence(x, spectrum)
}

// movingMean is the mean of what is known within half a window on either side.
func movingMean(values []float64, window int) []float64 {
	sums, counts := make([]float64, len(values)+1), make([]float64, len(values)+1)
	for i, value := range values {
		sums[i+1], counts[i+1] = sums[i], counts[i]
		if !math.IsNaN(value) {
			sums[i+1], counts[i+1] = sums[i]+value, counts[i]+1
		}
	}
	means := make([]float64, len(values))
	for i := range means {
		from, to := max(0, i-window/2), min(len(values), i+window/2+1)
		means[i] = (sums[to] - sums[from]) / (counts[to] - counts[from])
	}
	return means
}
