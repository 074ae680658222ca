package training

import (
	"fmt"
	"slices"

	"github.com/spillway-ml/spillway/workers/exec"
)

// mostRounds bounds how often a split is improved.
const mostRounds = 64

// refined improves a split as long as that helps: it moves operations over a border, and swaps the devices of two
// parts. Less that does not fit comes first, then a shorter step. Package partition knows neither the messages that
// parts hold nor the order in which they work; this does.
func (s setup) refined(from candidate, by correction) (candidate, error) {
	best := from
	for range mostRounds {
		improved := false
		for _, next := range s.neighbours(best) {
			made, err := s.price(next.stages, next.devices, best.microBatches, by)
			if err != nil {
				return candidate{}, err
			}
			if made.better(best) {
				best, improved = made, true
				break
			}
		}
		if !improved {
			break
		}
	}
	return best, nil
}

// better reports whether the parts of a split are together short of less memory, or of as much and faster; differences
// by rounding do not count.
func (c candidate) better(than candidate) bool {
	mine, other := c.short(), than.short()
	if mine != other {
		return mine < other
	}
	return c.seconds < than.seconds*(1-1e-9)
}

// short is by how many bytes all parts together exceed their devices. Unlike the most of one part, it tells when
// another one gets better.
func (c candidate) short() float64 {
	sum := c.lacks
	for _, p := range c.parts {
		sum += max(0, p.most-p.capacity)
	}
	return sum
}

// placed are stages and the device of each.
type placed struct {
	stages  [][]int
	devices []exec.Device
}

// neighbours are the splits that differ in one border or in the devices of two parts.
func (s setup) neighbours(c candidate) []placed {
	now := c.placed()
	var all []placed
	for i := range len(now.stages) - 1 {
		// In topological order, the end of one part may begin the next, and the other way round.
		left, right := now.stages[i], now.stages[i+1]
		both := slices.Concat(left, right)
		for _, width := range []int{1, -1, 2, -2, 3, -3, 5, -5, 8, -8} {
			at := len(left) + width
			if at < 1 || at >= len(both) || !s.separable(both[:at], both[at:]) {
				continue
			}
			stages := slices.Clone(now.stages)
			stages[i], stages[i+1] = s.ordered(both[:at]), s.ordered(both[at:])
			all = append(all, placed{stages, now.devices})
		}
	}
	for i := 1; i+1 < len(now.stages); i++ { // a part in the middle that goes to and fro as a whole
		for _, width := range []int{1, -1, 2, -2} {
			three := slices.Concat(now.stages[i-1], now.stages[i], now.stages[i+1])
			from := len(now.stages[i-1]) + width
			to := from + len(now.stages[i])
			if from < 1 || to >= len(three) || !s.separable(three[:from], three[from:]) || !s.separable(three[:to], three[to:]) {
				continue
			}
			stages := slices.Clone(now.stages)
			stages[i-1], stages[i], stages[i+1] = s.ordered(three[:from]), s.ordered(three[from:to]), s.ordered(three[to:])
			all = append(all, placed{stages, now.devices})
		}
	}
	for i, a := range now.devices {
		for j, b := range now.devices[:i] {
			if a.Memory == b.Memory && classOf(a) == classOf(b) {
				continue
			}
			devices := slices.Clone(now.devices)
			devices[i], devices[j] = b, a
			all = append(all, placed{now.stages, devices})
		}
	}
	return all
}

// ordered returns operations in topological order.
func (s setup) ordered(ops []int) []int {
	sorted := slices.Clone(ops)
	slices.SortFunc(sorted, func(a, b int) int { return s.model.rank[a] - s.model.rank[b] })
	return sorted
}

// separable reports whether no operations of one colour are on both sides.
func (s setup) separable(left, right []int) bool {
	if !s.model.coloured {
		return true
	}
	colours := map[string]bool{}
	for _, op := range left {
		colours[s.model.shape.Ops[op].Colour] = true
	}
	return !slices.ContainsFunc(right, func(op int) bool {
		colour := s.model.shape.Ops[op].Colour
		return colour != "" && colours[colour]
	})
}

// cut makes as many stages as there are devices of fewer: again and again, the one cut that is best.
func (s setup) cut(from placed, devices []exec.Device, microBatches int, by correction) (candidate, error) {
	made, err := s.price(from.stages, from.devices, microBatches, by)
	for err == nil && len(made.parts) < len(devices) {
		free := slices.IndexFunc(devices, func(d exec.Device) bool {
			return !slices.ContainsFunc(made.parts, func(p part) bool { return p.device.ID == d.ID })
		})
		made, err = s.cutOnce(made, devices[free], by)
		if err == nil && made.parts == nil {
			err = fmt.Errorf("divide the model into %d parts: some operations must be together, so that it cannot be "+
				"cut so often", len(devices))
		}
	}
	return made, err
}

// cutOnce gives the end of one part to another device, the part and the end that are best; it returns no parts where
// none can be cut.
func (s setup) cutOnce(c candidate, free exec.Device, by correction) (candidate, error) {
	now := c.placed()
	var best candidate
	for i, ops := range now.stages {
		for at := 1; at < len(ops); at++ {
			if !s.separable(ops[:at], ops[at:]) {
				continue
			}
			made, err := s.price(slices.Concat(now.stages[:i], [][]int{ops[:at], ops[at:]}, now.stages[i+1:]),
				slices.Concat(now.devices[:i+1], []exec.Device{free}, now.devices[i+1:]), c.microBatches, by)
			if err != nil {
				return candidate{}, err
			}
			if best.parts == nil || made.better(best) {
				best = made
			}
		}
	}
	return best, nil
}

// placed are the candidate's stages and devices.
func (c candidate) placed() placed {
	var p placed
	for _, one := range c.parts {
		p.stages, p.devices = append(p.stages, one.ops), append(p.devices, one.device)
	}
	return p
}
