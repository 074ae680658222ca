package agent

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

// An attempt that this host cannot run is given back where another may, and its task ends where none can. The host
// judges by what it has itself, and by the kinds of hosts that the plan tells of.

// sized is the size of an attempt on this host, and what that rests on.
type sized struct {
	size      quantity.Size
	predicted predictor.Prediction
	base      quantity.Size  // what its stage is sized with: the leader knows which hosts have the GPUs of that
	need      predictor.Need // what is known of it
	fits      bool           // it has not run out of all the memory that this host has, or its GPUs have
}

func (a *Agent) sized(sizing predictor.Sizing, need predictor.Need) sized {
	s := sized{base: sizing.Base, need: need}
	s.size, s.predicted, s.fits = sizing.For(need, a.gpus.capacity(a.base, sizing.Base))
	s.size = rounded(s.size)
	return s
}

// mostHostWait is for how long attempts of a task wait altogether for a host that has what others do not before it
// fails: a program that fills a GPU may never end, the larger hosts may be full, and somebody must be told.
const mostHostWait = time.Hour

// giveBack ends an attempt that this host does not begin. One that ends its task is told of in a Record, so that people
// see why: it held nothing and took nothing, so it teaches no size. One that another host may run leaves none, as there
// may be a hundred of them.
func (a *Agent) giveBack(ctx context.Context, try *slot.Attempt, s sized, ending slot.Ending) (wire.Result, error) {
	if !ending.Permanent {
		a.logger.WarnContext(ctx, "an attempt is given back", "run", try.Task.Run, "task", try.Task.ID, "reason",
			ending.Message)
		return wire.Result{}, try.GiveBack(ctx, ending)
	}
	now := a.now()
	record := try.Record(predictor.Pool, a.id, ending)
	record.Grant = quantity.Size{}
	record.Queue, record.At, record.Predicted = try.Queue(now), now, s.predicted
	record.Usage.Input = try.Task.Input
	return try.End(ctx, slot.Durable{Recorder: a.recorder}, record, ending, nil)
}

// unfit tells why an attempt cannot run on this host; found is false when it can. The ending is permanent where no host
// that is known can run it.
func (a *Agent) unfit(s sized) (ending slot.Ending, found bool) {
	if s.need.OutOfMemory > 0 && s.need.LargestFailed >= a.base.Memory {
		return a.unfitMemory(s), true
	}
	if ending, found := a.unfitGPUs(s); found {
		return ending, true
	}
	if !s.fits {
		return slot.Ending{
			Outcome: predictor.Failed, Cause: predictor.CauseImpossible, Permanent: true, Grant: s.size,
			Message: fmt.Sprintf("it needs %s, and host %s has %s for all attempts", s.size, a.id, a.capacity()),
		}, true
	}
	return slot.Ending{}, false
}

// unfitMemory is the ending of an attempt that has run out of all the memory that this host has.
func (a *Agent) unfitMemory(s sized) slot.Ending {
	failed := s.need.LargestFailed
	if most, found := a.elsewhere(s.size, failed); found {
		return slot.Ending{
			// the plan does not know of it, and may send it here again
			Outcome: predictor.Lost, Cause: predictor.CauseNoMemory, Grant: s.size, HostWait: slot.ElsewhereDelay,
			Message: fmt.Sprintf("it ran out of memory with %s, and host %s has %s for all attempts, so it waits for a host "+
				"that has more: up to %s", failed, a.id, a.base.Memory, most),
		}
	}
	return slot.Ending{
		Outcome: predictor.OutOfMemory, Cause: predictor.CauseImpossible, Permanent: true, Grant: s.size,
		Message: fmt.Sprintf("it ran out of memory with %s, so it needs %s or more, and host %s has %s for all attempts, "+
			"and no other host has more for it; make the input smaller, give the pool more memory (spillway dev "+
			"--pool-memory) or add a larger host", failed, failed*predictor.GrowAfterOutOfMemory, a.id, a.base.Memory),
	}
}

