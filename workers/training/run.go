package training

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/partition"
)

const (
	// progressEvery is the least time between two reports.
	progressEvery = 100 * time.Millisecond
	// usageEvery is the least time between two looks at what stages hold: each is a call to a stage.
	usageEvery = 2 * time.Second
)

// Run plans a training, tries the plan where the training is long enough for that, trains, and writes the model. What
// was tried leaves no trace in what is trained. Where Resume is given it goes on from there: with the same seed, batch
// and micro-batches the losses are those of a training that was never interrupted, however the model is split now. The
// plan of the checkpoint is used again where the same is wanted on the same devices. A training that is finished
// already is not repeated.
//
// When [Job.Stop] yields, Run makes a checkpoint and returns an error that wraps [ErrStopped] and names it. When ctx
// ends, Run returns soon and leaves no half checkpoint. A loss that is not finite ends it with an error that wraps
// [exec.ErrLoss]; checkpoints from before stay.
func Run(ctx context.Context, job Job, observer Observer) (Result, error) {
	result, err := run(ctx, job, observer)
	if err != nil {
		return result, fmt.Errorf("train: %w", err)
	}
	return result, nil
}

func run(ctx context.Context, job Job, observer Observer) (result Result, err error) {
	job, devices, err := job.normalized()
	if err != nil {
		return Result{}, err
	}
	if err := writable(job.Directory); err != nil {
		return Result{}, err
	}
	if job.Directory, err = filepath.Abs(job.Directory); err != nil {
		return Result{}, fmt.Errorf("find the directory of checkpoints: %w", err)
	}
	var from *exec.Checkpoint
	if job.Resume != "" {
		checkpoint, err := openAbsolute(job.Resume)
		if err != nil {
			return Result{}, fmt.Errorf("resume: %w", err)
		}
		from = &checkpoint
	}
	t := &trainer{job: job, observer: observer}
	planning, planned := unlessStopped(ctx, job.Stop)
	err = t.plan(planning, ctx, devices, from)
	stopped := errors.Is(context.Cause(planning), ErrStopped)
	planned()
	defer func() {
		if closing := t.close(); closing != nil && err == nil {
			err = closing
		}
	}()
	if err != nil {
		if stopped {
			return Result{}, fmt.Errorf("%w while the model was probed", ErrStopped)
		}
		return Result{}, err
	}
	if t.pipeline == nil && t.unasked() { // it may become another plan
		if err := t.load(ctx); err != nil {
			return Result{}, err
		}
	}
	if observer.Planned != nil {
		observer.Planned(t.training)
	}
	if t.pipeline == nil {
		if err := t.load(ctx); err != nil {
			return Result{}, err
		}
	}
	return t.train(ctx, from)
}

// plan decides how to train, and tries that where it is worth it: then the pipeline may be loaded. It ends with ctx; a
// pipeline lives as long as life.
func (t *trainer) plan(ctx, life context.Context, devices deviceSet, from *exec.Checkpoint) (err error) {
	if err := t.decide(ctx, life, devices, from); err != nil {
		return err
	}
	t.training = t.planned.training
	if err := t.begin(from); err != nil {
		return err
	}
	if t.planned, t.pipeline, err = t.trials(ctx, life, t.total-t.start, from); err != nil {
		return err
	}
	t.training = t.planned.training
	t.training.Steps, t.training.TotalSteps = t.start, t.total
	return nil
}

// close ends the pipeline, where there is one.
func (t *trainer) close() error {
	pipeline := t.pipeline
	t.pipeline = nil
	if pipeline == nil {
		return nil
	}
	if err := pipeline.Close(); err != nil {
		return fmt.Errorf("end the parts: %w", err)
	}
	return nil
}

// unasked reports whether there are replicas that nobody asked for.
func (t *trainer) unasked() bool {
	return t.job.Replicas == AutoReplicas && t.planned.layout.Replicas > 1
}

