package command

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workers/python"
)

// workspacePrefix begins the names of workspaces below their root.
const workspacePrefix = "attempt-"

// Workspace is the directory of one attempt. Its methods may be called concurrently, but for Collect and Remove, which
// come after the program has ended.
type Workspace struct {
	options Options
	command wire.Command
	dir     string // of the workspace
	work    string // the tree in which the program runs: below dir, or in place
	resume  string // path of the checkpoint; empty when there is none
	engine  string // path of the container engine; empty on the host
	// imagePath is the PYTHONPATH of the container's image.
	imagePath string
	lock      *os.File
	python    *cached // its environment; nil when it has none
	before    tree.Snapshot
	store     *countingStore
	// notFinite are the metrics without a finite value of the last step that Follow has read.
	notFinite []string

	removing sync.Once
	removed  error

	looking   sync.Mutex
	used      quantity.Bytes
	lookAfter time.Time
}

// Prepare makes the workspace of one attempt: it checks the command, fetches what it needs and restores the checkpoint
// resume, which is the zero Ref when there is none. The errors are told apart by ErrInvalid, ErrRequirements and
// MissingError. After an error nothing is left but, in place, the files that were put there already.
//
// Files take the place of those that the code has at the same path; trees are joined.
func Prepare(ctx context.Context, options Options, command wire.Command, resume activities.Ref) (*Workspace, error) {
	if err := options.check(); err != nil {
		return nil, fmt.Errorf("prepare a workspace: %w", err)
	}
	if err := errors.Join(Check(command), options.permit(command)); err != nil {
		return nil, err
	}
	w := &Workspace{options: options, command: command, store: &countingStore{Store: options.Store}}
	if err := w.open(ctx); err != nil {
		return nil, fmt.Errorf("prepare a workspace: %w", err)
	}
	if err := w.fill(ctx, resume); err != nil {
		return nil, errors.Join(err, w.Remove(context.WithoutCancel(ctx)))
	}
	return w, nil
}

// open makes the directory and its lock.
func (w *Workspace) open(ctx context.Context) error {
	if err := os.MkdirAll(w.options.Root, 0o700); err != nil {
		return fmt.Errorf("%w; choose a directory that can be written", err)
	}
	dir := filepath.Join(w.options.Root, workspacePrefix+rand.Text())
	lock, err := tryLock(dir+lockSuffix, exclusive)
	if err != nil {
		return err
	}
	w.dir, w.lock, w.work = dir, lock, filepath.Join(dir, "work")
	for _, name := range []string{dir, w.work, w.home(), w.temporary(), filepath.Dir(w.pipe()), w.module()} {
		if err := os.Mkdir(name, 0o700); err != nil {
			return errors.Join(err, discard(ctx, dir, lock))
		}
	}
	if err := errors.Join(python.Write(w.module()), python.Seal(w.module()), w.makePipe()); err != nil {
		return errors.Join(err, discard(ctx, dir, lock))
	}
	return nil
}

// makePipe makes the named pipe for reports. A descriptor would not do: no container engine but podman passes one on,
// and neither do launchers that close all but the standard ones in what they start, such as torchrun.
func (w *Workspace) makePipe() error {
	if err := syscall.Mkfifo(w.pipe(), 0o600); err != nil {
		return fmt.Errorf("make a pipe for reports: %w", err)
	}
	return nil
}

// fill puts everything in its place.
func (w *Workspace) fill(ctx context.Context, resume activities.Ref) error {
	c := w.command
	switch {
	case c.InPlace != "":
		w.work = filepath.Clean(c.InPlace)
		if info, err := os.Stat(w.work); err != nil || !info.IsDir() {
			return fmt.Errorf("%w: in place: %s is not a directory on this host", ErrInvalid, w.work)
		}
	case c.Code.Digest != "":
		if err := fetching("code", c.Code, w.unpackCode(ctx)); err != nil {
			return err
		}
	}
	for _, file := range c.Files {
		if err := fetching(file.Path, file.Artifact, w.put(ctx, file)); err != nil {
			return err
		}
	}
	if resume.Digest != "" {
		if err := fetching("checkpoint", resume, w.restore(ctx, resume)); err != nil {
			return err
		}
	}
	if err := w.look(ctx); err != nil {
		return err
	}
	if err := w.hand(); err != nil {
		return err
	}
	err := w.prepareRuntime(ctx)
	waitForForks()
	return err
}

// look finds where the program starts and remembers what is there.
func (w *Workspace) look(ctx context.Context) error {
	c := w.command
	start := filepath.Join(w.work, c.Directory)
	if info, err := os.Stat(start); err != nil || !info.IsDir() {
		return fmt.Errorf("%w: directory: there is no directory %q in the tree", ErrInvalid, c.Directory)
	}
	if !c.KeepChanged {
		return nil
	}
	ignore, err := tree.ReadIgnore(w.work)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	w.before, err = tree.Take(ctx, w.work, ignore)
	return err
}

// hand gives what was put into the workspace to the user of the program, and lets it in; until then nobody could change
// anything there. The workspace itself stays this process's.
func (w *Workspace) hand() error {
	user := w.options.User
	if user == nil {
		return nil
	}
	// Not the directory of the pipe: who can put something else in its place has this process open that.
	tops := []string{w.work, w.home(), w.temporary(), w.pipe()}
	if w.resume != "" {
		tops = append(tops, filepath.Dir(w.resume))
	}
	for _, top := range tops {
		err := filepath.WalkDir(top, func(name string, _ fs.DirEntry, err error) error {
			return errors.Join(err, user.Give(name))
		})
		if err != nil {
			return fmt.Errorf("give the workspace to %s: %w", user.Name, err)
		}
	}
	return user.Admit(0o710, w.options.Root, w.dir, filepath.Dir(w.pipe()))
}

