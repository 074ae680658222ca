package search_test

import (
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor/search"
)

// Of six trials with rungs that end at 1, 3 and 9, two are promoted, of which the first has come to 0.2 at the second
// one. What the second's curve says decides whether it goes on.
func TestATrialIsOutByItsCurve(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		algorithm search.Algorithm
		goOn      bool
		ahead     *search.Ahead
		out       bool
	}{
		"nothing is expected":                             {},
		"it may become better":                            {ahead: &search.Ahead{Best: 0.19, Before: 0.41}},
		"it comes as far at most":                         {ahead: &search.Ahead{Best: 0.2, Before: 0.41}},
		"it ends worse, and has hardly become better":     {ahead: &search.Ahead{Best: 0.35, Before: 0.41}, out: true},
		"it ends worse, and has become worse":             {ahead: &search.Ahead{Best: 0.35, Before: 0.3}, out: true},
		"it ends worse, and has become much better":       {ahead: &search.Ahead{Best: 0.35, Before: 0.46}},
		"it ends worse, and nobody knows what was before": {ahead: &search.Ahead{Best: 0.35, Before: math.NaN()}},
		"no number is expected":                           {ahead: &search.Ahead{Best: math.NaN(), Before: 0.41}},
		"who goes on has all go on":                       {ahead: &search.Ahead{Best: 0.35, Before: 0.41}, goOn: true},
		"brackets have no curves": {
			algorithm: search.Halving, ahead: &search.Ahead{Best: 0.35, Before: 0.41},
		},
	} {
		for _, maximise := range []bool{false, true} {
			sign := 1.0
			if maximise {
				sign = -1
			}
			s, err := search.New(space, search.Options{
				Algorithm: test.algorithm, Trials: 6, Least: 1, Most: 9, GoOn: test.goOn, Maximise: maximise,
				Rules: search.Newest,
			})
			if err != nil {
				t.Fatal(err)
			}
			var second []int // jobs of trial 1 by rung
			for job, found := s.Next(); found; job, found = s.Next() {
				told := 1.0
				if job.Trial < 2 {
					told = [][]float64{{0.3, 0.2, 0.1}, {0.4, 0.3, 0.2}}[job.Trial][job.Rung]
				}
				if err := s.Report(job.Trial, sign*told); err != nil {
					t.Fatal(err)
				}
				if job.Trial == 1 {
					second = append(second, job.Rung)
				}
				if job.Trial == 1 && job.Rung == 0 && test.ahead != nil {
					if err := s.Expect(1, search.Ahead{Best: sign * test.ahead.Best, Before: sign * test.ahead.Before}); err != nil {
						t.Fatal(err)
					}
				}
			}
			if out := len(second) < 2; out != test.out || !s.Done() {
				t.Errorf("%s, maximise %v: the second trial had rungs %v, done %v; want out %v", name, maximise, second, s.Done(),
					test.out)
			}
			place := s.Places()[1]
			if place.Out != test.out || test.out && (place.Beyond != sign*0.1 || place.GoesOn) {
				t.Errorf("%s, maximise %v: it stands at %+v, want out %v", name, maximise, place, test.out)
			}
			if best, _, found := s.Best(); !found || best != 0 {
				t.Errorf("%s, maximise %v: the best is %d, %v", name, maximise, best, found)
			}
		}
	}
}

// Where all are out but those that came the furthest, one still gets all there is, and what is expected of a trial that
// has told nothing is refused.
func TestOneTrialGetsAllWhateverIsExpected(t *testing.T) {
	t.Parallel()
	s, err := search.New(space, search.Options{Trials: 9, Least: 1, Most: 9, Rules: search.Newest})
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for job, found := s.Next(); found; job, found = s.Next() {
		if err := s.Expect(job.Trial, search.Ahead{}); err == nil {
			t.Fatal("something is expected of a trial that runs")
		}
		if err := s.Report(job.Trial, float64(job.Trial)); err != nil {
			t.Fatal(err)
		}
		if err := s.Expect(job.Trial, search.Ahead{Best: math.Inf(1), Before: float64(job.Trial)}); err != nil {
			t.Fatal(err)
		}
		last = max(last, job.Rung)
	}
	if last != 2 || !s.Done() {
		t.Errorf("the last rung had is %d, done %v; want 2", last, s.Done())
	}
	if err := s.Expect(99, search.Ahead{}); err == nil {
		t.Error("something is expected of a trial that there is not")
	}
}
