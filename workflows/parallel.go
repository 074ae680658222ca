package workflows

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/exchange"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Model is what several workers train: see [exchange.Model].
type Model = exchange.Model

// Part is what a worker computes of a round, and how much it counts in the mean of all.
type Part = exchange.Vector

// Pattern is how workers come to the mean of a round.
type Pattern = exchange.Pattern

// The patterns.
const (
	ScatterReduce   = exchange.ScatterReduce
	AllGather       = exchange.AllGather
	ParameterServer = exchange.ParameterServer
)

// Rounds says how workers train a model.
type Rounds struct {
	// Count is after how many rounds the training is over, from 1.
	Count int
	// Pattern is how they come to the mean of a round; empty is ScatterReduce or AllGather, whichever takes less time for
	// the size of the model. ParameterServer is for stages whose workers are all on the engine's machine: functions
	// elsewhere leave its tasks to the pool.
	Pattern Pattern
	// Every is after how many rounds one of them saves the state; 0 is 16, or what the parameter server has room for where
	// that is less.
	Every int
	// Patience is how long the others wait for a worker in the first round before they do its work, too; 0 is 2 s.
	Patience time.Duration
}

// Worker is one of the workers of a training. The stage is given it; the zero value is none.
type Worker struct {
	// Number is which it is, from 0, and Count how many there are.
	Number int `json:"number"`
	Count  int `json:"count"`
	// Group names the training.
	Group string `json:"group"`
	// From is where an earlier call has stopped.
	From exchange.Saved `json:"from,omitzero"`
}

// callTime is after how long a call saves its state and ends, so that the next goes on: a function may take it, at
// every venue, and it has a fifth of its time left to start and to save. A stage with a shorter timeout, or a function
// with a shorter limit, has a fifth of that left.
const callTime = wire.FunctionTime * 4 / 5

// Train does this worker's part of a training until its end, whoever did the rest; then the model is trained. It
// returns an error that the stage passes on where its call ends before the training does.
func (w Worker) Train(ctx context.Context, rounds Rounds, model Model) error {
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		return fmt.Errorf("train by several workers: %w", err)
	}
	board, _ := attempt.Store.(activities.Board)
	if rounds.Pattern == ParameterServer {
		board, _ = exchange.ServerFrom(ctx)
	}
	limit := callTime
	if attempt.Timeout > 0 {
		limit = min(limit, attempt.Timeout*4/5)
	}
	told, err := exchange.Train(ctx, exchange.Job{
		Board: board, Group: w.Group, Worker: w.Number, Workers: w.Count, Rounds: rounds.Count, Pattern: rounds.Pattern,
		Every: rounds.Every, Patience: rounds.Patience, Limit: limit, State: w.From,
		Each: func(told exchange.Told) { w.tell(ctx, rounds, told) },
	}, model)
	activities.Log(ctx).InfoContext(ctx, "worker ends", "worker", w.Number, "workers", w.Count, "rounds", told.Rounds,
		"parts", told.Parts, "skipped", told.Skipped, "computing", told.Computing, "exchanging", told.Exchanging)
	if err == nil && told.Rounds == 0 { // others have done it all
		w.tell(ctx, rounds, exchange.Told{Done: rounds.Count})
	}
	return err
}

// tell reports how the training goes, of which follows where its next tasks run, and how long they take.
func (w Worker) tell(ctx context.Context, rounds Rounds, told exchange.Told) {
	n := float64(max(told.Rounds, 1))
	passed := float64(max(told.Done-w.From.Round, 1)) // a call that goes on is a task of its own
	activities.Trained(ctx, predictor.Training{
		Model: "a vector", Executor: "workers", ModelBytes: quantity.Bytes(told.Bytes), Workers: w.Count,
		Steps: int64(told.Done), TotalSteps: int64(rounds.Count),
		StepSeconds:     (told.Computing + told.Exchanging).Seconds() / n,
		ExchangeSeconds: told.Exchanging.Seconds() / n,
		Computed:        min(float64(told.Parts)/(passed*float64(w.Count)), 1),
		Parts:           []predictor.TrainingPart{{Device: "cpu-0", Kind: "cpu", Threads: runtime.GOMAXPROCS(0)}},
	})
}

// ParallelStage is a stage whose tasks train one model together. List it in app.Main as any other. It is a value: With
// returns a changed copy.
type ParallelStage[In, Out any] struct {
	stage Stage[parallelInput[In], parallelOutput[Out]]
}