// load loads the plan. Replicas that nobody asked for may be more than a model or its data can do, which only loading
// them tells: then it is trained without.
func (t *trainer) load(ctx context.Context) (err error) {
	if t.pipeline, err = t.job.Executor.Load(ctx, t.planned.layout); err != nil && ctx.Err() == nil && t.unasked() {
		t.job.Logger.WarnContext(ctx, "replicas cannot be loaded, so that the model is trained without", "error", err)
		if t.planned, err = t.planned.alone(t.job); err == nil {
			steps, total := t.training.Steps, t.training.TotalSteps
			t.training = t.planned.training
			t.training.Steps, t.training.TotalSteps = steps, total
			t.pipeline, err = t.job.Executor.Load(ctx, t.planned.layout)
		}
	}
	if err != nil {
		return fmt.Errorf("load the parts: %w", err)
	}
	return nil
}

// decide decides how to train: as before where a checkpoint keeps the plan, which is loaded then.
func (t *trainer) decide(ctx, life context.Context, devices deviceSet, from *exec.Checkpoint) (err error) {
	if devices, err = surveyedFor(ctx, t.job, devices); err != nil {
		return err
	}
	if from != nil && t.again(ctx, life, devices, *from) {
		return nil
	}
	t.planned, err = planToResume(ctx, t.job, devices, from)
	t.planned.wishes = wishesOf(t.job, devices)
	return err
}

// unlessStopped returns a context that ends with ctx, or when stop yields, which makes the cause ErrStopped; call done
// when it is no longer needed.
func unlessStopped(ctx context.Context, stop <-chan struct{}) (until context.Context, done func()) {
	until, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-stop:
			cancel(ErrStopped)
		case <-until.Done():
		}
	}()
	return until, func() {
		cancel(nil)
		<-ended
	}
}

// openAbsolute opens a checkpoint and checks it.
func openAbsolute(directory string) (exec.Checkpoint, error) {
	absolute, err := filepath.Abs(directory)
	if err != nil {
		return exec.Checkpoint{}, fmt.Errorf("find checkpoint %s: %w", directory, err)
	}
	return exec.OpenCheckpoint(absolute)
}

// writable makes a directory where there is none, and tries to write there.
func writable(directory string) error {
	if directory == "" {
		return errors.New("there is no directory for checkpoints and the result; name one")
	}
	root, err := safefile.Open(directory, 0o777, true) // who named it has said whether others may write there
	if err != nil {
		return fmt.Errorf("make the directory of checkpoints: %w", err)
	}
	if err := root.Close(); err != nil {
		return err
	}
	probe, err := os.CreateTemp(directory, ".writable-")
	if err != nil {
		return fmt.Errorf("write to the directory of checkpoints: %w", err)
	}
	return errors.Join(probe.Close(), os.Remove(probe.Name()))
}

// planToResume plans with the micro-batches and replicas of the checkpoint where nobody wants others: they decide in
// which order gradients are added up, and so the last bits of every loss.
func planToResume(ctx context.Context, job Job, devices deviceSet, from *exec.Checkpoint) (planned, error) {
	same := job
	if from != nil && from.Meta.Batch == job.Batch && from.Meta.MicroBatches > 0 {
		replicas := max(from.Meta.Replicas, 1)
		if job.Replicas == AutoReplicas {
			same.Replicas, same.resumed = replicas, true
		}
		if job.MicroBatches == 0 && same.replicas() == replicas {
			same.MicroBatches = from.Meta.MicroBatches
		}
	}
	if same.Replicas == job.Replicas && same.MicroBatches == job.MicroBatches {
		return plan(ctx, job, devices)
	}
	made, err := plan(ctx, same, devices)
	if errors.Is(err, partition.ErrUnfit) || err != nil && same.Replicas != job.Replicas && ctx.Err() == nil {
		return plan(ctx, job, devices)
	}
	return made, err
}

// trainer runs one training.
type trainer struct {
	job      Job
	telling  sync.Mutex // one observer's function at a time
	observer Observer
	planned  planned
	pipeline exec.Pipeline
	training predictor.Training

	start, total int64
	losses       []float64
	loss         float64
	meter        *Meter
	keeper       keeper
	validating   validating
	reported     time.Time // when Progressed was called last
	looked       time.Time // when usage was read last
	samples      int       // since reported
	tokens       int       // since reported
	began        time.Time // the second step
	waited       time.Duration
}

