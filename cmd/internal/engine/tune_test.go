package engine_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/spillway-ml/spillway/predictor/search"
)

// tuningResult is what the pipeline tuning of the test app tells.
type tuningResult struct {
	Best      int     `json:"best"`
	Rate      float64 `json:"rate"`
	Loss      float64 `json:"loss"`
	Trials    int     `json:"trials"`
	Jobs      int     `json:"jobs"`
	Tasks     int     `json:"tasks"`
	Odd       int     `json:"odd"`
	Step      float64 `json:"step"`
	Objective float64 `json:"objectives"`
}

// undisturbed is what a tuning of the test app comes to where nothing disturbs it: by the search alone, one job after
// another.
func undisturbed(t *testing.T, trials int, seed uint64) (want tuningResult) {
	t.Helper()
	space := search.Space{{Name: "rate", Kind: search.Float, Low: 1e-4, High: 1, Log: true}}
	s, err := search.New(space, search.Options{
		Algorithm: search.Halving, Trials: trials, Least: 1, Most: 9, Seed: seed, Whole: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		job, found := s.Next()
		if !found {
			break
		}
		want.Jobs++
		loss := math.Abs(math.Log10(job.Configuration["rate"].Number)+2) + 1/job.To
		want.Objective += loss
		if err := s.Report(job.Trial, loss); err != nil {
			t.Fatal(err)
		}
	}
	want.Best, want.Loss, _ = s.Best()
	want.Rate, want.Trials, want.Tasks, want.Step = s.Configuration(want.Best)["rate"].Number, s.Begun(), want.Jobs, 9
	return want
}

// TestATuningWhoseEngineIsKilledFindsTheSame kills all of the engine while trials are under way, and looks whether one
// is lost, counted twice, or goes on from where it was not; with SPILLWAY_MEASURE for ten seeds.
func TestATuningWhoseEngineIsKilledFindsTheSame(t *testing.T) {
	if testing.Short() {
		t.Skip("kills the engine again and again: takes minutes")
	}
	t.Parallel()
	seeds := uint64(3)
	if os.Getenv("SPILLWAY_MEASURE") != "" {
		seeds = 10
	}
	const trials, kills = 27, 2
	state, app := t.TempDir(), buildApp(t, 0)
	e := startEngine(t, state, app)
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		want := undisturbed(t, trials, seed)
		run := e.publish("tuning", fmt.Sprint("seed-", seed), map[string]any{
			"trials": trials, "milliseconds": 40, "seed": seed,
		})
		done := 0
		for range kills {
			done = min(done+1+r.IntN(want.Jobs/kills), want.Jobs-1)
			e.until("enough jobs of the tuning have ended", func() bool {
				view, err := e.client.Run(t.Context(), run)
				return err == nil && len(view.Stages) > 0 && view.Stages[0].Done >= done
			})
			e.kill()
			e = startEngine(t, state, app)
		}
		got := succeed[tuningResult](e, run, patience)
		if math.Abs(got.Objective-want.Objective) < 1e-9 { // added up in another order
			got.Objective = want.Objective
		}
		if got != want {
			t.Errorf("seed %d: the tuning found %+v, want %+v", seed, got, want)
		}
		if view, err := e.client.Run(t.Context(), run); err != nil || view.Stages[0].Done != want.Jobs {
			t.Errorf("seed %d, %v: the ledger has %+v, want %d tasks that are done", seed, err, view.Stages, want.Jobs)
		}
	}
	e.stop()
}
