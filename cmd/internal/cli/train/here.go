package train

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/activities/access/safefile"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/plan"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/gang"
	"github.com/spillway-ml/spillway/workers/graph"
	"github.com/spillway-ml/spillway/workers/spawn"
	"github.com/spillway-ml/spillway/workers/training"
)

// trainHere trains in this process.
func trainHere(ctx context.Context, t *tool.Tool, model modelFile, flags *trainFlags) error {
	view := newTrainView(t, flags)
	end, err := trainJob(ctx, t, model, flags, view, training.Job{Resume: flags.resume}, nil, view.observer())
	if err != nil {
		return err
	}
	return view.end(end)
}

// trainInAttempt trains as the program of an attempt: it goes on where an earlier one was lost, and reports.
func trainInAttempt(ctx context.Context, t *tool.Tool, model modelFile, flags *trainFlags) (err error) {
	hosts, err := gang.FromCommand(t.Deps.Environment)
	if err != nil {
		return err
	}
	if hosts != nil && hosts.Number > 0 {
		return serveGang(ctx, t, model, flags, hosts)
	}
	resume, past, report, err := training.FromCommand(t.Deps.Environment)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, report.Close()) }()
	toLoss, err := training.TimeToLoss(t.Deps.Environment)
	if err != nil {
		return err
	}
	view := newTrainView(t, flags)
	// the checkpoint of an attempt is the later one
	job := training.Job{Resume: cmp.Or(resume, flags.resume), Past: past, TimeToLoss: toLoss}
	trained := false
	noticed := training.Observer{Progressed: func(training.Progress) { trained = true }}
	end, err := trainJob(ctx, t, model, flags, view, job, hosts,
		training.InTurn(view.observer(), training.InTurn(training.Reports(report), noticed)))
	if err != nil {
		if !trained && errors.Is(err, exec.ErrRequest) {
			err = errors.Join(err, training.ReportFinal(report))
		}
		return err
	}
	if err := reportEnd(report, end, flags); err != nil {
		return err
	}
	return view.end(end)
}

// trainJob completes a job by what the flags say, and runs it.
func trainJob(
	ctx context.Context, t *tool.Tool, model modelFile, flags *trainFlags, view *trainView, job training.Job,
	hosts *gang.Gang, observer training.Observer,
) (end display.Trained, err error) {
	defer view.finish()
	flags.complete(&job)
	job.Directory, job.Logger = flags.out, view.logger()
	reference := model.path + ":" + model.function
	if job.Executor, err = t.Deps.Executor(reference, flags.data, flags.validation, job.Logger); err != nil {
		return end, err
	}
	if job.Devices, err = trainingDevices(t, flags, job.Executor, view); err != nil {
		return end, err
	}
	out, err := safefile.Open(job.Directory, 0o755, flags.sharedOut)
	if err != nil {
		return end, flag.RefusedOut("--out", flags.out, err)
	}
	if err := out.Close(); err != nil {
		return end, err
	}
	view.planning()
	began := time.Now()
	job.Stop = ctx.Done()
	running, done := inGoodOrder(ctx, t)
	defer done()
	running, planned, release, err := inGang(running, hosts, flags, &job)
	if err != nil {
		return end, err
	}
	defer release()
	result, err := training.Run(running, job, training.InTurn(planned, observer))
	if err != nil {
		return end, stopped(ctx, view, flags, err)
	}
	return display.Trained{
		BestModel: within(flags.out, result.BestModel), Best: bestOf(result), Validation: validationOf(result.Validation),
		Model: within(flags.out, result.Model), Checkpoint: within(flags.out, result.Checkpoint),
		File: filepath.Base(model.path), Function: model.function,
		Loss: result.Loss, Losses: thinned(result.Losses), Resumed: result.Training.Steps - int64(len(result.Losses)),
		Seconds: time.Since(began).Seconds(), Training: result.Training,
	}, nil
}

// stopGrace is how long a training that is to stop may take for the step that is going on and a last checkpoint.
const stopGrace = 30 * time.Second

// inGoodOrder returns a context that ends stopGrace after ctx, or at a second interrupt; call done when it is no longer
// needed.
func inGoodOrder(ctx context.Context, t *tool.Tool) (later context.Context, done func()) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(stopGrace)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-t.Deps.Interrupted:
		case <-later.Done():
		}
		cancel()
	})
	return later, func() {
		stop()
		cancel()
	}
}

// trainingDevices are the devices of --devices; without it the GPUs that this process was given, without any nil, which
// is what it may use of the CPUs. Where more parts were asked for than there are devices, they share these.
func trainingDevices(
	t *tool.Tool, flags *trainFlags, executor exec.Executor, view *trainView,
) ([]exec.Device, error) {
	cpus, err := spawn.AllowedCPUs()
	if err != nil {
		return nil, fmt.Errorf("find the CPUs of this machine: %w", err)
	}
	if flags.devices != "" {
		list, err := plan.ReadDevices(t, flags.devices)
		if err != nil {
			return nil, err
		}
		devices, unknown := training.DevicesOf(list.Devices, len(cpus))
		if unknown >= 0 {
			place := list.Classes[unknown]
			return nil, &fault.UsageError{
				Problem: fmt.Sprintf("%s:%d:%d: a model cannot be trained on class %q",
					flags.devices, place.Line, place.Column, list.Devices[unknown].Class),
				Hint: "write class: " + graph.CPU + " or class: " + graph.Accelerator,
			}
		}
		return devices, nil
	}
	visible, _ := t.Deps.Environment(training.VisibleGPUs)
	if gpus := training.Assigned(executor, visible); len(gpus) > 0 {
		return sharedGPUs(gpus, max(flags.partitions, 1)*max(flags.replicas, 1), view), nil
	}
	found, err := training.Devices()
	if err != nil || flags.partitions <= len(found) {
		return nil, err
	}
	view.note("%d parts share %s: that is slower than fewer parts", flags.partitions, display.Count(len(found), "device"))
	devices := make([]exec.Device, flags.partitions)
	for i := range devices {
		devices[i] = exec.Device{ID: "cpu-" + strconv.Itoa(i), Kind: exec.CPU, Threads: 1}
	}
	return devices, nil
}

