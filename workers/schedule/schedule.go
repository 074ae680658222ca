// Package schedule orders the work of a training step on the stages of a pipeline.
package schedule

import (
	"errors"
	"fmt"
)

// Kind is what an instruction does.
type Kind int8

// The kinds of instructions.
const (
	// Forward computes the activations of a micro-batch.
	Forward Kind = iota
	// Backward computes its gradients.
	Backward
	// Recompute computes its activations again, as they were not kept.
	Recompute
	// SendActivation hands a micro-batch's activations to the next stage and does not wait.
	SendActivation
	// ReceiveActivation waits for those of the stage before.
	ReceiveActivation
	// SendGradient hands a micro-batch's gradients to the stage before and does not wait.
	SendGradient
	// ReceiveGradient waits for those of the next stage.
	ReceiveGradient
	// AllReduce sums the gradients of all micro-batches up over the replicas of a stage.
	AllReduce
	// Step applies the gradients to the parameters.
	Step
)

// String returns the kind's name.
func (k Kind) String() string {
	names := [...]string{
		"forward", "backward", "recompute", "send activation", "receive activation", "send gradient", "receive gradient",
		"all-reduce", "step",
	}
	if k < 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind %d", int8(k))
	}
	return names[k]
}

// Instruction is one thing that a worker does.
type Instruction struct {
	Kind Kind
	// MicroBatch counts from 0; 0 for AllReduce and Step.
	MicroBatch int
	// Stage is the stage of the model that the instruction is about, from 0.
	Stage int
}

// String writes the instruction for people: "forward 3 of stage 1".
func (i Instruction) String() string {
	if i.Kind == AllReduce || i.Kind == Step {
		return fmt.Sprintf("%v of stage %d", i.Kind, i.Stage)
	}
	return fmt.Sprintf("%v %d of stage %d", i.Kind, i.MicroBatch, i.Stage)
}

// Schedule is what each worker does in one step.
type Schedule struct {
	// Name is that of the kind of schedule: "gpipe", "1f1b", "interleaved".
	Name string
	// MicroBatches is into how many parts the batch is cut.
	MicroBatches int
	// Stages is how many the model has. Stage s belongs to worker s modulo the number of workers.
	Stages int
	// Workers are the instructions of each worker, in order.
	Workers [][]Instruction
}

// Options are what a schedule may contain besides. The zero value adds nothing.
type Options struct {
	// Recompute repeats every forward pass right before its backward pass.
	Recompute bool
	// AllReduce sums gradients over the replicas of each stage.
	AllReduce bool
}

// ErrSchedule is wrapped by every error of this package.
var ErrSchedule = errors.New("not a schedule")

// most bounds micro-batches times stages, so that lists stay in memory.
const most = 10_000_000

func check(workers, microBatches, chunks int) error {
	if workers < 1 || microBatches < 1 || chunks < 1 || microBatches > most/workers/chunks {
		return fmt.Errorf("%w: %d workers, %d micro-batches, %d stages for each worker; want at least 1 of each and at "+
			"most %d instructions",
			ErrSchedule, workers, microBatches, chunks, most)
	}
	return nil
}

// GPipe does all forward passes, then all backward passes (Y. Huang et al., GPipe, NeurIPS 2019,
// https://arxiv.org/abs/1811.06965). Every stage holds the activations of all micro-batches.
func GPipe(workers, microBatches int, o Options) (Schedule, error) {
	if err := check(workers, microBatches, 1); err != nil {
		return Schedule{}, err
	}
	s := Schedule{Name: "gpipe", MicroBatches: microBatches, Stages: workers}
	for worker := range workers {
		w := writer{stages: workers, workers: workers, options: o}
		for m := range microBatches {
			w.forward(m, worker)
		}
		for m := range microBatches {
			w.backward(m, worker)
		}
		w.finish(worker)
		s.Workers = append(s.Workers, w.list)
	}
	return s, nil
}

// OneForwardOneBackward fills the pipeline, then alternates, so that stage s of K holds the activations of at most K-s
// micro-batches: the synchronous form of PipeDream's 1F1B (D. Narayanan et al., Memory-Efficient Pipeline-Parallel DNN
// Training, ICML 2021, https://arxiv.org/abs/2006.09503, PipeDream-Flush). Its bubble is that of GPipe.
func OneForwardOneBackward(workers, microBatches int, o Options) (Schedule, error) {
	flight := make([]int, workers)
	for i := range flight {
		flight[i] = workers - i
	}
	return InFlight(flight, microBatches, o)
}

