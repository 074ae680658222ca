package pricing_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const region = "us-east-1"

func TestTheCheapestHostThatHoldsTheNeed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		need quantity.Size
		kind pricing.Kind
		want string
	}{
		{"two cores", quantity.Size{CPU: 2000, Memory: quantity.GiB}, pricing.OnDemandHost, "c7i.large"},
		{"memory decides", quantity.Size{CPU: 1000, Memory: 8 * quantity.GiB}, pricing.OnDemandHost, "m7i.large"},
		{"any GPU", quantity.Size{GPU: 500}, pricing.OnDemandHost, "g4dn.xlarge"},
		{
			"memory of one GPU, not of four",
			quantity.Size{GPU: 1000, GPUMemory: 40 * quantity.GiB},
			pricing.OnDemandHost,
			"g6e.xlarge",
		},
		{"memory of two GPUs", quantity.Size{GPU: 2000, GPUMemory: 40 * quantity.GiB}, pricing.OnDemandHost, "g6.12xlarge"},
		{"a class of GPU", quantity.Size{GPU: 1000, DeviceClass: "h200"}, pricing.OnDemandHost, "p5en.48xlarge"},
		{"spot", quantity.Size{CPU: 16_000, GPU: 1000}, pricing.SpotHost, "g6.4xlarge"},
		{"functions on arm", quantity.Size{CPU: 1000, Memory: quantity.GiB}, pricing.Function, "lambda-arm"},
		{"no function has a GPU", quantity.Size{GPU: 1}, pricing.Function, ""},
		{"no function has more than 10 GiB", quantity.Size{Memory: 10*quantity.GiB + 1}, pricing.Function, ""},
		{"nothing is negative", quantity.Size{CPU: -1}, pricing.OnDemandHost, ""},
		{"storage holds nothing that runs", quantity.Size{}, pricing.StorageMonth, ""},
	} {
		offer, known := pricing.Default().Cheapest(c.need, c.kind, region)
		if offer.Name != c.want || known != (c.want != "") {
			t.Errorf("%s: got %q, known %v, want %q", c.name, offer.Name, known, c.want)
		}
	}
	if _, known := pricing.Default().Cheapest(quantity.Size{}, pricing.OnDemandHost, "moon"); known {
		t.Errorf("there is a host on the moon")
	}
	if _, known := (pricing.Catalogue{}).Cheapest(quantity.Size{}, pricing.OnDemandHost, region); known {
		t.Errorf("the zero catalogue has a host")
	}
}

func TestEqualPricesAreOrderedByName(t *testing.T) {
	t.Parallel()
	for _, rows := range []string{
		host + strings.Replace(host, ",big,", ",also,", 1),
		strings.Replace(host, ",big,", ",also,", 1) + host,
	} {
		catalogue := parse(t, header+rows)
		if offer, _ := catalogue.Cheapest(quantity.Size{CPU: 1}, pricing.OnDemandHost, "attic"); offer.Name != "also" {
			t.Errorf("got %q, want the first by name", offer.Name)
		}
		if quotes := catalogue.Compare(quantity.Size{CPU: 1}, time.Hour, "attic"); len(quotes) != 2 ||
			quotes[0].Offer.Name != "also" {
			t.Errorf("got %v, want the first by name first", quotes)
		}
	}
}

func drawNeed(t *rapid.T) quantity.Size {
	return quantity.Size{
		CPU:    quantity.Milli(rapid.Int64Range(0, 20_000).Draw(t, "CPU")),
		Memory: quantity.Bytes(rapid.Int64Range(0, 64<<30).Draw(t, "memory")),
		GPU:    quantity.Milli(rapid.SampledFrom([]int64{0, 0, 500, 1000, 4000}).Draw(t, "GPU")),
	}
}

func TestNoOtherOfferOfTheKindIsCheaperThanTheCheapest(t *testing.T) {
	t.Parallel()
	catalogue := pricing.Default()
	rapid.Check(t, func(t *rapid.T) {
		need := drawNeed(t)
		kind := rapid.SampledFrom([]pricing.Kind{pricing.OnDemandHost, pricing.SpotHost, pricing.Function}).Draw(t, "kind")
		best, known := catalogue.Cheapest(need, kind, region)
		rented, _ := best.Fit(need)
		for _, offer := range catalogue.Offers() {
			other, fits := offer.Fit(need)
			switch {
			case !fits || offer.Kind != kind:
			case !need.Fits(other) || !other.Fits(offer.Capacity):
				t.Errorf("%s rents %s for %s", offer, other, need)
			case !known || offer.Price.Marginal(other, time.Hour) < best.Price.Marginal(rented, time.Hour):
				t.Errorf("%s holds %s for less than %s", offer, need, best)
			}
		}
	})
}

