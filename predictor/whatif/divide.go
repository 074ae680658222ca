package whatif

import (
	"math"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/frontier"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Division is how what is left of a goal is divided over the stages of a run that are left.
type Division struct {
	// InTime and InBudget are the probabilities with which the plan that it is of meets the deadline and the budget; 1
	// where there is none. Meets says that both are as asked: otherwise no plan that is known is, and this one comes
	// nearest.
	InTime, InBudget float64
	Meets            bool
	Parts            []Part
}

// Part is what one stage has of it.
type Part struct {
	// Given is what the plan gives it.
	Given
	// After is for how many seconds the run goes on once the stage is done.
	After frontier.Sum
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
	stays := frontier.Stays{Option: r.stays(now), Gain: divisionGain}
	p, err := frontier.Replan(whole, job.left(), stays)
	if err != nil {
		return Division{}, false
	}
	d = Division{InTime: p.InTime, InBudget: p.InBudget, Meets: p.Meets}
	least := f.At(f.Len() - 1)
	for i, stages := range r.beside {
		if stages == nil {
			continue
		}
		given := r.steps[i].ways[p.Options[i]].given
		later := max(f.Costs(p.Point, i).Beyond(0), f.Costs(least, i).Quantile(job.Goal.Asked()))
		reserved := quantity.Money(math.Min(later, float64(fact.MaxCost)))
		for _, g := range given {
			reserved = reserved.Plus(g.pool)
		}
		for _, g := range given {
			d.Parts = append(d.Parts, Part{Given: g, After: f.After(p.Point, i), Reserved: reserved})
		}
	}
	return d, true
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
