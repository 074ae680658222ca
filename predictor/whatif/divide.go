package whatif

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Division is how what is left of a goal is divided over the stages of a run that are left.
type Division struct {
	// InTime and InBudget are the probabilities with which the plan that it is of meets the deadline and the budget; 1
	// where there is none. Where one is less than was asked, no plan that is known has both, and this one comes nearest.
	InTime, InBudget float64
	Parts            []Part
}

// Part is what one stage has of it.
type Part struct {
	// Given is what the plan gives it.
	Given
	// After is for how many seconds the run goes on by the plan once the stage is done, in the middle of cases but for the
	// margin that the last stage holds.
	After float64
	// Hastened is for how many it does where the stages after it are as fast as they can be within the budget.
	Hastened float64
	// Rest is for how many seconds it goes on then, and Costs what the stages that follow cost, in US dollars, four times
	// in five.
	Rest, Costs fact.Interval
	// Reserved is what its functions must leave of the budget: the price of the pool that it takes itself, as stages
	// beside it do, and what those after it cost by the plan, or, where that is more, what they cost at least with the
	// probability that is asked for.
	Reserved quantity.Money
}

// How finely a division is computed. It is made anew every few seconds, and decides of a stage how much is left to it
// and not what it gets, so that what is lost by fewer points is less than what the next attempt tells anew.
const (
	dividedPoints = 256
	dividedTasks  = 64
)

// divisionGain is by which part of the cost, or of the time where only a budget is given, another plan must be better
// for a stage under way to have another part: times that are measured anew would else have it go to and fro.
const divisionGain = 0.05

// Divide plans what is left of a run for its goal and says what that leaves each stage. Stages have all that the pool
// has for them, and what is planned is how many functions they have besides: of their Rooms and Classes only the first
// count. now is what stages under way were given by the division before, by name. Not known where the job is not, or
// asks for nothing.
//
// With a deadline it is the cheapest plan that meets it and the budget with the probability that is asked, with only a
// budget, or where the run minimises latency within one, the fastest within it; one that minimises cost has the
// cheapest (frontier.Replan).
func Divide(job Job, now map[string]Given) (d Division, known bool) {
	if job.Missing != "" || job.Goal.Deadline <= 0 && job.Goal.Budget <= 0 {
		return Division{}, false
	}
	job.Stages = job.spilling()
	r := job.read()
	whole := frontier.Job{Stages: r.options, Most: dividedPoints}
	f, err := frontier.New(whole)
	if err != nil {
		return Division{}, false
	}
	goal := job.left()
	fastest, affords := f.Fastest(goal.Cost)
	if !affords {
		fastest = f.At(f.Len() - 1)
	}
	kept, inTime := r.correctable(f, fastest, goal)
	sure := certain(r.options)
	whole.Stages = slices.Clone(sure)
	whole.Stages[0] = pick(sure[0], kept)
	stays := frontier.Stays{Option: slices.Index(kept, r.stays(now)), Gain: divisionGain}
	p, err := frontier.Replan(whole, goal, stays)
	if err != nil {
		return Division{}, false
	}
	p.Options[0] = kept[p.Options[0]]
	d = Division{InTime: inTime[p.Options[0]], InBudget: f.Affords(p.Point, goal.Cost)}
	least := f.At(f.Len() - 1)
	for i, stages := range r.beside {
		if stages == nil {
			continue
		}
		given := r.steps[i].ways[p.Options[i]].given
		later := max(p.Costs(r.options, i).Quantile(0.5), least.Costs(r.options, i).Quantile(goal.Confidence))
		reserved := quantity.Money(math.Min(later, float64(fact.MaxCost)))
		for _, g := range given {
			reserved = min(reserved.Plus(g.pool), fact.MaxCost)
		}
		for _, g := range given {
			d.Parts = append(d.Parts, Part{
				Given: g, After: p.After(sure, i).Quantile(goal.Confidence), Reserved: reserved,
				Hastened: fastest.After(r.options, i).Quantile(0.5),
				Rest:     interval(p.After(r.options, i), 1),
				Costs:    interval(p.Costs(r.options, i), 1/float64(quantity.USD)),
			})
		}
	}
	return d, true
}

