package workflows_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/exchange"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/app"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// descent finds the mean of the numbers 0 to 11 by gradient descent: each round has all of them.
type descent struct{ at float32 }

func (d *descent) Part(_ context.Context, _, part, parts int) (workflows.Part, error) {
	from, to := 12*part/parts, 12*(part+1)/parts
	gradient := float32(0)
	for i := from; i < to; i++ {
		gradient += (d.at - float32(i)) / float32(to-from)
	}
	return workflows.Part{Weight: float64(to - from), Values: []float32{gradient}}, nil
}

func (d *descent) Apply(_ context.Context, _ int, mean workflows.Part) error {
	d.at -= 0.5 * mean.Values[0]
	return nil
}

func (d *descent) MarshalBinary() ([]byte, error) {
	return binary.LittleEndian.AppendUint32(nil, math.Float32bits(d.at)), nil
}

func (d *descent) UnmarshalBinary(data []byte) error {
	if len(data) != 4 {
		return errors.New("not four bytes")
	}
	d.at = math.Float32frombits(binary.LittleEndian.Uint32(data))
	return nil
}

func descend(ctx context.Context, rounds int, worker workflows.Worker) (float32, error) {
	d := &descent{}
	err := worker.Train(ctx, workflows.Rounds{Count: rounds}, d)
	return d.at, err
}

func TestWorkersOfAParallelStageTrainOneModel(t *testing.T) {
	t.Parallel()
	for _, workers := range []int{1, 2, 3} {
		stage := workflows.NewParallelStage(fmt.Sprintf("descend-%d", workers), descend)
		pipeline := workflows.NewPipeline("descent", func(ctx workflow.Context, rounds int) (float32, error) {
			return stage.Run(ctx, rounds, workers)
		})
		got, err := spillwaytest.Run(t, pipeline, 24, app.Stage(stage))
		if err != nil || math.Abs(float64(got)-5.5) > 1e-5 {
			t.Errorf("%d workers: %v, %v, want 5.5", workers, got, err)
		}
	}
}

// TestACallThatStopsIsFollowedByAnother: each call of a worker does three rounds and stops, as one does whose function
// reaches its limit.
func TestACallThatStopsIsFollowedByAnother(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	stage := workflows.NewParallelStage("descend-a-while", func(
		ctx context.Context, rounds int, worker workflows.Worker,
	) (float32, error) {
		calls.Add(1)
		d := &descent{}
		err := worker.Train(ctx, workflows.Rounds{Count: min(worker.From.Round+3, rounds)}, d)
		if err != nil || worker.From.Round+3 >= rounds {
			return d.at, err
		}
		data, err := d.MarshalBinary()
		if err != nil {
			return 0, err
		}
		framed := binary.LittleEndian.AppendUint64([]byte("SPS1"), uint64(worker.From.Round+3))
		state, err := workflows.Put(ctx, append(framed, data...))
		if err != nil {
			return 0, err
		}
		return 0, fmt.Errorf("stopped: %w", &exchange.AgainError{
			Saved: exchange.Saved{Round: worker.From.Round + 3, State: state.Ref},
		})
	})
	pipeline := workflows.NewPipeline("descent-in-calls", func(ctx workflow.Context, rounds int) (float32, error) {
		return stage.Run(ctx, rounds, 1)
	})
	got, err := spillwaytest.Run(t, pipeline, 24, app.Stage(stage))
	if err != nil || math.Abs(float64(got)-5.5) > 1e-5 || calls.Load() != 8 {
		t.Errorf("%v, %v after %d calls, want 5.5 after 8", got, err, calls.Load())
	}
}

func TestAParallelStageThatGetsNowhereEnds(t *testing.T) {
	t.Parallel()
	stuck := workflows.NewParallelStage("stuck", func(
		ctx context.Context, _ int, _ workflows.Worker,
	) (int, error) {
		state, err := workflows.Put(ctx, []byte("state"))
		if err != nil {
			return 0, err
		}
		return 0, &exchange.AgainError{Saved: exchange.Saved{Round: 2, State: state.Ref}}
	})
	fails := workflows.NewParallelStage("fails-together", func(
		_ context.Context, _ int, worker workflows.Worker,
	) (int, error) {
		if worker.Number == 1 {
			return 0, fmt.Errorf("a worker cannot: %w", workflows.ErrPermanent)
		}
		return worker.Number, nil
	})
	for name, test := range map[string]struct {
		run  func(ctx workflow.Context, in int) (int, error)
		says string
	}{
		"a call without a round": {func(ctx workflow.Context, in int) (int, error) {
			return stuck.Run(ctx, in, 1)
		}, "has done no round"},
		"a worker that fails": {func(ctx workflow.Context, in int) (int, error) {
			return fails.Run(ctx, in, 2)
		}, "a worker cannot"},
		"no workers": {func(ctx workflow.Context, in int) (int, error) {
			return fails.Run(ctx, in, 0)
		}, "0 workers"},
		"too many": {func(ctx workflow.Context, in int) (int, error) {
			return fails.Run(ctx, in, 101)
		}, "101 workers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pipeline := workflows.NewPipeline("nowhere", test.run)
			_, err := spillwaytest.Run(t, pipeline, 1, app.Stage(stuck), app.Stage(fails))
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want it to say %q", err, test.says)
			}
		})
	}
}

