package ledger

import (
	"cmp"
	"slices"
	"unique"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger/spend"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// look is one sample of an attempt, by its place in the run's detail.
type look struct {
	at      int64
	memory  quantity.Bytes
	grant   unique.Handle[quantity.Size]
	cpu     int32 // quantity.Milli
	attempt int32
	gpu     gpuLook
}

// gpuLook is what an attempt took of its GPUs together, in little room: memory in MiB, and thousandths of GPUs that
// computed, -1 where nobody told.
type gpuLook struct{ memory, busy int32 }

func gpuLookOf(sample *predictor.GPUSample) gpuLook {
	if sample == nil {
		return gpuLook{busy: -1}
	}
	const most = 1 << 30
	l := gpuLook{memory: int32(max(0, min(sample.Memory/quantity.MiB, most))), busy: -1}
	if sample.Busy >= 0 {
		l.busy = int32(min(sample.Busy*1000, most))
	}
	return l
}

// join is two looks as one, of which the first is about early and the second about late.
func (l gpuLook) join(second gpuLook, early, late int64) gpuLook {
	if whole := early + late; whole > 0 && l.busy >= 0 && second.busy >= 0 {
		second.busy = int32((float64(l.busy)*float64(early) + float64(second.busy)*float64(late)) / float64(whole))
	}
	if second.busy < 0 {
		second.busy = l.busy
	}
	second.memory = max(l.memory, second.memory)
	return second
}

// maxRunLooks is how many looks a run has before they are thinned: half an hour of four attempts, looked at every
// second.
const maxRunLooks = 8192

// look keeps a sample of an attempt that is known and has not ended.
func (l *Ledger) look(a *account, e predictor.Sampled, key uint64) {
	place, known := a.detail.places[key]
	if !known || a.detail.attempts.at(int(place)).ended != 0 {
		return
	}
	if l.kept.looks >= l.bounds.looks && !l.thinOldest() {
		return
	}
	a.detail.looks = append(a.detail.looks, look{
		at: spend.Nanoseconds(e.At), memory: max(0, e.Memory), grant: unique.Make(e.Grant),
		cpu: int32(max(0, min(e.CPU, 1<<31-1))), attempt: place, gpu: gpuLookOf(e.GPU),
	})
	l.kept.looks++
	if len(a.detail.looks) > l.bounds.runLooks {
		l.thin(a)
	}
}

// thinOldest makes room for looks at the expense of the oldest ended run that has some: half of them, or all of the
// last few.
func (l *Ledger) thinOldest() bool {
	const few = 64
	for _, a := range l.order {
		if count := len(a.detail.looks); a.ended() && count > 0 {
			l.thin(a)
			if count <= few || len(a.detail.looks) == count {
				l.kept.looks -= len(a.detail.looks)
				a.detail.looks = nil
			}
			return true
		}
	}
	return false
}

// thin joins every two looks of each attempt: the CPU is the mean over the time of both, the memory is the higher,
// grant and time are those of the later. The last look of an attempt that has ended and was looked at once is left out:
// its Record says the same.
func (l *Ledger) thin(a *account) {
	looks := a.detail.looks
	slices.SortStableFunc(looks, func(a, b look) int {
		return cmp.Or(cmp.Compare(a.attempt, b.attempt), cmp.Compare(a.at, b.at))
	})
	kept := looks[:0]
	for start := 0; start < len(looks); {
		end := start
		for end < len(looks) && looks[end].attempt == looks[start].attempt {
			end++
		}
		of := a.detail.attempts.at(int(looks[start].attempt))
		before := of.started
		for i := start; i < end; i += 2 {
			switch {
			case i+1 < end:
				joined := join(before, looks[i], looks[i+1])
				before = joined.at
				kept = append(kept, joined)
			case end-start > 1 || of.ended == 0:
				kept = append(kept, looks[i])
			}
		}
		start = end
	}
	if len(kept) > len(looks)*3/4 { // of many attempts that were looked at once
		kept = everySecond(kept)
	}
	l.kept.looks -= len(looks) - len(kept)
	a.detail.looks = slices.Clone(kept)
}

func everySecond(looks []look) []look {
	kept := looks[:0]
	for i := 0; i < len(looks); i += 2 {
		kept = append(kept, looks[i])
	}
	return kept
}

// join is two looks as one; the first is about the time since before.
func join(before int64, first, second look) look {
	early, late := max(0, first.at-before), max(0, second.at-first.at)
	if whole := early + late; whole > 0 {
		second.cpu = int32((float64(first.cpu)*float64(early) + float64(second.cpu)*float64(late)) / float64(whole))
	}
	second.memory = max(first.memory, second.memory)
	second.gpu = first.gpu.join(second.gpu, early, late)
	return second
}
