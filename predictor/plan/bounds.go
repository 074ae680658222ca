package plan

import (
	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// SanePolicy cuts a policy to what it can be; what makes no sense is as usual.
func SanePolicy(p Policy) Policy {
	usual := DefaultPolicy()
	p.ValueOfTime = max(0, p.ValueOfTime)
	p.IdleAfter = max(0, p.IdleAfter)
	if p.Window <= 0 {
		p.Window = usual.Window
	}
	p.MaxWindow = max(p.MaxWindow, p.Window)
	if !(p.Margin >= 0) || p.Margin > 10 {
		p.Margin = usual.Margin
	}
	p.MinMemory = max(p.MinMemory, quantity.MiB)
	if !(p.ErrorBound > 0) {
		p.ErrorBound = usual.ErrorBound
	}
	return p
}

// SaneRoom cuts room to what it can be, and keeps sums of it from overflowing.
func SaneRoom(room quantity.Size) quantity.Size {
	const most = quantity.Milli(1) << 40
	room.CPU = min(max(0, room.CPU), most)
	room.Memory = min(max(0, room.Memory), fact.MaxPeakMemory)
	room.GPU = min(max(0, room.GPU), most)
	room.GPUMemory = min(max(0, room.GPUMemory), fact.MaxPeakMemory)
	return room
}

// SaneBatch cuts how tasks share an invoke to what it can be.
func SaneBatch(batch Batch) Batch {
	return Batch{Tasks: min(max(0, batch.Tasks), MaxSlots), Wait: min(max(0, batch.Wait), fact.MaxWall)}
}
