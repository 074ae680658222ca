package pricing

import (
	"cmp"
	"math/big"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Holding is room on a host that a stage had for some time of an interval.
type Holding struct {
	// Stage is whose it was.
	Stage string
	Size  quantity.Size
	// Held is for how long; it is cut to the interval.
	Held time.Duration
}

// Part is what one stage pays of a host.
type Part struct {
	// Stage is who pays; empty for what nobody held.
	Stage string
	// Held is the price of what the stage held.
	Held quantity.Money
	// Idle is its part of the price of what nobody held.
	Idle quantity.Money
}

// Attribute divides the price of the host over an interval among the stages that held parts of it, sorted by name. The parts sum to the
// whole price exactly.
//
// Each stage pays for what it held (For). What is left is the price of idle capacity, and is divided by the time for which each stage held
// anything, whatever its size: any holding, large or small, keeps the host from being given back. Where the shares sum to more than the
// host (one stage holds the cores, another the memory), nothing is idle and every stage pays less than For in proportion. What is left over
// by rounding goes by the largest remainder. An interval in which nothing was held is one Part without a stage.
func (h Host) Attribute(interval time.Duration, holdings []Holding) []Part {
	interval = max(0, interval)
	whole := h.whole().Prorated(hours(interval))
	parts, times := h.held(interval, holdings)
	if len(parts) == 0 {
		return []Part{{Idle: whole}}
	}
	prices, sum := make([]quantity.Money, len(parts)), new(big.Int)
	for i, part := range parts {
		prices[i] = part.Held
		sum.Add(sum, big.NewInt(int64(part.Held)))
	}
	if whole := big.NewInt(int64(whole)); sum.Cmp(whole) <= 0 {
		idle := quantity.Money(whole.Sub(whole, sum).Int64())
		for i, money := range Apportion(idle, times) {
			parts[i].Idle = money
		}
		return parts
	}
	for i, money := range Apportion(whole, prices) {
		parts[i].Held = money
	}
	return parts
}

// held sums up the holdings by stage, without those that held nothing for no time.
func (h Host) held(interval time.Duration, holdings []Holding) ([]Part, []time.Duration) {
	sorted := slices.SortedFunc(slices.Values(holdings), func(a, b Holding) int { return cmp.Compare(a.Stage, b.Stage) })
	var parts []Part
	var times []time.Duration
	for _, holding := range sorted {
		held := min(holding.Held, interval)
		if held <= 0 {
			continue
		}
		if last := len(parts) - 1; last < 0 || parts[last].Stage != holding.Stage {
			parts, times = append(parts, Part{Stage: holding.Stage}), append(times, 0)
		}
		last := len(parts) - 1
		parts[last].Held = parts[last].Held.Plus(h.For(holding.Size, held))
		times[last] += min(held, 1<<63-1-times[last])
	}
	return parts, times
}

// Apportion divides total into one part for each weight, in proportion to the weights and so that the parts sum to total exactly: by the
// method of the largest remainder (Hamilton's; M. L. Balinski and H. P. Young, "Fair Representation", 1982).
//
//	quota_i = total x weight_i / (sum of weights);  part_i = floor(quota_i), or one picodollar more for the largest remainders
//
// Equal remainders are served in order. Negative weights count as 0; where no weight is positive, all weigh the same. Without weights
// there are no parts. The parts of a negative total are those of the positive one, negated.
func Apportion[Weight ~int64](total quantity.Money, weights []Weight) []quantity.Money {
	if len(weights) == 0 {
		return nil
	}
	amount := new(big.Int).Abs(big.NewInt(int64(total)))
	sum := new(big.Int)
	for _, weight := range weights {
		sum.Add(sum, big.NewInt(max(0, int64(weight))))
	}
	equal := sum.Sign() == 0
	if equal {
		sum.SetInt64(int64(len(weights)))
	}

	parts, remainders := make([]*big.Int, len(weights)), make([]*big.Int, len(weights))
	left := new(big.Int).Set(amount)
	for i, weight := range weights {
		of := big.NewInt(max(0, int64(weight)))
		if equal {
			of.SetInt64(1)
		}
		parts[i], remainders[i] = of.QuoRem(of.Mul(of, amount), sum, new(big.Int))
		left.Sub(left, parts[i])
	}
	order := make([]int, len(weights))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return remainders[b].Cmp(remainders[a]) })
	one := big.NewInt(1)
	for _, i := range order[:left.Int64()] { // less than one is left for each weight
		parts[i].Add(parts[i], one)
	}

	result := make([]quantity.Money, len(weights))
	for i, part := range parts {
		if total < 0 {
			part.Neg(part)
		}
		result[i] = quantity.Money(part.Int64())
	}
	return result
}
