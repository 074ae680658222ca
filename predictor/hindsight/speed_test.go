package hindsight_test

import (
	"math"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/hindsight"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// took is how long an attempt takes of which nine tenths are shared by its cores, relative to one core.
func took(cores float64) float64 {
	if cores < 1 {
		return 1 / cores
	}
	return 1 - 0.9*(1-1/cores)
}

// sized are attempts whose time grows with their rows, and what is learned of them.
func sized(sizes ...float64) (attempts []hindsight.Attempt, known hindsight.Known) {
	var times usage.Times
	var tries usage.Tries
	times.Follow("rows")
	for i, cores := range sizes {
		rows := float64(1 + i%3)
		a := attempt(0, float32(rows), 1<<20, 10*rows*took(cores))
		a.Cores = cores
		attempts = append(attempts, a)
		features := usage.Features{Named: map[string]float64{"rows": rows}}
		times.AddAt(cores, a.Wall, features)
		rate, held := min(cores, 1/took(cores)), max(0, 1-cores)
		tries.Add(usage.Try{Cores: cores, Seconds: a.Wall, Rate: rate, Held: held}, features, times.Names)
	}
	known.Duration, known.Speed = usage.LearnTimes(&times, &tries, 1, true)
	return attempts, known
}

// What an attempt with another input takes says nothing of how fast it is.
func TestSpeedsAreShownOverTheCoresThatAttemptsHad(t *testing.T) {
	t.Parallel()
	attempts, known := sized(1, 1, 1, 1, 1, 1, 2, 2, 2, 0.5, 0.5, 0.5, 1, 2, 0.5, 1, 2, 0.5)
	got := hindsight.Of(attempts, 100, map[string]hindsight.Known{"fit": known})[0].Speed
	if got.Feature != hindsight.Cores || got.Attempts != len(attempts) || len(got.Points) != len(attempts) {
		t.Fatalf("got %+v, want all attempts over cores", got)
	}
	for _, point := range got.Points {
		want := 1 / took(point.At)
		if math.Abs(point.Actual/want-1) > 0.1 || math.Abs(point.Predicted.Mid/want-1) > 0.1 {
			t.Errorf("with %g cores: came %.2f times as fast as with one, predicted %.2f, want %.2f", point.At, point.Actual,
				point.Predicted.Mid, want)
		}
	}
	if got.Within != got.Predicted || got.Predicted != len(attempts) {
		t.Errorf("%d of %d within the band, want all", got.Within, got.Predicted)
	}
	first, last := got.Curve[0], got.Curve[len(got.Curve)-1]
	if first.At != 0.5 || last.At < 2 || !slices.IsSortedFunc(got.Curve, func(a, b hindsight.CurvePoint) int {
		return int(math.Copysign(1, a.At-b.At))
	}) {
		t.Errorf("the curve is from %g to %g cores, want from 0.5 to 2 and more", first.At, last.At)
	}
}

func TestSpeedsAreShownWhereThereIsSomethingToCompare(t *testing.T) {
	t.Parallel()
	several, known := sized(1, 1, 1, 2, 2)
	same, ofOne := sized(1, 1, 1, 1, 1)
	function, lost := several[0], several[3]
	function.Venue, lost.Outcome = fact.Function, fact.Lost
	for name, test := range map[string]struct {
		attempts []hindsight.Attempt
		known    hindsight.Known
		want     int
		curve    bool
	}{
		"several sizes and nothing known":   {several, hindsight.Known{}, 5, false},
		"several sizes":                     {several, known, 5, true},
		"one size of which a curve is told": {same, ofOne, 5, true},
		"one size and nothing known":        {same, hindsight.Known{}, 0, false},
		"functions have their own cores":    {[]hindsight.Attempt{function, lost}, known, 0, false},
	} {
		got := hindsight.Of(test.attempts, 100, map[string]hindsight.Known{"fit": test.known})[0].Speed
		if got.Attempts != test.want || len(got.Curve) > 0 != test.curve || got.IsZero() != (test.want == 0) {
			t.Errorf("%s: got %d attempts and a curve of %d points, want %d and a curve %v", name, got.Attempts,
				len(got.Curve), test.want, test.curve)
		}
		for _, point := range got.Points {
			if !(point.Actual > 0) || math.IsInf(point.Actual, 0) {
				t.Errorf("%s: a speed of %g", name, point.Actual)
			}
		}
	}
}