// waitForForks waits until children that are being forked have executed their programs. Until then they have open what
// was open for writing when they were forked, and a program that is open for writing cannot be executed ("text file
// busy", https://go.dev/issue/22315). The runtime holds the lock from the fork to the execution.
func waitForForks() {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
}

// prepareRuntime finds what the program runs in: a container engine or a Python environment.
func (w *Workspace) prepareRuntime(ctx context.Context) (err error) {
	switch {
	case w.command.Image != "":
		w.engine, err = findEngine(w.options.lookup())
		if err == nil {
			err = w.prepareContainer(ctx)
		}
	case w.command.Requirements.Digest != "":
		w.python, err = w.environmentFor(ctx, w.command.Requirements)
	}
	return err
}

// unpackCode copies the code from the cache, where it is unpacked once for all attempts. Attempts do not share files: a
// program may write to its own. On file systems that can, the copy shares the blocks (Go copies files by
// copy_file_range).
func (w *Workspace) unpackCode(ctx context.Context) error {
	code := w.command.Code
	unpacked, err := w.options.cache().use(ctx, "tree-"+code.Digest, func(ctx context.Context, dir string) error {
		return tree.Unpack(ctx, w.store, code, dir)
	})
	if err != nil {
		return err
	}
	err = os.CopyFS(w.work, os.DirFS(unpacked.dir))
	return errors.Join(err, unpacked.release())
}

// cache returns the cache.
func (o Options) cache() cache {
	limit := o.CacheBytes
	if limit == 0 {
		limit = DefaultCacheBytes
	}
	return cache{dir: o.Cache, max: limit}
}

// put fetches one file or tree.
func (w *Workspace) put(ctx context.Context, file wire.CommandFile) error {
	name := filepath.FromSlash(file.Path)
	root, err := os.OpenRoot(w.work)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // files are closed one by one
	if file.Tree {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
		return tree.Unpack(ctx, w.store, file.Artifact, filepath.Join(w.work, name))
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	if info, err := root.Lstat(name); err == nil && info.IsDir() {
		return fmt.Errorf("put it at %s: %w", file.Path, syscall.EISDIR)
	}
	if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	content, err := w.store.Open(ctx, file.Artifact.Digest)
	if err != nil {
		return err
	}
	target, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return errors.Join(err, content.Close())
	}
	_, err = io.Copy(target, content)
	return errors.Join(err, target.Close(), content.Close())
}

// restore unpacks a checkpoint: a tree with one file or directory, which keeps its name.
func (w *Workspace) restore(ctx context.Context, resume activities.Ref) error {
	dir := filepath.Join(w.dir, "resume")
	if err := tree.Unpack(ctx, w.store, resume, dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	if len(entries) != 1 {
		return fmt.Errorf("it has %d entries at its top and a checkpoint has one; run the task from its start", len(entries))
	}
	w.resume = filepath.Join(dir, entries[0].Name())
	return nil
}

// Directory is where the program starts.
func (w *Workspace) Directory() string {
	return filepath.Join(w.work, filepath.FromSlash(w.command.Directory))
}

func (w *Workspace) home() string      { return filepath.Join(w.dir, "home") }
func (w *Workspace) temporary() string { return filepath.Join(w.dir, "tmp") }
func (w *Workspace) module() string    { return filepath.Join(w.dir, "python") }
func (w *Workspace) pipe() string      { return filepath.Join(w.dir, "report", "pipe") }

// Read tells how many artifact bytes the attempt has fetched so far. Code that was in the cache is not fetched.
func (w *Workspace) Read() quantity.Bytes { return quantity.Bytes(w.store.read.Load()) }

// Written tells how many artifact bytes the attempt has stored so far.
func (w *Workspace) Written() quantity.Bytes { return quantity.Bytes(w.store.written.Load()) }

// Remove ends what the program left in a container, and deletes the workspace, whatever permissions its files have.
// What was run in place stays. Only the first call does anything; what it could not delete is left to Sweep.
func (w *Workspace) Remove(ctx context.Context) error {
	w.removing.Do(func() { w.removed = errors.Join(w.python.release(), discard(ctx, w.dir, w.lock)) })
	return w.removed
}

// discard deletes the workspace dir and then its lock, which is held.
func discard(ctx context.Context, dir string, lock *os.File) error {
	err := errors.Join(removeContainer(ctx, dir), removeAll(dir))
	if err == nil {
		err = os.Remove(dir + lockSuffix)
	}
	if err = errors.Join(err, lock.Close()); err != nil {
		return fmt.Errorf("delete a workspace: %w", err)
	}
	return nil
}

// countingStore counts the bytes that pass.
type countingStore struct {
	activities.Store
	read, written atomic.Int64
}

// Put counts what was stored.
func (s *countingStore) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	ref, err := s.Store.Put(ctx, r)
	s.written.Add(ref.Bytes)
	return ref, err
}

// Open counts what is read.
func (s *countingStore) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	r, err := s.Store.Open(ctx, digest)
	if err != nil {
		return nil, err
	}
	count := func(p []byte) (int, error) {
		if ctx.Err() != nil { // a large file does not hold up a stop
			return 0, context.Cause(ctx)
		}
		n, err := r.Read(p)
		s.read.Add(int64(n))
		return n, err
	}
	return struct {
		io.Reader
		io.Closer
	}{readerFunc(count), r}, nil
}

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

// Read calls f.
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }
