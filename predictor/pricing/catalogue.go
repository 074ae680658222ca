package pricing

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Catalogue is a set of prices. Use Parse or Default; the zero Catalogue has none. It does not change and may be read
// concurrently.
type Catalogue struct{ rows []Row } // sorted by compareRows

// Offer is what one name of the catalogue has and costs.
type Offer struct {
	Kind                   Kind
	Provider, Region, Name string
	// Capacity is a host with all its GPUs, or the most that one function or container can have; zero for storage.
	Capacity quantity.Size
	Price    Price
	// Dated is the day of its oldest price.
	Dated time.Time
	// Sources say where its prices were found.
	Sources []string
}

// Rows returns all prices, sorted by kind, region, name and unit.
func (c Catalogue) Rows() []Row { return slices.Clone(c.rows) }

// Offers returns what is sold, sorted by kind, region and name.
func (c Catalogue) Offers() []Offer {
	var offers []Offer
	for named := range names(c.rows) {
		offers = append(offers, newOffer(named))
	}
	return offers
}

// Where returns the catalogue of the offers that keep accepts. Use it to leave out what cannot be used: the catalogue
// does not say that "lambda-arm" and "c7g.xlarge" run other binaries than "lambda-x86".
func (c Catalogue) Where(keep func(Offer) bool) Catalogue {
	var kept []Row
	for named := range names(c.rows) {
		if keep(newOffer(named)) {
			kept = append(kept, named...)
		}
	}
	return Catalogue{rows: kept}
}

// Lookup returns one offer; known is false when the catalogue does not have it.
func (c Catalogue) Lookup(kind Kind, region, name string) (offer Offer, known bool) {
	for named := range names(c.rows) {
		if compareNames(named[0], Row{Kind: kind, Region: region, Name: name}) == 0 {
			return newOffer(named), true
		}
	}
	return Offer{}, false
}

// names yields the rows of each name of sorted rows.
func names(rows []Row) iter.Seq[[]Row] {
	return func(yield func([]Row) bool) {
		for start := 0; start < len(rows); {
			end := start + 1
			for end < len(rows) && compareNames(rows[end], rows[start]) == 0 {
				end++
			}
			if !yield(rows[start:end]) {
				return
			}
			start = end
		}
	}
}

// newOffer joins the rows of one name.
func newOffer(named []Row) Offer {
	first := named[0]
	offer := Offer{
		Kind: first.Kind, Provider: first.Provider, Region: first.Region, Name: first.Name, Capacity: first.Capacity,
		Price: Price{Billing: BillingOf(first.Kind)}, Dated: first.Dated,
	}
	for _, row := range named {
		offer.Price.set(row.Unit, row.Price)
		if row.Dated.Before(offer.Dated) {
			offer.Dated = row.Dated
		}
		if !slices.Contains(offer.Sources, row.Source) {
			offer.Sources = append(offer.Sources, row.Source)
		}
	}
	return offer
}

// Quote is what an offer asks for room of some size for some time.
type Quote struct {
	Offer Offer
	// Rented is what has to be rented to have the room.
	Rented quantity.Size
	// Bill is what renting it for this one use costs.
	Bill quantity.Money
	// Share is what the room costs on a host that others share and that runs anyway (Host.For); a GPU that need leaves
	// alone is not in it. It is the Bill where nothing is shared.
	Share quantity.Money
}

// Compare returns the offers of a region that can hold need, with what each asks for held: the smallest Share first,
// among equals the smallest Bill, then by kind and name.
func (c Catalogue) Compare(need quantity.Size, held time.Duration, region string) []Quote {
	var quotes []Quote
	for _, offer := range c.Offers() {
		rented, fits := offer.Fit(need)
		if offer.Region != region || !fits {
			continue
		}
		quote := Quote{Offer: offer, Rented: rented, Bill: offer.Price.Bill(rented, held)}
		quote.Share = quote.Bill
		if offer.Kind.IsHost() {
			quote.Share = offer.Host().For(need, held)
		}
		quotes = append(quotes, quote)
	}
	slices.SortStableFunc(quotes, func(a, b Quote) int { // offers are sorted by kind and name
		return cmp.Or(cmp.Compare(a.Share, b.Share), cmp.Compare(a.Bill, b.Bill))
	})
	return quotes
}

// Cheapest returns the offer of a kind and region that holds need for the least money in the long run: by the marginal
// price of an hour of what has to be rented, a host as a whole. Among equals it is the first by name. known is false
// when nothing holds need.
func (c Catalogue) Cheapest(need quantity.Size, kind Kind, region string) (offer Offer, known bool) {
	var least quantity.Money
	for _, candidate := range c.Offers() {
		rented, fits := candidate.Fit(need)
		if candidate.Kind != kind || candidate.Region != region || !fits {
			continue
		}
		if price := candidate.Price.Marginal(rented, time.Hour); !known || price < least {
			offer, least, known = candidate, price, true
		}
	}
	return offer, known
}

