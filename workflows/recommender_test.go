package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/spillway-ml/spillway/predictor/quantity"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

func TestAStageAsksItsRecommenderForSizes(t *testing.T) {
	t.Parallel()
	proposed := spillway.Proposal{Size: spillway.Size{CPU: 500, Memory: quantity.GiB}}
	recommended := squared.WithRecommender(func(_ context.Context, in square, proposed spillway.Proposal) (spillway.Size,
		error,
	) {
		return spillway.Size{CPU: proposed.Size.CPU, Memory: quantity.Bytes(in.Number) * quantity.MiB}, nil
	})
	for name, c := range map[string]struct {
		stage      runs.AnyStage
		input      string
		want       spillway.Size
		wantErr    error
		recommends bool
	}{
		"none takes what is proposed": {squared, `{"number":3}`, proposed.Size, nil, false},
		"one is asked with the input": {
			recommended, `{"number":3}`,
			spillway.Size{CPU: 500, Memory: 3 * quantity.MiB},
			nil, true,
		},
		"one is not asked without input":    {recommended, `"three"`, spillway.Size{}, runs.ErrInput, true},
		"nil takes the recommender away":    {recommended.WithRecommender(nil), `{"number":3}`, proposed.Size, nil, false},
		"the stage it was made of has none": {squared, `"three"`, proposed.Size, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if told := c.stage.Describe(); told.Recommends != c.recommends || told.PoolOnly != c.recommends {
				t.Errorf("described as %+v, want that it recommends, at the pool only: %t", told, c.recommends)
			}
			got, err := c.stage.Recommend(t.Context(), json.RawMessage(c.input), proposed)
			if got != c.want || !errors.Is(err, c.wantErr) {
				t.Errorf("size %+v, %v; want %+v, %v", got, err, c.want, c.wantErr)
			}
		})
	}
}