// begin decides where to start and, as well as the probe tells, where to end.
func (t *trainer) begin(from *exec.Checkpoint) error {
	if t.planned.dataset == 0 && t.job.Steps == 0 {
		return errors.New("the data does not say how many samples it has, so there are no epochs; give the number of steps")
	}
	t.total = t.totalSteps(int64(t.planned.dataset / t.job.Batch))
	if from != nil {
		if err := from.Fits(t.training.Model); err != nil {
			return fmt.Errorf("resume: %w", err)
		}
		t.start, t.loss = from.Meta.Step, from.Meta.Loss
		if from.Meta.Seed != t.job.Seed || from.Meta.Batch != t.job.Batch {
			t.job.Logger.Warn("the checkpoint was made with another seed or batch, so the order of the data changes "+
				"from here on",
				"checkpoint_seed", from.Meta.Seed, "seed", t.job.Seed, "checkpoint_batch", from.Meta.Batch, "batch", t.job.Batch)
		}
	}
	t.training.Steps, t.training.TotalSteps = t.start, t.total
	return nil
}

// totalSteps is how many steps are wanted.
func (t *trainer) totalSteps(stepsPerEpoch int64) int64 {
	if t.job.Steps > 0 {
		return t.job.Steps
	}
	epochs := int64(t.job.Epochs)
	if stepsPerEpoch > math.MaxInt64/epochs {
		return math.MaxInt64
	}
	return stepsPerEpoch * epochs
}

// train does the steps that are left and writes the result.
func (t *trainer) train(ctx context.Context, from *exec.Checkpoint) (Result, error) {
	if perEpoch := t.pipeline.Data().StepsPerEpoch; perEpoch > 0 {
		t.total = t.totalSteps(perEpoch)
		t.training.TotalSteps = t.total
	}
	var err error
	if t.validating, err = newValidating(t.job, t.pipeline); err != nil {
		return Result{}, err
	}
	t.keeper = newKeeper(t.job, t.planned, t.pipeline, t.told)
	if from != nil {
		if err := exec.Restore(ctx, t.pipeline, *from); err != nil {
			return Result{}, fmt.Errorf("resume: %w", err)
		}
		if err := t.keeper.adopt(*from); err != nil {
			return Result{}, err
		}
		t.job.Logger.InfoContext(ctx, "training goes on from a checkpoint", "checkpoint", from.Directory, "step", t.start)
		if t.validating.over(t.standing()) {
			t.total = t.start
			t.training.TotalSteps = t.start
		}
	}
	if err := t.steps(ctx); err != nil {
		return Result{}, err
	}
	last, err := t.keeper.last(ctx, max(t.total, t.start), t.loss)
	if err != nil {
		return Result{}, fmt.Errorf("save the last checkpoint: %w", err)
	}
	result := Result{Checkpoint: last.Directory, Loss: t.loss, Losses: t.losses, Training: t.training}
	if err := t.writeAll(ctx, last, &result); err != nil {
		return Result{}, err
	}
	return result, nil
}

// steps trains until the last step.
func (t *trainer) steps(ctx context.Context) error {
	engine, err := newEngine(t.job, t.pipeline, t.planned.layout)
	if err != nil {
		return err
	}
	t.meter = NewMeter(len(t.planned.layout.Parts))
	t.reported = time.Now()
	for step := t.start; step < t.total; step++ {
		if t.stopped() {
			return t.stop(ctx, step)
		}
		report, err := engine.Step(ctx, step)
		if err != nil {
			return t.failed(ctx, t.diverged(ctx, err))
		}
		t.losses, t.loss = append(t.losses, report.Loss), report.Loss
		t.training.Steps = step + 1
		t.meter.Add(report)
		if t.began.IsZero() { // the first step allocates, which tells nothing of others
			t.began = time.Now()
		}
		t.samples += report.Samples
		t.tokens += report.Tokens
		t.waited += report.Data
		looked, err := t.evaluate(ctx, step+1)
		if err != nil {
			return t.failed(ctx, err)
		}
		if err := t.progress(ctx, looked, step+1 == t.total); err != nil {
			return t.failed(ctx, err)
		}
		if step+1 < t.total { // the last one comes anyway
			t.keeper.due(ctx, step+1, report.Loss)
		}
	}
	return nil
}

