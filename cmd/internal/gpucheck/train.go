package gpucheck

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	executor "github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/partition"
	"github.com/spillway-ml/spillway/workers/schedule"
	"github.com/spillway-ml/spillway/workers/training"
)

//go:embed models
var models embed.FS

// Bars: what figures may not be above on a GPU.
const (
	plainBar  = 1.05 // a step beside one of plain PyTorch, in times
	sharedBar = 1.15 // a step of parts that share a device beside one of the unsplit model, in times
	peakBar   = 10   // what a predicted peak is off, in %
	boundBar  = 100  // what a part holds at most, in % of its bound, which the allocator keeps
	lossBar   = 0.01 // what the loss of a split is off, in %: a thousand roundings of float32
)

// rate is the learning rate of all trainings.
const rate = 1e-4

// writeModels puts the models' files where Python finds them, and returns the path of one.
func writeModels(s Setup, name string) (string, error) {
	sub, err := fs.Sub(models, "models")
	if err != nil {
		return "", fmt.Errorf("find the models: %w", err)
	}
	directory := filepath.Join(s.Directory, "models")
	if err := os.CopyFS(directory, sub); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("write the models: %w", err)
	}
	return filepath.Join(directory, name), nil
}

// usualSteps are those of a training whose speed is not judged, fewSteps those of one on CPUs, where nothing is.
const usualSteps, fewSteps = 6, 2

// devices are so many that share the one that there is, each with a bound of memory; 0 is none.
func (s Setup) devices(count int, memory quantity.Bytes) []executor.Device {
	var all []executor.Device
	for i := range count {
		d := executor.Device{ID: s.Device + "-" + string(rune('a'+i)), Kind: s.Device, Memory: memory}
		if s.Device == executor.CPU {
			d.Threads = max(1, runtime.NumCPU()/count)
		}
		all = append(all, d)
	}
	return all
}

// recipe is a model, and what all its trainings in a step have in common.
type recipe struct {
	file, function, data string
	batch, microBatches  int
	steps                int64
	precision            executor.Precision // empty is float32
	compile              bool
}

// recipe is the training of a language model in a step, in so many micro-batches.
func (t trial) recipe(microBatches int) recipe {
	return recipe{
		file: "language.py", function: t.name, data: t.name, batch: t.batch, microBatches: microBatches, steps: usualSteps,
	}
}

// executor returns the executor of a model. What the model prints and what is done goes to the log of the step.
func (s Setup) executor(how recipe) (*torch.Executor, *slog.Logger, error) {
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	path, err := writeModels(s, how.file)
	if err != nil {
		return nil, nil, err
	}
	repeats := 3
	if s.Device == executor.CPU {
		repeats = 1
	}
	e, err := torch.New(torch.Options{
		Python: s.Python, Model: path + ":" + how.function, Data: how.data, Repeats: repeats,
		Logger: logger,
	})
	return e, logger, err
}

// job is the training of a recipe in so many parts on the one device, each with a bound of memory; 0 is none.
func (s Setup) job(how recipe, parts int, memory quantity.Bytes) (training.Job, error) {
	e, logger, err := s.executor(how)
	if err != nil {
		return training.Job{}, err
	}
	directory, err := os.MkdirTemp(s.Directory, "training-")
	if err != nil {
		return training.Job{}, fmt.Errorf("make a directory for a training: %w", err)
	}
	return training.Job{
		Executor: e, Partitions: parts, Devices: s.devices(parts, memory), Batch: how.batch, MicroBatches: how.microBatches,
		Steps: how.steps, Precision: how.precision, Seed: 3, Recompute: training.RecomputeNever, Directory: directory,
		CheckpointEvery: -1, Optimizer: executor.Optimizer{Kind: executor.AdamW, LearningRate: rate}, Logger: logger,
	}, nil
}

// train plans and trains, and records it.
func train(
	ctx context.Context, s Setup, r *Recorder, name string, how recipe, parts int, memory quantity.Bytes,
) (training.Result, error) {
	job, err := s.job(how, parts, memory)
	if err != nil {
		return training.Result{}, err
	}
	result, err := training.Run(ctx, job, training.Observer{})
	if err != nil {
		return result, fmt.Errorf("%s: %w", name, errors.Join(err, os.RemoveAll(job.Directory)))
	}
	return result, errors.Join(r.Trained(name, result.Training), os.RemoveAll(job.Directory))
}

// loaded is a split that is trained step by step, without the planner.
type loaded struct {
	pipeline executor.Pipeline
	engine   *executor.Engine
	losses   []float64
	seconds  []float64 // of each step
}

// load loads a layout of so many parts on the one device, cut so that the slowest part is as fast as can be.
func (s Setup) load(
	ctx context.Context, e executor.Executor, probe executor.Probe, how recipe, parts int,
) (*loaded, error) {
	layout := executor.Layout{
		Batch: how.batch, MicroBatches: how.microBatches, Seed: 3, Precision: how.precision,
		Compile:   how.compile,
		Optimizer: executor.Optimizer{Kind: executor.AdamW, LearningRate: rate},
	}
	cut := [][]string{nil}
	if parts > 1 {
		var err error
		if cut, err = exectest.Split(probe, parts); err != nil {
			return nil, err
		}
	}
	for i, d := range s.devices(parts, 0) {
		layout.Parts = append(layout.Parts, executor.Part{Ops: cut[i], Device: d, InFlight: how.microBatches})
	}
	order, err := schedule.OneForwardOneBackward(parts, how.microBatches, schedule.Options{})
	if err != nil {
		return nil, err
	}
	l := &loaded{}
	if l.pipeline, err = e.Load(ctx, layout); err != nil {
		return nil, err
	}
	if l.engine, err = executor.NewEngine(l.pipeline, order, executor.EngineOptions{Layout: layout}); err != nil {
		return nil, errors.Join(err, l.pipeline.Close())
	}
	return l, nil
}

