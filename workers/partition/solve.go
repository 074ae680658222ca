package partition

import (
	"errors"
	"slices"
)

// Solve returns the best plan it finds: for [Throughput] the best contiguous one, then moves and swaps unless
// Contiguous is set; for [Step] the best pipeline; for [Latency] the best of several list schedules, then moves. With
// an IdleWeight it picks from [Front]. A problem without any plan is an error that wraps ErrUnfit and names the
// shortage; [Explain] tells what would help.
func Solve(p Problem) (Plan, error) {
	if p.IdleWeight > 0 {
		front, err := Front(p)
		if err != nil {
			return Plan{}, err
		}
		return Pick(p, front), nil
	}
	plan, err := solve(p)
	plan.conclude()
	return plan, err
}

// solve looks for the least time.
func solve(p Problem) (Plan, error) {
	in, err := newInstance(p)
	if err != nil {
		return Plan{}, err
	}
	return in.solve()
}

func (in *instance) solve() (Plan, error) {
	switch in.p.Objective {
	case Latency:
		return in.latency()
	case Step:
		return in.pipeline()
	default:
		if in.p.Contiguous {
			return in.contiguous()
		}
		return in.throughput()
	}
}

// widenShare is the part of the budget left after the first moves that goes into better stages to move from.
const widenShare = 0.5

// throughput places a graph for [Throughput], stages being contiguous or not.
func (in *instance) throughput() (Plan, error) {
	found, err := in.stages()
	if errors.Is(err, ErrUnfit) {
		// Stages may be too large where their parts are not.
		place, ok := in.loose.list(nil)
		if !ok {
			return Plan{}, err
		}
		plan, err := in.loose.plan(place, "earliest task first")
		if err != nil {
			return plan, err
		}
		return in.loose.refined(plan, place)
	}
	if err != nil {
		return Plan{}, err
	}
	plan, err := in.planStages(found)
	if err != nil {
		return plan, err
	}
	place := in.loosely(found.place)
	r := in.loose.newRefinement(place)
	r.standard(place)
	if !found.exact && in.p.Moves >= 0 && found.widen(in, widenShare) {
		if plan, err = in.planStages(found); err != nil {
			return plan, err
		}
		place = in.loosely(found.place)
		if most := slices.Max(in.loose.loads(place)); most < r.most*(1-1e-9) {
			r.best, r.most = slices.Clone(place), most
		}
		r.standard(place)
	}
	r.further(place)
	return r.plan(plan)
}
