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

func TestARunAtAStaticSize(t *testing.T) {
	t.Parallel()
	host := pricing.Host{PerHour: 4 * quantity.USD, Capacity: quantity.Size{CPU: 4000, Memory: 4 * quantity.GiB}}
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
			"a larger size costs more and is no faster",
			pricing.Attempt{Usage: busy},
			quantity.Size{CPU: 4000, Memory: quantity.GiB},
			pricing.Comparison{Static: 4 * quantity.USD, Attempts: 1, Held: time.Hour},
		},
		{
			"fewer cores than were used take longer",
			pricing.Attempt{Usage: busy},
			core,
			pricing.Comparison{Static: 2 * quantity.USD, Attempts: 1, Stretched: 1, Held: 2 * time.Hour},
		},
		{
			"without a limit of cores nothing takes longer",
			pricing.Attempt{Usage: busy},
			quantity.Size{Memory: quantity.GiB},
			pricing.Comparison{Static: quantity.USD, Attempts: 1, Held: time.Hour},
		},
		{
			"the start is paid for",
			pricing.Attempt{Usage: hour, Start: time.Hour},
			core,
			pricing.Comparison{Static: 2 * quantity.USD, Attempts: 1, Held: 2 * time.Hour},
		},
		{
			"the peak does not fit",
			pricing.Attempt{Usage: hour},
			quantity.Size{CPU: 1000, Memory: 512*quantity.MiB - 1},
			pricing.Comparison{Static: quantity.USD, Attempts: 1, Short: 1, Held: time.Hour},
		},
		{
			"a kill in a smaller grant is avoided",
			pricing.Attempt{Usage: hour, Grant: quantity.Size{Memory: 512 * quantity.MiB}, OutOfMemory: true, Cost: 7},
			core,
			pricing.Comparison{Actual: 7, Avoided: 1},
		},
		{
			"a kill in the same grant is not",
			pricing.Attempt{Usage: hour, Grant: core, OutOfMemory: true, Cost: 7},
			core,
			pricing.Comparison{Actual: 7, Static: quantity.USD, Attempts: 1, Short: 1, Held: time.Hour},
		},
		{
			"negative amounts are nothing",
			pricing.Attempt{Usage: quantity.Usage{Wall: -1, CPU: -1}, Start: -1, Cost: -1},
			core,
			pricing.Comparison{Attempts: 1},
		},
		{
			"nothing overflows",
			pricing.Attempt{Usage: quantity.Usage{Wall: math.MaxInt64, CPU: math.MaxInt64}, Start: math.MaxInt64},
			quantity.Size{CPU: 1},
			pricing.Comparison{
				Static: host.For(quantity.Size{CPU: 1}, math.MaxInt64), Attempts: 1, Stretched: 1,
				Held: math.MaxInt64,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, compare([]pricing.Attempt{c.attempt}, c.size, host)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func compare(attempts []pricing.Attempt, size quantity.Size, host pricing.Host) (c pricing.Comparison) {
	for _, attempt := range attempts {
		c.Add(attempt, size, host.For)
	}
	return c
}

func drawAttempts(t *rapid.T, host pricing.Host, grant func(*rapid.T) quantity.Size) []pricing.Attempt {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) pricing.Attempt {
		held, wall := grant(t), time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "wall"))
		a := pricing.Attempt{
			Grant: held, Start: time.Duration(rapid.Int64Range(0, int64(time.Second)).Draw(t, "start")),
			Usage: quantity.Usage{
				Wall: wall, CPU: time.Duration(int64(float64(wall) * rapid.Float64Range(0, 0.999).Draw(t, "rate") *
					held.CPU.Cores())),
				PeakMemory: quantity.Bytes(rapid.Int64Range(0, int64(held.Memory)).Draw(t, "peak")),
			},
		}
		a.Cost = host.For(held, a.Start+wall)
		return a
	}), 0, 20).Draw(t, "attempts")
}

func TestAtTheSizeThatWasHeldTheRunCostsWhatItCost(t *testing.T) {
	t.Parallel()
	host := pricing.Host{PerHour: quantity.USD, Capacity: quantity.Size{CPU: 8000, Memory: 16 * quantity.GiB}}
	size := quantity.Size{CPU: 1500, Memory: 2 * quantity.GiB}
	rapid.Check(t, func(t *rapid.T) {
		attempts := drawAttempts(t, host, func(*rapid.T) quantity.Size { return size })
		got := compare(attempts, size, host)
		if got.Static != got.Actual || got.Short+got.Stretched+got.Avoided != 0 || got.Attempts != len(attempts) {
			t.Errorf("%d attempts: %+v", len(attempts), got)
		}
	})
}

// Where nothing is stretched, the dearest grant as the static size costs no less than the grants did: what right-sizing
// can save.
func TestAStaticSizeThatFitsEveryGrantSavesNothing(t *testing.T) {
	t.Parallel()
	host := pricing.Host{PerHour: quantity.USD, Capacity: quantity.Size{CPU: 8000, Memory: 16 * quantity.GiB}}
	rapid.Check(t, func(t *rapid.T) {
		var largest quantity.Size
		attempts := drawAttempts(t, host, func(t *rapid.T) quantity.Size {
			return quantity.Size{
				CPU:    quantity.Milli(rapid.Int64Range(1, 8000).Draw(t, "CPU")),
				Memory: quantity.Bytes(rapid.Int64Range(1, 16<<30).Draw(t, "memory")),
			}
		})
		for _, attempt := range attempts {
			largest.CPU, largest.Memory = max(largest.CPU, attempt.Grant.CPU), max(largest.Memory, attempt.Grant.Memory)
		}
		if got := compare(attempts, largest, host); got.Static < got.Actual ||
			got.Short+got.Stretched != 0 {
			t.Errorf("%s: %+v", largest, got)
		}
	})
}
