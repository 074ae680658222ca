package pricing_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func drawSize(t *rapid.T, name string) quantity.Size {
	amount := rapid.OneOf(rapid.Int64Range(0, 1<<40), rapid.Int64())
	return quantity.Size{
		CPU:    quantity.Milli(amount.Draw(t, name+" CPU")),
		Memory: quantity.Bytes(amount.Draw(t, name+" memory")), GPU: quantity.Milli(amount.Draw(t, name+" GPU")),
	}
}

// share is the largest ratio by rational arithmetic.
func share(capacity, size quantity.Size) *big.Rat {
	largest := new(big.Rat)
	for _, pair := range [][2]int64{
		{int64(size.CPU), int64(capacity.CPU)},
		{int64(size.Memory), int64(capacity.Memory)},
		{int64(size.GPU), int64(capacity.GPU)},
	} {
		if pair[1] <= 0 {
			continue
		}
		if ratio := big.NewRat(pair[0], pair[1]); ratio.Cmp(largest) > 0 {
			largest = ratio
		}
	}
	if one := big.NewRat(1, 1); largest.Cmp(one) > 0 {
		return one
	}
	return largest
}

func TestTheShareOfAHostIsTheLargestOfItsShares(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		host, size := pricing.Host{Capacity: drawSize(t, "capacity")}, drawSize(t, "size")
		got, want := host.Share(size), share(host.Capacity, size)
		if got.In <= 0 || big.NewRat(got.Of, got.In).Cmp(want) != 0 {
			t.Errorf("%+v of %+v is %+v, want %s", size, host.Capacity, got, want)
		}
	})
}

func BenchmarkHostFor(b *testing.B) {
	host := pricing.Host{PerHour: quantity.USD, Capacity: quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}}
	size := quantity.Size{CPU: 1000, Memory: 3 * quantity.GiB}
	if got, want := host.For(size, time.Hour), 3*quantity.USD/8; got != want {
		b.Fatalf("got %v, want %v", got, want)
	}
	b.ReportAllocs()
	for b.Loop() {
		host.For(size, time.Hour)
	}
}