// stopped says why a training has not ended, and how to go on.
func stopped(ctx context.Context, view *trainView, flags *trainFlags, err error) error {
	view.finish()
	directory, step, now := view.last()
	directory = within(flags.out, directory)
	if ctx.Err() == nil {
		if cause := errors.Unwrap(err); cause != nil {
			return cause // the name of the command says that it trained
		}
		return err
	}
	failure := errors.New("stopped")
	if now.TotalSteps > 0 {
		failure = fmt.Errorf("stopped before all of %d steps were done", now.TotalSteps)
	}
	if directory == "" {
		return fault.Advise(failure, "nothing is kept: there was no checkpoint yet; see --checkpoint-every")
	}
	if flags.leave != "" {
		left, err := training.CopyCheckpoint(directory, filepath.Join(flags.leave, training.Checkpoints), flags.sharedOut)
		if err != nil {
			view.note("the last checkpoint cannot be left in %s: %v", flags.leave, err)
			return failure
		}
		directory = left
	}
	if flags.followed != "" {
		return failure // the caller says how to go on
	}
	return fault.Advise(failure, fmt.Sprintf("the same command with --resume %s goes on from step %d", directory, step))
}

// keptLosses bounds the losses of a result, which is kept in the history of its run.
const keptLosses = 480

// thinned returns at most keptLosses of the losses, evenly spread, with the first and the last.
func thinned(losses []float64) []float64 {
	if len(losses) <= keptLosses {
		return losses
	}
	kept := make([]float64, keptLosses)
	for i := range kept {
		kept[i] = losses[i*(len(losses)-1)/(keptLosses-1)]
	}
	return kept
}

// trainedValues are what a training in an attempt reports as its result. Paths count from the result directory.
type trainedValues struct {
	Loss        float64 `json:"loss"`
	Steps       int64   `json:"steps"`
	Seconds     float64 `json:"seconds"`
	StepSeconds float64 `json:"step_seconds"`
	Model       string  `json:"model"`
	Checkpoint  string  `json:"checkpoint"`
	// BestModel is that of the best step, where it is another; Validation is what the last evaluation found.
	BestModel  string             `json:"best_model,omitempty"`
	Validation map[string]float64 `json:"validation,omitempty"`
	// Told is for the command that has started this one; nil for others.
	Told *display.Trained `json:"trained,omitempty"`
}

// reportEnd reports the result of an attempt.
func reportEnd(report io.Writer, end display.Trained, flags *trainFlags) error {
	values := trainedValues{
		Loss: end.Loss, Steps: end.Training.Steps, Seconds: end.Seconds, StepSeconds: end.Training.StepSeconds,
		Model: below(flags.out, end.Model), Checkpoint: below(flags.out, end.Checkpoint),
		BestModel: below(flags.out, end.BestModel),
	}
	if end.Validation != nil {
		values.Validation = end.Validation.Numbers
	}
	if flags.followed != "" {
		values.Told = &end
	}
	line, err := json.Marshal(map[string]any{"result": values})
	if err != nil {
		return fmt.Errorf("encode the result: %w", err)
	}
	if _, err := report.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("report the result: %w", err)
	}
	return nil
}

// below returns a path that counts from the directory that it is in, with slashes.
func below(directory, path string) string {
	absolute, err := filepath.Abs(directory)
	if err != nil || path == "" {
		return path
	}
	if !filepath.IsAbs(path) {
		if path, err = filepath.Abs(path); err != nil {
			return path
		}
	}
	if relative, err := filepath.Rel(absolute, path); err == nil && filepath.IsLocal(relative) {
		return filepath.ToSlash(relative)
	}
	return path
}

// within returns a path below the directory as whoever named the directory would write it.
func within(directory, path string) string {
	if relative := below(directory, path); relative != "" && !filepath.IsAbs(relative) {
		return filepath.Join(directory, filepath.FromSlash(relative))
	}
	return path
}

// sharedGPUs are GPUs for at least so many parts, which take turns where there are fewer.
func sharedGPUs(gpus []exec.Device, parts int, view *trainView) []exec.Device {
	if parts <= len(gpus) {
		return gpus
	}
	view.note("%d parts share %s: each has its part of the memory, and they take turns", parts,
		display.Count(len(gpus), "GPU"))
	devices := make([]exec.Device, parts)
	for i := range devices {
		on := gpus[i%len(gpus)]
		devices[i] = exec.Device{ID: fmt.Sprintf("%s-%d", on.ID, i/len(gpus)), Kind: on.Kind, Index: on.Index}
	}
	return devices
}
