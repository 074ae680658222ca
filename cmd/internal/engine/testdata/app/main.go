// Command app is the app that the engine's end-to-end tests run: small stages whose results tell whether anything was
// lost or done twice.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/app"
)

// shard is one piece of work: keep a processor busy for this long, hash this many times 64 KiB, then say who you are.
type shard struct {
	Index        int `json:"index"`
	Milliseconds int `json:"milliseconds,omitempty"`
	Hashes       int `json:"hashes,omitempty"`
}

type fanInput struct {
	Shards       int `json:"shards"`
	Milliseconds int `json:"milliseconds,omitempty"`
	Hashes       int `json:"hashes,omitempty"`
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
	fail  = spillway.NewStage("fail", func(context.Context, shard) (int, error) {
		return 0, errors.New("it never works")
	}).
		With(spillway.Hints{MaxAttempts: 2})
	boom = spillway.NewStage("boom", func(context.Context, shard) (int, error) {
		panic("boom")
	}).With(spillway.Hints{MaxAttempts: 1})
)

// burn takes as long wherever it runs; hashes take longer with less of a processor.
func burn(_ context.Context, in shard) (int, error) {
	block := make([]byte, min(in.Hashes, 1)*64<<10)
	for range in.Hashes {
		sum := sha256.Sum256(block)
		copy(block, sum[:])
	}
	end := time.Now().Add(time.Duration(in.Milliseconds) * time.Millisecond)
	for n := 0; time.Now().Before(end); n++ {
	}
	return in.Index, nil
}

// hungry is work whose memory depends on its input: 20 MiB, and 40 bytes for each row, give or take noise.
type hungry struct {
	Index int   `json:"index"`
	Rows  int64 `json:"rows"`
	// Bytes is what it really takes; the engine cannot know it, as it is written as text.
	Bytes string `json:"bytes"`
	// FailFirst makes the first attempt end with an error, Exit and Timeout in the ways that they name.
	FailFirst string `json:"fail_first,omitempty"`
}

type feastInput struct {
	Tasks int    `json:"tasks"`
	Seed  uint64 `json:"seed"`
	Most  int64  `json:"most_rows"`
}

type feastResult struct {
	Done int `json:"done"`
}

var eat = spillway.NewStage("eat", consume).With(spillway.Hints{MaxAttempts: 4})

// consume holds as much memory as its input says, and touches it.
func consume(ctx context.Context, in hungry) (int, error) {
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		return 0, err
	}
	if attempt.Number == 1 {
		switch in.FailFirst {
		case "error":
			return 0, errors.New("the first attempt fails")
		case "panic":
			panic("the first attempt panics")
		case "exit":
			os.Exit(9)
		}
	}
	var size int64
	if _, err := fmt.Sscan(in.Bytes, &size); err != nil {
		return 0, err
	}
	block := make([]byte, size)
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	runtime.KeepAlive(block)
	return in.Index, nil
}

func feast(ctx workflow.Context, in feastInput) (feastResult, error) {
	r := rand.New(rand.NewPCG(in.Seed, 7)) //workflowcheck:ignore seeded by the input
	inputs := make([]hungry, in.Tasks)
	for i := range inputs {
		rows := 1 + r.Int64N(in.Most)
		size := float64(20<<20+40*rows) * math.Exp(0.03*r.NormFloat64())
		inputs[i] = hungry{Index: i, Rows: rows, Bytes: fmt.Sprint(int64(size))}
		if i%10 == 3 {
			inputs[i].FailFirst = []string{"error", "panic", "exit"}[i/10%3]
		}
	}
	done, err := eat.Map(ctx, inputs)
	return feastResult{len(done)}, err
}

