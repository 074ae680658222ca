// Package forms holds one small pipeline for each form that a run can take. The engine's tests record runs of them and
// replay what they recorded; testdata keeps such histories by the version of the engine's steps, and each must replay
// for as long as runs of that version may go on.
package forms

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// App is the name of the app that has Pipelines and Stages.
const App = "forms"

// Signal lets a run of the pipeline `steered` go on; Broken ends the name of a run of `mended` whose second stage
// fails.
const (
	Signal = "go"
	Broken = "-broken"
)

// Input is the input of every pipeline.
type Input struct {
	// Number is what is worked on: how many shards a Map has, or how many bytes a large value.
	Number int `json:"number"`
	// From is the number of a Map's first shard.
	From int `json:"from,omitempty"`
}

var (
	double = workflows.NewStage("double", func(_ context.Context, in Input) (int, error) { return 2 * in.Number, nil })
	fail   = workflows.NewStage("fail", func(context.Context, Input) (int, error) {
		return 0, errors.New("it never works")
	}).
		With(workflows.Hints{MaxAttempts: 2})
	mend   = workflows.NewStage("mend", mendUnlessBroken).With(workflows.Hints{MaxAttempts: 1})
	linger = workflows.NewStage("linger", lingerOn)
	repeat = workflows.NewStage("repeat", func(_ context.Context, in Input) (string, error) {
		return strings.Repeat("x", in.Number), nil
	})
	length = workflows.NewStage("length", func(_ context.Context, text string) (int, error) { return len(text), nil })
)

var descend = workflows.NewStage("descend", descended)

// Descent is the input of the stage that is tuned, Descended its output.
type Descent struct {
	X     float64         `json:"x"`
	Trial workflows.Trial `json:"trial"`
}

// Descended is how far a trial came.
type Descended struct {
	Loss float64 `json:"loss"`
}

// descended comes nearer to x from epoch to epoch, of twenty steps each, and tells the loss of each step.
func descended(ctx context.Context, in Descent) (out Descended, err error) {
	const steps = 20
	for step := int(in.Trial.From * steps); step < int(in.Trial.To*steps); step++ {
		out.Loss = in.X + 1/float64(step+1)
		workflows.Progress(ctx, step+1, map[string]float64{"loss": out.Loss})
	}
	return out, workflows.Checkpoint[float64]{}.Save(ctx, in.Trial.To)
}

func mendUnlessBroken(ctx context.Context, in int) (int, error) {
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		return 0, err
	}
	if strings.HasSuffix(attempt.Run, Broken) {
		return 0, errors.New("this run is broken")
	}
	return in, nil
}

// lingerOn goes on until it is stopped, and says that it has begun.
func lingerOn(ctx context.Context, _ Input) (int, error) {
	workflows.Progress(ctx, 1, nil)
	<-ctx.Done()
	return 0, ctx.Err()
}

// Stages are those of Pipelines.
func Stages() []runs.AnyStage {
	return []runs.AnyStage{double, fail, mend, linger, repeat, length, descend}
}

// Pipelines are one for each form of run.
func Pipelines() []runs.AnyPipeline {
	return []runs.AnyPipeline{
		workflows.NewPipeline("plain", plain), workflows.NewPipeline("mapped", mapped),
		workflows.NewPipeline("failing", fail.Run),
		workflows.NewPipeline("mended", mended), workflows.NewPipeline("lingering", linger.Run),
		workflows.NewPipeline("steered", steered),
		workflows.NewPipeline("large", large), workflows.NewPipeline("continued", continued),
		workflows.NewPipeline("repeated", repeated), workflows.NewPipeline("tuned", tuned),
	}
}

// plain runs two tasks beside each other and one after them.
func plain(ctx workflow.Context, in Input) (int, error) {
	first, second := double.Start(ctx, in), double.Start(ctx, Input{Number: in.Number + 1})
	sum := 0
	for _, future := range []workflows.Future[int]{first, second} {
		one, err := future.Get(ctx)
		if err != nil {
			return 0, err
		}
		sum += one
	}
	return double.Run(ctx, Input{Number: sum})
}

