package workflows

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/engine"
)

// Size is the room that one attempt holds.
type Size = quantity.Size

// Proposal is what an attempt would be given, and what that rests on.
type Proposal = wire.Proposal

// Recommender decides the size of each attempt of a stage in Spillway's place, from the input and from what Spillway proposes.
type Recommender[In any] interface {
	// Recommend returns the size of the next attempt of a task with this input. Amounts of 0 are those of the proposal; amounts above the
	// host's are cut to it. On an error, a panic, or no answer within two seconds, the attempt is given what was proposed, and its Record
	// says why. It runs on the host, in a process that runs stages: several may be asked at a time.
	Recommend(ctx context.Context, in In, proposed Proposal) (Size, error)
}

// WithRecommender returns the stage with a recommender of its own. Such a stage runs at the pool only.
func (s Stage[In, Out]) WithRecommender(recommender Recommender[In]) Stage[In, Out] {
	s.recommender = recommender
	return s
}

// Recommend asks the stage's recommender about an encoded input; engine.ErrInput when that does not decode. Without a recommender it returns what is
// proposed. The engine calls it.
func (s Stage[In, Out]) Recommend(ctx context.Context, input json.RawMessage, proposed Proposal) (Size, error) {
	if s.recommender == nil {
		return proposed.Size, nil
	}
	var in In
	if err := json.Unmarshal(input, &in); err != nil {
		return Size{}, fmt.Errorf("stage %s: %w into %T: %w", s.name, engine.ErrInput, in, err)
	}
	return s.recommender.Recommend(ctx, in, proposed)
}
