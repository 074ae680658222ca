package workflows

import (
	"context"
	"encoding/json"
	"time"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// lookupBatch is how many results are asked for at a time.
	lookupBatch = 500
	// lookupTimeout bounds the asking. A run that is not answered does the work itself.
	lookupTimeout = 5 * time.Second
)

// found is what the local activity answers: for each key a result or nil. A type of its own keeps what is in histories small.
type found struct {
	Results []*reused `json:"results"`
}

// reused is a result of an earlier run.
type reused struct {
	Output json.RawMessage `json:"output"`
	From   string          `json:"from"`
	Cost   quantity.Money  `json:"cost_picodollars"`
	Wall   time.Duration   `json:"wall_ns"`
}

// reuse returns for each input the output that an earlier run has made of it, nil where there is none; nothing at all when none is asked for.
func (r *run) reuse(ctx workflow.Context, stage wire.Stage, inputs []json.RawMessage) ([]json.RawMessage, error) {
	if r.find == nil || len(inputs) == 0 || !r.options.Reuses(stage) {
		return nil, nil
	}
	outputs := make([]json.RawMessage, len(inputs))
	id, now := r.stageID(stage.Name), workflow.Now(ctx)
	told := predictor.Reused{Run: r.id, Stage: id, At: now}
	lookup := wire.Lookup{Run: r.options.RetryOf, Shared: r.options.Shares(stage), For: r.id}
	if stage.CacheFor > 0 {
		lookup.NotBefore = now.Add(-stage.CacheFor)
	}
	for first := 0; first < len(inputs); first += lookupBatch {
		batch := inputs[first:min(first+lookupBatch, len(inputs))]
		lookup.Keys = make([]wire.ResultKey, len(batch))
		for i, input := range batch {
			lookup.Keys[i] = wire.NewResultKey(id, stage.Command, stage.CacheVersion, input)
		}
		var answer found
		err := workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
			ScheduleToCloseTimeout: 3 * lookupTimeout,
			StartToCloseTimeout:    2 * lookupTimeout,
			RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 1},
		}), effects{Host{Find: r.find}}.find, lookup).Get(ctx, &answer)
		if temporal.IsCanceledError(err) {
			return nil, err
		}
		if err != nil || len(answer.Results) != len(batch) {
			continue // it is run instead
		}
		for i, one := range answer.Results {
			if one == nil {
				continue
			}
			outputs[first+i] = one.Output
			told.Tasks++
			told.From = one.From
			told.Saved += one.Cost
			told.Wall += one.Wall
		}
	}
	if told.Tasks > 0 && r.tell != nil && !workflow.IsReplaying(ctx) {
		r.tell(told)
	}
	return outputs, nil
}

// find looks results up. Where that fails nothing is found, and what is not found is run.
func (e effects) find(ctx context.Context, lookup wire.Lookup) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	kept, err := e.host.Find(ctx, lookup)
	if err != nil {
		return found{}, nil
	}
	answer := found{Results: make([]*reused, len(kept))}
	for i, one := range kept {
		if one != nil {
			answer.Results[i] = &reused{Output: one.Output, From: one.Run, Cost: one.Cost, Wall: one.Wall}
		}
	}
	return answer, nil
}
