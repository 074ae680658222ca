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
