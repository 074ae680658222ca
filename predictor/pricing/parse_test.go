package pricing_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const header = "kind,provider,region,name,cpu_milli,memory_bytes,gpu_class,gpus,gpu_memory_bytes," +
	"price_usd,unit,dated,source,valid_until\n"

// One row of each kind.
const (
	host    = "host-on-demand,lab,attic,big,4000,8589934592,h200,2,1073741824,0.5,hour,2026-01-19,invoice,2026-12-31\n"
	invoke  = "function,lab,attic,fn,2000,4294967296,,,,0.0000166667,gib-second,2026-01-19,invoice,\n"
	request = "function,lab,attic,fn,2000,4294967296,,,,0.0000002,request,2026-01-19,invoice,\n"
	cores   = "container,lab,attic,box,4000,8589934592,,,,0.04,core-hour,2026-01-19,invoice,\n"
	memory  = "container,lab,attic,box,4000,8589934592,,,,0.004,gib-hour,2026-01-19,invoice,\n"
	put     = "storage-request,lab,attic,put,,,,,,0.000005,request,2026-01-19,invoice,\n"
	month   = "storage-month,lab,attic,disk,,,,,,0.023,gib-month,2026-01-19,invoice,\n"
)

func day(text string) time.Time {
	at, err := time.Parse(time.DateOnly, text)
	if err != nil {
		panic(err)
	}
	return at
}

func parse(t *testing.T, text string) pricing.Catalogue {
	t.Helper()
	catalogue, err := pricing.Parse(strings.NewReader(text), day("2026-11-21"))
	if err != nil {
		t.Fatalf("parse %s: %v", text, err)
	}
	return catalogue
}

func TestEveryEmbeddedPriceHasADayAndASource(t *testing.T) {
	t.Parallel()
	rows := pricing.Default().Rows()
	for _, row := range rows {
		if row.Price <= 0 || row.Dated.IsZero() || row.Source == "" {
			t.Errorf("%+v has no price, day or source", row)
		}
	}
	for _, c := range []struct {
		kind   pricing.Kind
		name   string
		prices map[pricing.Unit]quantity.Money
	}{
		{pricing.OnDemandHost, "c7i.xlarge", map[pricing.Unit]quantity.Money{pricing.PerHour: 178_500_000_000}},
		{pricing.OnDemandHost, "p5en.48xlarge", map[pricing.Unit]quantity.Money{pricing.PerHour: 63_296_000_000_000}},
		{pricing.Function, "lambda-x86", map[pricing.Unit]quantity.Money{
			pricing.PerGiBSecond: 16_666_700, pricing.PerRequest: 200_000,
		}},
		{pricing.Function, "lambda-arm", map[pricing.Unit]quantity.Money{
			pricing.PerGiBSecond: 13_333_400, pricing.PerRequest: 200_000,
		}},
	} {
		offer, known := pricing.Default().Lookup(c.kind, "us-east-1", c.name)
		if diff := cmp.Diff(c.prices, offer.Prices); !known || diff != "" {
			t.Errorf("%s: known %v, want the published price (-want +got):\n%s", c.name, known, diff)
		}
	}
}

func TestAFileOfEveryKindIsRead(t *testing.T) {
	t.Parallel()
	catalogue := parse(t, "# our own\n"+header+host+request+invoke+cores+memory+put+month)
	offer, known := catalogue.Lookup(pricing.OnDemandHost, "attic", "big")
	want := pricing.Offer{
		Capacity: quantity.Size{
			CPU: 4000, Memory: 8 * quantity.GiB, GPU: 2000, GPUMemory: 2 * quantity.GiB,
			DeviceClass: "h200",
		},
		Prices: map[pricing.Unit]quantity.Money{pricing.PerHour: quantity.USD / 2},
	}
	if diff := cmp.Diff(want, offer); !known || diff != "" {
		t.Errorf("the host (-want +got):\n%s", diff)
	}
	if got := len(catalogue.Rows()); got != 7 {
		t.Errorf("%d rows, want 7", got)
	}
}

