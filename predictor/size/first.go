package size

import (
	"fmt"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// firstShare is the part of a host that an attempt of unknown need is given: a quarter leaves room for neighbours,
// and doubling after running out of memory reaches the whole host in two more attempts.
const firstShare = 4

// firstPerInput is how many bytes of memory one byte of input is expected to take before anything was measured:
// decoded, copied once and transformed once, with the same again for the result.
const firstPerInput = 8

// FirstSizing sizes a stage nobody has seen run: as declared where it is, else from the host's free room and the
// input's size. It never asks for more than capacity.
func FirstSizing(
	stage fact.StageID, declared quantity.Size, input quantity.Bytes, free, capacity quantity.Size,
) Sizing {
	sizing := Sizing{Stage: stage, Base: declared, Source: "declared by the stage"}
	room := min(max(free.Memory, capacity.Memory/firstShare), capacity.Memory)
	if declared.Memory <= 0 {
		sizing.Base.Memory = min(max(capacity.Memory/firstShare, input*firstPerInput), room)
		sizing.Guess = true
		sizing.Source = fmt.Sprintf("no history: %s from the host's free room of %s and an input of %s", sizing.Base.Memory,
			free.Memory, input)
	}
	if declared.CPU <= 0 {
		sizing.Base.CPU = min(quantity.Core, capacity.CPU)
	}
	sizing.Base = sizing.Base.AtMost(capacity)
	sizing.Expected = Expected{Base: float64(sizing.Base.Memory), Ratio: fact.Interval{High: 1}}
	return sizing
}
