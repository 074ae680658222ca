package partition

import (
	"math"
	"math/rand/v2"
	"slices"
)

// refined returns the better of a plan for [Throughput] and what a local search makes of its placement, moving blocks
// between devices and swapping them, stages being contiguous or not. The search is simulated annealing (S. Kirkpatrick
// et al., Optimization by Simulated Annealing, Science 220, 1983, https://doi.org/10.1126/science.220.4598.671) on the
// logarithm of the 16-norm of the loads: the maximum alone has large plateaus, on which a change of the second busiest
// device is invisible.
func (in *instance) refined(before Plan, place []int) (Plan, error) {
	r := in.newRefinement(place)
	r.standard(place)
	r.further(place)
	return r.plan(before)
}

// refinement is the best placement that several rounds of annealing have seen.
type refinement struct {
	*instance
	anneal *anneal
	moves  int // of a round; 0 where there is nothing to move
	best   []int
	most   float64
}

// newRefinement begins with a placement.
func (in *instance) newRefinement(place []int) *refinement {
	moves := in.p.Moves
	if moves == 0 {
		moves = defaultMoves
	}
	if moves < 0 || len(in.p.Devices) < 2 || len(in.blocks) < 2 {
		moves = 0
	}
	r := &refinement{
		instance: in, anneal: newAnneal(in, place), moves: moves / standardRounds, best: slices.Clone(place),
	}
	r.most = r.anneal.most()
	return r
}

// standardRounds is how many rounds every placement is given, and idleRounds after how many more the search ends that
// found nothing better.
const standardRounds, idleRounds = 5, 8

// standard anneals from a placement.
func (r *refinement) standard(place []int) {
	// The first rounds start anew: one in five ends in a bad valley. The later ones start from the best so far, cooler,
	// and polish it.
	for _, round := range [standardRounds]struct {
		heat float64
		anew bool
	}{{0.1, true}, {0.1, true}, {0.05, true}, {0.02, false}, {0.005, false}} {
		from := r.best
		if round.anew {
			from = place
		}
		r.round(from, round.heat)
	}
}

// further goes on from a placement and from the best one in turn, until the budget is spent, nothing better is found
// for long, or nothing better can be. It does nothing where the number of moves was given.
func (r *refinement) further(place []int) {
	if r.p.Moves != 0 {
		return
	}
	least := r.bound() * (1 + 1e-9)
	for at, idle := 0, 0; idle < idleRounds && !r.effort.spent() && r.most > least; at++ {
		idle++
		from, heat := r.best, [...]float64{0.03, 0.1, 0.01}[at%3]
		if at%3 == 1 {
			from = place
		}
		if r.round(from, heat) {
			idle = 0
		}
	}
}

// round anneals once and reports whether that found something better.
func (r *refinement) round(from []int, heat float64) (improved bool) {
	moves := min(float64(r.moves), r.effort.left/r.anneal.each)
	if moves < 1 {
		return false
	}
	r.anneal.restore(from)
	most, place := r.anneal.round(int(moves), heat, r.most)
	r.effort.spend(r.anneal.steps)
	if most >= r.most*(1-1e-12) {
		return false
	}
	r.best, r.most = place, most
	return true
}

// plan returns the better of a plan and of what was found.
func (r *refinement) plan(before Plan) (Plan, error) {
	if r.most >= float64(before.StepTime)*(1-1e-9) {
		return before, nil
	}
	plan, err := r.instance.plan(r.best, before.Reason+", then moves and swaps")
	if err != nil {
		return Plan{}, err
	}
	plan.LowerBound = before.LowerBound
	plan.Stages = r.stagesOf(r.best)
	return plan, nil
}

// anneal is a placement with all that a change of it touches.
type anneal struct {
	*instance
	random  *rand.Rand
	place   []int
	loads   []float64
	held    []float64
	readers []int32 // of tensor t on device d, at t*devices+d
	devices int
	each    float64 // steps that a move of a block takes in the mean
	steps   float64 // that the last round took, in the units of a budget
}

// What it takes to draw a move; to add the loads of all devices up, for each; and to take a tensor out of the loads or
// put it in, by itself, for each device, and for each device to which it is sent.
const moveSteps, loadSteps, carrySteps, carryDeviceSteps, sendSteps = 40, 3, 8, 1, 10

func newAnneal(in *instance, place []int) *anneal {
	a := &anneal{
		instance: in, random: rand.New(rand.NewPCG(in.p.Seed, uint64(len(in.blocks)))),
		devices: len(in.p.Devices),
	}
	carried := 0
	for b := range in.blocks {
		carried += len(in.from[b]) + len(in.into[b])
	}
	devices := float64(a.devices)
	// A block's tensors are taken out and put in, and most moves are taken back.
	a.each = moveSteps + 2*loadSteps*devices +
		4*float64(carried)/float64(len(in.blocks))*(carrySteps+carryDeviceSteps*devices)
	a.restore(place)
	return a
}