// Memory mebibytes of functions: any number of MiB from 128,
// https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html
const leastFunctionMemory = 128 * quantity.MiB

// Fit returns what has to be rented to hold need: the whole host; so much memory of a function that it has both the
// memory and the cores (cores come in proportion to memory, and all of Capacity.CPU with all of Capacity.Memory); what
// is needed of a container. fits is false when the offer cannot hold need, and always for storage. GPU memory is that
// of the devices that the GPU share needs, at least one.
func (o Offer) Fit(need quantity.Size) (rented quantity.Size, fits bool) {
	if need.CPU < 0 || need.Memory < 0 || need.GPU < 0 || need.GPUMemory < 0 || !o.holds(need) {
		return quantity.Size{}, false
	}
	switch o.Kind {
	case OnDemandHost, SpotHost:
		return o.Capacity, true
	case Function:
		// The smallest memory m with m x Capacity.CPU / Capacity.Memory >= need.CPU, in whole MiB.
		largest := int64(o.Capacity.Memory / quantity.MiB)
		memory := max(leastFunctionMemory, need.Memory,
			quantity.Bytes(ceiling(int64(need.CPU)*largest, int64(o.Capacity.CPU)))*quantity.MiB)
		mebibytes := ceiling(int64(memory), int64(quantity.MiB))
		return quantity.Size{
			CPU:    o.Capacity.CPU * quantity.Milli(mebibytes) / quantity.Milli(largest),
			Memory: quantity.Bytes(mebibytes) * quantity.MiB,
		}, true
	case Container:
		return need, true
	case StorageRequest, StorageMonth:
	}
	return quantity.Size{}, false
}

// ceiling is the quotient rounded up, of amounts that are not negative.
func ceiling(dividend, divisor int64) int64 { return (dividend + divisor - 1) / divisor }

// holds is Size.Fits, with the GPU memory of one device rather than of all.
func (o Offer) holds(need quantity.Size) bool {
	if !need.Fits(o.Capacity) {
		return false
	}
	devices, gpus := max(1, ceiling(int64(need.GPU), int64(quantity.Core))), int64(o.Capacity.GPU/quantity.Core)
	return gpus == 0 || need.GPUMemory <= o.Capacity.GPUMemory/quantity.Bytes(gpus)*quantity.Bytes(devices)
}

// Host returns the offer as a machine to be shared; the zero Host for what is not one.
func (o Offer) Host() Host {
	if !o.Kind.IsHost() {
		return Host{}
	}
	return Host{PerHour: o.Price.Hour, Capacity: o.Capacity}
}

// Write writes the catalogue as Parse reads it, sorted and without comments. An error is that of w.
func (c Catalogue) Write(w io.Writer) error {
	out := csv.NewWriter(w)
	lines := [][]string{columns}
	for _, row := range c.rows {
		lines = append(lines, row.fields())
	}
	if err := out.WriteAll(lines); err != nil {
		return fmt.Errorf("write %d prices: %w", len(c.rows), err)
	}
	return nil
}

// fields are those of the columns.
func (row Row) fields() []string {
	number := func(amount int64) string {
		if amount == 0 {
			return ""
		}
		return strconv.FormatInt(amount, 10)
	}
	gpus := int64(row.Capacity.GPU / quantity.Core)
	validUntil := ""
	if !row.ValidUntil.IsZero() {
		validUntil = row.ValidUntil.Format(time.DateOnly)
	}
	return []string{
		string(row.Kind), row.Provider, row.Region, row.Name, number(int64(row.Capacity.CPU)),
		number(int64(row.Capacity.Memory)),
		row.Capacity.DeviceClass, number(gpus), number(int64(row.Capacity.GPUMemory) / max(1, gpus)),
		row.Price.Decimal(), string(row.Unit), row.Dated.Format(time.DateOnly), row.Source, validUntil,
	}
}

// String says what an offer is and costs, for people: "c7i.xlarge of us-east-1 (host-on-demand, 4 cores, 8 GiB):
// $0.1785 an hour; 2026-01-19".
func (o Offer) String() string {
	var prices []string
	for _, price := range []struct {
		of   quantity.Money
		unit string
	}{
		{o.Price.Hour, "an hour"},
		{o.Price.CoreHour, "a core and hour"},
		{o.Price.GiBHour, "a GiB and hour"},
		{o.Price.GiBSecond, "a GiB and second"},
		{o.Price.GiBMonth, "a GiB and month"},
		{o.Price.Request, "a request"},
	} {
		if price.of > 0 {
			prices = append(prices, "$"+price.of.Decimal()+" "+price.unit)
		}
	}
	if len(prices) == 0 {
		prices = []string{"free"}
	}
	what := string(o.Kind)
	if !o.Capacity.IsZero() {
		what += ", " + o.Capacity.String()
	}
	return fmt.Sprintf("%s of %s (%s): %s; %s", o.Name, o.Region, what, strings.Join(prices, ", "),
		o.Dated.Format(time.DateOnly))
}
