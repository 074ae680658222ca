package tuning

import (
	"math"
	"math/rand/v2"

	"github.com/spillway-ml/spillway/predictor/curve"
	"github.com/spillway-ml/spillway/predictor/frontier"
)

// errand is one job with all that will come: successive halving, and then a training until its loss is low enough.
type errand struct {
	model    model
	stages   []stage
	given    []allocation
	profiles []frontier.Profile
	rungs    []float64     // how many times as long as usual each rung takes
	epochs   []float64     // and each epoch that the training needs
	losses   []curve.Point // after each of them
	before   *curve.Workload
	usual    []float64 // logarithms of how many epochs earlier trainings needed
	part     float64   // where between the fastest and the cheapest the deadline is, or the budget
}

// What differs from one job to the next: rungs and epochs by hitches of their hosts, trainings by what they began from.
const (
	hitches    = 0.05 // standard deviation of the logarithm of what a rung or an epoch takes
	floorLoss  = 0.10
	levelLoss  = 0.20
	decay      = 0.6
	mostEpochs = 400
	earlier    = 20
)

// learned is the validation loss of a training after each epoch, a power law with noise, up to the level that is asked.
// Half of them need between 39 and 56 epochs, and of a hundred 98 between 27 and 98.
func learned(r *rand.Rand) (losses []curve.Point) {
	floor := floorLoss * math.Exp(0.1*r.NormFloat64())
	power := decay * math.Exp(0.05*r.NormFloat64())
	scale := math.Exp(0.05 * r.NormFloat64())
	for k := 1.0; k <= mostEpochs; k++ {
		loss := (floor + scale*math.Pow(k, -power)) * math.Exp(0.01*r.NormFloat64())
		losses = append(losses, curve.Point{Step: k, Value: loss})
		if loss <= levelLoss {
			break
		}
	}
	return losses
}

func (g Goals) draw(number int) (*errand, error) {
	r := rand.New(rand.NewPCG(g.Seed, uint64(number)+1000))
	e := &errand{
		model: models[number%len(models)], stages: halving([]int{16, 64, 256}[number/len(models)%3]), given: allocations(),
	}
	e.profiles = World{Noise: g.Noise}.profiles(r, e.model, e.given)
	for range e.stages {
		e.rungs = append(e.rungs, math.Exp(hitches*r.NormFloat64()))
	}
	var runs [][]curve.Point
	for range earlier {
		run := learned(r)
		runs = append(runs, run)
		e.usual = append(e.usual, math.Log(float64(len(run))))
	}
	e.losses = learned(r)
	for range e.losses {
		e.epochs = append(e.epochs, math.Exp(hitches*r.NormFloat64()))
	}
	e.part = r.Float64()
	workload, err := curve.NewWorkload(curve.Minimise, runs...)
	e.before = workload
	return e, err
}

// parts is into how many stages the oracle divides the training, so that it may change its allocation.
const parts = 4

// oracle is the frontier of who knows all that will come, and changes the allocation of the training for nothing.
func (e *errand) oracle() (frontier.Frontier, error) {
	exact := e.model.epochs(e.given)
	known := job(e.stages, e.given, exact)
	for s := range e.stages {
		known.Stages[s] = nil
		for i, a := range e.given {
			known.Stages[s] = append(known.Stages[s], e.rung(s, a, exact[i]))
		}
	}
	units := 0.0
	for _, factor := range e.epochs {
		units += factor
	}
	for part := range parts {
		rest := frontier.Rest{Units: units / parts, Running: -1}
		for i, a := range e.given {
			choice := a.choice(exact[i])
			if part > 0 {
				choice.Start = 0
			}
			rest.Choices = append(rest.Choices, choice)
		}
		known.Stages = append(known.Stages, rest.Options())
	}
	return frontier.New(known)
}

// rung is what a rung comes to with an allocation.
func (e *errand) rung(s int, a allocation, epoch frontier.Estimate) frontier.Option {
	epoch.Seconds *= e.rungs[s]
	return e.stages[s].option(a, epoch)
}

// units is how many epochs the training still needs, as far as is known after some of them, at least one: the median,
// and the standard deviation of the logarithm.
func (e *errand) units(after int) (median, spread float64, err error) {
	if after > 0 {
		prediction, err := curve.Fit(e.losses[:after], curve.Options{Earlier: e.before})
		if err != nil {
			return 0, 0, err
		}
		steps := prediction.Reaches(levelLoss)
		// All trainings of this evaluator reach their level, and planners know: never is left out.
		reached := 1 - steps.Never()
		if reached > 0.1 {
			middle, late := steps.Quantile(reached/2), steps.Quantile(reached*0.9)
			median = math.Max(1, middle-float64(after))
			late = math.Max(median, late-float64(after))
			if !math.IsInf(late, 1) {
				return median, math.Log(late/median) / ninetieth, nil
			}
		}
	}
	return e.fromEarlier(after)
}

// ninetieth is the 90th percentile of the normal distribution.
const ninetieth = 1.2816

// fromEarlier is what earlier trainings say that have gone on for longer.
func (e *errand) fromEarlier(after int) (median, spread float64, err error) {
	mean, square, n := 0.0, 0.0, 0.0
	for _, log := range e.usual {
		if left := math.Exp(log) - float64(after); left >= 1 {
			mean += math.Log(left)
			square += math.Log(left) * math.Log(left)
			n++
		}
	}
	if n < 2 {
		return math.Max(1, float64(after)/10), 1, nil // it has gone on for longer than all
	}
	mean /= n
	return math.Exp(mean), math.Sqrt(math.Max(0, square/n-mean*mean)), nil
}