// parallelInput is the input of one worker's task.
type parallelInput[In any] struct {
	Input  In     `json:"input"`
	Worker Worker `json:"worker"`
}

// parallelOutput is what a task returns: the stage's output, or where it stopped before its limit.
type parallelOutput[Out any] struct {
	Output Out            `json:"output"`
	Again  exchange.Saved `json:"again,omitzero"`
}

// NewParallelStage declares a stage by which several workers train one model: each of them calls run, which makes the
// model and calls its worker's Train. When that returns nil the model is the same in all of them, so the outputs are
// alike; that of worker 0 counts. It panics as NewStage does.
func NewParallelStage[In, Out any](
	name string, run func(context.Context, In, Worker) (Out, error),
) ParallelStage[In, Out] {
	if run == nil {
		panic(fmt.Sprintf("spillway: stage %q has no function", name))
	}
	one := func(ctx context.Context, in parallelInput[In]) (parallelOutput[Out], error) {
		out, err := run(ctx, in.Input, in.Worker)
		if again := (*exchange.AgainError)(nil); errors.As(err, &again) {
			return parallelOutput[Out]{Again: again.Saved}, nil
		}
		return parallelOutput[Out]{Output: out}, err
	}
	return ParallelStage[In, Out]{NewStage(name, one)}
}

// With returns the stage with these hints, which are those of each worker.
func (s ParallelStage[In, Out]) With(hints Hints) ParallelStage[In, Out] {
	return ParallelStage[In, Out]{s.stage.With(hints)}
}

// Name returns the name that the stage was declared with.
func (s ParallelStage[In, Out]) Name() string { return s.stage.Name() }

// Describe returns what the engine knows of the stage.
func (s ParallelStage[In, Out]) Describe() wire.Stage { return s.stage.Describe() }

// Call runs one worker; see Stage.Call.
func (s ParallelStage[In, Out]) Call(ctx context.Context, input json.RawMessage) (json.RawMessage, error) {
	return s.stage.Call(ctx, input)
}

// Recommend leaves sizes to Spillway.
func (s ParallelStage[In, Out]) Recommend(
	ctx context.Context, input json.RawMessage, proposed wire.Proposal,
) (quantity.Size, error) {
	return s.stage.Recommend(ctx, input, proposed)
}

// Run trains by so many workers, from 1 to 100, and waits for all of them. Each is a task; one that stops before the
// limit of a call is called again. They need not all run at once: where there is room for fewer, or one is lost, the
// others do the work of those who are not there.
func (s ParallelStage[In, Out]) Run(ctx workflow.Context, in In, workers int) (out Out, err error) {
	if workers < 1 || workers > mostWorkers {
		return out, fmt.Errorf("stage %s: %d workers: give 1 to %d", s.Name(), workers, mostWorkers)
	}
	var group string
	if err := workflow.SideEffect(ctx, func(workflow.Context) any {
		return strings.ToLower(rand.Text())
	}).Get(&group); err != nil {
		return out, fmt.Errorf("stage %s: name its group: %w", s.Name(), err)
	}
	all, cancel := workflow.WithCancel(ctx)
	defer cancel()
	outputs, failed := make([]Out, workers), error(nil)
	left := workers
	for number := range workers {
		workflow.Go(all, func(ctx workflow.Context) {
			defer func() { left-- }()
			var err error
			outputs[number], err = s.worker(ctx, in, Worker{Number: number, Count: workers, Group: group})
			if err != nil && failed == nil {
				failed = err
				cancel()
			}
		})
	}
	settled, _ := workflow.NewDisconnectedContext(ctx)
	if err := workflow.Await(settled, func() bool { return left == 0 }); err != nil {
		return out, err
	}
	return outputs[0], failed
}

// mostWorkers bounds the workers of a training: each reads a message of each other in each round.
const mostWorkers = 100

// worker calls the stage until its training is over.
func (s ParallelStage[In, Out]) worker(ctx workflow.Context, in In, w Worker) (out Out, err error) {
	for {
		got, err := s.stage.Run(ctx, parallelInput[In]{Input: in, Worker: w})
		if err != nil {
			return out, err
		}
		if got.Again.State.Digest == "" {
			return got.Output, nil
		}
		if got.Again.Round <= w.From.Round && w.From.State.Digest != "" {
			return out, fmt.Errorf("stage %s: a call of worker %d has done no round beyond the %d that it began with: one "+
				"takes longer than a call may; give the training more workers, or smaller rounds", s.Name(), w.Number,
				w.From.Round)
		}
		w.From = got.Again
	}
}
