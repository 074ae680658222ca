package pricing

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Catalogue is a set of prices. Use Parse or Default; the zero Catalogue has none. It does not change and may be read
// concurrently.
type Catalogue struct{ rows []Row } // sorted by compareRows

// Offer is what one name of the catalogue has and costs.
type Offer struct {
	// Capacity is a host with all its GPUs, or the most that one function or container can have; zero for storage.
	Capacity quantity.Size
	// Prices are those of the units that its kind has.
	Prices map[Unit]quantity.Money
}

// Rows returns all prices, sorted by kind, region, name and unit.
func (c Catalogue) Rows() []Row { return slices.Clone(c.rows) }

// Lookup returns one offer; known is false when the catalogue does not have it.
func (c Catalogue) Lookup(kind Kind, region, name string) (offer Offer, known bool) {
	for _, row := range c.rows {
		if row.Kind != kind || row.Region != region || row.Name != name {
			continue
		}
		if !known {
			offer, known = Offer{Capacity: row.Capacity, Prices: map[Unit]quantity.Money{}}, true
		}
		offer.Prices[row.Unit] = row.Price
	}
	return offer, known
}

// GPU returns what an hour of one GPU of a class, such as "h100", costs beside the cores of its host: what the cheapest
// host on demand with such GPUs costs more than its cores do at perCore an hour, for each of them. Known is false where
// the catalogue has no such host.
func (c Catalogue) GPU(region, class string, perCore quantity.Money) (perHour quantity.Money, known bool) {
	for _, row := range c.rows {
		if row.Kind != OnDemandHost || row.Region != region || row.Capacity.DeviceClass != class || row.Capacity.GPU <= 0 {
			continue
		}
		cores := perCore.Prorated(quantity.Fraction{Of: int64(row.Capacity.CPU), In: int64(quantity.Core)})
		each := max(0, row.Price-cores).Prorated(quantity.Fraction{Of: int64(quantity.Core), In: int64(row.Capacity.GPU)})
		if !known || each < perHour {
			perHour, known = each, true
		}
	}
	return perHour, known
}
