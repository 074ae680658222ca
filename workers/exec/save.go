package exec

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spillway-ml/spillway/activities/access/safefile"
)

// unfinished is in the names of directories of checkpoints in the making: ".NAME.unfinished-RANDOM".
const unfinished = ".unfinished-"

// tries is how often a directory is made anew that another process swept away between its making and its locking.
const tries = 5

// Save copies the state of every stage and returns; then training may go on while wait, which is called once and from
// any goroutine, brings the copy to directory. The directory has its name when all is on the disk: a crash at any
// moment leaves what was there before, or the new checkpoint. A checkpoint that is there already is replaced. What
// crashes left unfinished beside it is removed. When ctx ends before wait does, nothing is left.
func Save(
	ctx context.Context, pipeline Pipeline, directory string, meta Meta,
) (wait func() (Checkpoint, error), err error) {
	s := saving{directory: filepath.Clean(directory), meta: meta}
	s.meta.Model = pipeline.Data().Model
	if err := s.begin(); err != nil {
		return nil, fmt.Errorf("save checkpoint %s: %w", directory, err)
	}
	if err := s.takeBest(); err != nil {
		return nil, fmt.Errorf("save checkpoint %s: keep the best step: %w", directory, errors.Join(err, s.abandon()))
	}
	for n, stage := range pipeline.Stages() {
		written, err := stage.Export(ctx, filepath.Join(s.temporary, partName(n)))
		if err != nil {
			err = fmt.Errorf("save checkpoint %s: export stage %d: %w", directory, n, err)
			return nil, errors.Join(err, s.abandon())
		}
		s.waits = append(s.waits, written)
	}
	return func() (Checkpoint, error) {
		c, err := s.finish(ctx)
		if err != nil {
			return Checkpoint{}, fmt.Errorf("save checkpoint %s: %w", directory, errors.Join(err, s.abandon()))
		}
		return c, nil
	}, nil
}

// takeBest brings the files of the best step along, as links where the file system has them: so each checkpoint is
// whole, wherever it is brought, and the files are there once.
func (s *saving) takeBest() error {
	v := s.meta.Validation
	if v == nil || len(v.BestParts) == 0 {
		return nil
	}
	kept := *v
	kept.BestParts = slices.Clone(v.BestParts)
	for n, f := range v.BestParts {
		kept.BestParts[n].File = fmt.Sprintf("best-%d.safetensors", n)
		from, to := filepath.Join(v.From, f.File), filepath.Join(s.temporary, kept.BestParts[n].File)
		if os.Link(from, to) == nil {
			continue
		}
		if err := copyFile(from, to); err != nil {
			return err
		}
	}
	s.meta.Validation = &kept
	return nil
}

// copyFile copies a file to the disk.
func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666) //nolint:gosec // the user's umask decides
	if err != nil {
		return errors.Join(err, source.Close())
	}
	_, err = io.Copy(file, source)
	return errors.Join(err, source.Close(), file.Sync(), file.Close())
}

func partName(stage int) string { return fmt.Sprintf("part-%d.safetensors", stage) }

// saving is a checkpoint in the making.
type saving struct {
	directory, temporary string
	lock                 *os.File // of temporary: others see that it is not left over
	meta                 Meta
	waits                []func() error
}

// begin makes the temporary directory and removes what crashes have left.
func (s *saving) begin() error {
	parent := filepath.Dir(s.directory)
	root, err := safefile.Open(parent, 0o777, true) // who named it has said whether others may write there
	if err != nil {
		return err
	}
	if err := errors.Join(root.Close(), sweep(parent)); err != nil {
		return err
	}
	for range tries {
		if s.temporary, err = os.MkdirTemp(parent, "."+filepath.Base(s.directory)+unfinished); err != nil {
			return err
		}
		if s.lock, err = lock(s.temporary); err != nil {
			continue
		}
		if _, err = os.Stat(s.temporary); err == nil {
			return nil
		}
		err = errors.Join(err, s.unlock())
	}
	return err
}