// InFlight is [OneForwardOneBackward] with a number of micro-batches that each stage may hold; more than K-s hide the
// time of transfers. One worker runs each stage. Numbers above that of the micro-batches count as that; a stage must
// not hold fewer than the next one and at least one.
func InFlight(flight []int, microBatches int, o Options) (Schedule, error) {
	workers := len(flight)
	if err := check(workers, microBatches, 1); err != nil {
		return Schedule{}, err
	}
	s := Schedule{Name: "1f1b", MicroBatches: microBatches, Stages: workers}
	for worker, n := range flight {
		if n < 1 || (worker+1 < workers && min(n, microBatches) < min(flight[worker+1], microBatches)) {
			return Schedule{}, fmt.Errorf("%w: stage %d may hold %d micro-batches; want at least 1 and no fewer than "+
				"the next stage", ErrSchedule, worker, n)
		}
		w := writer{stages: workers, workers: workers, options: o}
		warm := min(n, microBatches) - 1
		for m := range warm {
			w.forward(m, worker)
		}
		for m := warm; m < microBatches; m++ {
			w.forward(m, worker)
			w.backward(m-warm, worker)
		}
		for m := microBatches - warm; m < microBatches; m++ {
			w.backward(m, worker)
		}
		w.finish(worker)
		s.Workers = append(s.Workers, w.list)
	}
	return s, nil
}

// Interleaved gives each worker several stages, chunks of the model that are workers apart, which divides the bubble by
// their number (D. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM,
// SC 2021, https://arxiv.org/abs/2104.04473, section 2.2). The number of micro-batches must be a multiple of that of
// the workers.
func Interleaved(workers, microBatches, chunks int, o Options) (Schedule, error) {
	if err := check(workers, microBatches, chunks); err != nil {
		return Schedule{}, err
	}
	if microBatches%workers != 0 {
		return Schedule{}, fmt.Errorf("%w: %d micro-batches are no multiple of %d workers", ErrSchedule, microBatches,
			workers)
	}
	s := Schedule{Name: "interleaved", MicroBatches: microBatches, Stages: workers * chunks}
	total := microBatches * chunks
	// Micro-batches go in groups of as many as there are workers through one chunk after the other.
	micro := func(k int) int { return k/(workers*chunks)*workers + k%workers }
	chunk := func(k int) int { return k / workers % chunks }
	for worker := range workers {
		w := writer{stages: s.Stages, workers: workers, options: o}
		forward := func(k int) { w.forward(micro(k), chunk(k)*workers+worker) }
		backward := func(k int) { w.backward(micro(k), (chunks-1-chunk(k))*workers+worker) }
		warm := min((workers-worker-1)*2+(chunks-1)*workers, total)
		for k := range warm {
			forward(k)
		}
		for k := warm; k < total; k++ {
			forward(k)
			backward(k - warm)
		}
		for k := total - warm; k < total; k++ {
			backward(k)
		}
		for stage := worker; stage < s.Stages; stage += workers {
			w.finish(stage)
		}
		s.Workers = append(s.Workers, w.list)
	}
	return s, nil
}

// writer appends instructions with the transfers around them.
type writer struct {
	stages, workers int
	options         Options
	list            []Instruction
}

func (w *writer) add(kind Kind, micro, stage int) {
	w.list = append(w.list, Instruction{Kind: kind, MicroBatch: micro, Stage: stage})
}

func (w *writer) forward(micro, stage int) {
	if stage > 0 {
		w.add(ReceiveActivation, micro, stage)
	}
	w.add(Forward, micro, stage)
	if stage+1 < w.stages {
		w.add(SendActivation, micro, stage)
	}
}

func (w *writer) backward(micro, stage int) {
	if stage+1 < w.stages {
		w.add(ReceiveGradient, micro, stage)
	}
	if w.options.Recompute {
		w.add(Recompute, micro, stage)
	}
	w.add(Backward, micro, stage)
	if stage > 0 {
		w.add(SendGradient, micro, stage)
	}
}

func (w *writer) finish(stage int) {
	if w.options.AllReduce {
		w.add(AllReduce, 0, stage)
	}
	w.add(Step, 0, stage)
}
