package predictor

import (
	"math"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// TestFunctionsHaveNoMoreCoresTogetherThanThereAreThreads: two functions of six cores each do 20 s of three threads in
// 20/3 s, not in 5 s.
func TestFunctionsHaveNoMoreCoresTogetherThanThereAreThreads(t *testing.T) {
	t.Parallel()
	functions := venue.Functions{
		Classes: []quantity.Bytes{10 * quantity.GiB}, PerGiBSecond: 16_666_700, MaxDuration: 15 * time.Minute,
	}
	within := venue.Ways{Channels: []venue.Channel{{BytesPerSecond: math.Inf(1)}}}
	tr := training{parts: 2, work: venue.Work{Rounds: 1, Compute: 20 * time.Second, MostCores: 3}}
	if !tr.weigh(1, functions, within, venue.Hosts{Name: "a slot", Cores: 1}) {
		t.Fatal("it is not weighed")
	}
	tr.divided(functions, within)
	if len(tr.ways) != 2 {
		t.Fatalf("ways: %+v, want one and two functions", tr.ways)
	}
	for _, way := range tr.ways {
		if got := way.Time.Seconds(); math.Abs(got-20./3) > 1e-6 {
			t.Errorf("%d functions take %v s, want %v s", way.functions, got, 20./3)
		}
	}
}
