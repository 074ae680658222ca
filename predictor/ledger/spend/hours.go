package spend

import (
	"cmp"
	"maps"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
)

// Hours sums up spans by owner, venue, host and hour. The zero value is no map: use Hours{}.
type Hours map[hourKey]Span

// hourKey is what is summed up together.
type hourKey struct {
	owner Owner
	owned bool
	venue predictor.Venue
	host  string
	at    int64
}

// Add adds a span, divided among the hours in which it lies.
func (h Hours) Add(s Span) {
	s.each(hour, func(part Span) {
		if part.Sums == (Sums{}) {
			return
		}
		k := hourKey{venue: part.Venue, host: part.Host, at: floor(part.From, hour)}
		if part.Owner != nil {
			k.owner, k.owned = *part.Owner, true
		}
		sum, known := h[k]
		if !known {
			sum = part
			sum.Sums = Sums{}
		}
		sum.From, sum.To = min(sum.From, part.From), max(sum.To, part.To)
		sum.Counted = sum.From
		sum.Sums.Add(part.Sums)
		h[k] = sum
	})
}

// Spans are the sums, in an order that does not depend on that in which they were added.
func (h Hours) Spans() []Span {
	keys := slices.SortedFunc(maps.Keys(h), func(a, b hourKey) int {
		return cmp.Or(cmp.Compare(a.at, b.at), compareOwners(&a.owner, &b.owner), cmp.Compare(a.venue, b.venue),
			cmp.Compare(a.host, b.host))
	})
	spans := make([]Span, len(keys))
	for i, k := range keys {
		spans[i] = h[k]
	}
	return spans
}
