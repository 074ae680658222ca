package forecast

import "math"

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