// unfitGPUs is the ending of an attempt whose GPUs are not here; found is false where they are.
//
// It is given back where another host has them, and where it asks for what its stage asks for: then the plan gives the
// stage no slot here any more, and the task waits until a host has them. One that asks for more than that, as it ran
// out of memory or as its stage says so, and for more than any host has, can never run.
func (a *Agent) unfitGPUs(s sized) (ending slot.Ending, found bool) {
	wanted := s.size
	missing := a.gpus.never(needOf(s.size, false))
	failed := s.need.LargestFailedGPU
	ranOut := s.need.OutOfMemory > 0 && failed > 0
	if missing == "" && !s.fits && ranOut { // it has had all that its GPUs have: only larger ones have more
		wanted.GPUMemory = max(wanted.GPUMemory, quantity.MoreThanWhole(failed))
		missing = a.gpus.never(needOf(wanted, false))
	}
	usual := !ranOut && needOf(s.size, false) == needOf(rounded(s.base), false) // what its stage asks for
	waits := false
	if missing != "" {
		_, other := a.elsewhere(wanted, s.need.LargestFailed)
		waits = usual || other
	}
	ending = slot.Ending{Outcome: predictor.Failed, Cause: predictor.CauseImpossible, Permanent: true, Grant: s.size}
	switch {
	case waits:
		ending.Outcome, ending.Cause, ending.Permanent = predictor.Lost, predictor.CauseNoGPU, false
		if !usual { // the plan does not know of it, and may send it here again
			ending.HostWait = slot.ElsewhereDelay
		}
		ending.Message = fmt.Sprintf("host %s cannot give it its GPUs, so it waits for a host that can: %s", a.id, missing)
	case s.size.GPU > 0 && ranOut && (missing != "" || !s.fits):
		ending.Outcome, ending.Cause = predictor.OutOfMemory, predictor.CauseDeviceMemory
		ending.Message = fmt.Sprintf("it ran out of GPU memory with %s on %s GPU, and host %s has no more to give, nor has "+
			"any other: %s; make the batch smaller, ask for more GPUs or for some with more memory, or split the model over "+
			"several (spillway train --partitions)", failed, s.size.GPU, a.id, cmp.Or(missing, "it had all GPUs"))
	case missing != "":
		ending.Message = fmt.Sprintf("no host has the GPUs that it is sized with, and host %s says: %s", a.id, missing)
	default:
		return slot.Ending{}, false
	}
	return ending, true
}

// last makes an ending the last one where a further attempt could not help: it ran out of all the memory that any host
// has, which the next one would only find out anew, or it has waited long enough for a host that has what it needs.
// Need is what was known before it, waited for how long those before it waited for such a host, and recommends says
// that its stage decides its sizes.
func (a *Agent) last(
	ending slot.Ending, sizing predictor.Sizing, need predictor.Need, waited time.Duration, recommends bool,
) slot.Ending {
	waited += ending.HostWait
	switch {
	case ending.Cause == predictor.CauseNoGPU && waited >= mostHostWait:
		ending.Outcome, ending.Permanent = predictor.Failed, true
		ending.Message += fmt.Sprintf("; it has waited for %s on hosts that had none for it, and is given up: end what "+
			"uses them (spillway top), or ask for other GPUs", waited.Round(time.Minute))
	case ending.Cause == predictor.CauseNoMemory && waited >= mostHostWait:
		ending.Outcome, ending.Permanent = predictor.OutOfMemory, true
		ending.Message += fmt.Sprintf("; it has waited for %s, and is given up: make room on the larger hosts (spillway "+
			"top), or make its input smaller", waited.Round(time.Minute))
	case ending.Outcome == predictor.OutOfMemory && !ending.Permanent && !recommends:
		need.OutOfMemory++
		if ending.Cause == predictor.CauseDeviceMemory {
			need.LargestFailedGPU = max(need.LargestFailedGPU, ending.Grant.GPUMemory)
		} else {
			need.LargestFailed = max(need.LargestFailed, ending.Grant.Memory)
		}
		impossible, found := a.unfit(a.sized(sizing, need))
		if found && impossible.Permanent {
			ending.Permanent = true
			ending.Message += "; " + impossible.Message
		}
	}
	return ending
}

// elsewhere reports whether a host can run an attempt that asks for the GPUs of a size and has run out of memory with
// so much, 0 where it has not, as far as the plan tells, and how much memory there is for attempts on the largest.
func (a *Agent) elsewhere(size quantity.Size, failed quantity.Bytes) (most quantity.Bytes, found bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, kind := range a.kinds {
		if kind.Takes(size, failed) {
			most, found = max(most, kind.Memory), true
		}
	}
	return most, found
}
