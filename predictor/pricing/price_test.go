package pricing_test

import (
	"math"
	"math/big"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func dollars(t *testing.T, text string) quantity.Money {
	t.Helper()
	amount, err := quantity.ParseDollars(text)
	if err != nil {
		t.Fatal(err)
	}
	return amount
}

func offer(t *testing.T, kind pricing.Kind, name string) pricing.Offer {
	t.Helper()
	offer, known := pricing.Default().Lookup(kind, "us-east-1", name)
	if !known {
		t.Fatalf("the catalogue has no %s %s", kind, name)
	}
	return offer
}

// AWS's own example, https://aws.amazon.com/lambda/pricing/ (as of 2020): 512 MB, three million invokes of one second,
// $0.00001667 a GB-second, 400,000 GB-seconds and a million requests free: $18.34 + $0.40 = $18.74.
func TestThePublishedExampleOfALambdaBill(t *testing.T) {
	t.Parallel()
	price := pricing.Price{
		GiBSecond: dollars(t, "0.00001667"), Request: dollars(t, "0.0000002"),
		Billing: pricing.BillingOf(pricing.Function),
	}
	const invokes = 3_000_000
	bill := invokes * price.Bill(quantity.Size{Memory: 512 * quantity.MiB}, time.Second)
	free := 400_000*price.GiBSecond + 1_000_000*price.Request
	if got, want := (bill - free).String(), "$18.74"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	compute := bill - invokes*price.Request - 400_000*price.GiBSecond
	if got, want := compute.String(), "$18.34"; got != want {
		t.Errorf("compute: got %s, want %s", got, want)
	}
}

func TestABillHasItsGranularityAndItsMinimum(t *testing.T) {
	t.Parallel()
	xlarge, lambda := offer(t, pricing.OnDemandHost, "c7i.xlarge").Price, offer(t, pricing.Function, "lambda-x86").Price
	box := pricing.Price{
		CoreHour: 36 * quantity.USD / 100, GiBHour: 36 * quantity.USD / 1000,
		Billing: pricing.BillingOf(pricing.Container),
	}
	disk := pricing.Price{GiBMonth: 73 * quantity.USD / 1000}
	one := quantity.Size{CPU: 1000, Memory: quantity.GiB}
	for _, c := range []struct {
		name           string
		price          pricing.Price
		size           quantity.Size
		held           time.Duration
		bill, marginal quantity.Money
	}{
		{"a host for an hour", xlarge, one, time.Hour, 178_500_000_000, 178_500_000_000},
		{"a host for a second costs a minute", xlarge, one, time.Second, 2_975_000_000, 49_583_333},
		{"a host for 60.1 s costs 61 s", xlarge, one, 60_100 * time.Millisecond, 3_024_583_333, 2_979_958_333},
		{"a host that was not used", xlarge, one, 0, 0, 0},
		{"a clock that stepped back", xlarge, one, -time.Hour, 0, 0},
		{"an invoke of 1 s", lambda, one, time.Second, 16_866_700, 16_666_700},
		{"an invoke of 0.1 ms costs 1 ms", lambda, one, 100 * time.Microsecond, 216_667, 1_667},
		{"an invoke of 1.000001 ms costs 2 ms", lambda, one, 1_000_001 * time.Nanosecond, 233_333, 16_667},
		{"an invoke that ended at once costs its request", lambda, one, 0, 200_000, 0},
		{"a container for 10 s costs a minute", box, one, 10 * time.Second, 6_600_000_000, 1_100_000_000},
		{"a GiB for an hour", disk, one, time.Hour, 100_000_000, 100_000_000},
		{"a negative size", box, quantity.Size{CPU: -1, Memory: -1}, time.Hour, 0, 0},
		{
			"more than money can say",
			pricing.Price{Hour: math.MaxInt64 / 2},
			one, math.MaxInt64, math.MaxInt64 / 2,
			math.MaxInt64 / 2,
		},
	} {
		if got := c.price.Bill(c.size, c.held); got != c.bill {
			t.Errorf("%s: the bill is %d, want %d", c.name, got, c.bill)
		}
		if got := c.price.Marginal(c.size, c.held); got != c.marginal {
			t.Errorf("%s: the marginal price is %d, want %d", c.name, got, c.marginal)
		}
	}
}

func drawDuration(t *rapid.T, name string) time.Duration {
	return time.Duration(rapid.OneOf(rapid.Int64Range(-10, 1e12), rapid.Int64()).Draw(t, name))
}

func drawSize(t *rapid.T, name string) quantity.Size {
	amount := rapid.OneOf(rapid.Int64Range(0, 1<<40), rapid.Int64())
	return quantity.Size{
		CPU:    quantity.Milli(amount.Draw(t, name+" CPU")),
		Memory: quantity.Bytes(amount.Draw(t, name+" memory")), GPU: quantity.Milli(amount.Draw(t, name+" GPU")),
	}
}

func drawPrice(t *rapid.T) pricing.Price {
	money := func(name string) quantity.Money { return quantity.Money(rapid.Int64Range(0, 1e15).Draw(t, name)) }
	kind := rapid.SampledFrom([]pricing.Kind{
		pricing.OnDemandHost, pricing.Function, pricing.Container,
		pricing.StorageMonth,
	}).Draw(t, "kind")
	return pricing.Price{
		Hour: money("hour"), CoreHour: money("core-hour"), GiBHour: money("GiB-hour"), GiBSecond: money("GiB-second"),
		Request:  money("request"),
		GiBMonth: money("GiB-month"), Billing: pricing.BillingOf(kind),
	}
}

func TestNoBillIsBelowTheMarginalPriceAndLongerIsNeverCheaper(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		price, size, held := drawPrice(t), drawSize(t, "size"), drawDuration(t, "held")
		longer := max(held, drawDuration(t, "longer"))
		if bill, marginal := price.Bill(size, held), price.Marginal(size, held); bill < marginal || marginal < 0 {
			t.Errorf("the bill is %d and the marginal price %d", bill, marginal)
		}
		if short, long := price.Bill(size, held), price.Bill(size, longer); short > long {
			t.Errorf("%v costs %d, %v costs %d", held, short, longer, long)
		}
		if billed := price.Billing.Billed(held); held > 0 &&
			(billed < held || billed-held >= price.Billing.Step && billed != price.Billing.Least && billed != held) {
			t.Errorf("%v is billed as %v", held, billed)
		}
	})
}

