package schedule

import (
	"fmt"
	"math"
	"strings"
)

// Costs are how long instructions take, in seconds by stage of the model; a nil slice is free. Receiving takes no time
// of its own.
type Costs struct {
	Forward, Backward, Recompute, AllReduce, Step []float64
	// Send is how long one message takes from stage s to s+1, and as long back. The channel carries one message at a time
	// in each direction; the workers go on meanwhile.
	Send []float64
	// Contention is by how much work of each stage is slowed down by others; nil is not at all.
	Contention []Contention
	// Buffer is how many messages a channel holds that are sent and not yet received; a worker waits before it sends one
	// more. 0 means any number.
	Buffer int
}

// Contention is by how much workers of one machine slow each other down: work beside n other workers that work goes at
// 1/(1 + n c) of its speed alone, with the c of its kind. Recomputation is forward work.
type Contention struct{ Forward, Backward, Step float64 }

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

// Span is a time in which a worker does one thing. Sending and receiving take none.
type Span struct {
	Worker      int
	Instruction Instruction
	// Start and End are in seconds from the first instruction.
	Start, End float64
}

// mail is what a channel has carried.
type mail struct {
	free     float64   // until when it is taken
	arrived  []float64 // when each message arrives
	micro    []int     // which micro-batch each one is of
	received int       // how many are taken from the buffer
}

// actor is a worker at some time of a simulation.
type actor struct {
	next    int     // its next instruction, or the one that it is at
	wake    float64 // when a message comes that it waits for; +Inf where it waits for none that is sent
	holding int

	computing   bool
	alone       float64 // seconds that the instruction takes without contention
	slower      float64 // its contention
	start, end  float64
	left, since float64 // of alone, what is left since when
	factor      float64 // by how much longer that takes
}

// simulation goes from event to event; between two of them all speeds are constant, as processor sharing is simulated
// (L. Kleinrock, Queueing Systems II, 1976, section 4.4).
type simulation struct {
	Schedule
	costs   Costs
	now     float64
	actors  []actor
	working int // how many compute; sums of gradients go over links
	paced   int // the number of them that all speeds are for
	// activations and gradients by the stage that sends them, from that before the first to that after the last
	activations, gradients []mail
	result                 Result
	trace                  func(Span) // nil without one
}

// Simulate runs a schedule in which every worker follows its list. Each instruction starts as soon as the one before it
// has ended and what it waits for is there; so the order in which workers are looked at does not matter. Workers that
// wait for each other for ever are an error that wraps ErrSchedule, and so are messages that arrive in another order
// than they are waited for.
func Simulate(s Schedule, c Costs) (Result, error) { return simulate(s, c, nil) }

// Trace is Simulate, and lists besides when each worker does what that takes time, in the order of their ends.
func Trace(s Schedule, c Costs) (Result, []Span, error) {
	var spans []Span
	result, err := simulate(s, c, func(one Span) { spans = append(spans, one) })
	return result, spans, err
}

func simulate(s Schedule, c Costs, trace func(Span)) (Result, error) {
	if err := c.check(s.Stages); err != nil {
		return Result{}, err
	}
	n := len(s.Workers)
	sim := simulation{
		Schedule: s, costs: c, actors: make([]actor, n), trace: trace,
		activations: make([]mail, s.Stages+2), gradients: make([]mail, s.Stages+2),
		result: Result{Busy: make([]float64, n), PeakActivations: make([]int, n), BackwardEnd: make([]float64, n)},
	}
	for {
		until, err := sim.begin()
		if err != nil {
			return Result{}, err
		}
		if math.IsInf(until, 1) {
			break
		}
		sim.now = until
		for worker := range sim.actors {
			if a := &sim.actors[worker]; a.computing && a.end <= until {
				sim.finish(worker)
			}
		}
	}
	sim.result.Makespan = sim.now
	return sim.result, sim.stuck()
}

