package spill

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/spillway-ml/spillway/predictor/provision"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Entrant is a policy that takes part.
type Entrant struct {
	Name   string
	Policy Policy
	// Spills says that what the pool does not do within the limit goes to functions; otherwise it waits for the pool.
	Spills bool
}

// Score is what a policy came to over the counted minutes.
type Score struct {
	// Hosts and Functions are USD.
	Hosts, Functions float64
	// Tasks arrived, of which Missed took longer than the limit, Spilled went to functions, Cold of those to a new
	// environment.
	Tasks, Missed, Spilled, Cold int
	// Launches are hosts.
	Launches int
	// Took is the time of all decisions.
	Took time.Duration
}

// Cost is USD.
func (s Score) Cost() float64 { return s.Hosts + s.Functions }

// Missing is the part of the tasks that took longer than the limit.
func (s Score) Missing() float64 { return float64(s.Missed) / float64(max(1, s.Tasks)) }

// Spilling is the part of the tasks that went to functions.
func (s Score) Spilling() float64 { return float64(s.Spilled) / float64(max(1, s.Tasks)) }

// Replay runs all policies over the same arrivals: each minute has as many tasks as recorded, at independent uniform
// times, as a Poisson process has them given their number. The minutes of the first window teach, and are not
// counted.
func Replay(ctx context.Context, setting Setting, loads []float64, seed uint64, entrants []Entrant) ([]Score, error) {
	random := rand.New(rand.NewPCG(seed, 0))
	runs := make([]run, len(entrants))
	for i, entrant := range entrants {
		runs[i] = run{Entrant: entrant, station: newStation(setting, entrant.Spills)}
	}
	var times []float64
	for minute, load := range loads {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		times = uniform(times[:0], int(load), random)
		for i := range runs {
			if err := runs[i].minute(setting, minute, times, minute >= setting.Hold); err != nil {
				return nil, err
			}
		}
	}
	scores := make([]Score, len(runs))
	for i := range runs {
		scores[i] = runs[i].score
	}
	return scores, nil
}

// uniform appends n sorted uniform times of a minute, in seconds: the partial sums of n + 1 exponential gaps over their
// total.
func uniform(times []float64, n int, random *rand.Rand) []float64 {
	sum := 0.0
	for range n {
		sum += random.ExpFloat64()
		times = append(times, sum)
	}
	scale := Step.Seconds() / (sum + random.ExpFloat64())
	for i := range times {
		times[i] *= scale
	}
	return times
}

// run is a policy at work.
type run struct {
	Entrant
	station *station
	pool    []provision.Held
	score   Score
}

func (r *run) minute(setting Setting, minute int, times []float64, counted bool) error {
	start := float64(minute) * Step.Seconds()
	r.station.hold(counts(setting.Terms, r.pool), start)
	before := r.station.served
	for _, at := range times {
		r.station.arrive(start + at)
	}
	if counted {
		for _, held := range r.pool {
			r.score.Hosts += setting.Hosts[held.Host].Step.USD()
		}
		now := r.station.served
		r.score.Functions += now.spilledCost - before.spilledCost
		r.score.Tasks += now.tasks - before.tasks
		r.score.Missed += now.missed - before.missed
		r.score.Spilled += now.spilled - before.spilled
		r.score.Cold += now.cold - before.cold
	}
	for i := range r.pool {
		r.pool[i].Age++
	}
	began := time.Now()
	decision, err := r.Policy.Next(Minute{
		Tasks: float64(len(times)), Busy: r.station.busy[:stepSeconds],
		Functions: quantity.USD.Times(r.station.spilledCost - before.spilledCost),
	}, r.pool)
	r.score.Took += time.Since(began)
	if err != nil {
		return err
	}
	for host, n := range decision.Launch {
		if counted {
			r.score.Launches += n
			r.score.Hosts += float64(n) * setting.Hosts[host].Launch.USD()
		}
	}
	r.pool = decision.Apply(r.pool)
	return nil
}
