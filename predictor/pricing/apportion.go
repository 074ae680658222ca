package pricing

import (
	"cmp"
	"math/big"
	"math/bits"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Apportion divides total into one part for each weight, in proportion to the weights and so that the parts sum to
// total exactly: by the method of the largest remainder (Hamilton's; M. L. Balinski and H. P. Young, "Fair
// Representation", 1982).
//
//	quota_i = total x weight_i / (sum of weights)
//	part_i = floor(quota_i), or one picodollar more for the largest remainders
//
// Equal remainders are served in order. Negative weights count as 0; where no weight is positive, all weigh the same.
// Without weights there are no parts. The parts of a negative total are those of the positive one, negated.
func Apportion[Weight ~int64](total quantity.Money, weights []Weight) []quantity.Money {
	if len(weights) == 0 {
		return nil
	}
	clean := make([]uint64, len(weights))
	sum, carries := uint64(0), uint64(0)
	for i, weight := range weights {
		clean[i] = uint64(max(0, int64(weight)))
		var carry uint64
		sum, carry = bits.Add64(sum, clean[i], 0)
		carries += carry
	}
	if sum == 0 && carries == 0 {
		sum = uint64(len(clean))
		for i := range clean {
			clean[i] = 1
		}
	}
	amount := uint64(total)
	if total < 0 {
		amount = -amount
	}
	apportion := apportionWide
	if carries == 0 {
		apportion = apportionNarrow
	}
	parts := make([]quantity.Money, len(weights))
	for i, part := range apportion(amount, clean, sum) {
		parts[i] = quantity.Money(part)
		if total < 0 {
			parts[i] = -parts[i]
		}
	}
	return parts
}

// apportionNarrow divides amount by weights whose sum fits into 64 bits.
func apportionNarrow(amount uint64, weights []uint64, sum uint64) []uint64 {
	parts, remainders, left := make([]uint64, len(weights)), make([]uint64, len(weights)), amount
	for i, weight := range weights {
		high, low := bits.Mul64(amount, weight)
		parts[i], remainders[i] = bits.Div64(high, low, sum) // weight <= sum, so the quotient is at most amount
		left -= parts[i]
	}
	largest(parts, left, func(a, b int) int { return cmp.Compare(remainders[a], remainders[b]) })
	return parts
}

// apportionWide divides amount by weights of any sum.
func apportionWide(amount uint64, weights []uint64, _ uint64) []uint64 {
	of, sum := new(big.Int).SetUint64(amount), new(big.Int)
	for _, weight := range weights {
		sum.Add(sum, new(big.Int).SetUint64(weight))
	}
	parts, remainders, left := make([]uint64, len(weights)), make([]*big.Int, len(weights)), amount
	for i, weight := range weights {
		part := new(big.Int).SetUint64(weight)
		part, remainders[i] = part.QuoRem(part.Mul(part, of), sum, new(big.Int))
		parts[i] = part.Uint64()
		left -= parts[i]
	}
	largest(parts, left, func(a, b int) int { return remainders[a].Cmp(remainders[b]) })
	return parts
}

// largest gives one more to each of the left parts with the largest remainders, of which compare orders two; less than
// one is left for each part.
func largest(parts []uint64, left uint64, compare func(a, b int) int) {
	if left == 0 {
		return
	}
	order := make([]int, len(parts))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compare(b, a) })
	for _, i := range order[:left] {
		parts[i]++
	}
}
