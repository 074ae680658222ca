package training

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/exec"
)

// stored is a checkpoint in an attempt's store. Files that did not change since an earlier one are there once.
type stored struct {
	Step  int64        `json:"step"`
	Files []storedFile `json:"files"`
}

// storedFile is one file of a checkpoint's directory.
type storedFile struct {
	Name string         `json:"name"`
	Ref  activities.Ref `json:"ref"`
}

// mostFiles bounds the files of a checkpoint: a part for each device, and the manifest.
const mostFiles = 4096

// InStage is [Run] in a stage of Go code: it reports steps and how the plan turns out to the attempt in ctx, keeps
// checkpoints in the attempt's store and goes on from the last one, learns from earlier trainings of the stage, and
// stores the model as [Result.Artifact].
//
// Where Devices is nil and the attempt has GPUs, it trains on these, if the executor can.
//
// Where Directory is empty, files are in a temporary one that is removed; [Result.Model] and [Result.Checkpoint] are
// empty then. Checkpoints are stored while training goes on, the newest first; where they are made faster than they can
// be stored, some are not. A checkpoint that the store has lost or that is damaged is passed over, and training starts
// anew; the attempt's log tells.
func InStage(ctx context.Context, job Job) (Result, error) {
	result, err := inStage(ctx, job)
	if err != nil {
		return result, fmt.Errorf("train in a stage: %w", err)
	}
	return result, nil
}

func inStage(ctx context.Context, job Job) (result Result, err error) {
	attempt, err := activities.FromContext(ctx)
	if err != nil {
		return Result{}, err
	}
	if job.Logger == nil {
		job.Logger = activities.Log(ctx)
	}
	if job.Past == nil {
		job.Past = activities.PastTrainings(ctx)
	}
	job.TimeToLoss = cmp.Or(job.TimeToLoss, attempt.TimeToLoss)
	if job.Devices == nil {
		job.Devices = Assigned(job.Executor, os.Getenv(VisibleGPUs))
	}
	temporary, err := os.MkdirTemp("", "spillway-training-")
	if err != nil {
		return Result{}, fmt.Errorf("make a temporary directory: %w", err)
	}
	defer func() {
		if removing := os.RemoveAll(temporary); removing != nil && err == nil {
			err = fmt.Errorf("remove the temporary directory: %w", removing)
		}
	}()
	passing := job.Directory == ""
	if passing {
		job.Directory = filepath.Join(temporary, "training")
	}
	if job.Resume == "" {
		if job.Resume, err = restored(ctx, attempt.Store, filepath.Join(temporary, "resume"), job); err != nil {
			return Result{}, err
		}
	}
	u := newUploader(ctx, job)
	result, err = Run(ctx, job, Observer{
		Planned: func(t predictor.Training) { activities.Trained(ctx, t) },
		Progressed: func(p Progress) {
			activities.ProgressOf(ctx, int(p.Training.Steps), int(p.Training.TotalSteps), metrics(p))
			activities.Trained(ctx, p.Training)
		},
		Checkpointed: u.offer,
	})
	u.close()
	if err != nil {
		return Result{}, errors.Unwrap(err) // its "train" is said
	}
	ref, err := store(ctx, result.Model)
	if err != nil {
		return Result{}, fmt.Errorf("store the model: %w", err)
	}
	result.Artifact = activities.Artifact[[]byte]{Ref: ref}
	if passing {
		result.Model, result.Checkpoint = "", ""
	}
	return result, nil
}

// VisibleGPUs is the environment variable that names the GPUs which a process was given.
const VisibleGPUs = "CUDA_VISIBLE_DEVICES"

// Assigned are the GPUs that a process was given, by the value of [VisibleGPUs], in the order in which CUDA numbers
// them, where the executor can use such; nil leaves it to the CPUs of the process.
func Assigned(executor exec.Executor, visible string) []exec.Device {
	if _, can := executor.(exec.Surveyor); !can {
		return nil
	}
	var devices []exec.Device
	for name := range strings.SplitSeq(visible, ",") {
		if name = strings.TrimSpace(name); name == "" || name == "-1" { // CUDA sees none from there on
			break
		}
		index := len(devices)
		devices = append(devices, exec.Device{ID: fmt.Sprintf("cuda:%d", index), Kind: exec.CUDA, Index: index})
	}
	return devices
}

// metrics are those of a step.
func metrics(p Progress) map[string]float64 {
	all := map[string]float64{
		"loss": p.Loss, "samples_per_second": p.SamplesPerSecond,
		"step_seconds": p.Training.StepSeconds,
	}
	for name, value := range map[string]float64{"tokens_per_second": p.TokensPerSecond, "mfu": p.Utilization} {
		if value > 0 {
			all[name] = value
		}
	}
	if p.Validation != nil {
		maps.Copy(all, p.Validation.Numbers())
	}
	return all
}

// store streams a file into the attempt's store.
func store(ctx context.Context, path string) (activities.Ref, error) {
	file, err := os.Open(path)
	if err != nil {
		return activities.Ref{}, err
	}
	ref, err := activities.PutStream(ctx, file)
	return ref, errors.Join(err, file.Close())
}

