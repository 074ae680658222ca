package pricing

import (
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Month is what the price of a month is for: 365 x 24 / 12 hours, as in the provider's own estimates
// (https://calculator.aws).
const Month = 730 * time.Hour

// Price is what one name of the catalogue costs, by unit. A unit that is not priced is 0. The zero value is free.
type Price struct {
	// Hour is for the whole machine, whatever is used of it.
	Hour quantity.Money
	// CoreHour and GiBHour are for the cores and the memory that are held.
	CoreHour, GiBHour quantity.Money
	// GiBSecond is for the memory that is held.
	GiBSecond quantity.Money
	// Request is for each use, however long.
	Request quantity.Money
	// GiBMonth is for the bytes that are kept.
	GiBMonth quantity.Money
	// Billing is how the provider counts time.
	Billing Billing
}

// Billing is how a provider counts time. The zero value counts nanoseconds.
type Billing struct {
	// Step is the granularity: time is rounded up to a multiple of it. Not positive means none.
	Step time.Duration
	// Least is the shortest time that is billed.
	Least time.Duration
}

// The ways of counting.
var (
	// Functions are billed by the millisecond, initialisation included: https://aws.amazon.com/lambda/pricing/
	functionBilling = Billing{Step: time.Millisecond}
	// Linux machines, on demand and spot, are billed by the second, at least a minute for each start:
	// https://aws.amazon.com/about-aws/whats-new/2017/10/announcing-amazon-ec2-per-second-billing/
	hostBilling = Billing{Step: time.Second, Least: time.Minute}
	// So are Linux containers: https://aws.amazon.com/fargate/pricing/
	containerBilling = Billing{Step: time.Second, Least: time.Minute}
)

// BillingOf returns how AWS counts the time of a kind. Storage is counted as it is held.
func BillingOf(kind Kind) Billing {
	switch kind {
	case OnDemandHost, SpotHost:
		return hostBilling
	case Function:
		return functionBilling
	case Container:
		return containerBilling
	case StorageRequest, StorageMonth:
	}
	return Billing{}
}

// Billed returns the time that is billed for held: rounded up to the Step, at least Least. What was not held, or for a
// negative time, is not billed.
func (b Billing) Billed(held time.Duration) time.Duration {
	if held <= 0 {
		return 0
	}
	held = max(held, b.Least)
	if b.Step <= 0 {
		return held
	}
	if rest := held % b.Step; rest > 0 {
		if up := b.Step - rest; held <= 1<<63-1-up {
			return held + up
		}
	}
	return held
}

// Bill returns what the provider charges for one use that holds size for held: the billed time and one request. For a
// host the size does not matter, because it is rented whole: use Host.For for a part of one.
//
// Each unit is one line of the bill, rounded half up to the picodollar:
//
//	Hour x t + CoreHour x cores x t + GiBHour x GiB x t + GiBSecond x GiB x t + GiBMonth x GiB x t + Request
//
// A negative size counts as nothing. Sums beyond the range of Money are cut to its largest amount.
func (p Price) Bill(size quantity.Size, held time.Duration) quantity.Money {
	return p.timed(size, p.Billing.Billed(held)).Plus(p.Request)
}

// Marginal returns what holding size for held more costs, while it is being used anyway: time as it is, no minimum and
// no request. It is what decisions compare; a single use shorter than the provider's minimum is billed more. A negative
// time or size counts as nothing.
func (p Price) Marginal(size quantity.Size, held time.Duration) quantity.Money {
	return p.timed(size, max(0, held))
}

func (p Price) timed(size quantity.Size, held time.Duration) quantity.Money {
	part := func(unit time.Duration) quantity.Fraction { return quantity.Fraction{Of: int64(held), In: int64(unit)} }
	cores := quantity.Fraction{Of: int64(max(0, size.CPU)), In: int64(quantity.Core)}
	memory := quantity.Fraction{Of: int64(max(0, size.Memory)), In: int64(quantity.GiB)}
	return p.Hour.Prorated(part(time.Hour)).
		Plus(p.CoreHour.Prorated(cores, part(time.Hour))).
		Plus(p.GiBHour.Prorated(memory, part(time.Hour))).
		Plus(p.GiBSecond.Prorated(memory, part(time.Second))).
		Plus(p.GiBMonth.Prorated(memory, part(Month)))
}

// set puts the price of one unit.
func (p *Price) set(unit Unit, price quantity.Money) {
	switch unit {
	case PerHour:
		p.Hour = price
	case PerCoreHour:
		p.CoreHour = price
	case PerGiBHour:
		p.GiBHour = price
	case PerGiBSecond:
		p.GiBSecond = price
	case PerRequest:
		p.Request = price
	case PerGiBMonth:
		p.GiBMonth = price
	}
}
