package pricing

import (
	"cmp"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Kind is what is sold. The zero value is no kind.
type Kind string

// The kinds of capacity.
const (
	// OnDemandHost is a whole machine, kept for as long as it is wanted.
	OnDemandHost Kind = "host-on-demand"
	// SpotHost is a whole machine that the provider may take back.
	SpotHost Kind = "host-spot"
	// Function is memory for the time of an invoke, and the invoke itself.
	Function Kind = "function"
	// Container is cores and memory for the time that a container has them.
	Container Kind = "container"
	// StorageRequest is one call of a store.
	StorageRequest Kind = "storage-request"
	// StorageMonth is room in a store.
	StorageMonth Kind = "storage-month"
)

// IsHost reports whether a whole machine is sold.
func (k Kind) IsHost() bool { return k == OnDemandHost || k == SpotHost }

// Unit is what a price is for. The zero value is no unit.
type Unit string

// The units.
const (
	// PerHour is a whole machine for an hour.
	PerHour Unit = "hour"
	// PerCoreHour is one core for an hour.
	PerCoreHour Unit = "core-hour"
	// PerGiBHour is one GiB of memory for an hour.
	PerGiBHour Unit = "gib-hour"
	// PerGiBSecond is one GiB of memory for a second. AWS writes GB-second and counts 1,024 MB in it.
	PerGiBSecond Unit = "gib-second"
	// PerRequest is one invoke or call.
	PerRequest Unit = "request"
	// PerGiBMonth is one GiB kept for a month of 730 hours: 365 x 24 / 12, as in https://calculator.aws.
	PerGiBMonth Unit = "gib-month"
)

// units are what each kind is priced by: every name of the kind has one row for each.
func (k Kind) units() []Unit {
	switch k {
	case OnDemandHost, SpotHost:
		return []Unit{PerHour}
	case Function:
		return []Unit{PerGiBSecond, PerRequest}
	case Container:
		return []Unit{PerCoreHour, PerGiBHour}
	case StorageRequest:
		return []Unit{PerRequest}
	case StorageMonth:
		return []Unit{PerGiBMonth}
	}
	return nil
}

// Row is one price of the catalogue: one line of its file.
type Row struct {
	Kind Kind
	// Provider is who sells it, such as "aws".
	Provider string
	// Region is where, in the provider's words, such as "us-east-1".
	Region string
	// Name is what the provider calls it, such as "c7i.xlarge". Kind, Region, Name and Unit together are unique.
	Name string
	// Capacity is a host with all its GPUs, or the most that one function or container can have; zero for storage.
	Capacity quantity.Size
	// Price is what one Unit costs; 0 is free.
	Price quantity.Money
	Unit  Unit
	// Dated is the day on which the source stated the price or, where the source has no date, was read.
	Dated time.Time
	// Source says where the price was found: an address, or words that lead there.
	Source string
	// ValidUntil is the last day (UTC) on which the price holds; the zero time where nobody said.
	ValidUntil time.Time
}

// compareRows is the order of the catalogue.
func compareRows(a, b Row) int {
	return cmp.Or(compareNames(a, b), cmp.Compare(a.Unit, b.Unit))
}

// compareNames is 0 for the rows of one name, which are one Offer.
func compareNames(a, b Row) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Region, b.Region), cmp.Compare(a.Name, b.Name))
}
