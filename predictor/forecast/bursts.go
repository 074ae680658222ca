package forecast

import (
	"math"
	"sort"
)

// burst is a run of buckets far above what was expected.
type burst struct {
	Start  int64 // its first bucket
	Length int64 // how many buckets, at least 1
}

const (
	// burstRoom is how many bursts are remembered.
	burstRoom = 256
	// hazardIntervals is how many intervals between bursts the chance of the next one rests on.
	hazardIntervals = 64
)

// bursts is what is remembered of them, the oldest first.
type bursts struct {
	List []burst
	// Share is the part of buckets that were in one, the latest few thousand counting most.
	Share float64
	// Mean and Variance are of the excess over the base of the buckets in bursts; Seen is how many such buckets.
	Mean, Variance float64
	Seen           float64
}

// add remembers one that ended.
func (b *bursts) add(one burst) {
	if len(b.List) == burstRoom {
		copy(b.List, b.List[1:])
		b.List = b.List[:burstRoom-1]
	}
	b.List = append(b.List, one)
}

// in says whether a bucket was in a burst that is over.
func (b *bursts) in(bucket int64) bool {
	i := sort.Search(len(b.List), func(i int) bool { return b.List[i].Start > bucket })
	return i > 0 && bucket < b.List[i-1].Start+b.List[i-1].Length
}

// phase is the part of the buckets whole periods before one that were in a burst, those of later cycles more; known
// says which buckets count.
func (b *bursts) phase(bucket, latest int64, period float64, known func(float64) bool) float64 {
	sum, weights, weight := b.Share, 1.0, 1.0
	first := math.Max(1, math.Ceil(float64(bucket-latest)/period))
	for k := first; k < first+cyclesBack; k++ {
		if at := float64(bucket) - k*period; known(at) {
			weights += weight
			if b.in(int64(math.Round(at))) {
				sum += weight
			}
		}
		weight *= 0.85
	}
	return sum / weights
}

// lasts is the chance that a burst of some buckets goes on for ahead more: the part of those remembered that did, and
// Lindy's law, elapsed/(elapsed+ahead), as one burst more (the posterior of a scale that nothing is known of).
func (b *bursts) lasts(elapsed, ahead int64) float64 {
	longer, all := float64(elapsed)/float64(elapsed+ahead), 1.0
	for _, one := range b.List {
		if one.Length > elapsed {
			all++
			if one.Length > elapsed+ahead {
				longer++
			}
		}
	}
	return longer / all
}

// comes is the chance that ahead buckets after one outside of bursts is in one: the part of the intervals between
// bursts, of those that were longer than the present one is already, after which it was.
func (b *bursts) comes(bucket, ahead int64) float64 {
	hits, all := b.Share, 1.0
	if len(b.List) == 0 {
		return hits
	}
	elapsed := bucket - b.List[len(b.List)-1].Start
	for i := max(1, len(b.List)-hazardIntervals); i < len(b.List); i++ {
		interval := b.List[i].Start - b.List[i-1].Start
		if interval > elapsed {
			all++
			if interval <= elapsed+ahead && elapsed+ahead < interval+b.List[i].Length {
				hits++
			}
		}
	}
	return hits / all
}

// leastBursts is how many bursts, or buckets of one, outweigh what was thought before.
const leastBursts = 8

// longest is the length of the longest one that is remembered; 0 without any.
func (b *bursts) longest() int64 {
	longest := int64(0)
	for _, one := range b.List {
		longest = max(longest, one.Length)
	}
	return longest
}

// history is which part of each block of another history was in bursts, as far back as they are remembered.
func (b *bursts) history(like *history) history {
	shares := newHistory(like.width, len(like.values))
	shares.next, shares.seen = like.next, like.seen
	for i := range shares.values {
		shares.values[i] = 0
	}
	if len(b.List) == burstRoom {
		shares.seen = min(shares.seen, max(0, like.next-floorDiv(b.List[0].Start, like.width)))
	}
	for _, one := range b.List {
		from, to := max(one.Start, (like.next-shares.seen)*like.width), min(one.Start+one.Length, like.next*like.width)
		for bucket := from; bucket < to; bucket++ {
			shares.values[floorMod(floorDiv(bucket, like.width), int64(len(shares.values)))] += 1 / float32(like.width)
		}
	}
	return shares
}

// take notes a bucket that is known: whether it was in a burst, and how far above the base it was.
func (b *bursts) take(inside bool, excess float64) {
	const memory = 1.0 / 4096
	part := 0.0
	if inside {
		part = 1
		b.Seen++
		rate := math.Max(1/b.Seen, 1.0/64)
		miss := excess - b.Mean
		b.Mean += rate * miss
		b.Variance += rate * ((1-rate)*miss*miss - b.Variance)
	}
	b.Share += memory * (part - b.Share)
}
