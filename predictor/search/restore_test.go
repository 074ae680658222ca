package search_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/search"
)

// TestARestoredSearchGoesOnAsTheOneBefore cuts searches at any step, with jobs under way and with calls that found no
// job, and compares all that follows with what an undisturbed one does.
func TestARestoredSearchGoesOnAsTheOneBefore(t *testing.T) {
	t.Parallel()
	space := search.Space{
		{Name: "lr", Kind: search.Float, Low: 1e-4, High: 1, Log: true},
		{Name: "opt", Kind: search.Choice, Choices: []string{"adam", "sgd"}},
		{Name: "m", Kind: search.Float, Low: 0, High: 1, When: &search.Condition{Parameter: "opt", Values: []string{"sgd"}}},
	}
	for _, algorithm := range []search.Algorithm{
		search.ASHA, search.Random, search.Halving, search.Hyperband, search.BOHB,
	} {
		for seed := range uint64(20) {
			r := rand.New(rand.NewPCG(seed, 7))
			options := search.Options{
				Algorithm: algorithm, Trials: 1 + r.IntN(30), Most: 27, Seed: seed, Maximise: seed%2 == 0,
				GoOn: algorithm == search.ASHA && seed%3 == 0, Rules: int(seed / 2 % (search.Newest + 1)),
			}
			cut := r.IntN(60)
			whole, err := search.New(space, options)
			if err != nil {
				t.Fatal(err)
			}
			var steps []search.Step
			var taken []search.Job
			var running []int // of those taken
			restored := (*search.Search)(nil)
			for i := 0; !whole.Done(); i++ {
				if i == cut {
					var jobs []search.Job
					if restored, jobs, err = search.Restore(space, options, steps); err != nil {
						t.Fatalf("%s, seed %d: %v", algorithm, seed, err)
					}
					if diff := cmp.Diff(taken, jobs); diff != "" {
						t.Fatalf("%s, seed %d: the jobs taken (-want +got):\n%s", algorithm, seed, diff)
					}
				}
				if len(running) < 4 && r.IntN(2) == 0 || len(running) == 0 {
					job, found := whole.Next()
					if restored != nil {
						again, foundAgain := restored.Next()
						if diff := cmp.Diff(job, again); diff != "" || found != foundAgain {
							t.Fatalf("%s, seed %d, step %d: found %v and %v; the next job (-whole +restored):\n%s", algorithm, seed, i,
								found, foundAgain, diff)
						}
					}
					if found {
						steps, taken, running = append(steps, search.Step{}), append(taken, job), append(running, len(taken))
					}
					continue
				}
				at := r.IntN(len(running))
				number := running[at]
				job := taken[number]
				running = append(running[:at:at], running[at+1:]...)
				objective := r.NormFloat64()
				if r.IntN(8) == 0 {
					objective = math.NaN()
				}
				var ahead *search.Ahead
				if r.IntN(2) == 0 {
					ahead = &search.Ahead{Best: objective + r.NormFloat64(), Before: objective + r.NormFloat64()/5}
				}
				for _, s := range []*search.Search{whole, restored} {
					if s == nil {
						continue
					}
					if err := s.Report(job.Trial, objective); err != nil {
						t.Fatal(err)
					}
					if ahead == nil {
						continue
					}
					if err := s.Expect(job.Trial, *ahead); err != nil {
						t.Fatal(err)
					}
				}
				steps = append(steps, search.Step{Reported: true, Job: number, Objective: objective, Ahead: ahead})
			}
			if restored == nil {
				continue
			}
			trial, best, found := whole.Best()
			againTrial, againBest, againFound := restored.Best()
			if trial != againTrial || found != againFound || found && best != againBest || !restored.Done() {
				t.Errorf("%s, seed %d: the best is %d and %d", algorithm, seed, trial, againTrial)
			}
		}
	}
}

