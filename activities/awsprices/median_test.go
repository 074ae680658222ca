package awsprices

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

var begin = time.Date(2026, 11, 20, 0, 0, 0, 0, time.UTC)

func TestAMedianCountsForHowLongAPriceHeld(t *testing.T) {
	t.Parallel()
	at := func(hours float64) time.Time { return begin.Add(time.Duration(hours * float64(time.Hour))) }
	for name, tt := range map[string]struct {
		prices []spotPrice
		want   quantity.Money
	}{
		"one":                             {[]spotPrice{{at(5), 7}}, 7},
		"one from before":                 {[]spotPrice{{at(-50), 7}}, 7},
		"many short peaks":                {[]spotPrice{{at(0), 1}, {at(8), 9}, {at(8.1), 8}, {at(8.2), 9}}, 1},
		"what held before is cut":         {[]spotPrice{{at(-100), 1}, {at(4), 2}}, 2},
		"in no order":                     {[]spotPrice{{at(4), 2}, {at(-100), 1}}, 2},
		"half and half is the lower":      {[]spotPrice{{at(0), 1}, {at(5), 2}}, 1},
		"what comes after does not count": {[]spotPrice{{at(0), 1}, {at(20), 2}}, 1},
		"only after":                      {[]spotPrice{{at(20), 2}}, 2},
	} {
		if got := median(tt.prices, at(0), at(10)); got != tt.want {
			t.Errorf("%s: got %d, want %d", name, got, tt.want)
		}
	}
}

// TestAMedianIsThatOfTheHours has as its oracle the prices of every hour, sorted, of which it takes the middle one.
func TestAMedianIsThatOfTheHours(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hours := rapid.IntRange(1, 60).Draw(t, "hours")
		prices := []spotPrice{{begin.Add(-time.Hour), quantity.Money(rapid.IntRange(1, 9).Draw(t, "first"))}}
		byHour := make([]quantity.Money, hours)
		for hour := range hours {
			if rapid.Bool().Draw(t, "changes") {
				price := quantity.Money(rapid.IntRange(1, 9).Draw(t, "price"))
				prices = append(prices, spotPrice{begin.Add(time.Duration(hour) * time.Hour), price})
			}
			byHour[hour] = prices[len(prices)-1].price
		}
		slices.Sort(byHour)
		want := byHour[(hours-1)/2]
		if got := median(prices, begin, begin.Add(time.Duration(hours)*time.Hour)); got != want {
			t.Errorf("%v: got %d, want %d of %v", prices, got, want, byHour)
		}
	})
}
