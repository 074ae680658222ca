package words_test

import (
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor/words"
)

func TestSecondsHaveTheDigitsThatMatter(t *testing.T) {
	t.Parallel()
	for seconds, want := range map[float64]string{
		0: "0 s", 0.0004: "0 s", 0.02: "0.02 s", 0.0995: "0.1 s", 0.123: "0.12 s", 4.46: "4.5 s", 9.94: "9.9 s",
		9.95: "10 s", 24.4: "24 s", 119.4: "119 s", 120: "2m0s", 200: "3m20s", 1e300: "277777h46m40s",
		math.Inf(1): "for ever", math.NaN(): "for ever",
	} {
		if got := words.Seconds(seconds); got != want {
			t.Errorf("%g seconds are written %q, want %q", seconds, got, want)
		}
	}
}

func TestRatesHaveThreeDigits(t *testing.T) {
	t.Parallel()
	for want, counts := range map[string]map[string]float64{
		"":                               nil,
		"128 samples/s, 4,096 tokens/s":  {"tokens": 4096.4, "samples": 127.6},
		"99.4 a b/s, 0 x/s, 0.00123 y/s": {"a_b": 99.44, "x": 0, "y": 0.001234},
		"1e+300 samples/s":               {"samples": 1e300},
		"100 samples/s":                  {"samples": 99.96},
	} {
		if got := words.PerSecond(counts); got != want {
			t.Errorf("%v is written %q, want %q", counts, got, want)
		}
	}
}

func TestNumbersAgreeWithTheirNouns(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		words.Count(0, "slot"): "0 slots", words.Count(1, "slot"): "1 slot", words.Count(2, "slot"): "2 slots",
		words.Waiting(0): "no task waits", words.Waiting(1): "1 task waits", words.Waiting(3): "3 tasks wait",
		words.Grouped(0): "0", words.Grouped(-999): "-999", words.Grouped(-1000): "-1,000",
		words.Grouped(uint64(1234567)): "1,234,567",
		words.RunningNow(0):            "none runs", words.RunningNow(1): "1 runs", words.RunningNow(3): "3 run",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
