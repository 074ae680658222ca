package pricing_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestWhatIsWrittenReadsAsItWas(t *testing.T) {
	t.Parallel()
	rows := pricing.Default().Rows()
	rows[3].ValidUntil = rows[3].Dated.AddDate(1, 0, 0)
	rows[0].Source = `said "so", on a page`
	var text bytes.Buffer
	if err := pricing.Write(&text, rows); err != nil {
		t.Fatal(err)
	}
	read, err := pricing.Parse(&text, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(rows, read.Rows()); diff != "" {
		t.Errorf("(-written +read):\n%s", diff)
	}
}

func TestARefreshReplacesWhatIsNewerAndKeepsTheRest(t *testing.T) {
	t.Parallel()
	day := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	row := func(region, name string, price quantity.Money) pricing.Row {
		return pricing.Row{
			Kind: pricing.OnDemandHost, Provider: "aws", Region: region, Name: name, Price: price, Unit: pricing.PerHour,
			Capacity: quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}, Dated: day, Source: "a test",
		}
	}
	var text bytes.Buffer
	if err := pricing.Write(&text, []pricing.Row{
		row("here", "a", 100), row("here", "b", 200), row("there", "a", 300),
	}); err != nil {
		t.Fatal(err)
	}
	old, err := pricing.Parse(&text, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	rows, changes := old.Refreshed("aws", "here", []pricing.Row{row("here", "c", 50), row("here", "a", 110)})
	if diff := cmp.Diff([]pricing.Row{
		row("here", "a", 110), row("here", "b", 200), row("here", "c", 50), row("there", "a", 300),
	}, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]pricing.Change{
		{Row: row("here", "a", 110), Before: 100},
		{Row: row("here", "b", 200), Before: 200, IsKept: true},
		{Row: row("here", "c", 50), IsNew: true},
	}, changes); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if got := changes[0].Percent(); got < 9.999 || got > 10.001 {
		t.Errorf("got a rise of %g%%, want 10%%", got)
	}
	if changes[1].Percent() != 0 || changes[2].Percent() != 0 {
		t.Errorf("what is kept or new rose: %g, %g", changes[1].Percent(), changes[2].Percent())
	}
}
