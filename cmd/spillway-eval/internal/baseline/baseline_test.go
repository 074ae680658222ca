package baseline_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/baseline"
)

var midnight = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

func minute(i int, use float64) series.Point {
	return series.Point{At: midnight.Add(time.Duration(i) * time.Minute), Value: use}
}

func TestTheMaximumIsThatOfTheSpan(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	policy := baseline.NewMaximum(30*time.Minute, 0.1, 7, 5)
	var uses []float64
	for i := range 500 {
		want := 7.0
		if i >= 5 {
			want = 1.1 * slices.Max(uses[max(0, i-30):])
		}
		if got := policy.Limit(); math.Abs(got-want) > 1e-12 {
			t.Fatalf("at minute %d the limit is %v, want %v", i, got, want)
		}
		uses = append(uses, random.Float64())
		policy.Observe(minute(i, uses[i]), false)
	}
}

func TestThePercentileIsThatOfTheUses(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	policy := baseline.NewPercentile(0.9, 1000*time.Hour, 0, 1.2, 1, 1)
	for i := range 5000 {
		policy.Observe(minute(i, random.Float64()), false)
	}
	if got := policy.Limit(); got < 0.88 || got > 0.9*1.06 {
		t.Errorf("the 90th percentile of uniform numbers is %v, want 0.9 to 5%% more", got)
	}
}

func TestAnExceededPercentileIsRaisedForItsHalfLife(t *testing.T) {
	t.Parallel()
	policy := baseline.NewPercentile(0.9, time.Hour, 0.15, 1.2, 1, 1)
	for i := range 600 {
		policy.Observe(minute(i, 0.5), false)
	}
	calm := policy.Limit()
	policy.Observe(minute(600, 2), true)
	if got := policy.Limit(); got < 1.2*calm {
		t.Errorf("after a tick over %v the limit is %v, want at least 1.2 times it", calm, got)
	}
	for i := range 120 {
		policy.Observe(minute(601+i, 0.5), false)
	}
	if got := policy.Limit(); got > 1.06*calm {
		t.Errorf("two hours later it is %v, want about %v", got, calm)
	}
}

func TestHindsightIsTheLargestUse(t *testing.T) {
	t.Parallel()
	if got := baseline.Hindsight(series.Series{Points: []series.Point{minute(0, 3), minute(1, 5), minute(2, 4)}}).
		Limit(); got != 5 {
		t.Errorf("got %v, want 5", got)
	}
}

func TestTheRecommenderTargetsThe90thPercentileAndAMargin(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	policy := baseline.NewCPURecommender(100, 1000)
	if got := policy.Limit(); got != 100 {
		t.Errorf("before any point the limit is %v, want the first limit of 100", got)
	}
	for i := range 1440 {
		policy.Observe(minute(i, 50*random.Float64()), false)
	}
	if got, want := policy.Limit(), 45*1.15; got < 0.95*want || got > 1.08*want {
		t.Errorf("of uses up to 50 the target is %v, want about %v", got, want)
	}
}

func TestTheRecommenderForgetsScale(t *testing.T) {
	t.Parallel()
	small, large := baseline.NewMemoryRecommender(1, 2), baseline.NewMemoryRecommender(1e6, 2e6)
	random := rand.New(rand.NewPCG(7, 8))
	for i := range 3000 {
		use := 0.5 + random.Float64()
		small.Observe(minute(i, use), use > small.Limit())
		large.Observe(minute(i, use*1e6), use*1e6 > large.Limit())
		if a, b := small.Limit()*1e6, large.Limit(); math.Abs(a-b) > 1e-3*a {
			t.Fatalf("at minute %d the limit is %v in one unit and %v in the other", i, a, b)
		}
	}
}

func TestTheRecommenderRaisesMemoryAfterAKill(t *testing.T) {
	t.Parallel()
	killed, calm := baseline.NewMemoryRecommender(1, 10), baseline.NewMemoryRecommender(1, 10)
	for i := range 60 {
		killed.Observe(minute(i, 1), i == 30)
		calm.Observe(minute(i, 1), false)
	}
	if killed.Limit() < 1.15*calm.Limit() {
		t.Errorf("after a kill the limit is %v, without %v: want a fifth more", killed.Limit(), calm.Limit())
	}
}
