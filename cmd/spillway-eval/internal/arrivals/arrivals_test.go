package arrivals

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestRunsOfZerosAreMaskedWithABucketOnEitherSide(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	for _, c := range []struct {
		name         string
		counts, want []float64
	}{
		{"none", []float64{1, 0, 2, 0, 0, 3}, []float64{1, 0, 2, 0, 0, 3}},
		{"between", []float64{1, 2, 0, 0, 0, 3, 4}, []float64{1, nan, nan, nan, nan, nan, 4}},
		{"at the ends", []float64{0, 0, 0, 3, 4, 0, 0, 0}, []float64{nan, nan, nan, nan, nan, nan, nan, nan}},
		{"all", []float64{0, 0, 0, 0}, []float64{nan, nan, nan, nan}},
	} {
		got := Trace{Counts: c.counts}.Masked(3).Counts
		if diff := cmp.Diff(c.want, got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	got := Trace{Width: time.Second, Counts: []float64{1, 2, 3, 4, 5}}.Gathered(2)
	if diff := cmp.Diff(Trace{Width: 2 * time.Second, Counts: []float64{3, 7}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestBaselinesSayWhatTheirNamesSay(t *testing.T) {
	t.Parallel()
	nan := math.NaN()
	past := []float64{1, 2, 3, 4, 5, 6, nan, 8}
	for _, c := range []struct {
		name  string
		point Point
		want  []float64 // after each bucket, two ahead
	}{
		{"the last value", LastValue(), []float64{1, 2, 3, 4, 5, 6, 6, 8}},
		{"a period of 3", SeasonalNaive(3), []float64{nan, 1, 2, 3, 4, 5, 6, 4}},
		{"a mean of two periods of 3", Profile(3, 2), []float64{nan, 1, 2, 3, 2.5, 3.5, 4.5, 4}},
		{"half", EWMA(0.5), []float64{1, 1.5, 2.25, 3.125, 4.0625, 5.03125, 5.03125, 6.515625}},
	} {
		var got []float64
		for i := range past {
			got = append(got, c.point(past[:i+1], 2))
		}
		if diff := cmp.Diff(c.want, got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
}

func TestASpreadHasTheQuantilesOfItsResiduals(t *testing.T) {
	t.Parallel()
	s := NewSpread(func([]float64, int) float64 { return 100 }, 1)
	if got := s.Quantile(0.5); !math.IsNaN(got) {
		t.Errorf("without residuals it says %v", got)
	}
	for i := range residualBuckets + 500 {
		s.Observe(map[bool]float64{true: 1e6, false: float64(i % 101)}[i < 400])
	}
	if got := s.Quantile(0.1); math.Abs(got-10) > 1 {
		t.Errorf("one in ten is below %v, want 10", got)
	}
	if got := s.Quantile(1); got != 100 {
		t.Errorf("all are below %v, want 100: what is older is forgotten", got)
	}
}

type said [len(Levels)]float64

func (said) Observe(float64) {}

func (s said) Quantile(level float64) float64 {
	for i := range Levels {
		if Levels[i] == level {
			return s[i]
		}
	}
	return math.NaN()
}

func TestAReplayScoresWhatEverybodySaid(t *testing.T) {
	t.Parallel()
	trace := Trace{Counts: []float64{9, 9, 9, 10, math.NaN(), 30}}
	scores, err := Replay(t.Context(), trace, 2, 3, map[string]Forecaster{"all": said{10, 20, 30}, "none": said{0, 0, 0}})
	if err != nil {
		t.Fatal(err)
	}
	// 10 is on the lower end, 30 on the upper: 0, .5*10, .1*20 and .1*20, .5*10, 0.
	want := map[string]Score{
		"all":  {Pinball: (0 + 5 + 2 + 2 + 5 + 0) / 6.0, Covered: 1, Buckets: 2},
		"none": {Pinball: (1 + 5 + 9 + 3 + 15 + 27) / 6.0, Buckets: 2},
	}
	if diff := cmp.Diff(want, scores, cmpopts.EquateApprox(1e-12, 0)); diff != "" {
		t.Error(diff)
	}
	scores, err = Replay(t.Context(), trace, 2, 3, map[string]Forecaster{"all": said{}, "mute": said{math.NaN()}})
	if err != nil || len(scores) != 0 {
		t.Errorf("what one of two says is scored: %v, %v", scores, err)
	}
}
