package digits

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/gomlx"
	"github.com/spillway-ml/spillway/workers/schedule"
	"github.com/spillway-ml/spillway/workers/training"
)

const (
	// batch is the number of images that are computed together.
	batch = 64
	// microBatches is into how many parts a batch of a split network is cut, so that all its parts have something to do at
	// the same time. It is one number for all splits: gradients are added up in the same order then, and where the network
	// is cut changes no bit of them.
	microBatches = 4
)

// trainer takes training through its epochs on one set of images. It is to be closed.
type trainer struct {
	data            Dataset
	learn, validate Span
	maxEpochs       int
	rate, dropout   float64

	engine   *engine // classifies the validation images
	pipeline exec.Pipeline
	steps    *exec.Engine
	plan     predictor.Training // of a split network; else zero
	losses   []float64          // of the steps of the last epoch
	meter    *training.Meter
}

// newTrainer prepares training on the images of a span: the first tenth validates, the rest is learnt. The error is one
// that no retry fixes.
func newTrainer(d Dataset, in TrainInput) (*trainer, error) {
	if err := d.within(in.Train); err != nil {
		return nil, err
	}
	held := max(1, in.Train.Count/validationShare)
	learn := Span{in.Train.First + held, in.Train.Count - held}
	if learn.Count < 1 {
		return nil, fmt.Errorf("train on %d image: give at least %d images", in.Train.Count, fewestImages)
	}
	return &trainer{
		data: d, learn: learn, validate: Span{in.Train.First, held}, maxEpochs: in.MaxEpochs,
		rate: in.LearningRate, dropout: cmp.Or(in.Dropout, DefaultDropout),
	}, nil
}

// size is the number of images of a step.
func (r *trainer) size() int { return min(batch, r.learn.Count) }

// stepsPerEpoch is how many steps see every image once. Images that do not fill a batch wait for another epoch.
func (r *trainer) stepsPerEpoch() int64 { return int64(r.learn.Count / r.size()) }

// load makes the network and divides it into parts. past says how earlier splits went.
func (r *trainer) load(ctx context.Context, seed int64, partitions int, past []predictor.Training) (err error) {
	n := network{r.data.Side}
	if r.engine, err = newEngine(n); err != nil {
		return err
	}
	executor, err := gomlx.New(gomlx.Model{ //nolint:contextcheck // it only builds the model
		Name: "digits", Blocks: n.blocks(r.dropout), Optimizer: exec.Optimizer{Kind: exec.Adam, LearningRate: r.rate},
		LearningRate: func(step int64) float64 { return rateAt(1, int(step/r.stepsPerEpoch()), r.maxEpochs) },
	}, augmented{r.data, r.learn})
	if err != nil {
		return err
	}
	layout, err := r.divide(ctx, executor, seed, partitions, past)
	if err != nil {
		return err
	}
	order, err := schedule.OneForwardOneBackward(len(layout.Parts), layout.MicroBatches, schedule.Options{})
	if err != nil {
		return err
	}
	if r.pipeline, err = executor.Load(ctx, layout); err != nil {
		return err
	}
	r.meter = training.NewMeter(len(layout.Parts))
	r.steps, err = exec.NewEngine(r.pipeline, order, exec.EngineOptions{Layout: layout})
	return err
}

// divide decides what each part is; each has an equal share of the cores.
func (r *trainer) divide(
	ctx context.Context, executor exec.Executor, seed int64, partitions int, past []predictor.Training,
) (exec.Layout, error) {
	if partitions <= 1 {
		whole := []exec.Part{{Device: devices(1)[0], InFlight: 1}}
		return exec.Layout{Parts: whole, Batch: r.size(), MicroBatches: 1, Seed: uint64(seed)}, nil
	}
	plan, layout, err := training.Plan(ctx, training.Job{
		Executor: executor, Partitions: partitions, Devices: devices(partitions), Batch: r.size(),
		MicroBatches: min(microBatches, r.size()),
		Recompute:    training.RecomputeNever, Seed: uint64(seed), Past: past,
	})
	plan.TotalSteps = int64(r.maxEpochs) * r.stepsPerEpoch()
	r.plan = plan
	return layout, err
}

// close gives all back.
func (r *trainer) close() error {
	var err error
	if r.pipeline != nil {
		err = r.pipeline.Close()
	}
	if r.engine != nil {
		r.engine.close()
	}
	return err
}

// devices are the cores of this process in equal shares, of one thread at least.
func devices(count int) []exec.Device {
	all := make([]exec.Device, count)
	for i := range all {
		all[i] = exec.Device{ID: "cpu-" + strconv.Itoa(i), Kind: exec.CPU, Threads: max(1, runtime.GOMAXPROCS(0)/count)}
	}
	return all
}

