package schedule

import (
	"fmt"
	"strings"
)

// Costs are how long instructions take, in seconds by stage of the model; a nil slice is free. Receiving takes no time
// of its own.
type Costs struct {
	Forward, Backward, Recompute, AllReduce, Step []float64
	// Send is how long one message takes from stage s to s+1, and as long back. The channel carries one message at a time
	// in each direction; the workers go on meanwhile.
	Send []float64
	// Buffer is how many messages a channel holds that are sent and not yet received; a worker waits before it sends one
	// more. 0 means any number.
	Buffer int
}

// Result is what a schedule comes to.
type Result struct {
	// Makespan is the time from the first instruction to the last, in seconds.
	Makespan float64
	// Busy is how long each worker computes.
	Busy []float64
	// PeakActivations is how many forward passes each worker holds at most whose backward passes are not done.
	PeakActivations []int
	// BackwardEnd is when the last backward pass of each worker ends.
	BackwardEnd []float64
}

// Bubble is the part of the workers' time in which they do not compute, from 0 to 1; 0 where nothing takes time.
func (r Result) Bubble() float64 {
	if r.Makespan <= 0 {
		return 0
	}
	busy := 0.0
	for _, b := range r.Busy {
		busy += b
	}
	return 1 - busy/(r.Makespan*float64(len(r.Busy)))
}

// channel is a kind of message from a stage.
type channel struct {
	kind  Kind // SendActivation or SendGradient
	stage int  // of the sender
}

// mail is what a channel has carried.
type mail struct {
	free     float64   // until when it is taken
	arrived  []float64 // when each message arrives
	micro    []int     // which micro-batch each one is of
	received []float64 // when each one is taken from the buffer
}

type simulation struct {
	Schedule
	costs   Costs
	clock   []float64
	next    []int
	mails   map[channel]*mail
	holding []int
	result  Result
}

// Simulate runs a schedule in which every worker follows its list. Each instruction starts as soon as the one before it
// has ended and what it waits for is there; so the order in which workers are looked at does not matter. Workers that
// wait for each other for ever are an error that wraps ErrSchedule, and so are messages that arrive in another order
// than they are waited for.
func Simulate(s Schedule, c Costs) (Result, error) {
	if err := c.check(s.Stages); err != nil {
		return Result{}, err
	}
	n := len(s.Workers)
	sim := simulation{
		Schedule: s, costs: c, clock: make([]float64, n), next: make([]int, n), mails: map[channel]*mail{},
		holding: make([]int, n),
		result:  Result{Busy: make([]float64, n), PeakActivations: make([]int, n), BackwardEnd: make([]float64, n)},
	}
	for progress := true; progress; {
		progress = false
		for worker := range s.Workers {
			for sim.next[worker] < len(s.Workers[worker]) {
				done, err := sim.do(worker, s.Workers[worker][sim.next[worker]])
				if err != nil {
					return Result{}, err
				}
				if !done {
					break
				}
				sim.next[worker]++
				progress = true
			}
		}
	}
	var stuck []string
	for worker, list := range s.Workers {
		if at := sim.next[worker]; at < len(list) {
			stuck = append(stuck, fmt.Sprintf("worker %d at %v", worker, list[at]))
		}
		sim.result.Makespan = max(sim.result.Makespan, sim.clock[worker])
	}
	if stuck != nil {
		return Result{}, fmt.Errorf("%w: it ends in a deadlock: %s", ErrSchedule, strings.Join(stuck, ", "))
	}
	return sim.result, nil
}

func (c Costs) check(stages int) error {
	for _, of := range []struct {
		name string
		list []float64
		want int
	}{
		{"forward", c.Forward, stages},
		{"backward", c.Backward, stages},
		{"recompute", c.Recompute, stages},
		{"all-reduce", c.AllReduce, stages},
		{"step", c.Step, stages},
		{"send", c.Send, stages - 1},
	} {
		if of.list != nil && len(of.list) != of.want {
			return fmt.Errorf("%w: %d costs of %s; want %d", ErrSchedule, len(of.list), of.name, of.want)
		}
		for _, t := range of.list {
			if !(t >= 0) || t > 1e12 {
				return fmt.Errorf("%w: a cost of %v seconds of %s", ErrSchedule, t, of.name)
			}
		}
	}
	if c.Buffer < 0 {
		return fmt.Errorf("%w: a buffer of %d messages", ErrSchedule, c.Buffer)
	}
	return nil
}

// cost reads a list that may be nil.
func cost(list []float64, at int) float64 {
	if list == nil {
		return 0
	}
	return list[at]
}

// do carries out an instruction; done is false when it has to wait for something whose time is not known yet.
func (s *simulation) do(worker int, i Instruction) (done bool, err error) {
	switch i.Kind {
	case SendActivation:
		return s.send(worker, i, cost(s.costs.Send, i.Stage)), nil
	case SendGradient:
		return s.send(worker, i, cost(s.costs.Send, i.Stage-1)), nil
	case ReceiveActivation:
		return s.receive(worker, i, channel{SendActivation, i.Stage - 1})
	case ReceiveGradient:
		return s.receive(worker, i, channel{SendGradient, i.Stage + 1})
	case Forward:
		s.work(worker, cost(s.costs.Forward, i.Stage))
		s.holding[worker]++
		s.result.PeakActivations[worker] = max(s.result.PeakActivations[worker], s.holding[worker])
	case Backward:
		s.work(worker, cost(s.costs.Backward, i.Stage))
		s.holding[worker]--
		s.result.BackwardEnd[worker] = s.clock[worker]
	case Recompute:
		s.work(worker, cost(s.costs.Recompute, i.Stage))
	case AllReduce:
		s.clock[worker] += cost(s.costs.AllReduce, i.Stage)
	case Step:
		s.work(worker, cost(s.costs.Step, i.Stage))
	default:
		return false, fmt.Errorf("%w: %v is unknown", ErrSchedule, i.Kind)
	}
	return true, nil
}

func (s *simulation) work(worker int, seconds float64) {
	s.clock[worker] += seconds
	s.result.Busy[worker] += seconds
}

func (s *simulation) mail(of channel) *mail {
	m := s.mails[of]
	if m == nil {
		m = &mail{}
		s.mails[of] = m
	}
	return m
}

func (s *simulation) send(worker int, i Instruction, seconds float64) bool {
	m := s.mail(channel{i.Kind, i.Stage})
	if buffer := s.costs.Buffer; buffer > 0 && len(m.arrived) >= buffer {
		if len(m.arrived)-buffer >= len(m.received) {
			return false
		}
		s.clock[worker] = max(s.clock[worker], m.received[len(m.arrived)-buffer])
	}
	m.free = max(m.free, s.clock[worker]) + seconds
	m.arrived = append(m.arrived, m.free)
	m.micro = append(m.micro, i.MicroBatch)
	return true
}

func (s *simulation) receive(worker int, i Instruction, from channel) (bool, error) {
	m := s.mail(from)
	at := len(m.received)
	if at >= len(m.arrived) {
		return false, nil
	}
	if m.micro[at] != i.MicroBatch {
		return false, fmt.Errorf("%w: worker %d waits to %v and the next message is of micro-batch %d", ErrSchedule, worker,
			i, m.micro[at])
	}
	s.clock[worker] = max(s.clock[worker], m.arrived[at])
	m.received = append(m.received, s.clock[worker])
	return true, nil
}