// The bill by rational arithmetic: each line exact, rounded half up, then cut.
func TestTheBillIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		price := drawPrice(t)
		size := quantity.Size{
			CPU:    quantity.Milli(rapid.Int64Range(0, 1e6).Draw(t, "CPU")),
			Memory: quantity.Bytes(rapid.Int64Range(0, 1<<42).Draw(t, "memory")),
		}
		held := time.Duration(rapid.Int64Range(0, int64(100*time.Hour)).Draw(t, "held"))
		seconds := new(big.Rat).SetFrac64(int64(price.Billing.Billed(held)), 1e9)
		cores, memory := big.NewRat(int64(size.CPU), 1000), big.NewRat(int64(size.Memory), 1<<30)
		most := big.NewInt(math.MaxInt64 / 2)
		sum := big.NewInt(int64(price.Request))
		for _, line := range []struct {
			of      quantity.Money
			per     int64
			amounts []*big.Rat
		}{
			{price.Hour, 3600, nil},
			{price.CoreHour, 3600, []*big.Rat{cores}},
			{price.GiBHour, 3600, []*big.Rat{memory}},
			{price.GiBSecond, 1, []*big.Rat{memory}},
			{price.GiBMonth, 365 * 2 * 3600, []*big.Rat{memory}},
		} {
			x := big.NewRat(int64(line.of), line.per)
			x.Mul(x, seconds)
			for _, amount := range line.amounts {
				x.Mul(x, amount)
			}
			x.Add(x, big.NewRat(1, 2))
			sum.Add(sum, new(big.Int).Div(x.Num(), x.Denom()))
		}
		if sum.Cmp(most) > 0 {
			sum = most
		}
		if got := price.Bill(size, held); int64(got) != sum.Int64() {
			t.Errorf("got %d, want %d", got, sum)
		}
	})
}