func TestStepsThatAreNotThoseOfASearchAreRefused(t *testing.T) {
	t.Parallel()
	space := search.Space{{Name: "x", Kind: search.Float, High: 1}}
	options := search.Options{Algorithm: search.Random, Trials: 1, Most: 1}
	for name, steps := range map[string][]search.Step{
		"a job too many":          {{}, {}},
		"a report of no job":      {{Reported: true}},
		"a report of no such job": {{}, {Reported: true, Job: 1}},
		"two reports of one job":  {{}, {Reported: true}, {Reported: true}},
	} {
		if _, _, err := search.Restore(space, options, steps); !errors.Is(err, search.ErrSteps) {
			t.Errorf("%s: got %v, want ErrSteps", name, err)
		}
	}
	if _, _, err := search.Restore(nil, options, nil); !errors.Is(err, search.ErrSpace) {
		t.Errorf("without a space: got %v", err)
	}
}

// TestATrialIsToldHowItStands follows nine trials of halving, the best of which go on.
func TestATrialIsToldHowItStands(t *testing.T) {
	t.Parallel()
	space := search.Space{{Name: "x", Kind: search.Float, High: 1}}
	for _, algorithm := range []search.Algorithm{search.Halving, search.ASHA} {
		s, err := search.New(space, search.Options{Algorithm: algorithm, Trials: 9, Least: 1, Most: 9})
		if err != nil {
			t.Fatal(err)
		}
		for {
			job, found := s.Next()
			if !found {
				break
			}
			if of := s.Places()[job.Trial].Of; of > 0 != (job.Rung > 0) {
				t.Errorf("%s: trial %d stands among %d before it came anywhere", algorithm, job.Trial, of)
			}
			if err := s.Report(job.Trial, float64(job.Trial)); err != nil { // the first is the best
				t.Fatal(err)
			}
			if job.Trial == 8 && job.Rung == 0 {
				if !s.Places()[0].GoesOn {
					t.Errorf("%s: the best does not go on", algorithm)
				}
			}
		}
		places := s.Places()
		if want := (search.Place{Rung: 0, Place: 7, Of: 9, Promoted: 3}); places[6] != want {
			t.Errorf("%s: the seventh stands at %+v, want %+v", algorithm, places[6], want)
		}
		for trial, place := range places {
			if place.GoesOn {
				t.Errorf("%s: trial %d goes on after the end", algorithm, trial)
			}
		}
	}
}

func TestValuesAreWrittenAsProgramsReadThem(t *testing.T) {
	t.Parallel()
	for want, value := range map[string]search.Value{
		"1000000": {Number: 1e6}, "-12345678": {Number: -12345678}, "0": {}, "0.5": {Number: .5}, "1e-05": {Number: 1e-5},
		"adam": {Text: "adam"},
	} {
		if got := value.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestWholeRungsEndAtWholeNumbers has trials that are given epochs, of which there is no half.
func TestWholeRungsEndAtWholeNumbers(t *testing.T) {
	t.Parallel()
	space := search.Space{{Name: "x", Kind: search.Float, High: 1}}
	for _, c := range []struct {
		most, least float64
		eta         int
		want        []float64
	}{
		{27, 0, 3, []float64{1, 3, 9, 27}},
		{10, 0, 3, []float64{2, 4, 10}},
		{5, 0, 3, []float64{2, 5}},
		{100, 7, 2, []float64{13, 25, 50, 100}},
		{1, 0, 3, []float64{1}},
	} {
		s, err := search.New(space, search.Options{Trials: 1, Most: c.most, Least: c.least, Eta: c.eta, Whole: true})
		if err != nil {
			t.Fatal(err)
		}
		var got []float64
		for {
			job, found := s.Next()
			if !found {
				break
			}
			if len(got) > 0 && job.From != got[len(got)-1] {
				t.Errorf("most %g: a job goes on from %g, and the last ended at %v", c.most, job.From, got)
			}
			got = append(got, job.To)
			if err := s.Report(0, 1); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("most %g, least %g, eta %d: rungs end at (-want +got):\n%s", c.most, c.least, c.eta, diff)
		}
	}
	for _, wrong := range []search.Options{{Most: 2.5}, {Most: 9, Least: .5}, {Most: .5}} {
		wrong.Trials, wrong.Whole = 1, true
		if _, err := search.New(space, wrong); !errors.Is(err, search.ErrOptions) {
			t.Errorf("%+v: got %v, want ErrOptions", wrong, err)
		}
	}
}
