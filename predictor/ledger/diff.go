package ledger

import (
	"crypto/sha256"
	"encoding/hex"
)

// maxInput is how much of a run's input its start carries. An input of that length may have been cut, and is not known
// then.
const maxInput = 1 << 10

// Compare compares two runs.
func Compare(a, b RunView) Diff {
	diff := Diff{A: a, B: b}
	known := a.App != "" && b.App != "" // their starts were seen
	diff.SameInput = a.Input != "" && a.Input == b.Input
	diff.SameBuild = known && a.App == b.App && a.Build == b.Build
	diff.SameGoal = known && a.Goal == b.Goal
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
	return diff
}

// inputDigest is that of a run's encoded input; empty when it is not known.
func inputDigest(encoded []byte) string {
	if len(encoded) == 0 || len(encoded) >= maxInput {
		return ""
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:])
}
