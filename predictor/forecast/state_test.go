package forecast_test

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/forecast"
)

func TestAForecastReadFromItsStateGoesOnInTheSameWay(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(9, 10))
	counts := make([]float64, 4*day)
	for i := range counts {
		counts[i] = poisson(random, diurnal(20)(i))
		if i%120 < 8 {
			counts[i] += 200
		}
		if i > 3*day {
			counts[i] *= 10
		}
	}
	for _, at := range []int{0, 1, 30, 1000, 2*day + 5, 3*day + 7} {
		f, read := newForecaster(t, forecast.Options{Horizon: 7}), newForecaster(t, forecast.Options{})
		for i, count := range counts[:at] {
			f.Observe(minute(i), count)
		}
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, read); err != nil {
			t.Fatal(err)
		}
		clone := f.Clone()
		for i := at; i < min(at+1000, len(counts)); i++ {
			for _, g := range []*forecast.Forecaster{f, read, clone} {
				if !g.Observe(minute(i), counts[i]) {
					t.Fatalf("minute %d was not taken", i)
				}
			}
			want := f.Fan(levels...)
			if diff := cmp.Diff(want, read.Fan(levels...)); diff != "" {
				t.Fatalf("read after %d minutes, at minute %d: %s", at, i, diff)
			}
			if diff := cmp.Diff(want, clone.Fan(levels...)); diff != "" {
				t.Fatalf("cloned after %d minutes, at minute %d: %s", at, i, diff)
			}
		}
	}
}

func TestWhatIsNoStateIsRefusedAndChangesNothing(t *testing.T) {
	t.Parallel()
	f := newForecaster(t, forecast.Options{})
	for i := range 200 {
		f.Observe(minute(i), float64(i%17))
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	with := func(key string, value any) string {
		var state map[string]any
		if err := json.Unmarshal(text, &state); err != nil {
			t.Fatal(err)
		}
		if _, known := state[key]; !known {
			t.Fatalf("a state has no %s", key)
		}
		state[key] = value
		changed, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		return string(changed)
	}
	for name, state := range map[string]string{
		"no JSON":           "{",
		"another version":   with("version", 2),
		"no version":        "{}",
		"other options":     with("options", map[string]any{"horizon_buckets": -1}),
		"another horizon":   with("options", map[string]any{"horizon_buckets": 11}),
		"fewer than none":   with("seen", -1),
		"no knots":          with("knots", nil),
		"short knots":       with("knots", []any{}),
		"no history":        with("fine", nil),
		"a long history":    with("fine", map[string]any{"values": make([]byte, 1<<16), "next_block": 3}),
		"half a value":      with("coarse", map[string]any{"values": []byte{1}, "next_block": 3}),
		"another newest":    with("newest_bucket", 3),
		"a burst to come":   with("bursts", map[string]any{"list": []byte{0, 0, 0, 0, 0, 0, 0, 100, 1, 0, 0, 0, 0, 0, 0, 0}}),
		"a share of two":    with("bursts", map[string]any{"share": 2}),
		"a tiny period":     with("cycles", map[string]any{"Day": 1e-9}),
		"a negative period": with("cycles", map[string]any{"Week": -3}),
	} {
		err := json.Unmarshal([]byte(state), f)
		if err == nil {
			t.Errorf("%s was taken", name)
		}
		if json.Valid([]byte(state)) && !errors.Is(err, forecast.ErrState) {
			t.Errorf("%s: %v is no ErrState", name, err)
		}
	}
	again, err := json.Marshal(f)
	if err != nil || string(again) != string(text) {
		t.Error("a refused state changed the forecast", err)
	}
}

// What an engine of before wrote goes on. SPILLWAY_UPDATE=1 writes the state anew: only with another version of it.
func TestAStateThatWasWrittenBeforeIsRead(t *testing.T) {
	t.Parallel()
	path := filepath.Join("testdata", "state_v1.json")
	f := newForecaster(t, forecast.Options{Horizon: 2})
	for i := range 100 {
		f.Observe(minute(i), float64(20+i%7+i%30/27*200))
	}
	if os.Getenv("SPILLWAY_UPDATE") == "1" {
		text, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path) //nolint:gosec // of this test
	if err != nil {
		t.Fatal(err)
	}
	read := new(forecast.Forecaster)
	if err := json.Unmarshal(text, read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f.Fan(levels...), read.Fan(levels...)); diff != "" {
		t.Error(diff)
	}
}
