package pricing

import (
	"math/bits"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Host is a machine that is paid for as a whole and held in parts. The zero value costs nothing.
type Host struct {
	// PerHour is what the whole Capacity costs for an hour.
	PerHour quantity.Money
	// Capacity is what can be held together. An amount that is not positive is not counted in shares.
	Capacity quantity.Size
}

// Share returns the part of the host that size takes: the largest of its shares of cores, of memory and of GPUs,
// because whoever holds all the memory leaves no core for others and the other way round (the dominant share of Ghodsi
// et al., "Dominant Resource Fairness", NSDI 2011,
// https://www.usenix.org/conference/nsdi11/dominant-resource-fairness-fair-allocation-multiple-resource-types). It is
// between 0 and 1; 0 for a host without capacity. The sum over sizes that fit together can be more than 1.
func (h Host) Share(size quantity.Size) quantity.Fraction {
	largest := quantity.Fraction{Of: 0, In: 1}
	for _, share := range []quantity.Fraction{
		{Of: int64(size.CPU), In: int64(h.Capacity.CPU)},
		{Of: int64(size.Memory), In: int64(h.Capacity.Memory)},
		{Of: int64(size.GPU), In: int64(h.Capacity.GPU)},
	} {
		if share.In > 0 && share.Of > 0 && less(largest, share) {
			largest = share
		}
	}
	largest.Of = min(largest.Of, largest.In)
	return largest
}

// less compares two fractions that are not negative: a/b < c/d where ad < cb.
func less(a, b quantity.Fraction) bool {
	leftHigh, leftLow := bits.Mul64(uint64(a.Of), uint64(b.In))
	rightHigh, rightLow := bits.Mul64(uint64(b.Of), uint64(a.In))
	return leftHigh < rightHigh || leftHigh == rightHigh && leftLow < rightLow
}

// For returns the price of holding size on the host for held: its Share of PerHour, rounded half up to the picodollar.
// A negative price, size or time counts as nothing.
func (h Host) For(size quantity.Size, held time.Duration) quantity.Money {
	return max(0, h.PerHour).Prorated(h.Share(size), quantity.Fraction{Of: int64(max(0, held)), In: int64(time.Hour)})
}
