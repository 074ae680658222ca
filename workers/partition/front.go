package partition

import (
	"errors"
	"math"
	"slices"
	"time"
)

// mostSubsets bounds how many sets of devices Front solves for.
const mostSubsets = 64

// fewerBudget divides, at least, the budget of sets that are not all devices: plans for them are the choice of few.
const fewerBudget = 4

// Front returns the plans that no other plan found beats in both time and idle memory, fastest first. It solves for
// sets of devices: with all of them given, idle memory is what the graph does not need and the same for every plan, so
// which devices are used is what it turns on. Kinds of devices are used in any number where that is at most 64 sets, in
// the order of the problem otherwise. The set of all devices has the Budget; the others have as much together, and a
// quarter of it each at most. Without any plan the error wraps ErrUnfit.
func Front(p Problem) ([]Plan, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	p.IdleWeight = 0
	in, err := newInstance(p)
	if err != nil {
		return nil, err
	}
	var plans []Plan
	sets := in.subsets()
	for i, devices := range sets {
		some := p
		some.Budget = p.budgetOf(i, len(sets))
		plan, err := solveOn(some, devices)
		switch {
		case errors.Is(err, ErrUnfit), errors.Is(err, ErrProblem): // too few devices, or none of a class that is needed
			continue
		case err != nil:
			return nil, err
		}
		plans = append(plans, plan)
	}
	if len(plans) == 0 {
		return nil, in.unfit()
	}
	// Bounds for fewer devices do not hold for all of them.
	least := plans[0].LowerBound
	for _, plan := range plans {
		least = min(least, plan.LowerBound)
	}
	for i := range plans {
		plans[i].LowerBound = least
		plans[i].conclude()
	}
	return undominated(plans), nil
}

// budgetOf is the budget of the i-th of so many sets; never 0, which is the usual one.
func (p Problem) budgetOf(i, sets int) time.Duration {
	if i == sets-1 {
		return p.budget()
	}
	return max(1, p.budget()/time.Duration(max(fewerBudget, sets-1)))
}

// Pick returns the plan of least Loss, of equals the fastest.
func Pick(p Problem, front []Plan) Plan {
	best := front[0]
	for _, plan := range front[1:] {
		if plan.Loss(p) < best.Loss(p) {
			best = plan
		}
	}
	return best
}

// undominated returns the plans that are on the front, fastest first.
func undominated(plans []Plan) []Plan {
	slices.SortStableFunc(plans, func(a, b Plan) int {
		if a.StepTime != b.StepTime {
			return compare(float64(a.StepTime), float64(b.StepTime))
		}
		return compare(float64(a.Idle), float64(b.Idle))
	})
	var front []Plan
	least := math.Inf(1)
	for _, plan := range plans {
		if float64(plan.Idle) < least {
			front = append(front, plan)
			least = float64(plan.Idle)
		}
	}
	return front
}

// subsets returns sets of devices, as ascending indices; the last one is all of them.
func (in *instance) subsets() [][]int {
	if in.states() > mostSubsets+1 {
		order := in.fillOrder()
		sets := make([][]int, len(order))
		for n := range order {
			sets[n] = slices.Sorted(slices.Values(order[:n+1]))
		}
		return sets
	}
	sets := [][]int{nil}
	for _, k := range in.kinds {
		var wider [][]int
		for _, set := range sets {
			for n := range len(k.devices) + 1 {
				wider = append(wider, slices.Concat(set, k.devices[:n]))
			}
		}
		sets = wider
	}
	sets = sets[1:] // without the empty one
	for _, set := range sets {
		slices.Sort(set)
	}
	return sets
}

// solveOn solves for some of the devices, and tells the plan in terms of all.
func solveOn(p Problem, devices []int) (Plan, error) {
	some := p
	some.Devices = make([]Device, len(devices))
	for i, d := range devices {
		some.Devices[i] = p.Devices[d]
	}
	plan, err := solve(some)
	if err != nil {
		return Plan{}, err
	}
	for op, d := range plan.Assignment {
		plan.Assignment[op] = devices[d]
	}
	shares := make([]Share, len(p.Devices))
	for d, share := range plan.PerDevice {
		shares[devices[d]] = share
	}
	plan.PerDevice = shares
	for _, stage := range plan.Stages {
		for i, d := range stage.Devices {
			stage.Devices[i] = devices[d]
		}
	}
	return plan, nil
}
