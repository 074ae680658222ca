package partition

import (
	"math"
	"slices"
)

// polish changes a pipeline as long as that helps: it shifts blocks over borders, moves replicas from stage to stage,
// splits stages and merges them. It ends where the budget does,
// once it fits.
func (x *pipe) polish(stages []stageOf) ([]stageOf, float64) {
	best := x.feasible(stages)
	for range 100 {
		improved := false
		for _, changed := range x.changes(stages) {
			if x.effort.spent() && !math.IsInf(best, 1) {
				return stages, best
			}
			if total := x.feasible(changed); total < best*(1-1e-12) {
				stages, best, improved = changed, total, true
				break
			}
		}
		if !improved {
			break
		}
	}
	return stages, best
}

// feasible is the total of a pipeline, +Inf where a stage does not fit or has too many replicas.
func (x *pipe) feasible(stages []stageOf) float64 {
	if slices.ContainsFunc(stages, func(s stageOf) bool { return s.replicas > x.p.mostReplicas() }) {
		return math.Inf(1)
	}
	total, timings, _ := x.assess(stages)
	if slices.ContainsFunc(timings, func(t timing) bool { return !t.fits }) {
		return math.Inf(1)
	}
	return total
}

// changes lists the neighbours of a pipeline.
func (x *pipe) changes(stages []stageOf) [][]stageOf {
	var all [][]stageOf
	add := func(changed []stageOf) {
		if changed != nil {
			all = append(all, changed)
		}
	}
	used := make([]int, len(x.kinds))
	for _, s := range stages {
		used[s.kind] += s.replicas
	}
	for i := range stages {
		if i+1 < len(stages) {
			for _, width := range []int{1, -1, 2, -2, 4, -4} {
				add(shift(stages, i, width))
			}
			add(merge(stages, i))
		}
		for j := range stages {
			add(lend(stages, i, j))
		}
		for _, replicas := range []int{1, stages[i].replicas / 2} {
			add(split(stages, i, replicas))
		}
		if used[stages[i].kind] < len(x.kinds[stages[i].kind].devices) {
			changed := slices.Clone(stages)
			changed[i].replicas++
			add(changed)
		}
	}
	return all
}

// merge joins stage i with the next one, nil where their devices differ.
func merge(stages []stageOf, i int) []stageOf {
	if stages[i].kind != stages[i+1].kind {
		return nil
	}
	joined := stageOf{
		blocks: slices.Concat(stages[i].blocks, stages[i+1].blocks), kind: stages[i].kind,
		replicas: stages[i].replicas + stages[i+1].replicas,
	}
	return slices.Concat(stages[:i], []stageOf{joined}, stages[i+2:])
}

// lend moves a replica from stage i to stage j.
func lend(stages []stageOf, i, j int) []stageOf {
	if i == j || stages[i].kind != stages[j].kind || stages[i].replicas < 2 {
		return nil
	}
	changed := slices.Clone(stages)
	changed[i].replicas--
	changed[j].replicas++
	return changed
}

// split gives the first half of a stage's blocks to some of its replicas.
func split(stages []stageOf, i, replicas int) []stageOf {
	s := stages[i]
	if replicas < 1 || replicas >= s.replicas || len(s.blocks) < 2 {
		return nil
	}
	at := max(1, len(s.blocks)*replicas/s.replicas)
	return slices.Concat(stages[:i], []stageOf{
		{blocks: s.blocks[:at], kind: s.kind, replicas: replicas},
		{blocks: s.blocks[at:], kind: s.kind, replicas: s.replicas - replicas},
	}, stages[i+1:])
}

// shift moves blocks from stage i to the next one, or back where width is negative; nil where a stage would be empty.
func shift(stages []stageOf, i, width int) []stageOf {
	left, right := stages[i].blocks, stages[i+1].blocks
	if width >= len(left) || -width >= len(right) {
		return nil
	}
	all := slices.Concat(left, right)
	at := len(left) - width
	moved := slices.Clone(stages)
	moved[i].blocks, moved[i+1].blocks = all[:at], all[at:]
	return moved
}