// restored brings the last attempt's checkpoint to a directory and returns that; it is empty where there is no
// checkpoint that can be used.
func restored(ctx context.Context, from activities.Store, directory string, job Job) (string, error) {
	last, ok, err := activities.Checkpoint[stored]{}.Restore(ctx)
	if err == nil && ok {
		err = fetch(ctx, from, last, directory)
	}
	switch {
	case err == nil && ok:
		return directory, nil
	case err == nil:
		return "", nil
	case errors.Is(err, activities.ErrMissing) || errors.Is(err, activities.ErrCorrupt) ||
		errors.Is(err, exec.ErrCheckpoint):
		job.Logger.WarnContext(ctx, "the last attempt's checkpoint cannot be used; training starts anew", "error", err)
		return "", nil
	default:
		return "", fmt.Errorf("restore the last attempt's checkpoint: %w", err)
	}
}

// fetch writes the files of a checkpoint into a new directory and checks them.
func fetch(ctx context.Context, from activities.Store, c stored, directory string) error {
	if err := c.check(); err != nil {
		return fmt.Errorf("%w: %w", exec.ErrCheckpoint, err)
	}
	if err := os.Mkdir(directory, 0o700); err != nil {
		return err
	}
	for _, f := range c.Files {
		if err := fetchFile(ctx, from, f, filepath.Join(directory, f.Name)); err != nil {
			return fmt.Errorf("fetch %s of step %d: %w", f.Name, c.Step, err)
		}
	}
	_, err := exec.OpenCheckpoint(directory)
	return err
}

// check refuses lists of files that could lead out of a directory.
func (c stored) check() error {
	if len(c.Files) == 0 || len(c.Files) > mostFiles {
		return fmt.Errorf("it has %d files; want 1 to %d", len(c.Files), mostFiles)
	}
	seen := map[string]bool{}
	for _, f := range c.Files {
		if !filepath.IsLocal(f.Name) || f.Name == "." || strings.ContainsAny(f.Name, `/\`) || seen[f.Name] {
			return fmt.Errorf("file %q; want plain names, each once", f.Name)
		}
		seen[f.Name] = true
	}
	return nil
}

func fetchFile(ctx context.Context, from activities.Store, f storedFile, path string) error {
	r, err := from.Open(ctx, f.Ref.Digest)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return errors.Join(err, r.Close())
	}
	_, err = io.Copy(file, r)
	return errors.Join(err, r.Close(), file.Close())
}

// uploader stores checkpoints one at a time. A newer one takes the place of one that waits. The files are open from the
// moment they are offered, so that their directory may be removed.
type uploader struct {
	ctx     context.Context
	job     Job
	waiting chan opened
	done    sync.WaitGroup
}

// opened are the files of a checkpoint.
type opened struct {
	step  int64
	files []*os.File
}

func newUploader(ctx context.Context, job Job) *uploader {
	u := &uploader{ctx: ctx, job: job, waiting: make(chan opened, 1)}
	u.done.Go(func() {
		for o := range u.waiting {
			if err := u.keep(o); err != nil && ctx.Err() == nil {
				job.Logger.WarnContext(ctx, "a checkpoint could not be stored", "step", o.step, "error", err)
			}
		}
	})
	return u
}

// offer is an observer's Checkpointed; one goroutine calls it.
func (u *uploader) offer(directory string, step int64) {
	o, err := open(directory, step)
	if err != nil {
		u.job.Logger.WarnContext(u.ctx, "a checkpoint could not be stored", "step", step, "error", err)
		return
	}
	select {
	case older := <-u.waiting:
		_ = older.close() // nothing was written to it
	default:
	}
	u.waiting <- o
}

// close waits until the last checkpoint is stored.
func (u *uploader) close() {
	close(u.waiting)
	u.done.Wait()
}

func open(directory string, step int64) (opened, error) {
	o := opened{step: step}
	entries, err := os.ReadDir(directory)
	if err != nil {
		return opened{}, err
	}
	for _, e := range entries {
		file, err := os.Open(filepath.Join(directory, e.Name()))
		if err != nil {
			return opened{}, errors.Join(err, o.close())
		}
		o.files = append(o.files, file)
	}
	return o, nil
}

func (o opened) close() error {
	var problems []error
	for _, file := range o.files {
		problems = append(problems, file.Close())
	}
	return errors.Join(problems...)
}

// keep stores every file by its digest, and then the list of them.
func (u *uploader) keep(o opened) (err error) {
	defer func() { err = errors.Join(err, o.close()) }()
	c := stored{Step: o.step}
	var parts []activities.Ref
	for _, file := range o.files {
		ref, err := activities.PutStream(u.ctx, file)
		if err != nil {
			return fmt.Errorf("store %s: %w", filepath.Base(file.Name()), err)
		}
		c.Files = append(c.Files, storedFile{Name: filepath.Base(file.Name()), Ref: ref})
		parts = append(parts, ref)
	}
	return activities.Checkpoint[stored]{}.Save(u.ctx, c, parts...)
}
