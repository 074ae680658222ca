package awsprices

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// spotPrice is a price from a moment on, until the next one.
type spotPrice struct {
	at    time.Time
	price quantity.Money
}

// dearestMedian returns the highest of the medians of zones, and its zone; the first by name among equals.
func dearestMedian(zones map[string][]spotPrice, from, to time.Time) (dearest quantity.Money, zone string) {
	for _, name := range slices.Sorted(maps.Keys(zones)) {
		if price := median(zones[name], from, to); zone == "" || price > dearest {
			dearest, zone = price, name
		}
	}
	return dearest, zone
}

// median returns the price below or at which the price was for half of the time between from and to: EC2 tells changes,
// the last one before from included, so that each holds until the next and counts for as long. There is at least one.
func median(prices []spotPrice, from, to time.Time) quantity.Money {
	byTime := slices.SortedFunc(slices.Values(prices), func(a, b spotPrice) int { return a.at.Compare(b.at) })
	type held struct {
		price quantity.Money
		span  time.Duration
	}
	var all []held
	var total time.Duration
	for i, p := range byTime {
		begin, end := p.at, to
		if begin.Before(from) {
			begin = from
		}
		if i+1 < len(byTime) && byTime[i+1].at.Before(to) {
			end = byTime[i+1].at
		}
		span := max(0, end.Sub(begin))
		all = append(all, held{p.price, span})
		total += span
	}
	if total == 0 {
		return byTime[len(byTime)-1].price
	}
	slices.SortFunc(all, func(a, b held) int { return cmp.Compare(a.price, b.price) })
	var below time.Duration
	for _, h := range all {
		if below += h.span; 2*below >= total {
			return h.price
		}
	}
	return all[len(all)-1].price
}
