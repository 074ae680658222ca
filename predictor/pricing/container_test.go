package pricing_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAContainerIsTheCheapestThatHolds(t *testing.T) {
	t.Parallel()
	offer, known := pricing.Default().Lookup(pricing.Container, "us-east-1", "fargate-x86")
	if !known {
		t.Fatal("the catalogue has no fargate-x86")
	}
	for _, test := range []struct {
		need, want quantity.Size
		price      string
	}{
		{quantity.Size{}, quantity.Size{CPU: 250, Memory: 512 * quantity.MiB}, "$0.0123425"}, // .25 x .04048 + .5 x .004445
		{quantity.Size{CPU: 1000, Memory: quantity.GiB}, quantity.Size{CPU: 1000, Memory: 2 * quantity.GiB}, "$0.04937"},
		{
			quantity.Size{CPU: 300, Memory: 5 * quantity.GiB},
			quantity.Size{CPU: 1000, Memory: 5 * quantity.GiB},
			"$0.062705",
		},
		{
			quantity.Size{CPU: 5000, Memory: 17 * quantity.GiB},
			quantity.Size{CPU: 8000, Memory: 20 * quantity.GiB},
			"$0.41274",
		},
	} {
		size, price, known := offer.ContainerFor(test.need)
		want, err := quantity.ParseDollars(strings.TrimPrefix(test.price, "$"))
		if err != nil {
			t.Fatal(err)
		}
		if !known || size != test.want || price != want {
			t.Errorf("for %v: got %v at %s, want %v at %s", test.need, size, price, test.want, want)
		}
	}
	for _, need := range []quantity.Size{
		{CPU: 17_000}, {Memory: 121 * quantity.GiB}, {CPU: 1000, GPU: 1000}, {DeviceClass: "h100"},
	} {
		if size, _, known := offer.ContainerFor(need); known {
			t.Errorf("for %v: got %v, want none", need, size)
		}
	}
}
