package size_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/predictor/usage"
)

func TestWhatRunningOutOfMemoryCosts(t *testing.T) {
	t.Parallel()
	hour := size.Excess{Wall: 3600, Lost: 3600, Retry: 2, Own: 1, Others: 1, Wanted: 1}
	with := func(change func(*size.Excess)) size.Excess {
		e := hour
		change(&e)
		return e
	}
	for _, c := range []struct {
		name string
		e    size.Excess
		want float64
	}{
		{"all wait for memory: an hour for nothing, an hour to spare, an hour later", hour, 3},
		{"a tenth of them does", with(func(e *size.Excess) { e.Wanted = 0.1 }), 12},
		{"nobody waits", with(func(e *size.Excess) { e.Wanted = 0 }), usage.MostExcess},
		{"a checkpoint every quarter of an hour", with(func(e *size.Excess) { e.Lost = 900 }), 1.5},
		{"a retry that is a quarter larger", with(func(e *size.Excess) { e.Retry = 1.25 }), 2.25},
		{"an hour until the retry runs", with(func(e *size.Excess) { e.Restart = 3600 }), 4},
		{"a run that pays nothing to end earlier", with(func(e *size.Excess) { e.Own = 0 }), 2},
		{
			"a run in a hurry, beside others that are not",
			with(func(e *size.Excess) { e.Own = size.Hour(quantity.USD, fact.Latency) }),
			usage.MostExcess,
		},
		{"one in a hurry, beside others that are, too", with(func(e *size.Excess) { e.Own, e.Others = 100, 100 }), 3},
		{"one that is not, beside others in a hurry", with(func(e *size.Excess) { e.Others = 100 }), 2.01},
		{
			"one beside others that pay nothing to end earlier",
			with(func(e *size.Excess) { e.Others = size.Hour(quantity.USD, fact.Cost) }),
			usage.MostExcess,
		},
		{"one that loses nothing", with(func(e *size.Excess) { e.Lost, e.Retry = 0, 1 }), usage.LeastExcess},
		{"nothing is known", size.Excess{}, usage.MostExcess},
	} {
		if got := c.e.Price(); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: running out of memory costs %g, want %g", c.name, got, c.want)
		}
	}
}

func TestWhatAnHourIsWorthToThoseThatWait(t *testing.T) {
	t.Parallel()
	hour := func(minimise fact.Objective) float64 { return size.Hour(2*quantity.USD, minimise) }
	for _, c := range []struct {
		name    string
		waiting []size.Waiting
		want    float64
	}{
		{"nobody waits", nil, 0},
		{"of a run whose goal does not say", []size.Waiting{{8e9, hour("")}}, 2},
		{"of one that minimises cost", []size.Waiting{{8e9, hour(fact.Cost)}}, 0},
		{"of one that minimises latency", []size.Waiting{{8e9, hour(fact.Latency)}}, 200},
		{
			"a quarter of the memory is asked for by one that minimises cost",
			[]size.Waiting{{6e9, hour("")}, {2e9, hour(fact.Cost)}},
			1.5,
		},
		{"what asks for no memory wants none", []size.Waiting{{0, hour(fact.Latency)}, {1, hour("")}}, 2},
		{"no number", []size.Waiting{{math.NaN(), 1}}, 0},
	} {
		if got := size.Others(c.waiting); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: an hour is worth %g to those that wait, want %g", c.name, got, c.want)
		}
	}
}

func TestMemoryIsWantedWhereItIsWhatThereIsTooLittleOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		memory, cores float64
		want          float64
	}{
		{"nothing is asked for", 0, 0, 0},
		{"all that is asked for is there", 1, 0.5, 0},
		{"half is there", 2, 0.5, 0.5},
		{"of the cores only half is there as well", 2, 2, 0},
		{"of the cores half, of the memory a quarter", 4, 2, 0.5},
		{"of the cores a quarter, of the memory half", 2, 4, 0},
		{"no number", math.NaN(), math.NaN(), 0},
	} {
		if got := size.Wanted(c.memory, c.cores); got != c.want {
			t.Errorf("%s: wanted %g, want %g", c.name, got, c.want)
		}
	}
}

// More lost work, a longer wait and a dearer one never make running out of memory cheaper, a fuller pool never dearer.
func TestThePriceOfAnExcessGoesTheRightWay(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) float64 { return rapid.Float64Range(0, 1e6).Draw(t, name) }
		e := size.Excess{
			Wall: draw("wall"), Lost: draw("lost"), Restart: draw("restart"), Retry: 1 + draw("retry"), Own: draw("own"),
			Others: draw("others"), Wanted: rapid.Float64Range(0, 1).Draw(t, "wanted"),
		}
		price := e.Price()
		if !(price >= usage.LeastExcess && price <= usage.MostExcess) {
			t.Fatalf("the price is %g", price)
		}
		dearer, fuller := e, e
		dearer.Lost, dearer.Restart = e.Lost+draw("more lost"), e.Restart+draw("longer")
		dearer.Retry, dearer.Own = e.Retry+draw("larger"), e.Own+draw("dearer")
		fuller.Wanted += rapid.Float64Range(0, 1-e.Wanted).Draw(t, "fuller")
		if got := dearer.Price(); got < price-1e-9 {
			t.Fatalf("more that is lost costs %g, less %g", got, price)
		}
		if got := fuller.Price(); got > price+1e-9 {
			t.Fatalf("in a fuller pool it costs %g, before %g", got, price)
		}
	})
}