// step trains a step.
func (l *loaded) step(ctx context.Context) error {
	began := time.Now()
	report, err := l.engine.Step(ctx, int64(len(l.losses)))
	if err != nil {
		return err
	}
	l.losses, l.seconds = append(l.losses, report.Loss), append(l.seconds, time.Since(began).Seconds())
	return nil
}

// probe measures the operations of a model, for its cuts.
func (s Setup) probe(ctx context.Context, e executor.Executor, how recipe) (executor.Probe, error) {
	return e.Probe(ctx, executor.ProbeOptions{
		Samples: how.batch / how.microBatches, Device: s.devices(1, 0)[0], Precision: how.precision,
	})
}

// largerMicroBatches are so many that the first part, which keeps the activations of two, has most of its memory for
// parameters.
const largerMicroBatches = 8

func largerTrials() []trial { return from("medium", 16, 8) }

// larger trains a model in two parts whose memory is bounded to three quarters of what it takes unsplit. Unsplit it
// must be refused, before anything is trained.
func larger(ctx context.Context, s Setup, r *Recorder) error {
	how := s.tried(largerTrials(), alone(largerMicroBatches)).recipe(largerMicroBatches)
	if s.Device == executor.CPU {
		how.batch, how.microBatches, how.steps = 2, 1, fewSteps
	}
	e, _, err := s.executor(how)
	if err != nil {
		return err
	}
	whole, err := s.load(ctx, e, executor.Probe{}, how, 1)
	if err != nil {
		return fmt.Errorf("unsplit, without a bound: %w", err)
	}
	for range how.steps {
		if err := whole.step(ctx); err != nil {
			return errors.Join(err, whole.pipeline.Close())
		}
	}
	usage, err := whole.pipeline.Stages()[0].Usage(ctx)
	if err = errors.Join(err, whole.pipeline.Close()); err != nil {
		return err
	}
	bound := usage.Peak / 4 * 3
	if err := r.Note("unsplit it holds %s; parts may hold %s each", usage.Peak, bound); err != nil {
		return err
	}
	given := bound
	if s.Device == executor.CPU { // there a bound counts the interpreter, too
		probe, err := s.probe(ctx, e, how)
		if err != nil {
			return err
		}
		given += probe.Base
	}
	split, err := train(ctx, s, r, "a transformer in two bounded parts", how, 2, given)
	if err != nil {
		return err
	}
	most := quantity.Bytes(0)
	for _, p := range split.Training.Parts {
		most = max(most, p.PeakBytes)
	}
	err = errors.Join(
		r.Figure("most that a part holds, of its bound", 100*float64(most)/float64(bound), "%", boundBar),
		r.Figure("losses of two parts beside the unsplit model's, farthest apart", 100*apart(split.Losses, whole.losses),
			"%", lossBar),
	)
	if err != nil {
		return err
	}
	job, err := s.job(how, 1, given)
	if err != nil {
		return err
	}
	switch _, _, err = training.Plan(ctx, job); {
	case errors.Is(err, partition.ErrUnfit):
		return r.Note("unsplit it is refused: %v", err)
	case err != nil:
		return fmt.Errorf("unsplit within %s it is refused for another reason than its size: %w", bound, err)
	default:
		return fmt.Errorf("unsplit it is planned within %s, where it held %s", bound, usage.Peak)
	}
}

// apart is the largest difference of two lists of losses, relative to the second.
func apart(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range got {
		worst = max(worst, math.Abs(got[i]-want[i])/math.Abs(want[i]))
	}
	return worst
}

// library trains a model of the transformers library in two parts and compares its losses with the unsplit one's.
func library(ctx context.Context, s Setup, r *Recorder) error {
	report, err := readReport(s.Report)
	if err != nil {
		return err
	}
	if report.Machine.Transformers == "" {
		r.Skip("the transformers library is not installed")
		return nil
	}
	if err := r.Note("transformers %s, a GPT-2 of random weights", report.Machine.Transformers); err != nil {
		return err
	}
	how := s.tried(from("medium", 16), alone(4)).recipe(4)
	how.file, how.data = "library.py", "words"
	e, _, err := s.executor(how)
	if err != nil {
		return err
	}
	probe, err := s.probe(ctx, e, how)
	if err != nil {
		return err
	}
	var losses [][]float64
	for _, parts := range []int{1, 2} {
		one, err := s.load(ctx, e, probe, how, parts)
		if err != nil {
			return fmt.Errorf("%d parts: %w", parts, err)
		}
		for range how.steps {
			err = errors.Join(err, one.step(ctx))
		}
		if err = errors.Join(err, one.pipeline.Close()); err != nil {
			return fmt.Errorf("%d parts: %w", parts, err)
		}
		losses = append(losses, one.losses)
	}
	return r.Figure("losses of two parts beside the unsplit model's, farthest apart", 100*apart(losses[1], losses[0]),
		"%", lossBar)
}
