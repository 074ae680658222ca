package quantity

import (
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Milli counts thousandths of one CPU core, or of one GPU. The zero value is nothing.
type Milli int64

// Core is one whole core (or one whole GPU) in Milli.
const Core Milli = 1000

// Cores returns m in cores.
func (m Milli) Cores() float64 { return float64(m) / float64(Core) }

// String writes m in cores with as many digits as it needs: "1", "0.25".
func (m Milli) String() string { return strconv.FormatFloat(m.Cores(), 'f', -1, 64) }

// Bytes counts bytes. The zero value is nothing; negative values mean a difference.
type Bytes int64

// Binary multiples of a byte.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// String writes b in the largest binary unit that keeps it at or above one: "512 B", "1.5 GiB".
func (b Bytes) String() string {
	for _, unit := range []struct {
		size Bytes
		name string
	}{{TiB, "TiB"}, {GiB, "GiB"}, {MiB, "MiB"}, {KiB, "KiB"}} {
		if b >= unit.size || b <= -unit.size {
			value := float64(b) / float64(unit.size)
			digits := 1
			if math.Abs(value) >= 100 || value == math.Trunc(value) {
				digits = 0
			}
			return strconv.FormatFloat(value, 'f', digits, 64) + " " + unit.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + " B"
}

// ErrQuantity is wrapped by every error of this package.
var ErrQuantity = errors.New("not a quantity")

// Money is an exact amount in picodollars (10^-12 US dollars); one millisecond of the smallest function costs about
// 2,000 of them. The range is about plus and minus 9.2 million dollars. The zero value is nothing.
type Money int64

// USD is one US dollar.
const USD Money = 1_000_000_000_000

// Dollars converts an amount of US dollars, rounding to the nearest picodollar.
// NaN, infinities and amounts outside the range of Money are refused.
func Dollars(amount float64) (Money, error) {
	pico := amount * float64(USD)
	if math.IsNaN(pico) || math.Abs(pico) > math.MaxInt64/2 {
		return 0, fmt.Errorf("amount %v USD: %w; write a finite number of dollars below 4 million", amount, ErrQuantity)
	}
	return Money(math.Round(pico)), nil
}

// USD returns the amount in US dollars, for display and for ratios; sums stay in Money.
func (m Money) USD() float64 { return float64(m) / float64(USD) }

// String writes the amount with four significant digits: "$0.0001234", "$12.50".
func (m Money) String() string {
	dollars := m.USD()
	switch magnitude := math.Abs(dollars); {
	case magnitude == 0:
		return "$0"
	case magnitude >= 0.995:
		return fmt.Sprintf("$%.2f", dollars)
	default:
		digits := 3 - int(math.Floor(math.Log10(magnitude)))
		return "$" + strconv.FormatFloat(dollars, 'f', digits, 64)
	}
}

// Times returns m scaled by factor, rounded to the nearest picodollar. A factor that is NaN or overflows yields the
// largest Money, so that an unknown price is never taken for a cheap one.
func (m Money) Times(factor float64) Money {
	scaled := float64(m) * factor
	if math.IsNaN(scaled) || scaled > math.MaxInt64/2 {
		return math.MaxInt64 / 2
	}
	if scaled < math.MinInt64/2 {
		return math.MinInt64 / 2
	}
	return Money(math.Round(scaled))
}
