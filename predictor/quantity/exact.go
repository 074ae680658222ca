package quantity

import (
	"fmt"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
)

// Amounts beyond these are cut to them, so that the sum of any two amounts is still a Money.
const (
	mostMoney  Money = math.MaxInt64 / 2
	leastMoney Money = math.MinInt64 / 2
)

// moneyDigits is how many digits after the point a picodollar is.
const moneyDigits = 12

var dollarsPattern = regexp.MustCompile(`^([0-9]{1,9})(?:\.([0-9]{1,100}))?$`)

// ParseDollars reads an amount of US dollars written as a decimal, such as "0.0000166667", without going through binary
// fractions: the result is the amount itself, to the picodollar. A sign, an exponent, "NaN", digits that are finer than
// a picodollar and amounts of 4.6 million dollars or more are refused with an error that wraps ErrQuantity.
func ParseDollars(text string) (Money, error) {
	match := dollarsPattern.FindStringSubmatch(text)
	if match == nil {
		return 0, fmt.Errorf("%.40q is no amount of US dollars: %w; write a decimal that is not negative, such as "+
			"0.0000166667", text, ErrQuantity)
	}
	fraction := strings.TrimRight(match[2], "0")
	if len(fraction) > moneyDigits {
		return 0, fmt.Errorf("%.40q is finer than a picodollar: %w; write at most %d digits after the point", text,
			ErrQuantity, moneyDigits)
	}
	amount, err := strconv.ParseInt(match[1]+fraction+strings.Repeat("0", moneyDigits-len(fraction)), 10, 64)
	if err != nil || Money(amount) > mostMoney {
		return 0, fmt.Errorf("%.40q: %w; write less than 4.6 million US dollars", text, ErrQuantity)
	}
	return Money(amount), nil
}

// Decimal writes the amount in US dollars with all its digits, as ParseDollars reads it: "0.0000166667". A negative
// amount has a sign.
func (m Money) Decimal() string {
	sign, magnitude := "", uint64(m)
	if m < 0 {
		sign, magnitude = "-", -uint64(m) // the magnitude of the least Money is one more than the most
	}
	whole, fraction := magnitude/uint64(USD), magnitude%uint64(USD)
	if fraction == 0 {
		return fmt.Sprintf("%s%d", sign, whole)
	}
	return strings.TrimRight(fmt.Sprintf("%s%d.%012d", sign, whole, fraction), "0")
}

// Plus returns the sum, cut to about plus or minus 4.6 million dollars as Times cuts it.
func (m Money) Plus(other Money) Money {
	m, other = m.cut(), other.cut()
	return (m + other).cut() // two amounts that are cut do not overflow
}

func (m Money) cut() Money { return max(leastMoney, min(m, mostMoney)) }

// Fraction is the exact ratio Of / In. The zero Fraction is no ratio.
type Fraction struct {
	// Of is the part.
	Of int64
	// In is the whole; it is more than 0.
	In int64
}

// Prorated returns m times all fractions, exact until it is rounded once, half up, to the picodollar. It is cut to
// about plus or minus 4.6 million dollars; a fraction whose whole is not positive yields the largest Money, as Times
// does for NaN.
func (m Money) Prorated(by ...Fraction) Money {
	numerator, denominator := big.NewInt(int64(m)), big.NewInt(1)
	for _, fraction := range by {
		if fraction.In <= 0 {
			return mostMoney
		}
		numerator.Mul(numerator, big.NewInt(fraction.Of))
		denominator.Mul(denominator, big.NewInt(fraction.In))
	}
	// floor(n/d + 1/2) = floor((2n + d) / 2d); Div rounds down because the denominator is positive.
	numerator.Lsh(numerator, 1).Add(numerator, denominator)
	numerator.Div(numerator, denominator.Lsh(denominator, 1))
	switch {
	case numerator.IsInt64():
		return Money(numerator.Int64()).cut()
	case numerator.Sign() < 0:
		return leastMoney
	default:
		return mostMoney
	}
}
