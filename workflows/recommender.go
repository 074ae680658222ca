package workflows

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Size is the room that one attempt holds.
type Size = quantity.Size

// Proposal is what an attempt would be given, and what that rests on.
type Proposal = wire.Proposal

// WithRecommender returns the stage with a function that decides the size of each attempt in Spillway's place: of the
// next attempt of a task with this input, for which Spillway proposes that. Such a stage runs at the pool only. Nil
// leaves sizes to Spillway.
//
// Amounts of 0 are those of the proposal; amounts above the host's are cut to it. On an error, a panic, or no answer
// within two seconds, the attempt is given what was proposed, and its Record says why. The function runs on the host,
// in a process that runs stages, and may be called by several goroutines at a time.
func (s Stage[In, Out]) WithRecommender(
	recommend func(ctx context.Context, in In, proposed Proposal) (Size, error),
) Stage[In, Out] {
	s.recommend = recommend
	return s
}

// Recommend asks the function of WithRecommender about an encoded input; runs.ErrInput when that does not decode.
// Without one it returns what is proposed. The engine calls it.
func (s Stage[In, Out]) Recommend(ctx context.Context, input json.RawMessage, proposed Proposal) (Size, error) {
	if s.recommend == nil {
		return proposed.Size, nil
	}
	var in In
	if err := json.Unmarshal(input, &in); err != nil {
		return Size{}, fmt.Errorf("stage %s: %w into %T: %w", s.name, runs.ErrInput, in, err)
	}
	return s.recommend(ctx, in, proposed)
}
