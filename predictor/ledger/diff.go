package ledger

import "hash/maphash"

// maxInput is how much of a run's input its start carries. An input of that length may have been cut, and is not known then.
const maxInput = 1 << 10

// Diff compares two runs; missing is the first of them that is not known, empty when both are.
func (l *Ledger) Diff(a, b string) (diff Diff, missing string) {
	first, second := l.runs[a], l.runs[b]
	switch {
	case first == nil:
		return Diff{}, a
	case second == nil:
		return Diff{}, b
	}
	diff = Diff{A: l.view(first), B: l.view(second)}
	diff.SameInput = first.input != 0 && first.input == second.input
	diff.SameBuild = first.known && second.known && first.app == second.app && first.build == second.build
	diff.SameGoal = first.known && second.known && first.goal == second.goal
	places := map[string]int{}
	for i := range diff.A.Stages {
		stage := &diff.A.Stages[i]
		places[stage.Name] = len(diff.Stages)
		diff.Stages = append(diff.Stages, StageDiff{Name: stage.Name, A: stage})
	}
	for i := range diff.B.Stages {
		stage := &diff.B.Stages[i]
		if place, both := places[stage.Name]; both {
			diff.Stages[place].B = stage
		} else {
			diff.Stages = append(diff.Stages, StageDiff{Name: stage.Name, B: stage})
		}
	}
	return diff, ""
}

// input is the fingerprint of a run's input; 0 when it is not known.
func (l *Ledger) input(encoded []byte) uint64 {
	if len(encoded) == 0 || len(encoded) >= maxInput {
		return 0
	}
	return max(1, maphash.Bytes(l.seed, encoded))
}
