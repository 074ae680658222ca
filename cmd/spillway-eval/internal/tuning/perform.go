package tuning

import (
	"context"
	"math"

	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// doing is a job under way.
type doing struct {
	*errand
	goal frontier.Goal // as it was given

	known     []frontier.Profile
	estimates []frontier.Estimate
	out       Outcome
}

// perform does the job as far as its money goes: before each rung, and each epoch, it is planned by what is known then.
// Met says that it came to its end.
func (e *errand) perform(ctx context.Context, goal frontier.Goal) (Outcome, error) {
	d := doing{errand: e, goal: goal, known: e.profiles}
	if err := d.learn(); err != nil {
		return Outcome{}, err
	}
	for s := range d.stages {
		if err := ctx.Err(); err != nil {
			return Outcome{}, err
		}
		i, err := d.plan(s, 0, -1)
		if err != nil {
			return Outcome{}, err
		}
		exact := frontier.Estimate{Seconds: d.model.epochSeconds(d.given[i])}
		told := d.stages[s].option(d.given[i], d.estimates[i])
		told.Spread = hitches
		if came := d.rung(s, d.given[i], exact); !d.take(told, came) {
			return d.out, nil
		}
		d.measured(i, exact.Seconds*d.rungs[s])
		if err := d.learn(); err != nil {
			return Outcome{}, err
		}
	}
	return d.out, d.train(ctx)
}

// train is the training after the rungs. A change takes place behind an epoch.
func (d *doing) train(ctx context.Context) error {
	running, next := -1, -1
	for epoch, factor := range d.epochs {
		if err := ctx.Err(); err != nil {
			return err
		}
		start := 0.0
		switch {
		case next >= 0: // what was started behind the last epoch
			if running != next {
				running = next
				// What is known of the one that ran until now tells of its neighbours too.
				if err := d.learn(); err != nil {
					return err
				}
			}
			next = -1
		default:
			i, err := d.plan(len(d.stages), epoch, running)
			switch {
			case err != nil:
				return err
			case running < 0:
				running, start = i, startSeconds
			case i != running:
				next = i
				d.out.Changes++
			}
		}
		if !d.epoch(running, next, start, factor) {
			return nil
		}
	}
	d.out.Met = true
	return nil
}

// epoch is one epoch with an allocation, beside which the next one starts where there is one; not done where its money
// ended.
func (d *doing) epoch(running, next int, start, factor float64) (done bool) {
	a := d.given[running]
	took := d.model.epochSeconds(a) * factor
	choice := a.choice(frontier.Estimate{Seconds: took})
	told := a.choice(d.estimates[running])
	begun := quantity.Money(0)
	if next >= 0 {
		begun = d.given[next].price().Times(float64(d.given[next].workers) * startSeconds)
		took = math.Max(took, startSeconds)
	}
	one := func(c frontier.Choice) frontier.Option {
		c.Start = start
		o := frontier.Rest{Units: 1, Spread: hitches, Running: -1, Choices: []frontier.Choice{c}}.Options()[0]
		o.Cost = o.Cost.Plus(begun)
		return o
	}
	came := one(choice)
	came.Seconds = start + took
	if !d.take(one(told), came) {
		return false
	}
	d.measured(running, choice.Seconds)
	d.estimates[running] = both(d.estimates[running], frontier.Estimate{Seconds: choice.Seconds, Spread: hitches})
	return true
}

// take spends what a part of the job came to. Before it begins, as much is reserved as it comes to in 999 of 1,000
// cases, and as much again when that is spent, as long as there is that much: where there is nothing left it is
// stopped, and the job is over.
func (d *doing) take(told, came frontier.Option) (done bool) {
	left := d.goal.Cost - d.out.Cost
	if d.goal.Cost == frontier.Unlimited || came.Cost <= left {
		d.reserve(told, came.Cost)
		d.out.Seconds += came.Seconds
		d.out.Cost = d.out.Cost.Plus(came.Cost)
		return true
	}
	d.reserve(told, left)
	d.out.Seconds += came.Seconds * float64(left) / float64(came.Cost)
	d.out.Cost = d.goal.Cost
	return false
}

// reserve tells the most that is spent and reserved while so much is spent.
func (d *doing) reserve(told frontier.Option, spends quantity.Money) {
	if d.goal.Cost == frontier.Unlimited {
		return
	}
	const sure = 3.1 // standard deviations, for 999 of 1,000
	once := max(1, told.Cost.Times(math.Exp(sure*math.Hypot(told.Spread, told.Doubt))))
	reserved := min(d.goal.Cost-d.out.Cost, (spends+once-1)/once*once)
	d.out.Most = math.Max(d.out.Most, float64(d.out.Cost.Plus(reserved))/float64(d.goal.Cost))
}

// plan is the allocation of what comes next: the rung s, or the training after so many epochs.
func (d *doing) plan(s, epochs, running int) (next int, err error) {
	what := job(d.stages[min(s, len(d.stages)):], d.given, d.estimates)
	for _, options := range what.Stages {
		for i := range options {
			options[i].Spread = hitches
		}
	}
	units, spread, err := d.units(epochs)
	if err != nil {
		return 0, err
	}
	rest := frontier.Rest{Units: units, Spread: math.Hypot(spread, hitches/math.Sqrt(units)), Running: running}
	for i, a := range d.given {
		rest.Choices = append(rest.Choices, a.choice(d.estimates[i]))
	}
	what.Stages = append(what.Stages, rest.Options())
	left := d.goal
	left.Seconds -= d.out.Seconds
	if left.Cost != frontier.Unlimited {
		left.Cost -= d.out.Cost
	}
	plan, err := frontier.Replan(what, left, frontier.Stays{Option: running, Gain: worthChanging})
	if err != nil {
		return 0, err
	}
	if s == 0 {
		d.out.Promised = plan.Meets
	}
	return plan.Options[0], nil
}

// worthChanging is what a change of a training's allocation has to bring.
const worthChanging = 0.02

// measured is that an epoch took so long with an allocation, but for hitches.
func (d *doing) measured(i int, seconds float64) {
	p := &d.known[i]
	now := both(
		frontier.Estimate{Seconds: p.Seconds, Spread: p.Spread}, frontier.Estimate{Seconds: seconds, Spread: hitches},
	)
	p.Seconds, p.Spread = now.Seconds, now.Spread
}

// learn estimates all allocations by what is known of them.
func (d *doing) learn() (err error) {
	d.estimates, err = frontier.Smooth(d.known)
	return err
}

// both is what two independent estimates say together, weighted by their precision.
func both(a, b frontier.Estimate) frontier.Estimate {
	if a.Spread == 0 {
		return a
	}
	x, y := 1/(a.Spread*a.Spread), 1/(b.Spread*b.Spread)
	return frontier.Estimate{
		Seconds: math.Exp((x*math.Log(a.Seconds) + y*math.Log(b.Seconds)) / (x + y)), Spread: 1 / math.Sqrt(x+y),
	}
}
