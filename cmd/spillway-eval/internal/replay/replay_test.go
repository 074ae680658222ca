package replay_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spillway-ml/spillway/cmd/internal/series"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/replay"
)

// script plays limits from a list and remembers what it was told.
type script struct {
	limits []float64
	seen   []float64
	overs  []bool
}

func (s *script) Limit() float64 { return s.limits[len(s.seen)] }

func (s *script) Observe(use series.Point, over bool) {
	s.seen = append(s.seen, use.Value)
	s.overs = append(s.overs, over)
}

func minutes(uses ...float64) series.Series {
	var s series.Series
	for i, use := range uses {
		s.Points = append(s.Points, series.Point{At: time.Unix(int64(60*i), 0), Value: use})
	}
	return s
}

func TestAScoreIsThatOfTheCountedTicks(t *testing.T) {
	t.Parallel()
	policy := &script{limits: []float64{1, 10, 10, 10.05, 20, 0}}
	score := replay.Protocol{Uncounted: 1}.Run(minutes(5, 5, 12, 10.05, 10, 0), policy)
	if score.Ticks != 5 || score.Over != 1 || score.Resizes != 3 || score.Counted != 4*time.Minute {
		t.Errorf("got %+v", score)
	}
	// Slack of 0.5, 0 and 0.5, and none where nothing is held of nothing.
	if got := score.MeanSlack(); math.Abs(got-0.25) > 1e-12 {
		t.Errorf("the mean slack is %v, want 0.25", got)
	}
	if got := score.OverLimit(); got != 0.2 {
		t.Errorf("the part over the limit is %v, want 0.2", got)
	}
	if got := score.ResizesPerHour(); got != 45 {
		t.Errorf("resizes an hour: %v, want 45", got)
	}
	if diff := cmp.Diff([]bool{true, false, true, false, false, false}, policy.overs); diff != "" {
		t.Error(diff)
	}
}

func TestManySmallChangesAreOneResizeOnceTheyAddUp(t *testing.T) {
	t.Parallel()
	limits := make([]float64, 20)
	for i := range limits {
		limits[i] = 100 + 0.3*float64(i)
	}
	score := replay.Protocol{}.Run(minutes(make([]float64, 20)...), &script{limits: limits})
	if score.Resizes != 4 { // every fourth step passes 1% of about 100
		t.Errorf("%d resizes, want 4", score.Resizes)
	}
}

func TestACensoredPolicySeesTheLimitInsteadOfTheUse(t *testing.T) {
	t.Parallel()
	policy := &script{limits: []float64{10, 10, 10}}
	replay.Protocol{Censored: true}.Run(minutes(5, 50, 10), policy)
	if diff := cmp.Diff([]float64{5, 10, 10}, policy.seen); diff != "" {
		t.Error(diff)
	}
}

func TestScoresAddUp(t *testing.T) {
	t.Parallel()
	protocol := replay.Protocol{}
	a := protocol.Run(minutes(5, 20), &script{limits: []float64{10, 10}})
	b := protocol.Run(minutes(10), &script{limits: []float64{10}})
	sum := a.Plus(b)
	if sum.Ticks != 3 || sum.Over != 1 || sum.MeanSlack() != 0.25 {
		t.Errorf("got %+v, mean slack %v", sum, sum.MeanSlack())
	}
}

func TestASeriesThatIsTooShortScoresNothing(t *testing.T) {
	t.Parallel()
	if got := (replay.Protocol{LeastPoints: 3}).Run(minutes(1, 2), &script{}); got != (replay.Score{}) {
		t.Errorf("got %+v", got)
	}
	if got := (replay.Protocol{Uncounted: 2}).Run(minutes(1, 2), &script{}); got != (replay.Score{}) ||
		got.MeanSlack() != 0 || got.ResizesPerHour() != 0 {
		t.Errorf("got %+v", got)
	}
}
