// Command app is the app that chaos runs: pipelines whose results tell whether anything was lost or done twice. Its
// stages take processor time and not wall time, so that the work is the same wherever and beside whatever it runs.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/app"
)

// input is that of every pipeline. Salt makes inputs differ that are otherwise the same, so that no result of another
// run is taken.
type input struct {
	Shards int    `json:"shards"`
	Rounds int    `json:"rounds"`
	Salt   string `json:"salt"`
}

// shard is one piece of work.
type shard struct {
	Index  int    `json:"index"`
	Rounds int    `json:"rounds"`
	Salt   string `json:"salt"`
}

// result says how many shards there were, the sum of their indices, and how many were not in their place.
type result struct {
	Shards int   `json:"shards"`
	Sum    int64 `json:"sum"`
	Wrong  int   `json:"wrong"`
}

// burn hashes so many times. A hash feeds the next, and the last is looked at, so that the compiler leaves none out.
func burn(ctx context.Context, rounds int) error {
	var block [sha256.Size]byte
	for n := range rounds {
		block = sha256.Sum256(block[:])
		if n%10_000 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if rounds > 0 && block == [sha256.Size]byte{} {
		return errors.New("a hash of zeros")
	}
	return nil
}

func doWork(ctx context.Context, in shard) (int, error) {
	return in.Index, burn(ctx, in.Rounds)
}

// stumble fails at the first attempt of every third shard.
func stumble(ctx context.Context, in shard) (int, error) {
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		return 0, err
	}
	if attempt.Number == 1 && in.Index%3 == 0 {
		return 0, errors.New("the first attempt fails")
	}
	return doWork(ctx, in)
}

// counted is the checkpoint of count: what it has added up so far.
type counted struct {
	Step int   `json:"step"`
	Sum  int64 `json:"sum"`
}

// countSteps adds up its steps and saves a checkpoint at each: a step that is lost or done twice shows in the sum.
func countSteps(ctx context.Context, in input) (result, error) {
	var saved spillway.Checkpoint[counted]
	at, _, err := saved.Restore(ctx)
	if err != nil {
		return result{}, err
	}
	for at.Step < in.Shards {
		if err := burn(ctx, in.Rounds); err != nil {
			return result{}, err
		}
		at.Sum += int64(at.Step)
		at.Step++
		spillway.Progress(ctx, at.Step, map[string]float64{"sum": float64(at.Sum)})
		if err := saved.Save(ctx, at); err != nil {
			return result{}, err
		}
	}
	return result{Shards: at.Step, Sum: at.Sum}, nil
}

var (
	work   = spillway.NewStage("work", doWork)
	trip   = spillway.NewStage("trip", stumble).With(spillway.Hints{MaxAttempts: 3})
	count  = spillway.NewStage("count", countSteps)
	doomed = spillway.NewStage("doomed", func(context.Context, shard) (int, error) {
		return 0, errors.New("it never works")
	}).
		With(spillway.Hints{MaxAttempts: 2})
	gather = spillway.NewStage("gather", func(ctx context.Context, in input) (spillway.Artifact[[]int], error) {
		numbers := make([]int, in.Shards)
		for i := range numbers {
			numbers[i] = i
		}
		return spillway.Put(ctx, numbers)
	})
	add = spillway.NewStage("add", func(ctx context.Context, in spillway.Artifact[[]int]) (sum int64, err error) {
		numbers, err := in.Get(ctx)
		for _, n := range numbers {
			sum += int64(n)
		}
		return sum, err
	})
)

// fan maps a stage over the shards.
func fan(stage spillway.Stage[shard, int]) func(workflow.Context, input) (result, error) {
	return func(ctx workflow.Context, in input) (result, error) {
		shards := make([]shard, in.Shards)
		for i := range shards {
			shards[i] = shard{Index: i, Rounds: in.Rounds, Salt: in.Salt}
		}
		outputs, err := stage.Map(ctx, shards)
		if err != nil {
			return result{}, err
		}
		all := result{Shards: len(outputs)}
		for i, output := range outputs {
			all.Sum += int64(output)
			if output != i {
				all.Wrong++
			}
		}
		return all, nil
	}
}

// relay makes an artifact, maps over the shards, and reads the artifact again.
func relay(ctx workflow.Context, in input) (result, error) {
	numbers, err := gather.Run(ctx, in)
	if err != nil {
		return result{}, err
	}
	mapped, err := fan(work)(ctx, in)
	if err != nil {
		return result{}, err
	}
	sum, err := add.Run(ctx, numbers)
	if err == nil && sum != mapped.Sum {
		err = fmt.Errorf("the artifact adds up to %d, the shards to %d", sum, mapped.Sum)
	}
	return mapped, err
}

func main() {
	app.Main(app.Options{
		Name: "chaos",
		Pipelines: []app.Pipeline{
			spillway.NewPipeline("fan", fan(work)), spillway.NewPipeline("trip", fan(trip)),
			spillway.NewPipeline("doomed", fan(doomed)),
			spillway.NewPipeline("relay", relay),
			spillway.NewPipeline("count", count.Run),
		},
		Stages: []app.Stage{work, trip, count, doomed, gather, add},
	})
}
