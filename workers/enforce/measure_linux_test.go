package enforce_test

import (
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// TestMeasureEffectsAndCosts prints how soon a CPU limit is felt, and what looking at a group and starting in one
// costs.
func TestMeasureEffectsAndCosts(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("SPILLWAY_MEASURE is not set")
	}
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			e := open(t, mode, 0)
			g := group(t, e, "measured")
			size := quantity.Size{CPU: e.Limit().CPU / 4, Memory: 512 * quantity.MiB}
			resize(t, g, size)
			start(t, g, "burn")
			time.Sleep(time.Second)
			var effects, costs []time.Duration
			missed := 0
			for i := range 48 {
				size.CPU = e.Limit().CPU * []quantity.Milli{2, 1, 3, 1}[i%4] / 16 // small, so that a busy host gives it
				began := time.Now()
				resize(t, g, size)
				costs = append(costs, time.Since(began))
				if effect, ok := effect(t, g, size.CPU.Cores(), began); ok {
					effects = append(effects, effect)
				} else {
					missed++
				}
			}
			t.Logf("Resize of CPU and memory itself: p50 %s, p95 %s", percentile(costs, 0.5), percentile(costs, 0.95))
			t.Logf("from Resize to the end of the first 100 ms window within 15%% of the limit: p50 %s, p95 %s of %d changes, "+
				"%d not within 2 s",
				percentile(effects, 0.5), percentile(effects, 0.95), len(effects), missed)
			if err := g.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			costs = costs[:0]
			for range 500 {
				began := time.Now()
				usage(t, g)
				costs = append(costs, time.Since(began))
			}
			t.Logf("Usage: p50 %s, p95 %s", percentile(costs, 0.5), percentile(costs, 0.95))
			size.CPU = e.Limit().CPU
			resize(t, g, size) // a child that is throttled starts as slowly as its limit says
			plain := startTimes(t, func(cmd *exec.Cmd) error { return cmd.Start() })
			inside := startTimes(t, g.Start)
			t.Logf("start and end of a child: p50 %s plain, %s in the group", percentile(plain, 0.5), percentile(inside, 0.5))
		})
	}
}

// effect waits until the group used cores, within 15 percent, in a window of at least 100 ms that began after the
// change.
func effect(t *testing.T, g *enforce.Group, cores float64, began time.Time) (after time.Duration, ok bool) {
	t.Helper()
	type sample struct {
		at  time.Time
		cpu time.Duration
	}
	samples := []sample{{time.Now(), usage(t, g).CPU}}
	for time.Since(began) < 2*time.Second {
		time.Sleep(10 * time.Millisecond)
		now := sample{time.Now(), usage(t, g).CPU}
		samples = append(samples, now)
		for _, then := range slices.Backward(samples) {
			window := now.at.Sub(then.at)
			if window < 100*time.Millisecond {
				continue
			}
			if rate := (now.cpu - then.cpu).Seconds() / window.Seconds(); math.Abs(rate-cores) <= 0.15*cores {
				return now.at.Sub(began), true
			}
			break
		}
	}
	return 0, false
}

func startTimes(t *testing.T, start func(*exec.Cmd) error) []time.Duration {
	t.Helper()
	var times []time.Duration
	for range 60 {
		cmd := self("nop")
		began := time.Now()
		if err := start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		times = append(times, time.Since(began))
	}
	return times
}

func percentile(times []time.Duration, p float64) time.Duration {
	if len(times) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(int(p*float64(len(sorted))), len(sorted)-1)].Round(time.Microsecond)
}
