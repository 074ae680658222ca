package awsprices_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/awsprices"
	"github.com/spillway-ml/spillway/activities/awsprices/awspricestest"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var now = time.Date(2026, 11, 27, 4, 0, 0, 0, time.UTC)

var (
	largest = quantity.Size{CPU: 5788, Memory: 10 * quantity.GiB}
	hosts   = map[string]quantity.Size{
		"c7i.xlarge": {CPU: 4 * quantity.Core, Memory: 8 * quantity.GiB},
		"g6.xlarge": {
			CPU: 4 * quantity.Core, Memory: 16 * quantity.GiB, GPU: quantity.Core, GPUMemory: 24 * quantity.GiB,
			DeviceClass: "l4",
		},
		"z9.huge": {CPU: 99 * quantity.Core, Memory: quantity.TiB},
	}
)

func query() awsprices.Query {
	return awsprices.Query{Region: "us-east-1", Hosts: hosts, Functions: largest, Now: now, History: 7 * 24 * time.Hour}
}

func dollars(t *testing.T, text string) quantity.Money {
	t.Helper()
	money, err := quantity.ParseDollars(text)
	if err != nil {
		t.Fatal(err)
	}
	return money
}

func TestPricesAreWhatAWSSays(t *testing.T) {
	t.Parallel()
	server := awspricestest.New(t)
	day := 24 * time.Hour
	server.Spot = []awspricestest.Spot{
		{Name: "g6.xlarge", Zone: "us-east-1a", Price: "0.350000", At: now.Add(-6 * day)},
		{Name: "g6.xlarge", Zone: "us-east-1a", Price: "0.900000", At: now.Add(-day)}, // for a day of seven
		{Name: "g6.xlarge", Zone: "us-east-1a", Price: "0.340000", At: now.Add(-30 * day)},
		{Name: "g6.xlarge", Zone: "us-east-1b", Price: "0.401100", At: now.Add(-9 * day)},
		{Name: "c7i.xlarge", Zone: "us-east-1a", Price: "0.070000", At: now.Add(-time.Hour)},
	}
	got, err := awsprices.Fetch(t.Context(), server.Config(), query())
	if err != nil {
		t.Fatal(err)
	}
	row := func(kind pricing.Kind, name, price string, unit pricing.Unit, source string) pricing.Row {
		capacity := hosts[name]
		if kind == pricing.Function {
			capacity = largest
		}
		return pricing.Row{
			Kind: kind, Provider: "aws", Region: "us-east-1", Name: name, Capacity: capacity, Price: dollars(t, price),
			Unit: unit, Dated: now.Truncate(day), Source: source,
		}
	}
	sku := func(name string) string {
		return "AWS Price List API, GetProducts, SKU " + name + ", published 2026-11-20"
	}
	spot := "EC2 DescribeSpotPriceHistory, median of 7 days to 2026-11-27 in "
	want := awsprices.Answer{
		Rows: []pricing.Row{
			row(pricing.Function, "lambda-arm", "0.0000133334", pricing.PerGiBSecond, sku("ARMDURATION00001")),
			row(pricing.Function, "lambda-arm", "0.0000002", pricing.PerRequest, sku("ARMREQUESTS00001")),
			row(pricing.Function, "lambda-x86", "0.000017", pricing.PerGiBSecond, sku("TG3M4CAGBA3NYQBH")),
			row(pricing.Function, "lambda-x86", "0.0000002", pricing.PerRequest, sku("GU2ZS9HVP6QTQ7KE")),
			row(pricing.OnDemandHost, "c7i.xlarge", "0.1785", pricing.PerHour, sku("2ECK8EXAMPLE0001")),
			row(pricing.OnDemandHost, "g6.xlarge", "0.81", pricing.PerHour, sku("2ECK8EXAMPLE0002")),
			row(pricing.SpotHost, "c7i.xlarge", "0.07", pricing.PerHour, spot+"us-east-1a, its dearest of 1 zones"),
			row(pricing.SpotHost, "g6.xlarge", "0.4011", pricing.PerHour, spot+"us-east-1b, its dearest of 2 zones"),
		},
		Tiers: []awsprices.Tier{
			{Name: "lambda-x86", Unit: pricing.PerGiBSecond, From: 6_000_000_000, Price: dollars(t, "0.000015")},
			{Name: "lambda-x86", Unit: pricing.PerGiBSecond, From: 15_000_000_000, Price: dollars(t, "0.0000133334")},
			{Name: "lambda-arm", Unit: pricing.PerGiBSecond, From: 7_500_000_000, Price: dollars(t, "0.0000120001")},
			{Name: "lambda-arm", Unit: pricing.PerGiBSecond, From: 18_750_000_000, Price: dollars(t, "0.0000106667")},
		},
		Missing: []string{"host-on-demand z9.huge", "host-spot z9.huge"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if calls := server.Calls(); !slices.Equal(calls, []string{"ec2:DescribeSpotPriceHistory", "pricing:GetProducts"}) {
		t.Errorf("got calls %q", calls)
	}
}

func TestPricesThatCannotBeUsedAreRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*testing.T, *awspricestest.Server, *awsprices.Query)
		is     error
		says   string
	}{
		"a region without prices": {func(_ *testing.T, _ *awspricestest.Server, q *awsprices.Query) {
			q.Region = "mars-north-1"
		}, awsprices.ErrRegion, "mars-north-1"},
		"another currency": {func(t *testing.T, s *awspricestest.Server, _ *awsprices.Query) {
			t.Helper()
			for _, d := range awspricestest.Dimensions(s.Find(t, "AWS-Lambda-Requests")) {
				d["pricePerUnit"] = map[string]any{"CNY": "0.0000013"}
			}
		}, awsprices.ErrCurrency, "has a price in CNY"},
		"another unit": {func(t *testing.T, s *awspricestest.Server, _ *awsprices.Query) {
			t.Helper()
			for _, d := range awspricestest.Dimensions(s.Find(t, "c7i.xlarge")) {
				d["unit"] = "Fortnight"
			}
		}, awsprices.ErrForm, `priced by "Fortnight"`},
		"a price that is none": {func(t *testing.T, s *awspricestest.Server, _ *awsprices.Query) {
			t.Helper()
			for _, d := range awspricestest.Dimensions(s.Find(t, "c7i.xlarge")) {
				d["pricePerUnit"] = map[string]any{"USD": "-1"}
			}
		}, awsprices.ErrForm, `"-1"`},
		"no first tier": {func(t *testing.T, s *awspricestest.Server, _ *awsprices.Query) {
			t.Helper()
			for _, d := range awspricestest.Dimensions(s.Find(t, "AWS-Lambda-Requests-ARM")) {
				d["beginRange"] = "5"
			}
		}, awsprices.ErrForm, "no price from 0 on"},
		"two hosts of one name": {func(t *testing.T, s *awspricestest.Server, _ *awsprices.Query) {
			t.Helper()
			s.Products = append(s.Products, s.Find(t, "c7i.xlarge"))
		}, awsprices.ErrForm, "is 2 products"},
		"requests without time": {func(t *testing.T, s *awspricestest.Server, _ *awsprices.Query) {
			t.Helper()
			attributes := s.Find(t, "AWS-Lambda-Duration")["product"].(map[string]any)["attributes"].(map[string]any)
			attributes["group"] = "AWS-Lambda-Duration-Of-Another-Kind"
		}, awsprices.ErrForm, "lambda-x86 in us-east-1 has 1 prices"},
		"a spot price that is none": {func(_ *testing.T, s *awspricestest.Server, _ *awsprices.Query) {
			s.Spot = []awspricestest.Spot{{Name: "g6.xlarge", Zone: "us-east-1a", Price: "cheap", At: now}}
		}, awsprices.ErrForm, `"cheap"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, q := awspricestest.New(t), query()
			tt.change(t, server, &q)
			_, err := awsprices.Fetch(t.Context(), server.Config(), q)
			if !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %v with %q", err, tt.is, tt.says)
			}
		})
	}
}