func mapped(ctx workflow.Context, in Input) (int, error) {
	inputs := make([]Input, in.Number)
	for i := range inputs {
		inputs[i].Number = in.From + i
	}
	doubled, err := double.Map(ctx, inputs)
	sum := 0
	for _, one := range doubled {
		sum += one
	}
	return sum, err
}

func mended(ctx workflow.Context, in Input) (int, error) {
	doubled, err := double.Run(ctx, in)
	if err != nil {
		return 0, err
	}
	return mend.Run(ctx, doubled)
}

// steered waits between its tasks, so that somebody can steer it.
func steered(ctx workflow.Context, in Input) (int, error) {
	if _, err := double.Run(ctx, in); err != nil {
		return 0, err
	}
	if more := workflow.GetSignalChannel(ctx, Signal).Receive(ctx, nil); !more {
		return 0, fmt.Errorf("signal %s: its channel is closed", Signal)
	}
	return double.Run(ctx, in)
}

// large passes values on that are too large for a history.
func large(ctx workflow.Context, in Input) (int, error) {
	text, err := repeat.Run(ctx, in)
	if err != nil {
		return 0, err
	}
	lengths, err := length.Map(ctx, []string{text, text + "y"})
	sum := 0
	for _, one := range lengths {
		sum += one
	}
	return sum, err
}

// tuned tries as many configurations as the input's number, and goes on until all have had all.
func tuned(ctx workflow.Context, in Input) (Descended, error) {
	best, err := workflows.Tune(ctx, descend, workflows.Search[Descent, Descended]{
		Space: workflows.NewSpace("x=0..1"), Loss: "loss", Trials: in.Number, Most: 9, Least: 1, GoOn: true, Seed: 1,
	})
	return best.Output, err
}

// Progress is the state of a run that goes on: how many steps it has taken of how many, and the sum of what they
// returned.
type Progress struct {
	Steps int `json:"steps,omitempty"`
	Of    int `json:"of"`
	Sum   int `json:"sum,omitempty"`
}

func (p Progress) step(ctx workflow.Context) (Progress, error) {
	doubled, err := double.Run(ctx, Input{Number: p.Steps})
	p.Steps, p.Sum = p.Steps+1, p.Sum+doubled
	return p, err
}

// continued takes two steps, then continues as new by itself; a task is in flight as it does.
func continued(ctx workflow.Context, in Progress) (Progress, error) {
	for range 2 {
		next, err := in.step(ctx)
		if err != nil || next.Steps >= in.Of {
			return next, err
		}
		in = next
	}
	double.Start(ctx, Input{Number: -in.Steps})
	return in, workflow.NewContinueAsNewError(ctx, "continued", in)
}

// timers is how many timers each step of `repeated` sets: about two events of its history each.
const timers = 100

// repeated repeats a step until it is done; Temporal suggests when to continue as new.
func repeated(ctx workflow.Context, in Progress) (Progress, error) {
	return workflows.Repeat(ctx, in, func(ctx workflow.Context, state Progress) (Progress, error) {
		waits := make([]workflow.Future, timers)
		for i := range waits {
			waits[i] = workflow.NewTimer(ctx, time.Millisecond)
		}
		for _, wait := range waits {
			if err := wait.Get(ctx, nil); err != nil {
				return state, err
			}
		}
		next, err := state.step(ctx)
		if err == nil && next.Steps >= next.Of {
			err = workflows.ErrStop
		}
		return next, err
	})
}

//go:embed chain.yaml
var chainText []byte

// Chain is a chain of three stages, of which the second fans out.
func Chain() (chain.Chain, error) {
	c, err := chain.Parse("chain.yaml", chainText, chain.Checks{})
	if err != nil {
		return chain.Chain{}, err
	}
	return c.With(nil)
}

// Single is the chain of a single command.
func Single() (chain.Chain, error) { return chain.Single("single") }