func TestAFunctionHasTheMemoryThatItsCoresNeed(t *testing.T) {
	t.Parallel()
	lambda := offer(t, pricing.Function, "lambda-x86")
	for _, c := range []struct {
		need quantity.Size
		want quantity.Bytes
	}{
		{quantity.Size{}, 128 * quantity.MiB},
		{quantity.Size{Memory: 128*quantity.MiB + 1}, 129 * quantity.MiB},
		{quantity.Size{CPU: 1000, Memory: quantity.GiB}, 1770 * quantity.MiB}, // published as 1,769 for a core of 1,000.0
		{quantity.Size{CPU: 5788}, 10_240 * quantity.MiB},
	} {
		if got, fits := lambda.Fit(c.need); !fits || got.Memory != c.want {
			t.Errorf("%s is held by %s, fits %v, want %s", c.need, got.Memory, fits, c.want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		need := quantity.Size{
			CPU:    quantity.Milli(rapid.Int64Range(0, 5788).Draw(t, "CPU")),
			Memory: quantity.Bytes(rapid.Int64Range(0, 10<<30).Draw(t, "memory")),
		}
		got, fits := lambda.Fit(need)
		if !fits || !need.Fits(got) || got.Memory%quantity.MiB != 0 {
			t.Errorf("%+v is held by %+v, fits %v", need, got, fits)
		}
		less := got.Memory - quantity.MiB // one class less does not hold it
		if less >= 128*quantity.MiB && less >= need.Memory &&
			int64(lambda.Capacity.CPU)*int64(less) >= int64(need.CPU)*int64(lambda.Capacity.Memory) {
			t.Errorf("%+v is held by %+v, and by a MiB less", need, got)
		}
	})
}

func TestComparingListsWhatFitsByTheShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		need, held := drawNeed(t), time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "held"))
		quotes := pricing.Default().Compare(need, held, region)
		fitting := 0
		for _, offer := range pricing.Default().Offers() {
			if _, fits := offer.Fit(need); fits {
				fitting++
			}
		}
		if len(quotes) != fitting {
			t.Errorf("%d quotes for %d offers that fit", len(quotes), fitting)
		}
		for i, quote := range quotes {
			if quote.Share > quote.Bill {
				t.Errorf("the share %s of %s is more than its bill %s", quote.Share, quote.Offer, quote.Bill)
			}
			if i > 0 && quotes[i-1].Share > quote.Share {
				t.Errorf("%s comes after %s", quote.Offer, quotes[i-1].Offer)
			}
		}
	})
}

func TestRegionsHavePricesOfTheirOwn(t *testing.T) {
	t.Parallel()
	cellar := strings.NewReplacer(",attic,", ",cellar,", ",0.5,", ",0.25,").Replace(host)
	catalogue := parse(t, header+host+cellar)
	for where, want := range map[string]quantity.Money{"attic": quantity.USD / 2, "cellar": quantity.USD / 4} {
		if offer, known := catalogue.Lookup(pricing.OnDemandHost, where, "big"); !known || offer.Price.Hour != want {
			t.Errorf("%s: got %s, known %v, want %s", where, offer, known, want)
		}
		if offer, _ := catalogue.Cheapest(quantity.Size{}, pricing.OnDemandHost, where); offer.Region != where {
			t.Errorf("the cheapest of %s is in %q", where, offer.Region)
		}
	}
}

func TestWhereKeepsWhatIsAsked(t *testing.T) {
	t.Parallel()
	catalogue := parse(t, header+host+put+month)
	kept := catalogue.Where(func(offer pricing.Offer) bool { return offer.Name != "big" })
	if got := len(kept.Rows()); got != 2 {
		t.Errorf("%d rows are kept, want 2", got)
	}
	if _, known := kept.Lookup(pricing.OnDemandHost, "attic", "big"); known {
		t.Errorf("the row is still there")
	}
	if _, known := catalogue.Lookup(pricing.OnDemandHost, "attic", "big"); !known {
		t.Errorf("the catalogue was changed")
	}
}

func TestRowsAreACopy(t *testing.T) {
	t.Parallel()
	catalogue := parse(t, header+host)
	catalogue.Rows()[0].Price = 0
	if diff := cmp.Diff(quantity.USD/2, catalogue.Rows()[0].Price); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func ExampleCatalogue_Compare() {
	need := quantity.Size{CPU: 1000, Memory: 2 * quantity.GiB}
	names := []string{"c7i.large", "c7i.xlarge", "m7i.xlarge", "lambda-x86"}
	x86 := pricing.Default().Where(func(offer pricing.Offer) bool { return slices.Contains(names, offer.Name) })
	for _, quote := range x86.Compare(need, 10*time.Second, "us-east-1") {
		fmt.Printf("%-10s share %s, alone %s\n", quote.Offer.Name, quote.Share, quote.Bill)
	}
	offer, _ := x86.Cheapest(need, pricing.OnDemandHost, "us-east-1")
	fmt.Println(offer)
	// Output:
	// c7i.large  share $0.0001240, alone $0.001488
	// c7i.xlarge share $0.0001240, alone $0.002975
	// m7i.xlarge share $0.0001400, alone $0.003360
	// lambda-x86 share $0.0003335, alone $0.0003335
	// c7i.large of us-east-1 (host-on-demand, 2 cores, 4 GiB): $0.08925 an hour; 2026-01-19
}
