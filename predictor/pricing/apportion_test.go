package pricing_test

import (
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestApportionedPartsSumToTheWholeAndKeepTheirQuota(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := quantity.Money(rapid.OneOf(rapid.Int64Range(-100, 100), rapid.Int64()).Draw(t, "total"))
		weights := rapid.SliceOfN(rapid.OneOf(rapid.Int64Range(-2, 10), rapid.Int64()), 1, 10).Draw(t, "weights")
		parts := pricing.Apportion(total, weights)
		sum, weighed := new(big.Int), new(big.Int)
		for i, part := range parts {
			sum.Add(sum, big.NewInt(int64(part)))
			weighed.Add(weighed, big.NewInt(max(0, weights[i])))
		}
		if sum.Cmp(big.NewInt(int64(total))) != 0 {
			t.Errorf("%v sum to %d, want %d", parts, sum, total)
		}
		for i, part := range parts {
			quota := big.NewRat(1, int64(len(weights)))
			if weighed.Sign() > 0 {
				quota = new(big.Rat).SetFrac(big.NewInt(max(0, weights[i])), weighed)
			}
			quota.Mul(quota, new(big.Rat).SetInt64(int64(total)))
			off := quota.Sub(quota, new(big.Rat).SetInt64(int64(part)))
			if off.Abs(off).Cmp(big.NewRat(1, 1)) >= 0 {
				t.Errorf("part %d of %v by %v is %d, a picodollar or more from its quota", i, total, weights, part)
			}
		}
	})
	if got := pricing.Apportion[int64](1, nil); got != nil {
		t.Errorf("without weights: %v", got)
	}
}

// nearest is the smallest sum of squared distances from the quotas that any parts with this total have: what the
// largest remainder attains.
func nearest(total int64, weights []int64, sum int64) int64 {
	if len(weights) == 1 {
		off := total*sum - weights[0] // scaled by the sum of the weights
		return off * off
	}
	best := int64(1 << 62)
	for part := range total + 1 {
		off := part*sum - weights[0]
		best = min(best, off*off+nearest(total-part, weights[1:], sum))
	}
	return best
}

func TestTheLargestRemainderIsNearestToTheQuotas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(0, 12).Draw(t, "total")
		weights := rapid.SliceOfN(rapid.Int64Range(0, 20), 1, 4).Draw(t, "weights")
		var sum int64
		for _, weight := range weights {
			sum += weight
		}
		if sum == 0 {
			t.Skip("no weight")
		}
		quotas, got := make([]int64, len(weights)), int64(0)
		for i, part := range pricing.Apportion(quantity.Money(total), weights) {
			quotas[i] = total * weights[i]
			off := int64(part)*sum - quotas[i]
			got += off * off
		}
		if want := nearest(total, quotas, sum); got != want {
			t.Errorf("%d by %v is off by %d, and could be by %d", total, weights, got, want)
		}
	})
}
