package partition

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/graph"
)

// Feasibility says whether a problem has a plan, and what would give it one.
type Feasibility struct {
	// Fits says that it has one; the rest is zero then.
	Fits bool
	// Device is the ID of the device that is short of memory, in the plan that is short of the least. Empty where more
	// memory alone does not help.
	Device string
	// Short is by how much.
	Short quantity.Bytes
	// Remedies are single changes that give the problem a plan, each checked by solving it; nil when none of them does.
	Remedies []Remedy
}

// Remedy is a change to a problem and the plan that it makes possible.
type Remedy struct {
	// Change says what to do: "2 more devices like gpu-3".
	Change string
	// Problem is the changed problem.
	Problem Problem
	// Plan solves it.
	Plan Plan
}

// explainBudget divides the budget of each of the many problems that Explain solves.
const explainBudget = 8

// Explain tells why a problem has no plan and what would help: more devices, recomputation, smaller micro-batches, a
// stage of ZeRO, or the optimizer's state in the memory of the host. The last four help training with the objective
// [Step] only.
func Explain(p Problem) (Feasibility, error) {
	if err := p.Validate(); err != nil {
		return Feasibility{}, err
	}
	p.IdleWeight = 0
	p.Moves = -1 // the search moves blocks between devices to save time, not to save memory
	p.Budget = p.budget() / explainBudget
	_, err := solve(p)
	switch {
	case err == nil:
		return Feasibility{Fits: true}, nil
	case !errors.Is(err, ErrUnfit):
		return Feasibility{}, err
	}
	var v Feasibility
	v.Device, v.Short = shortage(p)
	for _, tries := range remedies(p) {
		for _, try := range tries {
			plan, err := solve(try.Problem)
			if err == nil {
				try.Plan = plan
				v.Remedies = append(v.Remedies, try)
				break
			}
			if !errors.Is(err, ErrUnfit) && !errors.Is(err, ErrProblem) {
				return Feasibility{}, err
			}
		}
	}
	return v, nil
}

// shortage looks for the least memory that every device would need besides, and returns the device that then needs most
// beyond what it has.
func shortage(p Problem) (device string, short quantity.Bytes) {
	widened := func(extra quantity.Bytes) (Plan, error) {
		wide := p
		wide.Devices = slices.Clone(p.Devices)
		for i := range wide.Devices {
			if wide.Devices[i].Memory > 0 {
				wide.Devices[i].Memory += extra
			}
		}
		return solve(wide)
	}
	low, high := quantity.Bytes(0), quantity.MiB
	plan, err := widened(high)
	for ; err != nil; plan, err = widened(high) {
		if !errors.Is(err, ErrUnfit) || high > graph.MostBytes {
			return "", 0
		}
		low, high = high, high*4
	}
	for range 10 { // to a thousandth of the bracket
		middle := low + (high-low)/2
		if better, err := widened(middle); err == nil {
			high, plan = middle, better
		} else {
			low = middle
		}
	}
	for d, share := range plan.PerDevice {
		if over := share.Memory - p.Devices[d].Memory; p.Devices[d].Memory > 0 && over > short {
			device, short = p.Devices[d].ID, over
		}
	}
	return device, short
}

// remedies lists changes, each with the mildest form first.
func remedies(p Problem) [][]Remedy {
	all := [][]Remedy{moreDevices(p)}
	if p.Objective != Step {
		return all
	}
	with := func(change string, edit func(*Problem)) []Remedy {
		changed := p
		edit(&changed)
		return []Remedy{{Change: change, Problem: changed}}
	}
	if !p.Memory.Recompute {
		all = append(all, with("compute activations again before the backward pass", func(p *Problem) {
			p.Memory.Recompute = true
		}))
	}
	var finer, zero []Remedy
	now := max(p.MicroBatches, 1)
	if p.MicroBatches == 0 {
		now = max(p.MostMicroBatches, defaultMicro)
	}
	for factor := 2; factor <= 64; factor *= 2 {
		finer = append(finer, with(strconv.Itoa(now*factor)+" micro-batches", func(p *Problem) {
			p.MicroBatches = now * factor
		})...)
	}
	for stage := p.Memory.ZeRO + 1; stage <= 3; stage++ {
		zero = append(zero, with("ZeRO stage "+strconv.Itoa(stage), func(p *Problem) { p.Memory.ZeRO = stage })...)
	}
	all = append(all, finer, zero)
	if !p.Memory.Offload {
		all = append(all, with("keep the optimizer's state in the memory of the host", func(p *Problem) {
			p.Memory.Offload = true
		}))
	}
	return all
}

// moreDevices adds copies of the device with the most memory among those of no host.
func moreDevices(p Problem) []Remedy {
	like := slices.MaxFunc(p.Devices, func(a, b Device) int {
		if a.Host != b.Host {
			if a.Host {
				return -1
			}
			return 1
		}
		return compare(float64(a.Memory), float64(b.Memory))
	})
	var tries []Remedy
	for more := 1; more <= max(8, len(p.Devices)); more *= 2 {
		changed := p
		changed.Devices = slices.Clone(p.Devices)
		for i := range more {
			extra := like
			extra.ID = fmt.Sprintf("%s, copy %d", like.ID, i+1)
			changed.Devices = append(changed.Devices, extra)
		}
		change := strconv.Itoa(more) + " more devices like " + like.ID
		if more == 1 {
			change = "1 more device like " + like.ID
		}
		tries = append(tries, Remedy{Change: change, Problem: changed})
	}
	return tries
}

// unfit is the error of a problem without a plan: what is short at the least.
func (in *instance) unfit() error {
	total, room := 0.0, 0.0
	for b, need := range in.memory {
		total += need
		most := 0.0
		for k, kind := range in.kinds {
			if in.runs(b, in.kinds[k].devices[0]) {
				most = max(most, kind.room)
			}
		}
		if need > most && in.p.Objective != Step {
			return fmt.Errorf("operation %q with what must be beside it needs %v and the largest device that runs it "+
				"has %v: it %w",
				in.p.Graph.Ops[in.blocks[b][0]].ID, quantity.Bytes(need), quantity.Bytes(most), ErrUnfit)
		}
	}
	for _, d := range in.p.Devices {
		room += d.room()
	}
	if total > room {
		return fmt.Errorf("the graph needs %v and %d devices have %v: it %w", quantity.Bytes(total), len(in.p.Devices),
			quantity.Bytes(room), ErrUnfit)
	}
	text := "more than 9 EiB"
	if !math.IsInf(room, 1) {
		text = quantity.Bytes(room).String()
	}
	return fmt.Errorf("the graph needs %v and %d devices have %s, but no way was found to divide it: it %w",
		quantity.Bytes(total), len(in.p.Devices), text, ErrUnfit)
}
