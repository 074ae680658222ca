package exec

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// CheckpointVersion is the version of the manifests that this package writes and reads.
const CheckpointVersion = 1

// Manifest is the file of a checkpoint that names all others. It is written last, so a directory without one is no
// checkpoint.
const Manifest = "manifest.json"

// mostManifest bounds a manifest, in bytes.
const mostManifest = 16 << 20

// ErrCheckpoint is wrapped by the errors of checkpoints that are cut short, altered, of another model or none at all.
var ErrCheckpoint = errors.New("not a checkpoint to go on from")

// Meta says what a checkpoint is of.
type Meta struct {
	// Model is Probe.Model; Save sets it. Executor is the kind of executor.
	Model    string `json:"model"`
	Executor string `json:"executor,omitempty"`
	// Step is the number of finished steps, which is the number of the next one.
	Step int64 `json:"step"`
	// Seed, Batch, MicroBatches, Precision and Optimizer are those of the layout; the same ones go on with the same
	// losses.
	Seed         uint64    `json:"seed"`
	Batch        int       `json:"batch"`
	MicroBatches int       `json:"micro_batches"`
	Precision    Precision `json:"precision,omitempty"`
	Optimizer    Optimizer `json:"optimizer"`
	// Replicas is how many trained together; 0 is 1.
	Replicas int `json:"replicas,omitempty"`
	// Split tells, for people, how the model was divided; any other division goes on from it, too.
	Split []MetaPart `json:"split,omitempty"`
	// Plan is the plan that made the split, in the form of who made it; empty where nobody kept it.
	Plan json.RawMessage `json:"plan,omitempty"`
	// Loss is that of the last finished step; 0 before the first.
	Loss float64 `json:"loss"`
	// Validation is how evaluations stand; nil before the first.
	Validation *Standing `json:"validation,omitempty"`
	// Unevaluated says that the evaluation which was due after this step was left out, as the training was stopped in it.
	Unevaluated bool `json:"unevaluated,omitempty"`
}

// Standing is how the evaluations of a training stand.
type Standing struct {
	// Goal says by which number, "min:NAME" or "max:NAME".
	Goal string `json:"goal"`
	// Best is the best of them, BestStep after how many steps that was; 0 where none was finite.
	Best     float64 `json:"best"`
	BestStep int64   `json:"best_step"`
	// Mark is the last that was better by more than a margin, Stale how many came since.
	Mark  float64 `json:"mark"`
	Stale int     `json:"stale"`
	// BestParts are what stages exported after BestStep steps, beside the checkpoint's own; none where they are its own.
	BestParts []CheckpointFile `json:"best_parts,omitempty"`
	// From is the directory that Save finds BestParts in.
	From string `json:"-"`
}

// MetaPart is one part of the split that made a checkpoint.
type MetaPart struct {
	Device string `json:"device"`
	Ops    int    `json:"ops"`
}

// Describe returns what checkpoints of a layout have in common; the caller sets Step and Loss.
func Describe(executor string, layout Layout) Meta {
	m := Meta{
		Executor: executor, Seed: layout.Seed, Batch: layout.Batch, MicroBatches: layout.MicroBatches,
		Precision: layout.Precision, Optimizer: layout.Optimizer, Replicas: layout.Replicas,
	}
	for _, p := range layout.Parts {
		m.Split = append(m.Split, MetaPart{Device: p.Device.ID, Ops: len(p.Ops)})
	}
	return m
}

// CheckpointFile is what one stage exported.
type CheckpointFile struct {
	// File is its name in the directory.
	File string `json:"file"`
	// Bytes is its size, SHA256 its digest in hexadecimal.
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// manifest is the content of the file.
type manifest struct {
	Version int `json:"version"`
	Meta
	Parts []CheckpointFile `json:"parts"`
}

// Checkpoint is a whole checkpoint on the disk.
type Checkpoint struct {
	// Directory holds the files.
	Directory string
	// Meta says what it is of.
	Meta Meta
	// Files are what the stages exported, in the order of the stages.
	Files []CheckpointFile
}

// Paths returns the exported parts, for Stage.Import and Pipeline.Write.
func (c Checkpoint) Paths() []string {
	paths := make([]string, len(c.Files))
	for i, f := range c.Files {
		paths[i] = filepath.Join(c.Directory, f.File)
	}
	return paths
}

// BestPaths returns the exported parts of the best step, which may be the checkpoint's own; nil where there are none.
func (c Checkpoint) BestPaths() []string {
	s := c.Meta.Validation
	switch {
	case s == nil || s.BestStep == 0:
		return nil
	case s.BestStep == c.Meta.Step:
		return c.Paths()
	}
	paths := make([]string, len(s.BestParts))
	for i, f := range s.BestParts {
		paths[i] = filepath.Join(c.Directory, f.File)
	}
	return paths
}

// Bytes is the size of the exported parts together.
func (c Checkpoint) Bytes() quantity.Bytes {
	sum := int64(0)
	for _, f := range c.Files {
		sum += f.Bytes
	}
	return quantity.Bytes(sum)
}

// Fits refuses a checkpoint of another model than the one with this digest.
func (c Checkpoint) Fits(model string) error {
	if c.Meta.Model != model {
		return fmt.Errorf("%w: %s is of model %.12s and this is model %.12s: names, shapes or types of parameters differ",
			ErrCheckpoint, c.Directory, c.Meta.Model, model)
	}
	return nil
}

// OpenCheckpoint reads a checkpoint and checks every byte of it. The error wraps [ErrCheckpoint] where something is
// there that is no whole checkpoint, and
// [fs.ErrNotExist] where nothing is.
func OpenCheckpoint(directory string) (Checkpoint, error) {
	c, err := readManifest(directory)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("open checkpoint %s: %w", directory, err)
	}
	files := c.Files
	if c.Meta.Validation != nil {
		files = slices.Concat(files, c.Meta.Validation.BestParts)
	}
	for _, f := range files {
		if err := f.verify(directory); err != nil {
			return Checkpoint{}, fmt.Errorf("open checkpoint %s: %w", directory, err)
		}
	}
	return c, nil
}

