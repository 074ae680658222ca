package training

import (
	"fmt"
	"math"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// fluid simulates a schedule whose workers slow each other down: work beside n other workers that work goes at 1/(1 + n
// c) of its speed alone, with the contention c of its kind. Between two events all speeds are constant, so it goes from
// event to event, as processor sharing is simulated (L. Kleinrock, Queueing Systems II, 1976, section 4.4).
type fluid struct {
	schedule schedule.Schedule
	parts    []part
	at       float64
	next     []int     // instruction of each worker
	left     []float64 // work of the one that a worker is at, in seconds alone; below 0 where none is begun
	slower   []float64 // contention of that work
	busy     []float64
	arrived  map[schedule.Instruction]float64 // when the message of a send is there
	free     map[schedule.Instruction]float64 // until when the channel of a stage is taken; its micro-batch is 0
}

// slowed simulates a schedule of parts that slow each other down. Of the result, only the times are set.
func slowed(s schedule.Schedule, parts []part) (schedule.Result, error) {
	n := len(s.Workers)
	f := fluid{
		schedule: s, parts: parts, next: make([]int, n), left: make([]float64, n), slower: make([]float64, n),
		busy:    make([]float64, n),
		arrived: map[schedule.Instruction]float64{}, free: map[schedule.Instruction]float64{},
	}
	for worker := range n {
		f.left[worker] = -1
	}
	for {
		until := f.beginAll()
		working := 0
		for _, left := range f.left {
			if left >= 0 {
				working++
			}
		}
		done := true
		for worker := range n {
			done = done && f.next[worker] == len(s.Workers[worker])
			if f.left[worker] >= 0 {
				until = min(until, f.at+f.left[worker]*f.factor(worker, working))
			}
		}
		if done {
			return schedule.Result{Makespan: f.at, Busy: f.busy}, nil
		}
		if math.IsInf(until, 1) {
			return schedule.Result{}, fmt.Errorf("%w: it ends in a deadlock", schedule.ErrSchedule)
		}
		f.advance(until, working)
	}
}

// beginAll takes every worker to its next work, as far as what others send lets it. It returns when the next message
// comes that one waits for.
func (f *fluid) beginAll() (until float64) {
	for moved := true; moved; {
		moved, until = false, math.Inf(1)
		for worker := range f.next {
			before := f.next[worker]
			until = min(until, f.begin(worker))
			moved = moved || f.next[worker] != before
		}
	}
	return until
}

// factor is by how much longer work takes beside the others that work.
func (f *fluid) factor(worker, working int) float64 {
	return 1 + f.slower[worker]*float64(working-1)
}

// advance lets the time pass.
func (f *fluid) advance(until float64, working int) {
	for worker := range f.left {
		if f.left[worker] < 0 {
			continue
		}
		factor := f.factor(worker, working)
		if end := f.at + f.left[worker]*factor; end <= until { // this one is why the time is until, or as early
			f.left[worker] = -1
			f.next[worker]++
		} else {
			f.left[worker] -= (until - f.at) / factor
		}
		f.busy[worker] += until - f.at
	}
	f.at = until
}

// begin takes a worker to its next work. It returns when the message comes that it waits for; +Inf where it waits for
// none that is sent.
func (f *fluid) begin(worker int) (until float64) {
	list := f.schedule.Workers[worker]
	for f.left[worker] < 0 && f.next[worker] < len(list) {
		i := list[f.next[worker]]
		switch i.Kind {
		case schedule.SendActivation, schedule.SendGradient:
			f.send(i)
		case schedule.ReceiveActivation, schedule.ReceiveGradient:
			sent := schedule.Instruction{Kind: schedule.SendActivation, MicroBatch: i.MicroBatch, Stage: i.Stage - 1}
			if i.Kind == schedule.ReceiveGradient {
				sent.Kind, sent.Stage = schedule.SendGradient, i.Stage+1
			}
			at, known := f.arrived[sent]
			if !known {
				return math.Inf(1)
			}
			if at > f.at {
				return at
			}
		default:
			f.left[worker], f.slower[worker] = f.parts[i.Stage].work(i.Kind)
			return math.Inf(1)
		}
		f.next[worker]++
	}
	return math.Inf(1)
}

// send puts a message on its way. A channel carries one at a time in each direction.
func (f *fluid) send(i schedule.Instruction) {
	channel := schedule.Instruction{Kind: i.Kind, Stage: i.Stage}
	seconds := f.parts[i.Stage].send
	if i.Kind == schedule.SendGradient {
		seconds = f.parts[i.Stage-1].send
	}
	at := max(f.free[channel], f.at) + seconds
	f.free[channel] = at
	f.arrived[schedule.Instruction{Kind: i.Kind, MicroBatch: i.MicroBatch, Stage: i.Stage}] = at
}

// work is how long an instruction takes alone, and its contention.
func (p part) work(kind schedule.Kind) (seconds, slower float64) {
	switch kind {
	case schedule.Forward:
		return p.forward, p.contention.forward
	case schedule.Recompute:
		if !p.recompute {
			return 0, 0
		}
		return p.again, p.contention.forward
	case schedule.Backward:
		return p.backward, p.contention.backward
	case schedule.Step:
		return p.step, p.contention.step
	default:
		return 0, 0
	}
}

// contended reports whether some parts slow others down: on CPUs of one host.
func contended(parts []part) bool {
	for _, p := range parts {
		if p.device.Kind != exec.CUDA && p.contention != (contention{}) && len(parts) > 1 {
			return true
		}
	}
	return false
}
