package appraisal

import (
	"github.com/spillway-ml/spillway/workers/schedule"
)

// mostSpans is how many things a picture shows; a wider schedule is told in figures only.
const mostSpans = 20_000

// Timeline returns when each stage of a pipeline does what, with the costs of a schedule of one worker for each stage
// and channels of any length. It is empty for more than 20,000 spans. A schedule that [schedule.Simulate] refuses has
// no timeline: call it first.
//
// An instruction starts when the one before it and what it waits for have ended: the same rules as those of the
// simulator, which only adds up.
func Timeline(s schedule.Schedule, c schedule.Costs) []Span {
	total := 0
	for _, list := range s.Workers {
		total += len(list)
	}
	if total > 3*mostSpans { // sending and receiving are no spans
		return nil
	}
	walk := timelineWalk{
		costs: c, free: map[channel]float64{}, arrived: map[message]float64{},
		spans: make([][]Span, len(s.Workers)),
	}
	clock, next := make([]float64, len(s.Workers)), make([]int, len(s.Workers))
	for progress := true; progress; {
		progress = false
		for worker, list := range s.Workers {
			for next[worker] < len(list) {
				after, known := walk.do(worker, list[next[worker]], clock[worker])
				if !known {
					break
				}
				clock[worker] = after
				next[worker]++
				progress = true
			}
		}
	}
	var all []Span
	for _, spans := range walk.spans {
		all = append(all, spans...)
	}
	return all
}

// channel is a kind of message from a stage, and message one of them.
type (
	channel struct {
		kind schedule.Kind
		from int
	}
	message struct {
		channel

		microBatch int
	}
)

type timelineWalk struct {
	costs   schedule.Costs
	free    map[channel]float64 // until when it is taken
	arrived map[message]float64
	spans   [][]Span
}

// do carries out an instruction and returns when its worker is free again; known is false when it waits for what has
// not been sent yet.
func (w *timelineWalk) do(worker int, i schedule.Instruction, now float64) (after float64, known bool) {
	switch i.Kind {
	case schedule.SendActivation:
		w.send(channel{i.Kind, i.Stage}, i.MicroBatch, now, at(w.costs.Send, i.Stage))
	case schedule.SendGradient:
		w.send(channel{i.Kind, i.Stage}, i.MicroBatch, now, at(w.costs.Send, i.Stage-1))
	case schedule.ReceiveActivation:
		arrival, sent := w.arrived[message{channel{schedule.SendActivation, i.Stage - 1}, i.MicroBatch}]
		return max(now, arrival), sent
	case schedule.ReceiveGradient:
		arrival, sent := w.arrived[message{channel{schedule.SendGradient, i.Stage + 1}, i.MicroBatch}]
		return max(now, arrival), sent
	case schedule.Forward:
		return w.span(worker, i, now, at(w.costs.Forward, i.Stage)), true
	case schedule.Backward:
		return w.span(worker, i, now, at(w.costs.Backward, i.Stage)), true
	case schedule.Recompute:
		return w.span(worker, i, now, at(w.costs.Recompute, i.Stage)), true
	case schedule.AllReduce:
		return w.span(worker, i, now, at(w.costs.AllReduce, i.Stage)), true
	case schedule.Step:
		return w.span(worker, i, now, at(w.costs.Step, i.Stage)), true
	}
	return now, true
}

func (w *timelineWalk) send(c channel, microBatch int, now, seconds float64) {
	w.free[c] = max(w.free[c], now) + seconds
	w.arrived[message{c, microBatch}] = w.free[c]
}

// span keeps what takes time.
func (w *timelineWalk) span(worker int, i schedule.Instruction, now, seconds float64) float64 {
	if seconds > 0 {
		w.spans[worker] = append(w.spans[worker], Span{
			Stage: i.Stage + 1, Kind: i.Kind.String(), MicroBatch: i.MicroBatch + 1, StartSeconds: now,
			EndSeconds: now + seconds,
		})
	}
	return now + seconds
}

// at reads a list of costs that may be nil, which is free.
func at(list []float64, i int) float64 {
	if list == nil {
		return 0
	}
	return list[i]
}

// Stream returns when each stage is busy with which of the first batches of an endless stream, where a batch enters a
// stage as soon as the stage before and the batch before it are done. loads are in seconds, by stage.
func Stream(loads []float64, batches int) []Span {
	var all []Span
	done := make([]float64, batches) // when each batch leaves the stage before
	for s, load := range loads {
		free := 0.0
		for b := range batches {
			start := max(free, done[b])
			free = start + load
			done[b] = free
			all = append(all, Span{Stage: s + 1, Kind: "batch", MicroBatch: b + 1, StartSeconds: start, EndSeconds: free})
		}
	}
	return all
}
