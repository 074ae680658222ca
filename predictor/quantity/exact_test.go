package quantity_test

import (
	"errors"
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

const mostMoney = math.MaxInt64 / 2

func TestDollarsAreReadWithoutBinaryFractions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quantity.Money{
		"0": 0, "0.0": 0, "1": quantity.USD, "007": 7 * quantity.USD, "0.0000166667": 16_666_700, "0.000000000001": 1,
		"0.1000000000000000": quantity.USD / 10, "4611686.018427387903": mostMoney,
	} {
		if got, err := quantity.ParseDollars(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", " 1", "1 ", "-1", "+1", "1e3", "NaN", "Inf", "infinity", "0x10", "1_000", "1,5", ".5", "5.", "1.2.3", "٣",
		"0.0000000000001", "4611686.018427387904", "999999999", "9999999999",
	} {
		if got, err := quantity.ParseDollars(text); !errors.Is(err, quantity.ErrQuantity) {
			t.Errorf("%q: got %d, %v, want an error of ErrQuantity", text, got, err)
		}
	}
}

func TestWhatIsWrittenExactlyIsReadBack(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		money := quantity.Money(rapid.Int64Range(0, mostMoney).Draw(t, "money"))
		if got, err := quantity.ParseDollars(money.Decimal()); err != nil || got != money {
			t.Errorf("%d is written %q and read as %d, %v", money, money.Decimal(), got, err)
		}
	})
	for money, want := range map[quantity.Money]string{
		-quantity.USD / 4: "-0.25", 12 * quantity.USD: "12", math.MinInt64: "-9223372.036854775808",
	} {
		if got := money.Decimal(); got != want {
			t.Errorf("%d is written %q, want %q", int64(money), got, want)
		}
	}
}

// prorated is Prorated by rational arithmetic: floor(x + 1/2), cut.
func prorated(money quantity.Money, by []quantity.Fraction) quantity.Money {
	x := new(big.Rat).SetInt64(int64(money))
	for _, fraction := range by {
		x.Mul(x, big.NewRat(fraction.Of, fraction.In))
	}
	x.Add(x, big.NewRat(1, 2))
	floor := new(big.Int).Div(x.Num(), x.Denom())
	if least := big.NewInt(math.MinInt64 / 2); floor.Cmp(least) < 0 {
		floor = least
	}
	if most := big.NewInt(mostMoney); floor.Cmp(most) > 0 {
		floor = most
	}
	return quantity.Money(floor.Int64())
}

func TestAPartOfAnAmountIsRoundedOnceHalfUp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		money quantity.Money
		by    []quantity.Fraction
		want  quantity.Money
	}{
		{7, nil, 7},
		{1, []quantity.Fraction{{Of: 1, In: 2}}, 1},
		{-1, []quantity.Fraction{{Of: 1, In: 2}}, 0},
		{1, []quantity.Fraction{{Of: 1, In: 3}}, 0},
		{1, []quantity.Fraction{{Of: 1, In: 3}, {Of: 3, In: 1}}, 1}, // rounded at the end, not on the way
		{mostMoney, []quantity.Fraction{{Of: 3, In: 1}}, mostMoney},
		{-mostMoney, []quantity.Fraction{{Of: math.MaxInt64, In: 1}}, math.MinInt64 / 2},
		{1, []quantity.Fraction{{Of: 1}}, mostMoney},
		{1, []quantity.Fraction{{Of: 1, In: -1}}, mostMoney},
	} {
		if got := c.money.Prorated(c.by...); got != c.want {
			t.Errorf("%d times %v is %d, want %d", c.money, c.by, got, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		money := quantity.Money(rapid.Int64().Draw(t, "money"))
		by := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) quantity.Fraction {
			return quantity.Fraction{Of: rapid.Int64().Draw(t, "of"), In: rapid.Int64Range(1, math.MaxInt64).Draw(t, "in")}
		}), 0, 4).Draw(t, "by")
		if got, want := money.Prorated(by...), prorated(money, by); got != want {
			t.Errorf("%d times %v is %d, want %d", money, by, got, want)
		}
	})
}

func TestASumIsCutAndNeverOverflows(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := quantity.Money(rapid.Int64().Draw(t, "a")), quantity.Money(rapid.Int64().Draw(t, "b"))
		cut := func(m quantity.Money) quantity.Money { return min(max(m, math.MinInt64/2), mostMoney) }
		if got, want := a.Plus(b), cut(cut(a)+cut(b)); got != want {
			t.Errorf("%d plus %d is %d, want %d", a, b, got, want)
		}
	})
}

func FuzzParseDollars(f *testing.F) {
	for _, seed := range []string{"0.0000166667", "1e3", "4611686.018427387904", "NaN", "-1", ".5", "1.0000000000000"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := quantity.ParseDollars(text)
		if err != nil {
			if !errors.Is(err, quantity.ErrQuantity) {
				t.Errorf("%q: %v is no error of ErrQuantity", text, err)
			}
			return
		}
		want, ok := new(big.Rat).SetString(text)
		if !ok || want.Cmp(big.NewRat(int64(got), int64(quantity.USD))) != 0 {
			t.Errorf("%q is read as %s", text, got.Decimal())
		}
	})
}