func TestABadRowIsRefusedWithItsPlace(t *testing.T) {
	t.Parallel()
	replace := func(old, replacement string) string { return header + strings.Replace(host, old, replacement, 1) }
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "empty; write the header"},
		{"no row", header, "no row below the header"},
		{
			"another header", strings.Replace(header, "price_usd", "price_eur", 1) + host,
			`line 1, column 82 (price_usd): the header has "price_eur"`,
		},
		{"a column too few", header + "host-spot,aws\n", "line 2 has 2 columns, not 14"},
		{"a quote in the middle", header + `ho"st` + host, "line 2, column 3"},
		{
			"an unknown kind", replace("host-on-demand", "host-reserved"),
			`line 2, column 1 (kind): "host-reserved" is no kind`,
		},
		{
			"an unknown unit", replace(",hour,", ",minute,"),
			`(unit): "minute" is no unit of a host-on-demand; write one of ["hour"]`,
		},
		{"a unit of another kind", replace(",hour,", ",request,"), `(unit): "request" is no unit`},
		{"a negative price", replace(",0.5,", ",-0.5,"), `line 2, column 64 (price_usd): "-0.5" is no amount of US dollars`},
		{"no price", replace(",0.5,", ",,"), `(price_usd): "" is no amount`},
		{"a price that is no number", replace(",0.5,", ",NaN,"), `(price_usd): "NaN" is no amount`},
		{"a price with an exponent", replace(",0.5,", ",5e-1,"), `(price_usd): "5e-1" is no amount`},
		{"a price too fine", replace(",0.5,", ",0.0000000000005,"), "finer than a picodollar"},
		{"a price too large", replace(",0.5,", ",5000000,"), "write less than 4.6 million"},
		{"no name", replace(",big,", ",,"), `(name): "" is no name`},
		{"a name of two words", replace(",big,", ",very big,"), `(name): "very big" is no name`},
		{"no region", replace(",attic,", ",,"), `(region): "" is no name`},
		{"no cores", replace(",4000,", ",,"), `(cpu_milli): "" is no whole number from 1`},
		{"negative memory", replace(",8589934592,", ",-1,"), `(memory_bytes): "-1" is no whole number`},
		{"half a GPU", replace(",h200,2,", ",h200,0.5,"), `(gpus): "0.5" is no whole number`},
		{"a GPU class without GPUs", replace(",h200,2,1073741824,", ",h200,,,"), "write how many GPUs"},
		{"GPUs without a class", replace(",h200,2,", ",,2,"), `(gpu_class): "" is no name`},
		{"GPUs without memory", replace(",2,1073741824,", ",2,,"), "(gpu_memory_bytes): it is missing"},
		{"GPU memory without a GPU", replace(",h200,2,", ",,,"), "(gpu_memory_bytes): there is no GPU"},
		{
			"a function with a GPU", header + request + strings.Replace(invoke, ",,,,", ",h200,1,1073741824,", 1),
			"line 3, column 44 (gpus): a function has no GPU",
		},
		{
			"a function below 128 MiB", header + strings.Replace(invoke, "4294967296", "1", 1),
			`(memory_bytes): "1" is no whole number from 134217728`,
		},
		{
			"a function of half MiB", header + strings.Replace(invoke, "4294967296", "4294967297", 1),
			"no multiple of 1,048,576",
		},
		{"no day", replace("2026-01-19", ""), `(dated): "" is no day; write it as 2026-01-19`},
		{"a day that is none", replace("2026-01-19", "2026-02-30"), `(dated): "2026-02-30" is no day`},
		{"a day to come", replace("2026-01-19", "2026-11-22"), "(dated): 2026-11-22 is later than today, 2026-11-21"},
		{
			"a price that expired", replace("2026-12-31", "2026-11-20"),
			"(valid_until): the price held until 2026-11-20 and today is 2026-11-21; look it up again",
		},
		{
			"a price that ends before it begins", replace("2026-12-31", "2026-01-18"),
			"(valid_until): 2026-01-18 is before the day of the price",
		},
		{"no source", replace(",invoice,", ",,"), `(source): "" is no source`},
		{"a source of two lines", replace(",invoice,", ",\"in\nvoice\","), "write one line"},
		{"a row twice", header + host + put + host, "line 4, column 26 (name): big of attic by the hour is on " +
			"line 2 already"},
		{"a function without requests", header + invoke, "line 2: fn of attic has no price by the request; add that row"},
		{"a container without memory", header + put + cores, "line 3: box of attic has no price by the gib-hour"},
		{"two sizes of one function", header + request + strings.Replace(invoke, "2000", "2001", 1), "another size on line"},
		{"more than can be read", header + host + strings.Repeat("#\n", 8<<20), "more than 16 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			catalogue, err := pricing.Parse(strings.NewReader(c.text), day("2026-11-21"))
			if !errors.Is(err, pricing.ErrCatalogue) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error of ErrCatalogue that says %q", err, c.want)
			}
			if rows := catalogue.Rows(); len(rows) > 0 {
				t.Errorf("a refused catalogue has %d rows", len(rows))
			}
		})
	}
}

func TestAPriceHoldsUntilTheEndOfItsLastDay(t *testing.T) {
	t.Parallel()
	last := day("2026-12-31").Add(24*time.Hour - time.Nanosecond)
	if _, err := pricing.Parse(strings.NewReader(header+host), last); err != nil {
		t.Errorf("on the evening of its last day: %v", err)
	}
	if _, err := pricing.Parse(strings.NewReader(header+host), last.Add(1)); !errors.Is(err, pricing.ErrCatalogue) {
		t.Errorf("on the day after: %v, want an error of ErrCatalogue", err)
	}
	if _, err := pricing.Parse(strings.NewReader(header+host), time.Time{}); err != nil {
		t.Errorf("without a day: %v", err)
	}
}

func TestAReaderThatFailsIsNotTheCataloguesFault(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	if _, err := pricing.Parse(iotest.ErrReader(broken), day("2026-11-21")); !errors.Is(err, broken) ||
		errors.Is(err, pricing.ErrCatalogue) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

// FuzzParse checks that whatever is accepted is sound, and found by its name.
func FuzzParse(f *testing.F) {
	f.Add([]byte(header + host + request + invoke + cores + memory + put + month))
	f.Add([]byte(header + strings.Replace(host, ",invoice,", `,"in ""voice"", 2",`, 1)))
	f.Add([]byte("# comment\r\n" + header + host + host))
	f.Add([]byte("\xef\xbb\xbf" + header))
	embedded, err := os.ReadFile("prices.csv")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(embedded)
	f.Fuzz(func(t *testing.T, text []byte) {
		now := day("2026-11-21")
		catalogue, err := pricing.Parse(bytes.NewReader(text), now)
		if err != nil {
			if !errors.Is(err, pricing.ErrCatalogue) {
				t.Errorf("%v is no error of ErrCatalogue", err)
			}
			return
		}
		for _, row := range catalogue.Rows() {
			if row.Price < 0 || row.Dated.After(now) || row.Source == "" ||
				!row.ValidUntil.IsZero() && row.ValidUntil.Add(24*time.Hour).Before(now) {
				t.Errorf("accepted %+v", row)
			}
			if found, known := catalogue.Lookup(row.Kind, row.Region, row.Name); !known ||
				found.Prices[row.Unit] != row.Price || found.Capacity != row.Capacity {
				t.Errorf("%+v is listed, and found as %+v", row, found)
			}
		}
	})
}