// The spill choice has its own, floating arithmetic of the same price.
func TestTheFunctionVenueAsksTheSame(t *testing.T) {
	t.Parallel()
	price := offer(t, pricing.Function, "lambda-x86").Price
	venue := predictor.FunctionVenue{PerGiBSecond: price.GiBSecond, PerRequest: price.Request}
	rapid.Check(t, func(t *rapid.T) {
		memory := quantity.Bytes(rapid.Int64Range(128, 10240).Draw(t, "MiB")) * quantity.MiB
		held := time.Duration(rapid.Int64Range(0, int64(15*time.Minute)).Draw(t, "held"))
		exact, floating := price.Bill(quantity.Size{Memory: memory}, held), venue.Price(memory, held)
		if difference := exact - floating; difference < -1 || difference > 1 {
			t.Errorf("%v for %v: exactly %d, floating %d", memory, held, exact, floating)
		}
	})
}

// share is the largest ratio by rational arithmetic.
func share(capacity, size quantity.Size) *big.Rat {
	largest := new(big.Rat)
	for _, pair := range [][2]int64{
		{int64(size.CPU), int64(capacity.CPU)},
		{int64(size.Memory), int64(capacity.Memory)},
		{int64(size.GPU), int64(capacity.GPU)},
	} {
		if pair[1] <= 0 {
			continue
		}
		if ratio := big.NewRat(pair[0], pair[1]); ratio.Cmp(largest) > 0 {
			largest = ratio
		}
	}
	if one := big.NewRat(1, 1); largest.Cmp(one) > 0 {
		return one
	}
	return largest
}

func TestTheShareOfAHostIsTheLargestOfItsShares(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		host, size := pricing.Host{Capacity: drawSize(t, "capacity")}, drawSize(t, "size")
		got, want := host.Share(size), share(host.Capacity, size)
		if got.In <= 0 || big.NewRat(got.Of, got.In).Cmp(want) != 0 {
			t.Errorf("%+v of %+v is %+v, want %s", size, host.Capacity, got, want)
		}
	})
}

func TestTheLedgerAsksTheSameOfAShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Int64Range(-10, 1<<40)
		size := func(name string) quantity.Size {
			return quantity.Size{
				CPU: quantity.Milli(amount.Draw(t, name)), Memory: quantity.Bytes(amount.Draw(t, name)),
				GPU: quantity.Milli(amount.Draw(t, name)),
			}
		}
		host := pricing.Host{
			PerHour:  quantity.Money(rapid.Int64Range(0, int64(1000*quantity.USD)).Draw(t, "price")),
			Capacity: size("capacity"),
		}
		held, need := time.Duration(rapid.Int64Range(-10, int64(1000*time.Hour)).Draw(t, "held")), size("size")
		got := host.For(need, held)
		want := ledger.PoolCost(predictor.Host{PricePerHour: host.PerHour, Capacity: host.Capacity}, need, held)
		if difference := math.Abs(float64(got) - float64(want)); difference > 1+1e-12*float64(want) {
			t.Errorf("%d, the ledger says %d", got, want)
		}
	})
}

func BenchmarkHostFor(b *testing.B) {
	host := pricing.Host{PerHour: quantity.USD, Capacity: quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}}
	size := quantity.Size{CPU: 1000, Memory: 3 * quantity.GiB}
	if got, want := host.For(size, time.Hour), 3*quantity.USD/8; got != want {
		b.Fatalf("got %v, want %v", got, want)
	}
	b.ReportAllocs()
	for b.Loop() {
		host.For(size, time.Hour)
	}
}
