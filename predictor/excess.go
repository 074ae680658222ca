package predictor

import (
	"slices"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/size"
)

// excess is what it costs that an attempt of the stage runs out of memory.
func (d *decider) excess(w *work) size.Excess {
	known := w.stage.Model
	others, wanted := d.waiting()
	e := size.Excess{
		Wall: w.wall, Lost: w.wall, Restart: known.Colds[fact.Pool].Quantile(0.5), Retry: size.GrowAfterOutOfMemory,
		Own: d.ownHour(w), Others: others, Wanted: wanted,
	}
	if made := known.Checkpoints.Quantile(0.5); made > 0 { // as many parts, and that after the last
		e.Lost = w.wall / (1 + made)
	}
	if need := known.Need.Memory; known.Need.MemoryKnown && need.Above > need.Limit {
		e.Retry = need.Above / need.Limit
	}
	return e
}

// ownHour is what an hour of an attempt is worth in US dollars: to the run that it is worth the most to, and what its
// part of the largest host costs.
func (d *decider) ownHour(w *work) float64 {
	worth := 0.0
	for _, part := range w.stage.Shares {
		if part.Run.Known && part.Works() {
			worth = max(worth, d.hour(part))
		}
	}
	capacity, slot := d.largestHost(), w.stage.Slot
	at := slices.IndexFunc(d.hosts, func(h plan.Host) bool { return h.Capacity == capacity })
	if at < 0 || capacity.Memory <= 0 || capacity.CPU <= 0 {
		return worth
	}
	part := max(float64(slot.Memory)/float64(capacity.Memory), float64(slot.CPU)/float64(capacity.CPU))
	return worth + min(part, 1)*max(0, d.hosts[at].PricePerHour.USD())
}

// hour is what an hour of earlier finish is worth to a run that uses a stage.
func (d *decider) hour(part *memory.Share) float64 {
	return size.Hour(d.policy.ValueOfTime, part.Run.Goal.Minimise)
}

// waiting is what an hour is worth to the tasks that wait for the pool's memory, and how much they want of it; see
// [size.Others] and [size.Wanted]. It is that of the whole pool: what waits takes room wherever it becomes free.
func (d *decider) waiting() (others, wanted float64) {
	if d.waits != nil {
		return d.waits.others, d.waits.wanted
	}
	var bytes, cores, held, taken float64 // that there are, and that are held or asked for
	for _, host := range d.hosts {
		bytes, cores = bytes+float64(host.Capacity.Memory), cores+float64(host.Capacity.CPU)
		held, taken = held+float64(host.Capacity.Memory-host.Free.Memory), taken+float64(host.Capacity.CPU-host.Free.CPU)
	}
	var all []size.Waiting
	for _, w := range d.works {
		tasks, memory := float64(w.queued[0]+w.queued[1]), float64(w.stage.Slot.Memory)
		held, taken = held+tasks*memory, taken+tasks*float64(w.stage.Slot.CPU)
		for _, part := range w.stage.Shares { // of tasks that no run is known to have, nobody knows what they are worth
			if queued := float64(part.Queued[0] + part.Queued[1]); part.Run.Known && queued > 0 && tasks > 0 {
				all = append(all, size.Waiting{Memory: queued * memory, Hour: d.hour(part)})
			}
		}
	}
	d.waits = &waits{others: d.policy.ValueOfTime.USD()}
	if len(all) > 0 {
		d.waits.others = size.Others(all)
	}
	if bytes > 0 && cores > 0 {
		d.waits.wanted = size.Wanted(held/bytes, taken/cores)
	}
	return d.waits.others, d.waits.wanted
}

// waits is what [decider.waiting] says.
type waits struct{ others, wanted float64 }