// stuck is the error of workers that have not come to their ends.
func (s *simulation) stuck() error {
	var stuck []string
	for worker, list := range s.Workers {
		if at := s.actors[worker].next; at < len(list) {
			stuck = append(stuck, fmt.Sprintf("worker %d at %v", worker, list[at]))
		}
	}
	if stuck == nil {
		return nil
	}
	return fmt.Errorf("%w: it ends in a deadlock: %s", ErrSchedule, strings.Join(stuck, ", "))
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
	if c.Contention != nil && len(c.Contention) != stages {
		return fmt.Errorf("%w: %d contentions; want %d", ErrSchedule, len(c.Contention), stages)
	}
	for _, slower := range c.Contention {
		if least := min(slower.Forward, slower.Backward, slower.Step); !(least >= 0) {
			return fmt.Errorf("%w: a contention of %v", ErrSchedule, least)
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

// begin takes every worker as far as it comes now, and returns when something happens next; +Inf for never.
func (s *simulation) begin() (until float64, err error) {
	for progress := true; progress; {
		progress = false
		for worker := range s.actors {
			a := &s.actors[worker]
			for !a.computing && a.next < len(s.Workers[worker]) {
				begun, err := s.do(worker, s.Workers[worker][a.next])
				if err != nil {
					return 0, err
				}
				if !begun {
					break
				}
				progress = true
			}
		}
	}
	s.pace()
	until = math.Inf(1)
	for worker := range s.actors {
		if a := &s.actors[worker]; a.computing {
			until = min(until, a.end)
		} else if a.next < len(s.Workers[worker]) {
			until = min(until, a.wake)
		}
	}
	return until, nil
}

// pace gives what is slowed down the speed that it has beside all that work now.
func (s *simulation) pace() {
	for worker := range s.actors {
		a := &s.actors[worker]
		if !a.computing || a.slower == 0 || (s.working == s.paced && a.factor > 0) {
			continue
		}
		if a.factor > 0 {
			a.left = max(0, a.left-(s.now-a.since)/a.factor)
		}
		a.since, a.factor = s.now, 1+a.slower*float64(s.working-1)
		a.end = s.now + a.left*a.factor
	}
	s.paced = s.working
}

// do begins an instruction, and ends it where it takes no time; begun is false when it has to wait.
func (s *simulation) do(worker int, i Instruction) (begun bool, err error) {
	var slower Contention
	if s.costs.Contention != nil {
		slower = s.costs.Contention[i.Stage]
	}
	switch i.Kind {
	case SendActivation:
		return s.send(worker, &s.activations[i.Stage+1], cost(s.costs.Send, i.Stage)), nil
	case SendGradient:
		return s.send(worker, &s.gradients[i.Stage+1], cost(s.costs.Send, i.Stage-1)), nil
	case ReceiveActivation:
		return s.receive(worker, &s.activations[i.Stage])
	case ReceiveGradient:
		return s.receive(worker, &s.gradients[i.Stage+2])
	case Forward:
		s.compute(worker, cost(s.costs.Forward, i.Stage), slower.Forward)
	case Backward:
		s.compute(worker, cost(s.costs.Backward, i.Stage), slower.Backward)
	case Recompute:
		s.compute(worker, cost(s.costs.Recompute, i.Stage), slower.Forward)
	case AllReduce:
		s.compute(worker, cost(s.costs.AllReduce, i.Stage), 0)
	case Step:
		s.compute(worker, cost(s.costs.Step, i.Stage), slower.Step)
	default:
		return false, fmt.Errorf("%w: %v is unknown", ErrSchedule, i.Kind)
	}
	return true, nil
}

// compute begins what takes so many seconds alone.
func (s *simulation) compute(worker int, seconds, slower float64) {
	a := &s.actors[worker]
	a.computing, a.alone, a.left, a.slower, a.factor = true, seconds, seconds, slower, 0
	a.start, a.end = s.now, s.now+seconds
	if s.Workers[worker][a.next].Kind != AllReduce {
		s.working++
	}
	if seconds == 0 {
		s.finish(worker)
	}
}

// finish ends what a worker computes.
func (s *simulation) finish(worker int) {
	a := &s.actors[worker]
	i := s.Workers[worker][a.next]
	a.computing = false
	a.next++
	if i.Kind != AllReduce {
		s.working--
		if a.slower > 0 {
			s.result.Busy[worker] += a.end - a.start
		} else {
			s.result.Busy[worker] += a.alone
		}
	}
	switch i.Kind {
	case Forward:
		a.holding++
		s.result.PeakActivations[worker] = max(s.result.PeakActivations[worker], a.holding)
	case Backward:
		a.holding--
		s.result.BackwardEnd[worker] = s.now
	default:
	}
	if s.trace != nil && a.alone > 0 {
		s.trace(Span{Worker: worker, Instruction: i, Start: a.start, End: a.end})
	}
}

func (s *simulation) send(worker int, m *mail, seconds float64) (sent bool) {
	a := &s.actors[worker]
	if buffer := s.costs.Buffer; buffer > 0 && len(m.arrived)-m.received >= buffer {
		a.wake = math.Inf(1)
		return false
	}
	m.free = max(m.free, s.now) + seconds
	m.arrived = append(m.arrived, m.free)
	m.micro = append(m.micro, s.Workers[worker][a.next].MicroBatch)
	a.next++
	return true
}

func (s *simulation) receive(worker int, m *mail) (received bool, err error) {
	a := &s.actors[worker]
	a.wake = math.Inf(1)
	if m.received >= len(m.arrived) {
		return false, nil
	}
	i := s.Workers[worker][a.next]
	if next := m.micro[m.received]; next != i.MicroBatch {
		return false, fmt.Errorf("%w: worker %d waits to %v and the next message is of micro-batch %d", ErrSchedule, worker,
			i, next)
	}
	if at := m.arrived[m.received]; at > s.now {
		a.wake = at
		return false, nil
	}
	m.received++
	a.next++
	return true, nil
}
