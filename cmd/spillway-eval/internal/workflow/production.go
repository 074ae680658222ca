package workflow

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim"
)

// production is the predictor as an engine uses it: what happens is folded, what is decided sizes the attempts.
type production struct {
	workflow string
	stack    *sim.Simulation
	running  map[int]*attempt // by task
}

// attempt is one that was sized last.
type attempt struct {
	number    int
	largest   quantity.Bytes // grant at which the task ran out of memory
	grant     quantity.Size
	predicted predictor.Prediction
}

const theHost = "host"

// start of every workflow; any time does.
var start = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// NewProduction returns the production path on one host of LargestHost on which every attempt has room.
func NewProduction(ctx context.Context, workflow string) (Policy, error) {
	room := quantity.Size{CPU: 1 << 10 * quantity.Core, Memory: quantity.Bytes(LargestHost)}
	p := &production{
		workflow: workflow, running: map[int]*attempt{},
		stack: sim.New(sim.Options{Start: start, Hosts: []predictor.Host{{ID: theHost, Capacity: room, Free: room}}}),
	}
	return p, p.stack.Tell(ctx, predictor.RunStarted{
		Run: workflow, Pipeline: workflow, App: workflow, Build: "recorded", At: start,
	})
}

func (p *production) stage(task Known) predictor.StageID {
	return predictor.StageID{App: p.workflow, Build: "recorded", Name: task.Process}
}

func name(task Known) string { return fmt.Sprintf("task-%d", task.ID+1) }

// Size schedules the task, or takes that it waits again, and admits an attempt by the plan of now.
func (p *production) Size(ctx context.Context, task Known, failed []float64) (Answer, error) {
	at, stage := start.Add(task.Start), p.stage(task)
	if len(failed) == 0 {
		p.running[task.ID] = &attempt{}
		if err := p.stack.Tell(ctx, predictor.Scheduled{
			Run: p.workflow, Stage: stage, Tasks: 1, Input: quantity.Bytes(task.Input),
			Declared: quantity.Size{
				CPU: quantity.Milli(task.CPUs * float64(quantity.Core)), Memory: quantity.Bytes(task.Requested),
			},
			At: at,
		}); err != nil {
			return Answer{}, err
		}
	}
	sizing, known := p.stack.Sizing(stage)
	if !known {
		return Answer{}, fmt.Errorf("the plan does not size %s, which has work", stage)
	}
	now := p.running[task.ID]
	now.number++
	now.grant, now.predicted, _ = sizing.For(predictor.Need{
		Input: quantity.Bytes(task.Input), OutOfMemory: len(failed), LargestFailed: now.largest,
	}, quantity.Size{CPU: 1 << 10 * quantity.Core, Memory: quantity.Bytes(LargestHost)})
	err := p.stack.Tell(ctx, predictor.AttemptStarted{
		Run: p.workflow, Stage: stage, Task: name(task), Attempt: now.number, Venue: predictor.Pool, Host: theHost,
		Grant: now.grant, Input: quantity.Bytes(task.Input), At: at,
	})
	return Answer{Limit: float64(now.grant.Memory), Peak: now.predicted.Memory, Wall: now.predicted.Wall}, err
}

// RanOut implements Policy.
func (p *production) RanOut(ctx context.Context, task Known, _ float64) error {
	now := p.running[task.ID]
	now.largest = max(now.largest, now.grant.Memory)
	record := p.record(task)
	record.Outcome, record.Cause = predictor.OutOfMemory, predictor.CauseMemoryLimit
	record.At = start.Add(task.Start)
	record.Usage = quantity.Usage{PeakMemory: now.grant.Memory, Input: quantity.Bytes(task.Input)}
	return p.stack.Tell(ctx, record)
}

// Ended implements Policy.
func (p *production) Ended(ctx context.Context, task Known, took Took) error {
	record := p.record(task)
	record.Outcome, record.At = predictor.Succeeded, start.Add(took.At)
	record.Usage = quantity.Usage{
		PeakMemory: quantity.Bytes(took.Peak), Wall: took.Wall, Input: quantity.Bytes(task.Input),
	}
	delete(p.running, task.ID)
	return p.stack.Tell(ctx, record)
}

// record is what is the same of every Record of a task's last attempt.
func (p *production) record(task Known) predictor.Record {
	now := p.running[task.ID]
	return predictor.Record{
		Run: p.workflow, Pipeline: p.workflow, Stage: p.stage(task), Task: name(task), Attempt: now.number,
		Venue: predictor.Pool, Host: theHost, ScheduledAt: start.Add(task.Start), Grant: now.grant,
		Predicted: now.predicted,
	}
}
