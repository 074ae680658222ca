package partition

import "errors"

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
	return solve(p)
}

// solve looks for the least time.
func solve(p Problem) (Plan, error) {
	in, err := newInstance(p)
	if err != nil {
		return Plan{}, err
	}
	switch p.Objective {
	case Latency:
		return in.latency()
	case Step:
		return in.pipeline()
	default:
		plan, err := in.contiguous()
		if p.Contiguous {
			return plan, err
		}
		if errors.Is(err, ErrUnfit) {
			// Stages may be too large where their parts are not.
			place, ok := in.loose.list(nil)
			if !ok {
				return plan, err
			}
			plan, err = in.loose.plan(place, "earliest task first")
		}
		if err != nil {
			return plan, err
		}
		place, err := in.loose.placeOf(plan.Assignment)
		if err != nil {
			return Plan{}, err
		}
		return in.loose.refined(plan, place)
	}
}
