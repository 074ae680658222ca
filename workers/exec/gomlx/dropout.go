package gomlx

import "math"

// mask fills values with 0 for elements that dropout silences and with 1/(1-rate) for the others (N. Srivastava et al.,
// Dropout, JMLR 2014, https://jmlr.org/papers/v15/srivastava14a.html, in the form that leaves inference alone). values
// holds whole samples; the first one is number first of its batch. An element's fate depends on seed, step, layer, the
// sample's number and its place in the sample, and on nothing else, so a split, a cut into micro-batches or a
// repetition does not change it.
//
// The numbers are those of SplitMix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014,
// https://doi.org/10.1145/2660193.2660195), whose i-th output needs no other one; each gives two elements, 32 bits for
// each.
func mask(values []float32, samples, first int, rate float64, seed uint64, step int64, layer uint64) {
	size := len(values) / samples
	kept := math.Float32bits(float32(1 / (1 - rate)))
	threshold := uint64(rate * (1 << 32))
	stream := mix(mix(seed^layer) + uint64(step))
	for s := range samples {
		state := mix(stream + uint64(first+s)*golden)
		sample := values[s*size : (s+1)*size]
		for i := 0; i+1 < len(sample); i += 2 {
			state += golden
			bits := mix(state)
			sample[i] = keep(bits>>32, threshold, kept)
			sample[i+1] = keep(bits&math.MaxUint32, threshold, kept)
		}
		if last := len(sample) - 1; last%2 == 0 {
			sample[last] = keep(mix(state+golden)>>32, threshold, kept)
		}
	}
}

// keep is kept's value where draw reaches the threshold, else 0: without a branch, which would be predicted wrongly
// half of the time.
func keep(draw, threshold uint64, kept uint32) float32 {
	below := uint32((draw - threshold) >> 63) // 1 where draw < threshold: both are at most 2^32
	return math.Float32frombits(kept & (below - 1))
}

const golden = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio

// mix is the finalizer of SplitMix64, a bijection whose every output bit depends on every input bit.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
