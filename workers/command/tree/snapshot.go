package tree

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

const (
	// maxHashed is the largest file whose content a Snapshot remembers: a scan reads a tree of code, but no data sets and
	// no models.
	maxHashed = quantity.MiB
	// coarse is a step of the coarsest clock that file systems have (FAT). A file that was written so shortly before the
	// snapshot may have been written again without a new time.
	coarse = 2 * time.Second
)

// Snapshot remembers the files of a directory at one time. The zero value remembers no file, so that all count as made
// since.
type Snapshot struct {
	ignore *Ignore
	at     time.Time
	files  map[string]state
}

// state is what a Snapshot knows of one file.
type state struct {
	entry
	digest [sha256.Size]byte // zero when the file is too large
}

// Take remembers the files in dir, without those that ignore leaves out.
func Take(ctx context.Context, dir string, ignore *Ignore) (Snapshot, error) {
	snapshot := Snapshot{ignore: ignore, at: time.Now(), files: make(map[string]state)}
	err := scan(ctx, dir, ignore, func(root *os.Root, e entry) error {
		known := state{entry: e}
		if e.mode.IsRegular() && e.bytes <= maxHashed {
			var err error
			if known.digest, err = digest(root, e.name); err != nil {
				return err
			}
		}
		snapshot.files[e.name] = known
		return nil
	})
	if err != nil {
		return Snapshot{}, fmt.Errorf("look at the files in %s: %w", dir, err)
	}
	return snapshot, nil
}

// Changed returns the names of the files and symbolic links in dir that were made or changed since before, sorted,
// without those that before ignored. Size and time tell; where the time is no proof, the content of files up to 1 MiB
// does: a file that was touched, or written again with the same bytes, is not changed. Links out of the directory are
// left out, as they cannot be packed.
func Changed(ctx context.Context, before Snapshot, dir string) ([]string, error) {
	var changed []string
	err := scan(ctx, dir, before.ignore, func(root *os.Root, e entry) error {
		same, err := before.same(root, e)
		if err == nil && !same {
			changed = append(changed, e.name)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find the changed files in %s: %w", dir, err)
	}
	return changed, nil
}

// same reports whether the file e is as it was.
func (s Snapshot) same(root *os.Root, e entry) (bool, error) {
	was, known := s.files[e.name]
	switch {
	case !known || was.mode != e.mode || was.bytes != e.bytes || was.target != e.target:
		return false, nil
	case !e.mode.IsRegular():
		return true, nil
	case was.digest == [sha256.Size]byte{}:
		return was.time.Equal(e.time), nil
	case was.time.Equal(e.time) && was.time.Before(s.at.Add(-coarse)):
		return true, nil
	}
	now, err := digest(root, e.name)
	return now == was.digest, err
}

// scan calls visit for each file and symbolic link that can be packed, by name. A file that goes meanwhile is passed
// over.
func scan(ctx context.Context, dir string, ignore *Ignore, visit func(*os.Root, entry) error) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it was only read
	entries, err := walk(ctx, root, ignore, ".", skipLeaving)
	if err != nil {
		return err
	}
	for _, e := range sorted(entries) {
		if e.mode.IsDir() {
			continue
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := visit(root, e); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func digest(root *os.Root, name string) (sum [sha256.Size]byte, err error) {
	file, err := root.Open(name)
	if err != nil {
		return sum, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	hash := sha256.New()
	if _, err := io.Copy(hash, file); err != nil {
		return sum, err
	}
	return [sha256.Size]byte(hash.Sum(nil)), nil
}
