package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/workflow"

	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

type square struct {
	Number int `json:"number"`
}

var (
	squared = spillway.NewStage("squared", func(_ context.Context, in square) (int, error) {
		return in.Number * in.Number, nil
	})
	total = spillway.NewStage("total", spillway.Put[[]int])
	sum   = spillway.NewStage("sum", func(ctx context.Context, in spillway.Artifact[[]int]) (int, error) {
		values, err := in.Get(ctx)
		if err != nil {
			return 0, err
		}
		all := 0
		for _, v := range values {
			all += v
		}
		return all, nil
	})
	picky = spillway.NewStage("picky", func(_ context.Context, in int) (int, error) {
		if in == 7 {
			return 0, fmt.Errorf("seven is refused: %w", spillway.ErrPermanent)
		}
		return in, nil
	})
	panicking = spillway.NewStage("panicking", func(_ context.Context, _ int) (int, error) { panic("boom") })
)

func sumOfSquares(ctx workflow.Context, n int) (int, error) {
	inputs := make([]square, n)
	for i := range inputs {
		inputs[i] = square{Number: i}
	}
	squares, err := squared.Map(ctx, inputs)
	if err != nil {
		return 0, err
	}
	stored, err := total.Run(ctx, squares)
	if err != nil {
		return 0, err
	}
	return sum.Run(ctx, stored)
}

// mapOnly maps and does nothing else.
func mapOnly(ctx workflow.Context, n int) (int, error) {
	inputs := make([]square, n)
	for i := range inputs {
		inputs[i] = square{Number: i}
	}
	squares, err := squared.Map(ctx, inputs)
	return len(squares), err
}

func TestAPipelineOrdersStagesAndMapsKeepTheOrderOfTheirInputs(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 2, 3, 499, 1201} {
		t.Run(fmt.Sprintf("%d shards", n), func(t *testing.T) {
			t.Parallel()
			got, err := spillwaytest.Run(t, spillway.NewPipeline("squares", sumOfSquares), n, squared, total, sum)
			if err != nil {
				t.Fatal(err)
			}
			want := 0
			for i := range n {
				want += i * i
			}
			if got != want {
				t.Errorf("sum of the squares below %d: got %d, want %d", n, got, want)
			}
		})
	}
}

func TestAStageThatIsNotListedIsAnErrorByName(t *testing.T) {
	t.Parallel()
	_, err := spillwaytest.Run(t, spillway.NewPipeline("squares", sumOfSquares), 3, total, sum)
	if err == nil || !strings.Contains(err.Error(), `stage "squared" is not listed in app.Main`) {
		t.Errorf("got %v, want an error that names the stage", err)
	}
}

func TestAFailedShardEndsTheMapAndIsNamed(t *testing.T) {
	t.Parallel()
	pipeline := spillway.NewPipeline("picky-map", func(ctx workflow.Context, n int) ([]int, error) {
		inputs := make([]int, n)
		for i := range inputs {
			inputs[i] = i
		}
		return picky.Map(ctx, inputs)
	})
	_, err := spillwaytest.Run(t, pipeline, 600, picky)
	if err == nil || !strings.Contains(err.Error(), "picky[7]: seven is refused") {
		t.Errorf("got %v, want the index and the message of the shard", err)
	}
}

func TestAPanicOfAStageFailsTheRunAndNamesTheStage(t *testing.T) {
	t.Parallel()
	pipeline := spillway.NewPipeline("panics", panicking.Run)
	_, err := spillwaytest.Run(t, pipeline, 1, panicking)
	if err == nil || !strings.Contains(err.Error(), "stage panicking panicked: boom") {
		t.Errorf("got %v, want the stage and the reason", err)
	}
}

type checkedInput struct {
	Rate float64 `json:"rate,omitempty"`
}

func (c checkedInput) Validate() error {
	if c.Rate < 0 {
		return errors.New("rate is negative")
	}
	return nil
}

func TestValidateRefusesAnInputBeforeAnyStageRuns(t *testing.T) {
	t.Parallel()
	pipeline := spillway.NewPipeline("checked", func(ctx workflow.Context, _ checkedInput) (int, error) {
		return sum.Run(ctx, spillway.Artifact[[]int]{})
	})
	_, err := spillwaytest.Run(t, pipeline, checkedInput{Rate: -1}, sum)
	if err == nil || !strings.Contains(err.Error(), "input of pipeline checked: rate is negative") {
		t.Errorf("got %v, want the reason of Validate", err)
	}
}

func TestDescribeTellsTheEngineWhatItMustKnow(t *testing.T) {
	t.Parallel()
	pipeline := spillway.NewPipeline("checked", func(workflow.Context, checkedInput) (int, error) { return 0, nil }).
		On(spillway.Binding{Subject: "images.>", MaxRuns: 2, Input: checkedInput{Rate: 1}}).
		WithGoal(spillway.Goal{Minimise: spillway.Cost})
	described, err := pipeline.Describe()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(described.Input), `"rate"`) {
		t.Errorf("schema %s does not name the field", described.Input)
	}
	if diff := cmp.Diff(`{"rate":1}`, string(described.Bindings[0].Input)); diff != "" {
		t.Errorf("input of the binding (-want +got):\n%s", diff)
	}
	_, err = pipeline.WithGoal(spillway.Goal{Deadline: -1}).Describe()
	if err == nil || !strings.Contains(err.Error(), "negative") {
		t.Errorf("negative deadline: got %v, want a refusal", err)
	}
}

func TestNamesThatAreNoNamesAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "Train", "a b", "1st", "spillway.map", strings.Repeat("x", 41)} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("name %q was accepted", name)
				}
			}()
			spillway.NewPipeline(name, func(workflow.Context, int) (int, error) { return 0, nil })
		}()
	}
}

func TestCheckListedNamesWhatIsMissingAndWhatIsDoubled(t *testing.T) {
	t.Parallel()
	err := runs.CheckListed([]runs.AnyStage{squared, total, sum, picky})
	if err == nil || !strings.Contains(err.Error(), `stage "panicking"`) ||
		!strings.Contains(err.Error(), "pipeline_test.go") {
		t.Errorf("got %v, want the missing stage and where it is declared", err)
	}
	err = runs.CheckListed([]runs.AnyStage{squared, squared})
	if err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("got %v, want the doubled stage", err)
	}
}