// finish waits for the files, names them in a manifest and gives the directory its name.
func (s *saving) finish(ctx context.Context) (Checkpoint, error) {
	m := manifest{Version: CheckpointVersion, Meta: s.meta}
	waits := s.waits
	for n := range waits {
		s.waits = waits[n+1:]
		if err := waits[n](); err != nil {
			return Checkpoint{}, fmt.Errorf("export stage %d: %w", n, err)
		}
		if err := context.Cause(ctx); err != nil {
			return Checkpoint{}, err
		}
		file, err := digest(filepath.Join(s.temporary, partName(n)))
		if err != nil {
			return Checkpoint{}, fmt.Errorf("export stage %d: %w", n, err)
		}
		m.Parts = append(m.Parts, file)
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return Checkpoint{}, err
	}
	if err := writeSynced(filepath.Join(s.temporary, Manifest), append(text, '\n')); err != nil {
		return Checkpoint{}, err
	}
	if err := safefile.SyncDirectory(s.temporary); err != nil {
		return Checkpoint{}, err
	}
	if err := context.Cause(ctx); err != nil {
		return Checkpoint{}, err
	}
	if err := s.publish(); err != nil {
		return Checkpoint{}, err
	}
	return Checkpoint{Directory: s.directory, Meta: m.Meta, Files: m.Parts}, nil
}

// publish gives the finished directory its name. What had the name before is then in the temporary one.
func (s *saving) publish() error {
	err := s.lock.Chmod(0o755) // MkdirTemp's mode is for secrets; a checkpoint is none
	if err != nil {
		return err
	}
	if _, there := os.Lstat(s.directory); errors.Is(there, fs.ErrNotExist) {
		err = os.Rename(s.temporary, s.directory)
	} else {
		err = errors.Join(there, exchange(s.temporary, s.directory))
	}
	if err != nil {
		return err
	}
	if err := safefile.SyncDirectory(filepath.Dir(s.directory)); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(s.temporary), s.unlock())
}

// abandon waits for the writers that still run, and removes what they wrote.
func (s *saving) abandon() error {
	var problems []error
	for _, wait := range s.waits {
		_ = wait() // its file is removed
	}
	s.waits = nil
	problems = append(problems, os.RemoveAll(s.temporary), s.unlock())
	return errors.Join(problems...)
}

// unlock gives the temporary directory back, or what has become of it; the second time it does nothing.
func (s *saving) unlock() error {
	held := s.lock
	s.lock = nil
	if held == nil {
		return nil
	}
	return unlock(held)
}

// sweep removes the unfinished directories that nobody is writing any more.
func sweep(parent string) error {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), ".") || !strings.Contains(e.Name(), unfinished) {
			continue
		}
		if info, err := e.Info(); err != nil || !safefile.Own(info) {
			continue // its owner was faster, or is another user, to whom it is left
		}
		path := filepath.Join(parent, e.Name())
		held, err := lock(path)
		if err != nil {
			continue // its owner is alive, or was faster
		}
		if err := errors.Join(os.RemoveAll(path), unlock(held)); err != nil {
			return fmt.Errorf("remove what a crash left: %w", err)
		}
	}
	return nil
}

// lock takes a directory for this process, until it is unlocked or the process ends. It does not wait.
func lock(directory string) (*os.File, error) {
	file, err := os.Open(directory)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", directory, err), file.Close())
	}
	return file, nil
}

// unlock lets others in. It does not just close the file: a process that another thread is just forking holds a copy of
// it, and with it the lock, until it executes its program.
func unlock(held *os.File) error {
	return errors.Join(syscall.Flock(int(held.Fd()), syscall.LOCK_UN), held.Close())
}

func writeSynced(path string, text []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666) //nolint:gosec // the user's umask decides
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	return errors.Join(err, file.Sync(), file.Close())
}
