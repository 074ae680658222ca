package schedule

import "fmt"

// Validate refuses a schedule in which a pass is missing, repeated, at the wrong worker or too early: a forward pass
// before its input, a backward pass before its forward pass, its gradient or its recomputation, the sum of gradients or
// the step before the last backward pass; in which messages of one channel are received in another order than they are
// sent; or whose workers wait for each other for ever when each channel holds at most buffer messages (0: any number).
// A channel is a kind of message from one stage to the next.
func (s Schedule) Validate(buffer int) error {
	if err := check(len(s.Workers), max(s.MicroBatches, 0), 1); err != nil {
		return err
	}
	if s.Stages < len(s.Workers) || s.Stages > most {
		return fmt.Errorf("%w: %d stages for %d workers", ErrSchedule, s.Stages, len(s.Workers))
	}
	for worker, list := range s.Workers {
		if err := s.validateWorker(worker, list); err != nil {
			return fmt.Errorf("%w: worker %d: %w", ErrSchedule, worker, err)
		}
	}
	_, err := Simulate(s, Costs{Buffer: buffer})
	return err
}

// progress is what a worker has done.
type progress struct {
	Schedule
	done      map[Instruction]bool
	backwards map[int]int // by stage
}

func (s Schedule) validateWorker(worker int, list []Instruction) error {
	p := progress{Schedule: s, done: map[Instruction]bool{}, backwards: map[int]int{}}
	steps := 0
	for _, i := range list {
		if i.Stage < 0 || i.Stage >= s.Stages || i.Stage%len(s.Workers) != worker {
			return fmt.Errorf("%v: the stage is not its own", i)
		}
		if i.MicroBatch < 0 || i.MicroBatch >= s.MicroBatches {
			return fmt.Errorf("%v: there are %d micro-batches", i, s.MicroBatches)
		}
		if p.done[i] {
			return fmt.Errorf("%v: twice", i)
		}
		if err := p.allows(i); err != nil {
			return err
		}
		p.done[i] = true
		switch i.Kind {
		case Backward:
			p.backwards[i.Stage]++
		case Step:
			steps++
		default:
		}
	}
	own := (s.Stages - worker + len(s.Workers) - 1) / len(s.Workers)
	if steps != own {
		return fmt.Errorf("%d of its %d stages step", steps, own)
	}
	return nil
}

// allows refuses an instruction that comes too early, or has nothing to do.
func (p *progress) allows(i Instruction) error {
	needs := func(kind Kind) error {
		if !p.done[Instruction{Kind: kind, MicroBatch: i.MicroBatch, Stage: i.Stage}] {
			return fmt.Errorf("%v: before %v", i, kind)
		}
		return nil
	}
	first, last := i.Stage == 0, i.Stage == p.Stages-1
	switch i.Kind {
	case Forward:
		if !first {
			return needs(ReceiveActivation)
		}
	case SendActivation:
		if last {
			return fmt.Errorf("%v: the last stage has none to send to", i)
		}
		return needs(Forward)
	case ReceiveActivation:
		if first {
			return fmt.Errorf("%v: the first stage has none to receive from", i)
		}
	case ReceiveGradient:
		if last {
			return fmt.Errorf("%v: the last stage has none to receive from", i)
		}
		return needs(SendActivation)
	case Recompute:
		return needs(Forward)
	case Backward:
		if !last {
			if err := needs(ReceiveGradient); err != nil {
				return err
			}
		}
		return needs(Forward)
	case SendGradient:
		if first {
			return fmt.Errorf("%v: the first stage has none to send to", i)
		}
		return needs(Backward)
	case AllReduce, Step:
		if i.MicroBatch != 0 {
			return fmt.Errorf("%v: it is about all micro-batches; number it 0", i)
		}
		if p.backwards[i.Stage] != p.MicroBatches {
			return fmt.Errorf("%v: after %d of %d backward passes", i, p.backwards[i.Stage], p.MicroBatches)
		}
	default:
		return fmt.Errorf("%v is unknown", i.Kind)
	}
	return nil
}