func fan(ctx workflow.Context, in fanInput) (fanResult, error) {
	shards := make([]shard, in.Shards)
	for i := range shards {
		shards[i] = shard{Index: i, Milliseconds: in.Milliseconds, Hashes: in.Hashes}
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

// The stages of relay: gather makes an artifact, work and mend read it, and finish sums up. A build may be broken: its
// mend fails.
var (
	gather = spillway.NewStage("gather", func(ctx context.Context, in fanInput) (spillway.Artifact[[]int], error) {
		numbers := make([]int, in.Shards)
		for i := range numbers {
			numbers[i] = i
		}
		return spillway.Put(ctx, numbers)
	})
	mend = spillway.NewStage("mend", func(ctx context.Context, in spillway.Artifact[[]int]) (int, error) {
		if broken != "" {
			return 0, fmt.Errorf("this build is broken: <b>%s</b>", broken)
		}
		numbers, err := in.Get(ctx)
		sum := 0
		for _, n := range numbers {
			sum += n
		}
		return sum, err
	}).With(spillway.Hints{MaxAttempts: 1})
	finish = spillway.NewStage("finish", func(_ context.Context, sum int) (fanResult, error) {
		return fanResult{Sum: int64(sum)}, nil
	})
)

// broken is set with -ldflags "-X main.broken=yes".
var broken string

func relay(ctx workflow.Context, in fanInput) (fanResult, error) {
	numbers, err := gather.Run(ctx, in)
	if err != nil {
		return fanResult{}, err
	}
	shards := make([]shard, in.Shards)
	for i := range shards {
		shards[i] = shard{Index: i, Milliseconds: in.Milliseconds}
	}
	outputs, err := work.Map(ctx, shards)
	if err != nil {
		return fanResult{}, err
	}
	sum, err := mend.Run(ctx, numbers)
	if err != nil {
		return fanResult{}, err
	}
	result, err := finish.Run(ctx, sum)
	result.Shards = len(outputs)
	return result, err
}

// trialInput is what a trial of the stage fit is given. It fails where its checkpoint is that of another trial, or of
// another moment of its own.
type trialInput struct {
	Rate         float64        `json:"rate"`
	Milliseconds int            `json:"milliseconds"`
	Trial        spillway.Trial `json:"trial"`
}

type trialState struct {
	Trial int     `json:"trial"`
	Step  float64 `json:"step"`
}

type trialResult struct {
	Loss float64 `json:"loss"`
	Step float64 `json:"step"`
}

var fit = spillway.NewStage("fit", func(ctx context.Context, in trialInput) (trialResult, error) {
	var saved spillway.Checkpoint[trialState]
	state, resumed, err := saved.Restore(ctx)
	if err != nil {
		return trialResult{}, err
	}
	if resumed != (in.Trial.From > 0) && state.Step == 0 || state.Step < in.Trial.From || state.Step > in.Trial.To ||
		resumed && state.Trial != in.Trial.Number {
		return trialResult{}, fmt.Errorf("trial %+v goes on from %+v: %w", in.Trial, state, spillway.ErrPermanent)
	}
	for state.Trial = in.Trial.Number; state.Step < in.Trial.To; {
		if _, err := burn(ctx, shard{Milliseconds: in.Milliseconds}); err != nil {
			return trialResult{}, err
		}
		state.Step++
		if err := saved.Save(ctx, state); err != nil {
			return trialResult{}, err
		}
	}
	return trialResult{Loss: math.Abs(math.Log10(in.Rate)+2) + 1/state.Step, Step: state.Step}, nil
})

type tuningInput struct {
	Trials       int    `json:"trials"`
	Milliseconds int    `json:"milliseconds"`
	Seed         uint64 `json:"seed"`
}

// tuningResult says what was found, and of how many jobs and different tasks; Odd are jobs that are not where they
// belong.
type tuningResult struct {
	Best      int     `json:"best"`
	Rate      float64 `json:"rate"`
	Loss      float64 `json:"loss"`
	Trials    int     `json:"trials"`
	Jobs      int     `json:"jobs"`
	Tasks     int     `json:"tasks"`
	Odd       int     `json:"odd"`
	Step      float64 `json:"step"`
	Objective float64 `json:"objectives"` // the sum of all
}

func tuning(ctx workflow.Context, in tuningInput) (tuningResult, error) {
	best, err := spillway.Tune(ctx, fit, spillway.Search[trialInput, trialResult]{
		Space: spillway.NewSpace("rate=log:1e-4..1.0"), Input: trialInput{Milliseconds: in.Milliseconds}, Loss: "loss",
		Trials: in.Trials, Least: 1, Most: 9, Algorithm: spillway.Halving, Seed: in.Seed,
	})
	if err != nil {
		return tuningResult{}, err
	}
	result := tuningResult{
		Best: best.Trial, Rate: best.Configuration["rate"].Number, Loss: best.Objective, Trials: best.Tuning.Begun,
		Step: best.Output.Step,
	}
	tasks := map[string]bool{}
	for _, trial := range best.Tuning.Trials {
		for rung, job := range trial.Jobs {
			result.Jobs++
			tasks[job.Task] = true
			if job.Rung != rung || job.Objective == nil || rung > 0 && job.From != trial.Jobs[rung-1].To {
				result.Odd++
				continue
			}
			result.Objective += *job.Objective
		}
	}
	result.Tasks = len(tasks)
	return result, nil
}

// one makes a pipeline of one stage.
func one[In, Out any](name string, stage spillway.Stage[In, Out]) app.Pipeline {
	return spillway.NewPipeline(name, func(ctx workflow.Context, in In) (Out, error) { return stage.Run(ctx, in) })
}

func main() {
	stages := []app.Stage{echo, stamp, work, count, fail, boom, eat, gather, mend, finish, fit}
	pipelines := []app.Pipeline{
		spillway.NewPipeline("fan", fan), spillway.NewPipeline("fan-too", fan),
		spillway.NewPipeline("feast", feast), spillway.NewPipeline("relay", relay),
		spillway.NewPipeline("tuning", tuning),
		one("echo", echo), one("stamp", stamp), one("count", count), one("fail", fail), one("boom", boom),
	}
	// wideStages says how many more stages the app declares.
	var wide []spillway.Stage[shard, shard]
	for i := range manyStages() {
		stage := spillway.NewStage(fmt.Sprintf("wide-%d", i), func(_ context.Context, in shard) (shard, error) {
			return in, nil
		})
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
	if confides != "" {
		confide := spillway.NewStage("confide", tell).With(spillway.Hints{Secrets: []string{confides}, MaxAttempts: 2})
		stages, pipelines = append(stages, confide), append(pipelines, one("confide", confide))
	}
	app.Main(app.Options{Name: "testapp", Pipelines: pipelines, Stages: stages})
}

// confides is set with -ldflags "-X main.confides=NAME": the secret of a stage that is there then.
var confides string

// tell says its secret, fails with it, and returns its digest.
func tell(ctx context.Context, _ shard) (string, error) {
	secret, err := spillway.Secret(ctx, confides)
	if err != nil {
		return "", err
	}
	fmt.Println("the key is", secret)
	spillway.Log(ctx).Info("logs in", "key", secret)
	attempt, err := activities.FromContext(ctx)
	if err == nil && attempt.Number == 1 {
		return "", fmt.Errorf("no login with %s", secret)
	}
	return fmt.Sprintf("%x", sha256.Sum256([]byte(secret))), err
}

// wideStages is set with -ldflags "-X main.wideStages=1000".
var wideStages = "0"

func manyStages() (n int) {
	_, _ = fmt.Sscan(wideStages, &n)
	return n
}