func readManifest(directory string) (Checkpoint, error) {
	if info, err := os.Stat(directory); err != nil {
		return Checkpoint{}, err
	} else if !info.IsDir() {
		return Checkpoint{}, fmt.Errorf("%w: it is no directory", ErrCheckpoint)
	}
	file, err := os.Open(filepath.Join(directory, Manifest))
	if errors.Is(err, fs.ErrNotExist) {
		return Checkpoint{}, fmt.Errorf("%w: it has no %s", ErrCheckpoint, Manifest)
	} else if err != nil {
		return Checkpoint{}, err
	}
	text, err := io.ReadAll(io.LimitReader(file, mostManifest+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return Checkpoint{}, fmt.Errorf("%w: read %s: %w", ErrCheckpoint, Manifest, err)
	}
	m, err := parseManifest(text)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("%w: %s: %w", ErrCheckpoint, Manifest, err)
	}
	return Checkpoint{Directory: directory, Meta: m.Meta, Files: m.Parts}, nil
}

// parseManifest refuses manifests of other versions, and names that could lead out of the directory.
func parseManifest(text []byte) (manifest, error) {
	var m manifest
	if len(text) > mostManifest {
		return m, fmt.Errorf("more than %d bytes", mostManifest)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("it is cut short or malformed: %w", err)
	}
	switch {
	case m.Version != CheckpointVersion:
		return m, fmt.Errorf("version %d; this program reads %d", m.Version, CheckpointVersion)
	case m.Step < 0:
		return m, fmt.Errorf("step %d; want 0 or more", m.Step)
	case len(m.Parts) == 0:
		return m, errors.New("it names no parts")
	}
	seen := map[string]bool{Manifest: true}
	parts := m.Parts
	if m.Validation != nil {
		parts = slices.Concat(parts, m.Validation.BestParts)
	}
	for _, p := range parts {
		if !filepath.IsLocal(p.File) || strings.ContainsAny(p.File, `/\`) || p.File == "." || seen[p.File] {
			return m, fmt.Errorf("part %q; want plain names of files, each once", p.File)
		}
		seen[p.File] = true
		if digest, err := hex.DecodeString(p.SHA256); p.Bytes < 0 || err != nil || len(digest) != sha256.Size {
			return m, fmt.Errorf("part %q has %d bytes of digest %q; want a size and a SHA-256", p.File, p.Bytes, p.SHA256)
		}
	}
	return m, nil
}

// verify compares a file with the manifest.
func (f CheckpointFile) verify(directory string) error {
	path := filepath.Join(directory, f.File)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %s is missing", ErrCheckpoint, f.File)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: %s is no plain file", ErrCheckpoint, f.File)
	case info.Size() < f.Bytes:
		return fmt.Errorf("%w: %s is cut short: %d of %d bytes are missing", ErrCheckpoint, f.File, f.Bytes-info.Size(),
			f.Bytes)
	case info.Size() > f.Bytes:
		return fmt.Errorf("%w: %s is altered: it has %d bytes too many", ErrCheckpoint, f.File, info.Size()-f.Bytes)
	}
	got, err := digest(path)
	if err != nil {
		return err
	}
	if !strings.EqualFold(got.SHA256, f.SHA256) {
		return fmt.Errorf("%w: %s is altered: its SHA-256 is %.12s; want %.12s", ErrCheckpoint, f.File, got.SHA256, f.SHA256)
	}
	return nil
}

// digest reads a file and returns its name, size and digest.
func digest(path string) (CheckpointFile, error) {
	file, err := os.Open(path)
	if err != nil {
		return CheckpointFile{}, err
	}
	sum := sha256.New()
	n, err := io.Copy(sum, file)
	if err = errors.Join(err, file.Close()); err != nil {
		return CheckpointFile{}, fmt.Errorf("read %s: %w", path, err)
	}
	return CheckpointFile{File: filepath.Base(path), Bytes: n, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
}

// Restore puts a checkpoint's parameters, buffers and optimizer state into the stages of a pipeline of the same model,
// however it is split. It is called when no stage runs; after an error some stages may have them and others not.
func Restore(ctx context.Context, pipeline Pipeline, checkpoint Checkpoint) error {
	if err := checkpoint.Fits(pipeline.Data().Model); err != nil {
		return fmt.Errorf("restore a checkpoint: %w", err)
	}
	stages := pipeline.Stages()
	problems := make([]error, len(stages))
	var running sync.WaitGroup
	for s, stage := range stages {
		running.Go(func() {
			if err := stage.Import(ctx, checkpoint.Paths()); err != nil {
				problems[s] = fmt.Errorf("restore stage %d from %s: %w", s, checkpoint.Directory, err)
			}
		})
	}
	running.Wait()
	return errors.Join(problems...)
}