// interval is where a sum lies four times in five, times a factor.
func interval(sum frontier.Sum, factor float64) fact.Interval {
	return fact.Interval{
		Low: factor * sum.Quantile(0.1), Mid: factor * sum.Quantile(0.5), High: factor * sum.Quantile(0.9),
	}
}

// correctable are the options of the first stage after which the goal can still be met with the probability asked,
// where all that follow are hastened as far as they can be; those that are the likeliest where there is none. inTime is
// that probability of all of them; a plan that is to be the fastest is asked for none, and says it all the same.
func (r *reading) correctable(f frontier.Frontier, fastest frontier.Point, goal frontier.Goal) (
	kept []int, inTime []float64,
) {
	inTime = make([]float64, len(r.options[0]))
	due, most := math.Inf(1), 0.0
	if r.job.Goal.Deadline > 0 {
		due = r.job.Goal.Deadline.Seconds() - r.job.Elapsed
	}
	for i, option := range r.options[0] {
		p := fastest
		p.Options = slices.Clone(fastest.Options)
		p.Options[0] = i
		p.Seconds += option.Seconds - r.options[0][fastest.Options[0]].Seconds
		inTime[i] = f.Within(p, due)
		most = max(most, inTime[i])
	}
	for i, probability := range inTime {
		if probability >= min(goal.Confidence, most) || goal.Seconds > due {
			kept = append(kept, i)
		}
	}
	return kept, inTime
}

// certain are options whose times are certain, but for the last: what an earlier stage takes longer than in the middle
// of cases, those after it can make up for. The margin that each of them held for itself would be bought and seldom
// needed.
func certain(stages [][]frontier.Option) [][]frontier.Option {
	last := len(stages) - 1
	for last > 0 && len(stages[last]) == 1 && stages[last][0].Spread == 0 {
		last--
	}
	sure := slices.Clone(stages)
	for i := range sure[:last] {
		sure[i] = slices.Clone(sure[i])
		for k := range sure[i] {
			sure[i][k].Spread, sure[i][k].Doubt = 0, 0
		}
	}
	return sure
}

func pick(options []frontier.Option, kept []int) (some []frontier.Option) {
	for _, i := range kept {
		some = append(some, options[i])
	}
	return some
}

// left is what is left of the goal, for a plan.
func (job Job) left() frontier.Goal {
	goal := frontier.Goal{Seconds: math.Inf(1), Cost: frontier.Unlimited, Confidence: job.Goal.Asked()}
	if job.Goal.Budget > 0 {
		goal.Cost = max(0, job.Goal.Budget-job.Spent)
	}
	switch fast := job.Goal.Minimise == fact.Latency && job.Goal.Budget > 0; {
	case job.Goal.Deadline > 0 && !fast:
		goal.Seconds = job.Goal.Deadline.Seconds() - job.Elapsed
	case job.Goal.Minimise == fact.Cost:
		goal.Seconds = math.MaxFloat64
	}
	return goal
}

// spilling are the stages as a division has them. Where nothing says what one gets, it has the pool.
func (job Job) spilling() []Stage {
	stages := make([]Stage, len(job.Stages))
	for i, s := range job.Stages {
		s.spills, s.single = true, dividedTasks
		s.Rooms, s.Classes = s.Rooms[:min(1, len(s.Rooms))], s.Classes[:min(1, len(s.Classes))]
		if s.Present == (Given{}) && len(s.Rooms) > 0 {
			s.Present = Given{Slots: min(s.Rooms[0].Slots, s.waiting()), Size: s.Rooms[0].Size}
		}
		stages[i] = s
	}
	return stages
}

// stays is the way of the first stages that is the nearest to what they were given before; -1 where they were given
// nothing.
func (r *reading) stays(now map[string]Given) (nearest int) {
	nearest = -1
	first := 0
	for first < len(r.beside) && r.beside[first] == nil {
		first++
	}
	if first > 0 || len(r.beside) == 0 { // a plan is for what goes on now
		return nearest
	}
	apart := math.Inf(1)
	for i, way := range r.steps[0].ways {
		sum := 0.0
		for _, g := range way.given {
			before, known := now[g.Stage]
			if !known {
				return -1
			}
			if before.Functions > 0 && g.Functions > 0 && before.Class != g.Class {
				sum = math.Inf(1)
			}
			sum += math.Abs(float64(before.Functions - g.Functions))
		}
		if sum < apart {
			nearest, apart = i, sum
		}
	}
	return nearest
}
