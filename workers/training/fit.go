package training

import (
	"slices"

	"gonum.org/v1/gonum/stat/combin"

	"github.com/spillway-ml/spillway/workers/exec"
)

const (
	// fewWays is how many ways to cut the operations in their order are few enough to price each.
	fewWays = 512
	// mostCuts bounds the places at which [setup.leastShort] may cut.
	mostCuts = 48
)

// inOrder cuts the operations in topological order: the best way of all where they are few; else the one that is short
// of the least memory, which takes longer to find and is for where nothing else fits. The devices keep their order. It
// returns no parts where it has nothing to offer.
func (s setup) inOrder(devices []exec.Device, microBatches int, fits bool, by correction) (candidate, error) {
	places := s.places()
	if len(places)-1 < len(devices) {
		return candidate{}, nil
	}
	if ways := combin.GeneralizedBinomial(float64(len(places)-2), float64(len(devices)-1)); ways <= fewWays {
		return s.bestOfAll(places, devices, microBatches, by)
	}
	if fits {
		return candidate{}, nil
	}
	return s.leastShort(thinned(places), devices, microBatches, by)
}

// bestOfAll prices every way to cut at the places.
func (s setup) bestOfAll(places []int, devices []exec.Device, microBatches int, by correction) (candidate, error) {
	var best candidate
	for _, cuts := range combin.Combinations(len(places)-2, len(devices)-1) {
		stages, from := make([][]int, 0, len(devices)), 0
		for _, cut := range cuts {
			stages = append(stages, s.model.order[from:places[cut+1]])
			from = places[cut+1]
		}
		made, err := s.price(append(stages, s.model.order[from:]), devices, microBatches, by)
		if err != nil {
			return candidate{}, err
		}
		if best.parts == nil || made.better(best) {
			best = made
		}
	}
	return best, nil
}

// leastShort cuts at some of the places so that the parts are together short of the least memory, and among such cuts
// so that the busiest part works least. It is exact for models whose tensors go to the next part only.
//
// The best cuts of the first operations into so many parts are found for every number of both, each from those of one
// part fewer (dynamic programming over a chain, as in Bokhari, Partitioning problems in parallel, pipelined, and
// distributed computing, IEEE Trans. Computers 37(1), 1988).
func (s setup) leastShort(places []int, devices []exec.Device, microBatches int, by correction) (candidate, error) {
	type cut struct {
		short, busiest float64
		from           int // the place before, by its number
		known          bool
	}
	best := make([][]cut, len(devices)+1) // by number of parts and of place
	for k := range best {
		best[k] = make([]cut, len(places))
	}
	best[0][0].known = true
	for k, device := range devices {
		for to := range places {
			for from := range to {
				before := best[k][from]
				if !before.known || (k+1 == len(devices)) != (to+1 == len(places)) {
					continue
				}
				p, err := s.alone(places[from], places[to], device, k, len(devices), microBatches, by)
				if err != nil {
					return candidate{}, err
				}
				made := cut{before.short + max(0, p.most-p.capacity), max(before.busiest, p.forward+p.backward), from, true}
				if now := best[k+1][to]; !now.known || made.short < now.short ||
					made.short == now.short && made.busiest < now.busiest {
					best[k+1][to] = made
				}
			}
		}
	}
	at := len(places) - 1
	if !best[len(devices)][at].known {
		return candidate{}, nil
	}
	stages := make([][]int, len(devices))
	for k := len(devices); k > 0; k-- {
		from := best[k][at].from
		stages[k-1], at = s.model.order[places[from]:places[at]], from
	}
	return s.price(stages, devices, microBatches, by)
}

// places are where the operations may be cut, in topological order, the beginning and the end included.
func (s setup) places() []int {
	var all []int
	for at := 1; at < len(s.model.order); at++ {
		if s.separable(s.model.order[:at], s.model.order[at:]) {
			all = append(all, at)
		}
	}
	return slices.Concat([]int{0}, all, []int{len(s.model.order)})
}

// thinned keeps at most mostCuts places between the first and the last, evenly.
func thinned(places []int) []int {
	n := len(places) - 2
	if n <= mostCuts {
		return places
	}
	kept := []int{places[0]}
	for i := range mostCuts {
		kept = append(kept, places[1+i*n/mostCuts])
	}
	return append(kept, places[len(places)-1])
}

// alone prices the part of the operations in [from, to), as if all before them were in the part before and all after
// them in the next.
func (s setup) alone(from, to int, device exec.Device, at, parts, microBatches int, by correction) (part, error) {
	home := make([]int, len(s.model.order))
	for i, op := range s.model.order {
		switch {
		case i < from:
			home[op] = at - 1
		case i < to:
			home[op] = at
		default:
			home[op] = at + 1
		}
	}
	all, err := s.traffic(home, parts, microBatches)
	if err != nil {
		return part{}, err
	}
	return s.part(s.model.order[from:to], device, at, parts, microBatches, all[at], by), nil
}
