package pricing_test

import (
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestIdleTimeIsPaidByWhoHeldTheHost(t *testing.T) {
	t.Parallel()
	host := pricing.Host{PerHour: 36 * quantity.USD, Capacity: quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}}
	core, half := quantity.Size{CPU: 1000}, quantity.Size{CPU: 2000}
	for _, c := range []struct {
		name     string
		host     pricing.Host
		interval time.Duration
		holdings []pricing.Holding
		want     []pricing.Part
	}{
		{"nobody held it", host, time.Hour, nil, []pricing.Part{{Idle: 36 * quantity.USD}}},
		{
			"one held a quarter for half of it", host, time.Hour,
			[]pricing.Holding{{"a", core, 30 * time.Minute}},
			[]pricing.Part{{"a", 9 * quantity.USD / 2, 63 * quantity.USD / 2}},
		},
		{
			"two held it for different times", host, time.Hour,
			[]pricing.Holding{{"b", half, time.Hour}, {"a", core, 20 * time.Minute}, {"a", core, 10 * time.Minute}},
			[]pricing.Part{{"a", 9 * quantity.USD / 2, 9 * quantity.USD / 2}, {"b", 18 * quantity.USD, 9 * quantity.USD}},
		},
		{
			"all of it was held", host, time.Hour,
			[]pricing.Holding{{"a", half, time.Hour}, {"b", half, time.Hour}},
			[]pricing.Part{{"a", 18 * quantity.USD, 0}, {"b", 18 * quantity.USD, 0}},
		},
		{
			"one held the cores, one the memory", host, time.Hour,
			[]pricing.Holding{
				{"a", quantity.Size{CPU: 4000}, time.Hour},
				{"b", quantity.Size{Memory: 4 * quantity.GiB}, time.Hour},
			},
			[]pricing.Part{{"a", 24 * quantity.USD, 0}, {"b", 12 * quantity.USD, 0}},
		},
		{
			"held for longer than the interval", host, time.Hour,
			[]pricing.Holding{{"a", half, 5 * time.Hour}},
			[]pricing.Part{{"a", 18 * quantity.USD, 18 * quantity.USD}},
		},
		{
			"a clock that stepped back", host, time.Hour,
			[]pricing.Holding{{"a", half, -time.Hour}},
			[]pricing.Part{{Idle: 36 * quantity.USD}},
		},
		{
			"an odd picodollar goes to the first",
			pricing.Host{PerHour: 3, Capacity: host.Capacity},
			time.Hour,
			[]pricing.Holding{{"b", quantity.Size{}, time.Hour}, {"a", quantity.Size{}, time.Hour}},
			[]pricing.Part{{"a", 0, 2}, {"b", 0, 1}},
		},
		{
			"a host without a price",
			pricing.Host{},
			time.Hour,
			[]pricing.Holding{{"a", half, time.Hour}},
			[]pricing.Part{{"a", 0, 0}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, c.host.Attribute(c.interval, c.holdings)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestThePartsOfAHostSumToItsPrice(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		host := pricing.Host{
			PerHour:  quantity.Money(rapid.OneOf(rapid.Int64Range(0, 100), rapid.Int64()).Draw(t, "price")),
			Capacity: drawSize(t, "capacity"),
		}
		interval := drawDuration(t, "interval")
		holdings := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pricing.Holding {
			return pricing.Holding{
				Stage: rapid.SampledFrom([]string{"a", "b", "c", "d", "e"}).Draw(t, "stage"), Size: drawSize(t, "size"),
				Held: drawDuration(t, "held"),
			}
		}), 0, 12).Draw(t, "holdings")
		before := slices.Clone(holdings)
		parts := host.Attribute(interval, holdings)
		var sum quantity.Money
		for i, part := range parts {
			if part.Held < 0 || part.Idle < 0 {
				t.Errorf("part %+v is negative", part)
			}
			if i > 0 && parts[i-1].Stage >= part.Stage {
				t.Errorf("%q comes after %q", part.Stage, parts[i-1].Stage)
			}
			sum += part.Held + part.Idle
		}
		whole := max(0, host.PerHour).Prorated(quantity.Fraction{Of: int64(max(0, interval)), In: int64(time.Hour)})
		if sum != whole {
			t.Errorf("the parts %+v sum to %d, the host costs %d", parts, sum, whole)
		}
		if !slices.Equal(before, holdings) {
			t.Errorf("the holdings were changed")
		}
		slices.Reverse(holdings)
		if diff := cmp.Diff(parts, host.Attribute(interval, holdings)); diff != "" {
			t.Errorf("the order of holdings matters:\n%s", diff)
		}
	})
}

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

func ExampleHost_Attribute() {
	host := pricing.Host{PerHour: quantity.USD, Capacity: quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}}
	parts := host.Attribute(time.Hour, []pricing.Holding{
		{Stage: "prep", Size: quantity.Size{CPU: 1000, Memory: quantity.GiB}, Held: 10 * time.Minute},
		{Stage: "train", Size: quantity.Size{CPU: 2000, Memory: 6 * quantity.GiB}, Held: 20 * time.Minute},
	})
	for _, part := range parts {
		fmt.Printf("%s held %s and pays %s of idle time\n", part.Stage, part.Held, part.Idle)
	}
	// Output:
	// prep held $0.04167 and pays $0.2361 of idle time
	// train held $0.2500 and pays $0.4722 of idle time
}