// newEngine returns what does the steps of a loaded layout: its pipeline where that does whole ones, else an engine.
func newEngine(job Job, pipeline exec.Pipeline, layout exec.Layout) (exec.Stepper, error) {
	if whole, does := pipeline.(exec.Stepper); does {
		return whole, nil
	}
	recompute := slices.ContainsFunc(layout.Parts, func(p exec.Part) bool { return p.Recompute })
	order, err := instructions(job.Schedule, len(layout.Parts), layout.MicroBatches, recompute)
	if err != nil {
		return nil, err
	}
	return exec.NewEngine(pipeline, order, exec.EngineOptions{ClipNorm: job.ClipNorm, Layout: layout})
}

// stopped reports whether the training is to end.
func (t *trainer) stopped() bool {
	select {
	case <-t.job.Stop:
		return true
	default:
		return false
	}
}

// stop makes a checkpoint of what was done, and says where to go on.
func (t *trainer) stop(ctx context.Context, step int64) error {
	if step == 0 {
		return fmt.Errorf("%w before its first step; there is no checkpoint", ErrStopped)
	}
	last, err := t.keeper.last(ctx, step, t.loss)
	if err != nil {
		return t.failed(ctx, fmt.Errorf("%w after step %d, and its checkpoint could not be made: %w", ErrStopped, step, err))
	}
	return fmt.Errorf("%w after step %d of %d; go on from checkpoint %s", ErrStopped, step, t.total, last.Directory)
}

// failed waits for a checkpoint in the making, as it may be the last good one, and says where to go on.
func (t *trainer) failed(ctx context.Context, cause error) error {
	t.keeper.drain(ctx)
	if ctx.Err() != nil {
		if why := context.Cause(ctx); !errors.Is(cause, why) {
			cause = errors.Join(cause, why)
		}
	}
	if good := t.keeper.newest(); good != "" {
		return fmt.Errorf("%w; the last good checkpoint is %s", cause, good)
	}
	return fmt.Errorf("%w; there is no checkpoint from before", cause)
}

// progress measures and tells, unless that was done a moment ago and nothing is new.
func (t *trainer) progress(ctx context.Context, looked, last bool) error {
	now := time.Now()
	if last || now.Sub(t.looked) >= usageEvery {
		t.looked = now
		if err := t.usage(ctx); err != nil {
			return err
		}
	}
	elapsed := now.Sub(t.reported)
	first := len(t.losses) == 1
	if !last && !first && !looked && elapsed < progressEvery {
		return nil
	}
	t.meter.Fill(&t.training)
	samples, tokens, waited := t.samples, t.tokens, t.waited
	t.reported, t.samples, t.tokens, t.waited = now, 0, 0, 0
	if t.observer.Progressed != nil && elapsed > 0 {
		t.telling.Lock()
		defer t.telling.Unlock()
		t.observer.Progressed(Progress{
			Training: t.training, Loss: t.loss, SamplesPerSecond: float64(samples) / elapsed.Seconds(),
			Data: min(1, waited.Seconds()/elapsed.Seconds()), Validation: t.validating.last,
			TokensPerSecond: float64(tokens) / elapsed.Seconds(), Left: t.left(now),
			Utilization: utilization(t.training, float64(samples)/elapsed.Seconds()),
		})
	}
	return nil
}

// mostLeft bounds what is told of the time that is left: a number of steps may be any.
const mostLeft = 100 * 365 * 24 * time.Hour

// left is how long the steps that are left take if they go on as they did.
func (t *trainer) left(now time.Time) time.Duration {
	done := int64(len(t.losses)) - 1 // since the second began
	if done < 1 {
		return 0
	}
	left := float64(now.Sub(t.began)) / float64(done) * float64(t.total-t.training.Steps)
	return time.Duration(min(left, float64(mostLeft)))
}

