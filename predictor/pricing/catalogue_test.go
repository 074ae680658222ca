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
