package training_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/training"
)

// validated is the reference with validation data, whose losses are written down by the number of finished steps.
type validated struct {
	exec.Executor
	losses  map[int64]float64
	metrics map[string]float64
	began   func(step int64)                            // nil is nothing
	looking func(ctx context.Context, step int64) error // nil is nothing
	endless bool                                        // the data does not say how many batches an epoch has
}

func (v validated) Probe(ctx context.Context, o exec.ProbeOptions) (exec.Probe, error) {
	p, err := v.Executor.Probe(ctx, o)
	p.Validates, p.Metrics = true, []string{"accuracy"}
	return p, err
}

func (v validated) Load(ctx context.Context, l exec.Layout) (exec.Pipeline, error) {
	p, err := v.Executor.Load(ctx, l)
	if err != nil {
		return nil, err
	}
	return &validatedPipeline{Pipeline: p, of: v}, nil
}

type validatedPipeline struct {
	exec.Pipeline
	of   validated
	step int64 // of the last batch
}

func (p *validatedPipeline) Data() exec.Data {
	data := p.Pipeline.Data()
	data.Validates = true
	if p.of.endless {
		data.StepsPerEpoch = 0
	}
	return data
}

func (p *validatedPipeline) Batch(ctx context.Context, step int64) (exec.Batch, error) {
	p.step = step
	if p.of.began != nil {
		p.of.began(step)
	}
	return p.Pipeline.Batch(ctx, step)
}

func (p *validatedPipeline) Evaluate(ctx context.Context) (exec.Evaluation, error) {
	if p.of.looking != nil {
		if err := p.of.looking(ctx, p.step+1); err != nil {
			return exec.Evaluation{}, err
		}
	}
	loss, there := p.of.losses[p.step+1]
	if !there {
		return exec.Evaluation{}, errors.New("nobody should look now")
	}
	return exec.Evaluation{Samples: 5, Loss: loss, Metrics: p.of.metrics}, nil
}

