package frontier

import (
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Goal is what is left of what a job was given. The zero value has neither time nor money left.
type Goal struct {
	// Seconds are those until the deadline; +Inf where there is none, and below 0 where it is past.
	Seconds float64
	// Cost is what is left of the budget; Unlimited where there is none.
	Cost quantity.Money
	// Confidence is the probability with which each is to be met, 0 to 1.
	Confidence float64
}

// Unlimited is the budget of who has set none.
const Unlimited quantity.Money = math.MaxInt64

// Plan is what a job does next, and why.
type Plan struct {
	// Point has the option of each stage that is left. Only that of the first is taken: with each stage, or epoch, that
	// ends more is known, and the rest is planned anew.
	Point
	// InTime and InBudget are the probabilities that the plan, if it stayed as it is, meets the deadline and the budget.
	InTime, InBudget float64
	// Meets says that both are at least what was asked. Otherwise no plan is as likely to meet the goal as asked, and this
	// is the one that is likeliest to.
	Meets bool
}

// Meet plans a job, or what is left of it: with a deadline the cheapest point that meets it, and the budget, with the
// probability asked; without one the fastest within the budget. Where there is none, it is the point that is
// likeliest to meet both, and of several that are as likely the cheapest. Not found where the frontier has no points.
//
// It is asked again whenever more is known: options whose times were measured have less spread, so that what a margin
// for the unknown cost is won back by the stages that follow (open-loop feedback control: Bertsekas, Dynamic
// Programming and Optimal Control, 4th edition, volume I, section 6.2).
func (f Frontier) Meet(goal Goal) (plan Plan, found bool) {
	cheapestFirst := !math.IsInf(goal.Seconds, 1)
	likeliest := -1.0
	for i := range f.ends {
		if cheapestFirst {
			i = len(f.ends) - 1 - i
		}
		p := f.At(i)
		next := Plan{Point: p, InTime: f.Within(p, goal.Seconds), InBudget: f.Affords(p, goal.Cost)}
		chance := min(next.InTime, next.InBudget)
		if next.Meets = chance >= goal.Confidence; next.Meets {
			return next, true
		}
		if chance > likeliest || chance == likeliest && !cheapestFirst {
			plan, likeliest = next, chance
		}
	}
	return plan, len(f.ends) > 0
}

// Stays is what a stage under way goes on with, and what another option has to bring.
type Stays struct {
	// Option is that of the first stage which runs now; -1 where none does, so that the best is taken.
	Option int
	// Gain is by which part of the cost, or of the time where there is no deadline, another has to be better; 0 is any,
	// after what the change itself costs, which its Option has to include (Rest.Options).
	Gain float64
}

// Replan plans what is left of a job whose first stage may be under way. It goes on as it runs where another option
// would bring less than a change has to, and makes the goal no likelier where no plan meets it as likely as asked:
// times that are measured anew every epoch would else have it go to and fro. Errors are those of New.
func Replan(job Job, goal Goal, now Stays) (Plan, error) {
	f, err := New(job)
	if err != nil {
		return Plan{}, err
	}
	plan, _ := f.Meet(goal)
	if len(job.Stages) == 0 || now.Option < 0 || plan.Options[0] == now.Option {
		return plan, nil
	}
	stages := job.Stages
	job.Stages = slices.Clone(stages)
	job.Stages[0] = stages[0][now.Option : now.Option+1]
	if f, err = New(job); err != nil {
		return Plan{}, err
	}
	stay, _ := f.Meet(goal)
	stay.Options[0] = now.Option
	enough := float64(stay.Cost) <= float64(plan.Cost)*(1+now.Gain)
	if math.IsInf(goal.Seconds, 1) {
		enough = stay.Seconds <= plan.Seconds*(1+now.Gain)
	}
	asLikely := stay.Meets || !plan.Meets && min(stay.InTime, stay.InBudget) >= min(plan.InTime, plan.InBudget)
	if enough && asLikely {
		return stay, nil
	}
	return plan, nil
}
