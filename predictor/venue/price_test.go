package venue_test

import (
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// The price of an invoke is held against rational numbers.
func TestThePriceOfAnInvokeIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		functions := venue.Functions{
			PerGiBSecond: quantity.Money(rapid.Int64Range(0, 1e15).Draw(t, "per GiB-second")),
			PerRequest:   quantity.Money(rapid.Int64Range(0, 1e9).Draw(t, "per request")),
		}
		memory := quantity.Bytes(rapid.Int64Range(0, int64(10*quantity.GiB)).Draw(t, "memory"))
		wall := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "wall"))
		milliseconds := (int64(wall) + int64(time.Millisecond) - 1) / int64(time.Millisecond)
		exact := new(big.Rat).SetFrac(
			new(big.Int).Mul(big.NewInt(int64(functions.PerGiBSecond)),
				new(big.Int).Mul(big.NewInt(int64(memory)), big.NewInt(milliseconds))),
			big.NewInt(int64(quantity.GiB)*1000))
		// Half up: floor of the doubled value plus one, halved.
		doubled := new(big.Rat).Add(new(big.Rat).Mul(exact, big.NewRat(2, 1)), big.NewRat(1, 1))
		rounded := new(big.Int).Div(doubled.Num(), new(big.Int).Mul(doubled.Denom(), big.NewInt(2)))
		want := rounded.Add(rounded, big.NewInt(int64(functions.PerRequest)))
		if most := big.NewInt(1 << 61); want.Cmp(most) > 0 {
			t.Skip("no such bill")
		}
		if got := functions.Price(memory, wall); int64(got) != want.Int64() {
			t.Errorf("%s for %s: got %d picodollars, want %d", memory, wall, got, want)
		}
	})
}
