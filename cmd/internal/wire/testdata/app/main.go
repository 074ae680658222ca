// Command app is the app that the engine's end-to-end tests run: small stages whose results tell whether anything was lost or done twice.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.temporal.io/sdk/workflow"

	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/app"
)

// shard is one piece of work: burn this much processor time, then say who you are.
type shard struct {
	Index        int `json:"index"`
	Milliseconds int `json:"milliseconds,omitempty"`
}

type fanInput struct {
	Shards       int `json:"shards"`
	Milliseconds int `json:"milliseconds,omitempty"`
}

type fanResult struct {
	Shards int   `json:"shards"`
	Sum    int64 `json:"sum"`
	Wrong  int   `json:"wrong"`
}

var (
	echo  = spillway.NewStage("echo", func(_ context.Context, in shard) (shard, error) { return in, nil })
	stamp = spillway.NewStage("stamp", func(context.Context, shard) (time.Time, error) { return time.Now(), nil })
	work  = spillway.NewStage("work", burn)
	count = spillway.NewStage("count", countSteps)
	fail  = spillway.NewStage("fail", func(context.Context, shard) (int, error) { return 0, errors.New("it never works") }).
		With(spillway.Hints{MaxAttempts: 2})
	boom = spillway.NewStage("boom", func(context.Context, shard) (int, error) { panic("boom") }).With(spillway.Hints{MaxAttempts: 1})
)

// burn takes processor time, not wall time, so that it takes as long wherever it runs.
func burn(_ context.Context, in shard) (int, error) {
	end := time.Now().Add(time.Duration(in.Milliseconds) * time.Millisecond)
	for n := 0; time.Now().Before(end); n++ {
	}
	return in.Index, nil
}

func fan(ctx workflow.Context, in fanInput) (fanResult, error) {
	shards := make([]shard, in.Shards)
	for i := range shards {
		shards[i] = shard{Index: i, Milliseconds: in.Milliseconds}
	}
	outputs, err := work.Map(ctx, shards)
	if err != nil {
		return fanResult{}, err
	}
	result := fanResult{Shards: len(outputs)}
	for i, output := range outputs {
		result.Sum += int64(output)
		if output != i {
			result.Wrong++
		}
	}
	return result, nil
}

type steps struct {
	Steps        int `json:"steps"`
	Milliseconds int `json:"milliseconds"`
}

// countSteps is a long stage: it saves a checkpoint at every step and says at which it began.
func countSteps(ctx context.Context, in steps) (began int, err error) {
	var saved spillway.Checkpoint[int]
	began, _, err = saved.Restore(ctx)
	if err != nil {
		return 0, err
	}
	for step := began + 1; step <= in.Steps; step++ {
		if _, err := burn(ctx, shard{Milliseconds: in.Milliseconds}); err != nil {
			return 0, err
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		spillway.Progress(ctx, step, map[string]float64{"done": float64(step) / float64(in.Steps)})
		if err := saved.Save(ctx, step); err != nil {
			return 0, err
		}
	}
	return began, nil
}

// one makes a pipeline of one stage.
func one[In, Out any](name string, stage spillway.Stage[In, Out]) spillway.AnyPipeline {
	return spillway.NewPipeline(name, func(ctx workflow.Context, in In) (Out, error) { return stage.Run(ctx, in) })
}

func main() {
	stages := []spillway.AnyStage{echo, stamp, work, count, fail, boom}
	pipelines := []spillway.AnyPipeline{
		spillway.NewPipeline("fan", fan),
		one("echo", echo), one("stamp", stamp), one("count", count), one("fail", fail), one("boom", boom),
	}
	// wideStages says how many more stages the app declares.
	var wide []spillway.Stage[shard, shard]
	for i := range manyStages() {
		stage := spillway.NewStage(fmt.Sprintf("wide-%d", i), func(_ context.Context, in shard) (shard, error) { return in, nil })
		wide, stages = append(wide, stage), append(stages, stage)
	}
	pipelines = append(pipelines, spillway.NewPipeline("wide", func(ctx workflow.Context, in fanInput) (int, error) {
		futures := make([]spillway.Future[shard], min(in.Shards, len(wide)))
		for i := range futures {
			futures[i] = wide[i].Start(ctx, shard{Index: i})
		}
		for _, future := range futures {
			if _, err := future.Get(ctx); err != nil {
				return 0, err
			}
		}
		return len(futures), nil
	}))
	app.Main(app.Options{Name: "testapp", Pipelines: pipelines, Stages: stages})
}

// wideStages is set with -ldflags "-X main.wideStages=1000".
var wideStages = "0"

func manyStages() (n int) {
	_, _ = fmt.Sscan(wideStages, &n)
	return n
}
