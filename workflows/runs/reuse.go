package runs

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

// found is what the local activity answers: for each key a result or nil. A type of its own keeps what is in histories
// small.
type found struct {
	Results []*reused `json:"results"`
}

// reused is a result of an earlier run.
type reused struct {
	Output json.RawMessage `json:"output"`
	From   string          `json:"from"`
	Cost   quantity.Money  `json:"cost_picodollars"`
	Wall   time.Duration   `json:"wall_ns"`
	Told   *wire.Told      `json:"told,omitempty"`
}

// inquiry is what the local activity is asked.
type inquiry struct {
	wire.Lookup
	// Had says of each key that the result of the run which is tried again was taken before.
	Had []bool `json:"had"`
}

// reuse returns for each input the output that an earlier run has made of it, nil where there is none; nothing at all
// when none is asked for.
//
// Of the run that this one tries again each result is taken by one call, and none once this run has continued as new: a
// step that repeats with the same input would get its one old output for ever.
func (r *run) reuse(ctx workflow.Context, stage wire.Stage, inputs []json.RawMessage) ([]json.RawMessage, error) {
	if r.find == nil || len(inputs) == 0 || !r.options.Reuses(stage) {
		return nil, nil
	}
	lookup := r.lookup(stage, workflow.Now(ctx))
	if lookup.Run == "" && !lookup.Shared && r.version >= versionAnew {
		return nil, nil
	}
	outputs := make([]json.RawMessage, len(inputs))
	id := r.stageID(stage.Name)
	told := predictor.Reused{Run: r.id, Stage: id, At: workflow.Now(ctx)}
	var taken []string
	for first := 0; first < len(inputs); first += lookupBatch {
		batch := inputs[first:min(first+lookupBatch, len(inputs))]
		asked := inquiry{Lookup: lookup, Had: make([]bool, len(batch))}
		asked.Keys = make([]wire.ResultKey, len(batch))
		for i, input := range batch {
			asked.Keys[i] = wire.NewResultKey(id, stage.Command, stage.CacheVersion, input)
			asked.Had[i] = r.taken[asked.Keys[i].Content]
		}
		results, err := r.lookUp(ctx, asked)
		if err != nil {
			return nil, err
		}
		for i, one := range results {
			if one == nil {
				continue
			}
			outputs[first+i] = one.Output
			taken = append(taken, asked.Keys[i].Content)
			told.Tasks++
			told.From = one.From
			told.Saved += one.Cost
			told.Wall += one.Wall
		}
	}
	for _, content := range taken { // equal inputs of one Map take it together
		r.taken[content] = true
	}
	if told.Tasks > 0 && r.tell != nil && !workflow.IsReplaying(ctx) {
		r.tell(told)
	}
	return outputs, nil
}

// lookup is what is asked of every result of a stage now.
func (r *run) lookup(stage wire.Stage, now time.Time) wire.Lookup {
	lookup := wire.Lookup{Run: r.options.RetryOf, Shared: r.options.Shares(stage), For: r.id}
	if r.continued {
		lookup.Run = ""
	}
	if stage.CacheFor > 0 {
		lookup.NotBefore = now.Add(-stage.CacheFor)
	}
	return lookup
}

// lookUp returns a result or nil for each key; nothing at all when nobody answers. It fails only when the run is
// cancelled.
func (r *run) lookUp(ctx workflow.Context, asked inquiry) ([]*reused, error) {
	var answer found
	err := workflow.ExecuteLocalActivity(workflow.WithLocalActivityOptions(ctx, workflow.LocalActivityOptions{
		ScheduleToCloseTimeout: 3 * lookupTimeout,
		StartToCloseTimeout:    2 * lookupTimeout,
		RetryPolicy:            &temporal.RetryPolicy{MaximumAttempts: 1},
	}), effects{Ports{Find: r.find}}.find, asked).Get(ctx, &answer)
	if temporal.IsCanceledError(err) {
		return nil, err
	}
	if err != nil || len(answer.Results) != len(asked.Keys) {
		return nil, nil //nolint:nilerr // it is run instead
	}
	return answer.Results, nil
}

// find looks results up. Those for which that fails are not found, and what is not found is run.
func (e effects) find(ctx context.Context, asked inquiry) (found, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	answer := found{Results: make([]*reused, len(asked.Keys))}
	for _, had := range []bool{false, true} {
		lookup := asked.Lookup
		if had {
			lookup.Run = ""
		}
		places := asked.places(had)
		if len(places) == 0 || lookup.Run == "" && !lookup.Shared {
			continue
		}
		lookup.Keys = make([]wire.ResultKey, len(places))
		for i, place := range places {
			lookup.Keys[i] = asked.Keys[place]
		}
		kept, _ := e.ports.Find(ctx, lookup) // with an error, those that were found all the same
		for i, one := range kept[:min(len(kept), len(places))] {
			if one != nil {
				answer.Results[places[i]] = &reused{
					Output: one.Output, From: one.Run, Cost: one.Cost, Wall: one.Wall, Told: one.Told,
				}
			}
		}
	}
	return answer, nil
}

// places are those of the keys whose result was taken before, or was not.
func (i inquiry) places(had bool) (places []int) {
	for place := range i.Keys {
		if i.Had[place] == had {
			places = append(places, place)
		}
	}
	return places
}