// utilization is the model FLOP utilization at so many samples a second; 0 where it is not known.
func utilization(t predictor.Training, samplesPerSecond float64) float64 {
	peak := 0.0
	for _, p := range t.Parts {
		if p.PeakFLOPS <= 0 {
			return 0
		}
		peak += p.PeakFLOPS
	}
	if peak == 0 || t.Batch == 0 {
		return 0
	}
	return t.FLOPs / float64(t.Batch) * samplesPerSecond / (peak * float64(max(t.Replicas, 1)))
}

// usage asks every stage what it holds.
func (t *trainer) usage(ctx context.Context) error {
	parts := make([]predictor.TrainingPart, len(t.training.Parts)) // observers may keep what they were given
	copy(parts, t.training.Parts)
	for i, stage := range t.pipeline.Stages() {
		usage, err := stage.Usage(ctx)
		if err != nil {
			return fmt.Errorf("ask stage %d what it holds: %w", i, err)
		}
		held(parts, i, usage)
	}
	t.training.Parts = parts
	return nil
}

// told passes a complete checkpoint on.
func (t *trainer) told(c exec.Checkpoint) {
	t.job.Logger.Debug("a checkpoint is complete", "checkpoint", c.Directory, "step", c.Meta.Step, "bytes",
		int64(c.Bytes()))
	if t.observer.Checkpointed != nil {
		t.telling.Lock()
		defer t.telling.Unlock()
		t.observer.Checkpointed(c.Directory, c.Meta.Step)
	}
}

// writeAll makes the model's file, of the last step or of the best. Where it is of the last, that of another step that
// is the best is beside it.
func (t *trainer) writeAll(ctx context.Context, last exec.Checkpoint, result *Result) error {
	result.Validation = t.validating.last
	if s := t.standing(); s != nil {
		told := *s
		result.Best = &told
	}
	name, wantsBest := modelName(t.job.Executor.Name()), t.job.Result == ResultBest
	paths, other, err := bestModel(last, t.validating.goal)
	if err != nil {
		if wantsBest {
			return err
		}
		t.job.Logger.WarnContext(ctx, "only the model of the last step is written", "error", err)
	}
	if wantsBest && t.standing() == nil { // it goes on from a checkpoint of its last step
		return fmt.Errorf("no step is known to be the best: nothing was evaluated by %s; train more steps, or write the "+
			"model of the last one", t.validating.goal)
	}
	if wantsBest {
		result.Model, err = t.write(ctx, name, paths)
		return err
	}
	if result.Model, err = t.write(ctx, name, last.Paths()); err != nil || !other {
		return err
	}
	ending := filepath.Ext(name)
	result.BestModel, err = t.write(ctx, strings.TrimSuffix(name, ending)+"-best"+ending, paths)
	return err
}

// write makes a file of a model of what stages exported.
func (t *trainer) write(ctx context.Context, name string, parts []string) (string, error) {
	path := filepath.Join(t.job.Directory, name)
	// In a directory of its own: an executor writes to the path that it is given, and others could have put a link under a
	// name that they can guess.
	unfinished, err := os.MkdirTemp(t.job.Directory, ".unfinished-model-")
	if err != nil {
		return "", fmt.Errorf("write the model: %w", err)
	}
	err = t.pipeline.Write(ctx, parts, filepath.Join(unfinished, filepath.Base(path)))
	var forms []os.DirEntry // of the model
	if err == nil {
		forms, err = os.ReadDir(unfinished)
	}
	for _, form := range forms {
		err = errors.Join(err, os.Rename(filepath.Join(unfinished, form.Name()), filepath.Join(t.job.Directory, form.Name())))
	}
	if err := errors.Join(err, os.RemoveAll(unfinished)); err != nil {
		return "", fmt.Errorf("write the model: %w", err)
	}
	return path, nil
}

// modelName is the usual name of the file of a trained model.
func modelName(executor string) string {
	if executor == "torch" {
		return "model.pt"
	}
	return "model.safetensors"
}