// slowDescent takes a second for a part.
type slowDescent struct{ descent }

func (d *slowDescent) Part(ctx context.Context, round, part, parts int) (workflows.Part, error) {
	time.Sleep(time.Second)
	return d.descent.Part(ctx, round, part, parts)
}

func TestACallEndsBeforeTheTimeoutOfItsStage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		timeout, left time.Duration // of the stage, of its function; 0 for no end
		want          int
	}{
		"without an end":              {0, 0, 40},
		"a stage's timeout":           {20 * time.Second, 0, 14},
		"a function's time":           {0, 20 * time.Second, 14},
		"the timeout is the earlier":  {20 * time.Second, 30 * time.Second, 14},
		"the function's time is that": {30 * time.Second, 20 * time.Second, 14},
	} {
		synctest.Test(t, func(t *testing.T) {
			store, err := artifact.Open(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			ctx := activities.NewContext(t.Context(), &activities.Attempt{Store: store, Timeout: test.timeout})
			if test.left > 0 {
				within, cancel := context.WithTimeout(ctx, test.left)
				defer cancel()
				ctx = within
			}
			began := time.Now()
			err = workflows.Worker{Count: 1, Group: "group"}.Train(ctx, workflows.Rounds{Count: 40}, &slowDescent{})
			if took := time.Since(began); took != time.Duration(test.want)*time.Second || (err == nil) != (test.want == 40) {
				t.Errorf("%s: it has ended after %s, %v; want %d s", name, took, err, test.want)
			}
		})
	}
}

// TestAWorkerTellsHowMuchOfATrainingItHasComputed: the first of two is alone and does all of it, the second finds it
// done, and tells that it has done no step.
func TestAWorkerTellsHowMuchOfATrainingItHasComputed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, err := artifact.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		for number, want := range []predictor.Training{
			{Workers: 2, Steps: 5, TotalSteps: 5, Computed: 1}, {Workers: 2, Steps: 5, TotalSteps: 5},
		} {
			var told predictor.Training
			ctx := activities.NewContext(t.Context(), &activities.Attempt{
				Store: store, Trained: func(training predictor.Training) { told = training },
			})
			err := workflows.Worker{Number: number, Count: 2, Group: "group"}.Train(ctx, workflows.Rounds{Count: 5},
				&slowDescent{})
			if err != nil || told.Workers != want.Workers || told.Steps != want.Steps || told.TotalSteps != want.TotalSteps ||
				told.Computed != want.Computed || (told.StepSeconds > 0) != (want.Computed > 0) || told.Validate() != nil {
				t.Errorf("worker %d: %v, got %+v, want %+v", number, err, told, want)
			}
		}
	})
}

// TestACallTellsHowMuchOfItsOwnStepsItHasComputed has one of two workers do the work of both in several calls: each is
// a task, and takes as long as a call, and not as long as the training.
func TestACallTellsHowMuchOfItsOwnStepsItHasComputed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, err := artifact.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		worker, calls := workflows.Worker{Count: 2, Group: "group"}, 0
		for again := (*exchange.AgainError)(nil); calls == 0 || again != nil; calls++ {
			var told predictor.Training
			ctx := activities.NewContext(t.Context(), &activities.Attempt{
				Store: store, Timeout: 20 * time.Second, Trained: func(training predictor.Training) { told = training },
			})
			again = nil
			err := worker.Train(ctx, workflows.Rounds{Count: 20}, &slowDescent{})
			if err != nil && !errors.As(err, &again) {
				t.Fatal(err)
			}
			if told.Computed != 1 || told.Validate() != nil {
				t.Errorf("call %d computed %g of the steps until %d, want all of its own", calls, told.Computed, told.Steps)
			}
			if again != nil {
				worker.From = again.Saved
			}
		}
		if calls < 3 {
			t.Errorf("it took %d calls, want several", calls)
		}
	})
}
