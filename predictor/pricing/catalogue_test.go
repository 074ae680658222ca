package pricing_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestRegionsHavePricesOfTheirOwn(t *testing.T) {
	t.Parallel()
	cellar := strings.NewReplacer(",attic,", ",cellar,", ",0.5,", ",0.25,").Replace(host)
	catalogue := parse(t, header+host+cellar)
	for where, want := range map[string]quantity.Money{"attic": quantity.USD / 2, "cellar": quantity.USD / 4} {
		offer, known := catalogue.Lookup(pricing.OnDemandHost, where, "big")
		if got := offer.Prices[pricing.PerHour]; !known || got != want {
			t.Errorf("%s: got %s, known %v, want %s", where, got, known, want)
		}
	}
	if _, known := catalogue.Lookup(pricing.OnDemandHost, "moon", "big"); known {
		t.Errorf("there is a host on the moon")
	}
	if _, known := catalogue.Lookup(pricing.SpotHost, "attic", "big"); known {
		t.Errorf("a host on demand is found as a spot host")
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

func TestAGPUCostsWhatItsHostCostsMoreThanCores(t *testing.T) {
	t.Parallel()
	const perCore = 44_625_000_000 // of a c7i.xlarge
	for class, want := range map[string]quantity.Money{
		"h100": 5_809_000_000_000, // an eighth of a p5.48xlarge, $55.04 less 192 cores
		"t4":   347_500_000_000,   // g4dn.xlarge: $0.526 less four cores
		"tpu":  0,
	} {
		got, known := pricing.Default().GPU("us-east-1", class, perCore)
		if got != want || known != (want > 0) {
			t.Errorf("%s: got %s, %t; want %s", class, got, known, want)
		}
	}
	if _, known := pricing.Default().GPU("nowhere", "h100", perCore); known {
		t.Error("a region that the catalogue lacks has a price")
	}
}
