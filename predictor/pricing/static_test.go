package pricing_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestAnAttemptAtAStaticSize(t *testing.T) {
	t.Parallel()
	core := quantity.Size{CPU: 1000, Memory: quantity.GiB}
	hour := quantity.Usage{Wall: time.Hour, CPU: 30 * time.Minute, PeakMemory: 512 * quantity.MiB}
	busy := quantity.Usage{Wall: time.Hour, CPU: 2 * time.Hour, PeakMemory: 512 * quantity.MiB}
	for _, c := range []struct {
		name    string
		attempt pricing.Attempt
		size    quantity.Size
		want    pricing.Comparison
	}{
		{
			"a larger size is no faster",
			pricing.Attempt{Usage: busy},
			quantity.Size{CPU: 4000, Memory: quantity.GiB},
			pricing.Comparison{Held: time.Hour},
		},
		{
			"fewer cores than were used take longer",
			pricing.Attempt{Usage: busy},
			core,
			pricing.Comparison{Held: 2 * time.Hour},
		},
		{
			"without a limit of cores nothing takes longer",
			pricing.Attempt{Usage: busy},
			quantity.Size{Memory: quantity.GiB},
			pricing.Comparison{Held: time.Hour},
		},
		{
			"the start is paid for",
			pricing.Attempt{Usage: hour, Start: time.Hour},
			core,
			pricing.Comparison{Held: 2 * time.Hour},
		},
		{
			"the peak does not fit",
			pricing.Attempt{Usage: hour},
			quantity.Size{CPU: 1000, Memory: 512*quantity.MiB - 1},
			pricing.Comparison{Short: 1, Held: time.Hour},
		},
		{
			"a kill in a smaller grant is avoided",
			pricing.Attempt{Usage: hour, Grant: quantity.Size{Memory: 512 * quantity.MiB}, OutOfMemory: true},
			core,
			pricing.Comparison{},
		},
		{
			"a kill in the same grant is not",
			pricing.Attempt{Usage: hour, Grant: core, OutOfMemory: true},
			core,
			pricing.Comparison{Short: 1, Held: time.Hour},
		},
		{
			"negative amounts are nothing",
			pricing.Attempt{Usage: quantity.Usage{Wall: -1, CPU: -1}, Start: -1},
			core,
			pricing.Comparison{},
		},
		{
			"nothing overflows",
			pricing.Attempt{Usage: quantity.Usage{Wall: math.MaxInt64, CPU: math.MaxInt64}, Start: math.MaxInt64},
			quantity.Size{CPU: 1},
			pricing.Comparison{Held: math.MaxInt64},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var got pricing.Comparison
			got.Add(c.attempt, c.size)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A static size as large as the largest grant is held for as long as the grants were: what right-sizing can save is
// its excess over them.
func TestAStaticSizeThatFitsEveryGrantIsHeldForAsLong(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var largest quantity.Size
		var attempts []pricing.Attempt
		var held time.Duration
		for range rapid.IntRange(0, 20).Draw(t, "attempts") {
			grant := quantity.Size{
				CPU:    quantity.Milli(rapid.Int64Range(1, 8000).Draw(t, "CPU")),
				Memory: quantity.Bytes(rapid.Int64Range(1, 16<<30).Draw(t, "memory")),
			}
			start := time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "start"))
			wall := time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "wall"))
			cores := rapid.Float64Range(0, 0.999).Draw(t, "rate") * grant.CPU.Cores()
			attempts = append(attempts, pricing.Attempt{Grant: grant, Start: start, Usage: quantity.Usage{
				Wall: wall, CPU: time.Duration(float64(wall) * cores),
				PeakMemory: quantity.Bytes(rapid.Int64Range(0, int64(grant.Memory)).Draw(t, "peak")),
			}})
			largest.CPU, largest.Memory = max(largest.CPU, grant.CPU), max(largest.Memory, grant.Memory)
			held += start + wall
		}
		var got pricing.Comparison
		for _, attempt := range attempts {
			got.Add(attempt, largest)
		}
		if diff := cmp.Diff(pricing.Comparison{Held: held}, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", largest, diff)
		}
	})
}