// run trains until p is finished, or has had so many epochs. After every epoch it calls save with the loss and the
// accuracy on the validation images.
func (r *trainer) run(ctx context.Context, p *progress, epochs int, save func(loss, accuracy float64) error) error {
	if len(p.parts) > 0 {
		if err := r.restore(ctx, p.parts); err != nil {
			return fmt.Errorf("go on from epoch %d: %w", p.epoch, err)
		}
	}
	for p.epoch < epochs && !p.finished(r.maxEpochs) {
		if err := r.pass(ctx, p.epoch); err != nil {
			return fmt.Errorf("train epoch %d: %w", p.epoch+1, err)
		}
		loss, accuracy, err := r.look(ctx, p)
		if err != nil {
			return fmt.Errorf("validate epoch %d: %w", p.epoch+1, err)
		}
		if err := save(loss, accuracy); err != nil {
			return fmt.Errorf("save epoch %d: %w", p.epoch, err)
		}
	}
	return nil
}

// pass learns from every image once, in random order and each in a random view.
func (r *trainer) pass(ctx context.Context, epoch int) error {
	r.losses = r.losses[:0]
	first := int64(epoch) * r.stepsPerEpoch()
	for step := first; step < first+r.stepsPerEpoch(); step++ {
		report, err := r.steps.Step(ctx, step)
		if errors.Is(err, exec.ErrLoss) {
			return fmt.Errorf("%w: %w: give a smaller learning_rate than %g", errDiverges, err, r.rate)
		}
		if err != nil {
			return err
		}
		r.losses = append(r.losses, report.Loss)
		r.meter.Add(report)
	}
	return nil
}

// look ends an epoch: it takes the parameters from the parts and classifies the validation images with them.
func (r *trainer) look(ctx context.Context, p *progress) (loss, accuracy float64, err error) {
	parts, parameters, err := r.export(ctx)
	if err != nil {
		return 0, 0, err
	}
	probabilities, err := classify(ctx, r.engine, parameters, r.data, r.validate)
	if err != nil {
		return 0, 0, err
	}
	loss, accuracy = measure(probabilities, r.data.Labels[r.validate.First:][:r.validate.Count])
	if math.IsNaN(loss) {
		return 0, 0, fmt.Errorf("%w: the loss is not a number: give a smaller learning_rate than %g", errDiverges, r.rate)
	}
	p.observe(parameters, loss, accuracy)
	p.parts = parts
	return loss, accuracy, nil
}

// export returns what every part of the network holds, and all parameters in the order of [network.arrays].
func (r *trainer) export(ctx context.Context) (parts [][]byte, parameters []float32, err error) {
	parameters = make([]float32, r.engine.network.size())
	err = inDirectory(func(path func(part int) string) error {
		for i, stage := range r.pipeline.Stages() {
			wait, err := stage.Export(ctx, path(i))
			if err != nil {
				return err
			}
			if err := wait(); err != nil {
				return err
			}
			part, err := os.ReadFile(path(i))
			if err != nil {
				return fmt.Errorf("read what part %d exported: %w", i, err)
			}
			if err := r.engine.network.gather(path(i), parameters); err != nil {
				return fmt.Errorf("read the parameters of part %d: %w", i, err)
			}
			parts = append(parts, part)
		}
		return nil
	})
	return parts, parameters, err
}

// restore makes the parts of the network what was exported from those of any split.
func (r *trainer) restore(ctx context.Context, exported [][]byte) error {
	return inDirectory(func(path func(part int) string) error {
		var paths []string
		for i, part := range exported {
			paths = append(paths, path(i))
			if err := os.WriteFile(path(i), part, 0o600); err != nil {
				return err
			}
		}
		for _, stage := range r.pipeline.Stages() {
			if err := stage.Import(ctx, paths); err != nil {
				return err
			}
		}
		return nil
	})
}

// inDirectory calls use with paths of files that are removed when it returns. They are there for so short a time that
// an attempt that is killed seldom leaves any.
func inDirectory(use func(path func(part int) string) error) error {
	directory, err := os.MkdirTemp("", "spillway-digits-")
	if err != nil {
		return fmt.Errorf("make a directory for the parts of the network: %w", err)
	}
	err = use(func(part int) string { return filepath.Join(directory, strconv.Itoa(part)) })
	return errors.Join(err, os.RemoveAll(directory))
}

// report is the plan of a split network beside how the last steps went.
func (r *trainer) report(epochs int) predictor.Training {
	t := r.plan
	t.Steps = int64(epochs) * r.stepsPerEpoch()
	r.meter.Fill(&t)
	return t
}