// restore starts from a placement anew, which also removes what rounding has added to the loads.
func (a *anneal) restore(place []int) {
	a.place = slices.Clone(place)
	a.loads = a.instance.loads(place)
	a.held = make([]float64, a.devices)
	a.readers = make([]int32, len(a.tensors)*a.devices)
	for b, d := range place {
		a.held[d] += a.memory[b]
	}
	for t, made := range a.tensors {
		for _, reader := range made.readers {
			a.readers[t*a.devices+place[reader]]++
		}
	}
}

func (a *anneal) most() float64 { return slices.Max(a.loads) }

// energy is the logarithm of the 16-norm of the loads.
func (a *anneal) energy() float64 {
	base := a.most()
	if base <= 0 {
		return -math.MaxFloat64
	}
	sum := 0.0
	for _, load := range a.loads {
		x := load / base
		x *= x
		x *= x
		x *= x
		sum += x * x
	}
	return math.Log(base) + math.Log(sum)/16
}

// round tries moves from the present placement while it cools from heat to a hundredth of it, and returns the best
// placement it passed.
func (a *anneal) round(moves int, heat, best float64) (most float64, place []int) {
	most = best
	place = slices.Clone(a.place)
	energy := a.energy()
	cool := math.Pow(0.01, 1/float64(max(moves, 1)))
	a.steps = 0
	for range moves {
		if a.steps > a.effort.left {
			break
		}
		a.steps += moveSteps
		heat *= cool
		b := a.random.IntN(len(a.blocks))
		from, to := a.place[b], a.target(b)
		if to == from || !a.runs(b, to) {
			continue
		}
		swap := -1
		if a.random.IntN(4) == 0 {
			if c := a.random.IntN(len(a.blocks)); a.place[c] == to && a.runs(c, from) {
				swap = c
			}
		}
		a.move(b, to)
		if swap >= 0 {
			a.move(swap, from)
		}
		a.steps += 2 * loadSteps * float64(a.devices)
		after := a.energy()
		if a.fits(from) && a.fits(to) && (after <= energy || a.random.Float64() < math.Exp((energy-after)/heat)) {
			energy = after
			if now := a.most(); now < most*(1-1e-12) {
				most = now
				copy(place, a.place)
			}
			continue
		}
		if swap >= 0 {
			a.move(swap, to)
		}
		a.move(b, from)
	}
	return most, place
}

// target is where a block may go: usually to a device that has a neighbour of it, else anywhere.
func (a *anneal) target(block int) int {
	out, into := a.from[block], a.into[block]
	if n := len(out) + len(into); n > 0 && a.random.IntN(8) > 0 {
		i := a.random.IntN(n)
		if i < len(into) {
			return a.place[a.tensors[into[i]].from]
		}
		readers := a.tensors[out[i-len(into)]].readers
		return a.place[readers[a.random.IntN(len(readers))]]
	}
	return a.random.IntN(a.devices)
}

func (a *anneal) fits(device int) bool { return a.held[device] <= a.kinds[a.kindOf[device]].room }

// move puts a block on a device and keeps loads, memory and readers true.
func (a *anneal) move(block, to int) {
	from := a.place[block]
	a.loads[from] -= a.kinds[a.kindOf[from]].work[block]
	a.loads[to] += a.kinds[a.kindOf[to]].work[block]
	a.held[from] -= a.memory[block]
	a.held[to] += a.memory[block]
	for _, t := range a.from[block] {
		a.carry(int(t), -1)
	}
	for _, t := range a.into[block] {
		a.carry(int(t), -1)
		a.readers[int(t)*a.devices+from]--
		a.readers[int(t)*a.devices+to]++
	}
	a.place[block] = to
	for _, t := range a.from[block] {
		a.carry(int(t), 1)
	}
	for _, t := range a.into[block] {
		a.carry(int(t), 1)
	}
}

// carry adds the transfers of a tensor to the loads.
func (a *anneal) carry(t int, sign float64) {
	home := a.place[a.tensors[t].from]
	sends := 0
	for d, readers := range a.readers[t*a.devices : (t+1)*a.devices] {
		if readers == 0 || d == home {
			continue
		}
		sends++
		out, arrive := a.transfer(t, home, d)
		a.loads[d] += sign * arrive
		if sends == 1 || !a.p.Links.ThroughHost {
			a.loads[home] += sign * out
		}
	}
	a.steps += carrySteps + carryDeviceSteps*float64(a.devices) + sendSteps*float64(sends)
}