// validatedJob evaluates every second step of twelve.
func validatedJob(t *testing.T) training.Job {
	t.Helper()
	j := job(t, exectest.Options{})
	j.Executor = validated{
		Executor: j.Executor,
		losses:   map[int64]float64{2: 5, 4: 3, 6: 4, 8: 3.5, 10: 2, 12: 6},
		metrics:  map[string]float64{"accuracy": 0.5},
	}
	j.Steps, j.EvaluateEvery = 12, 2
	return j
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTheBestStepIsKeptBesideTheLast compares its model with that of a training which ends there.
func TestTheBestStepIsKeptBesideTheLast(t *testing.T) {
	t.Parallel()
	until := validatedJob(t)
	until.Steps = 10
	want, err := training.Run(t.Context(), until, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	for _, result := range []string{"", training.ResultBest} {
		j := validatedJob(t)
		j.Result = result
		var told []float64
		got, err := training.Run(t.Context(), j, training.Observer{Progressed: func(p training.Progress) {
			if p.Validation != nil && p.Validation.Step == p.Training.Steps {
				told = append(told, p.Validation.Loss)
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]float64{5, 3, 4, 3.5, 2, 6}, told); diff != "" {
			t.Errorf("the evaluations that were told:\n%s", diff)
		}
		best := got.BestModel
		if result == training.ResultBest {
			best = got.Model
		}
		if read(t, best) != read(t, want.Model) {
			t.Errorf("result %q: the model of the best step is not that of a training of 10 steps", result)
		}
		if got.Best == nil || got.Best.BestStep != 10 || got.Best.Best != 2 || got.Validation.Loss != 6 {
			t.Errorf("result %q: best %+v, last %+v", result, got.Best, got.Validation)
		}
	}
}

// TestPatienceEndsATrainingAndSurvivesAResume stops one at every step and goes on in another directory, where the
// checkpoint was brought alone.
func TestPatienceEndsATrainingAndSurvivesAResume(t *testing.T) {
	t.Parallel()
	whole := validatedJob(t)
	whole.Patience = 2
	want, err := training.Run(t.Context(), whole, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	if want.Training.Steps != 8 || want.Training.TotalSteps != 8 || want.Best.BestStep != 4 {
		t.Fatalf("it ends after %d of %d steps, the best %+v", want.Training.Steps, want.Training.TotalSteps, want.Best)
	}
	for stopped := int64(1); stopped < 8; stopped++ {
		first := validatedJob(t)
		first.Patience = 2
		stop := make(chan struct{})
		first.Stop = stop
		v, _ := first.Executor.(validated)
		var planned atomic.Bool // steps before that are the plan's
		v.began = func(step int64) {
			if step == stopped-1 && planned.Load() {
				close(stop)
			}
		}
		first.Executor = v
		watch := training.Observer{Planned: func(predictor.Training) { planned.Store(true) }}
		if _, err := training.Run(t.Context(), first, watch); !errors.Is(err, training.ErrStopped) {
			t.Fatal(err)
		}
		from, _ := newest(t, first.Directory)
		second := validatedJob(t)
		second.Patience = 2
		second.Resume = filepath.Join(t.TempDir(), "brought")
		if err := os.CopyFS(second.Resume, os.DirFS(from)); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(first.Directory); err != nil {
			t.Fatal(err)
		}
		got, err := training.Run(t.Context(), second, training.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		if got.Training.Steps != 8 || got.Best.BestStep != 4 || read(t, got.BestModel) != read(t, want.BestModel) ||
			read(t, got.Model) != read(t, want.Model) {
			t.Errorf("stopped after step %d: it ends after step %d, the best %+v, or with another model", stopped,
				got.Training.Steps, got.Best)
		}
	}
}

// TestATrainingIsStoppedInAnEvaluation stops one in each evaluation, which does not end before it is told to; the one
// that goes on makes up for it.
func TestATrainingIsStoppedInAnEvaluation(t *testing.T) {
	t.Parallel()
	whole := validatedJob(t)
	want, err := training.Run(t.Context(), whole, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	for stopped := int64(2); stopped <= 12; stopped += 2 {
		first := validatedJob(t)
		stop := make(chan struct{})
		first.Stop = stop
		v, _ := first.Executor.(validated)
		v.looking = func(ctx context.Context, step int64) error {
			if step != stopped {
				return nil
			}
			close(stop)
			<-ctx.Done()
			return ctx.Err()
		}
		first.Executor = v
		if _, err := training.Run(t.Context(), first, training.Observer{}); !errors.Is(err, training.ErrStopped) {
			t.Fatalf("stopped in the evaluation after step %d: %v", stopped, err)
		}
		second := validatedJob(t)
		second.Directory = first.Directory
		var at int64
		if second.Resume, at = newest(t, first.Directory); at != stopped {
			t.Errorf("stopped in the evaluation after step %d, the newest checkpoint is of step %d", stopped, at)
		}
		v, _ = second.Executor.(validated)
		looked := []int64(nil)
		v.looking = func(_ context.Context, step int64) error {
			looked = append(looked, max(step, stopped)) // before the first batch it does not know
			return nil
		}
		second.Executor = v
		v.losses[0+1] = v.losses[stopped]
		got, err := training.Run(t.Context(), second, training.Observer{})
		if err != nil {
			t.Fatal(err)
		}
		if len(looked) != int(12-stopped)/2+1 || got.Best.Best != want.Best.Best ||
			got.Best.BestStep != want.Best.BestStep || got.Best.Stale != want.Best.Stale ||
			read(t, got.Model) != read(t, want.Model) || read(t, got.BestModel) != read(t, want.BestModel) {
			t.Errorf("stopped in the evaluation after step %d: evaluated after %v, the best %+v, want %+v", stopped, looked,
				got.Best, want.Best)
		}
	}
}

// TestATrainingThatPatienceEndedIsNotGoneOnWith resumes the last checkpoint of one.
func TestATrainingThatPatienceEndedIsNotGoneOnWith(t *testing.T) {
	t.Parallel()
	j := validatedJob(t)
	j.Patience = 2
	first, err := training.Run(t.Context(), j, training.Observer{})
	if err != nil {
		t.Fatal(err)
	}
	j.Resume = first.Checkpoint
	again, err := training.Run(t.Context(), j, training.Observer{})
	if err != nil || again.Training.Steps != 8 || again.Training.TotalSteps != 8 || len(again.Losses) != 0 {
		t.Errorf("it goes on to step %d of %d with losses %v, %v", again.Training.Steps, again.Training.TotalSteps,
			again.Losses, err)
	}
}

// TestTheBestByAnotherGoalIsNotTheBest asks for another one once the training is finished, when nothing is evaluated
// any more.
func TestTheBestByAnotherGoalIsNotTheBest(t *testing.T) {
	t.Parallel()
	j := validatedJob(t)
	first, err := training.Run(t.Context(), j, training.Observer{})
	if err != nil || first.BestModel == "" {
		t.Fatalf("%+v, %v; want a model of another step that is the best", first, err)
	}
	j.Resume, j.Directory, j.Best = first.Checkpoint, t.TempDir(), "max:accuracy"
	again, err := training.Run(t.Context(), j, training.Observer{})
	if err != nil || again.Best != nil || again.BestModel != "" {
		t.Errorf("the best by %s is %+v with the model %q, %v; want none", j.Best, again.Best, again.BestModel, err)
	}
	j.Directory, j.Result = t.TempDir(), training.ResultBest
	if _, err := training.Run(t.Context(), j, training.Observer{}); err == nil ||
		!strings.Contains(err.Error(), "nothing was evaluated by max:accuracy") {
		t.Errorf("%v; want that no step is known to be the best", err)
	}
}

// TestPatienceNeedsEvaluationsInBetween has data that does not say how many steps an epoch has.
func TestPatienceNeedsEvaluationsInBetween(t *testing.T) {
	t.Parallel()
	j := validatedJob(t)
	j.Patience, j.EvaluateEvery = 2, 0
	v, _ := j.Executor.(validated)
	v.endless = true
	j.Executor = v
	if _, err := training.Run(t.Context(), j, training.Observer{}); !errors.Is(err, exec.ErrRequest) ||
		!strings.Contains(err.Error(), "patience needs evaluations while the training goes on") {
		t.Errorf("%v; want a word about patience", err)
	}
}

func TestWhatNeedsValidationDataIsRefusedWithoutThem(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*training.Job){
		"patience needs validation data":            func(j *training.Job) { j.Patience = 1 },
		"evaluation needs validation data":          func(j *training.Job) { j.EvaluateEvery = 1 },
		"the best checkpoint needs validation data": func(j *training.Job) { j.Result = training.ResultBest },
	} {
		j := job(t, exectest.Options{})
		change(&j)
		if _, err := training.Run(t.Context(), j, training.Observer{}); err == nil || !strings.Contains(err.Error(), want) ||
			!errors.Is(err, exec.ErrRequest) {
			t.Errorf("%v; want %q", err, want)
		}
	}
	for best, want := range map[string]string{
		"max:accurac": "did you mean accuracy?", "f1": "there is validation_loss, accuracy",
		"up:accuracy": "neither min: nor max:",
	} {
		j := validatedJob(t)
		j.Best = best
		if _, err := training.Run(t.Context(), j, training.Observer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--best %s: %v; want %q", best, err, want)
		}
	}
}

// TestAnEpochHasOneEvaluation has two of twenty steps; any other evaluation fails.
func TestAnEpochHasOneEvaluation(t *testing.T) {
	t.Parallel()
	j := validatedJob(t)
	j.Executor = validated{Executor: exectest.Reference(exectest.Options{}), losses: map[int64]float64{20: 2, 40: 1}}
	j.CheckpointEvery, j.EvaluateEvery, j.Steps, j.Epochs = -time.Second, 0, 0, 2
	var told []int64
	_, err := training.Run(t.Context(), j, training.Observer{Progressed: func(p training.Progress) {
		if p.Validation != nil && p.Validation.Step == p.Training.Steps {
			told = append(told, p.Training.Steps)
		}
	}})
	if diff := cmp.Diff([]int64{20, 40}, told); diff != "" || err != nil {
		t.Errorf("%v; evaluations after steps:\n%s", err, diff)
	}
}
