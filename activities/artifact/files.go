package artifact

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/access/safefile"
)

const (
	// partial is the folder of Puts that go on; it is in the store's own directory so that a rename stays in one file
	// system.
	partial = "partial"
	// partialFor is how long a file in partial may go without a write before Open takes it for the leftover of a crash. A
	// Put that stalls longer than this while another process opens the store fails with a clear error and can be tried
	// again.
	partialFor = time.Hour
	// fanOut is how many digits of the digest name the folder: 256 folders keep each below a few thousand entries at a
	// million artifacts.
	fanOut = 2
)

// Files is a store in a directory. Its methods are safe for concurrent use, also by several processes.
type Files struct {
	dir    string
	shared bool // with a group, which may read what is put; see Share
}

var _ activities.Store = (*Files)(nil)

// Open returns the store in dir, which it creates where needed, and sweeps what crashed Puts left behind more than an
// hour ago.
func Open(dir string) (*Files, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open artifact store %s: %w", dir, err)
	}
	files := &Files{dir: absolute}
	if err := os.MkdirAll(files.partial(), 0o700); err != nil {
		return nil, fmt.Errorf("open artifact store: %w; choose a directory that can be written", err)
	}
	if err := files.sweep(time.Now().Add(-partialFor)); err != nil {
		return nil, fmt.Errorf("open artifact store %s: %w", dir, err)
	}
	files.sweepBoards(time.Now().Add(-BoardsFor))
	info, err := os.Stat(files.partial())
	if err != nil {
		return nil, fmt.Errorf("open artifact store %s: %w", dir, err)
	}
	files.shared = info.Mode()&sharedFolder == sharedFolder
	return files, nil
}

// Dir returns the absolute path of the store's directory.
func (f *Files) Dir() string { return f.dir }

// Put stores everything that r yields and returns its address once file and folder are on disk. When the bytes are
// stored already the new file takes the place of the old one, which also heals a file that was damaged.
func (f *Files) Put(ctx context.Context, r io.Reader) (ref activities.Ref, err error) {
	if err := f.admit(); err != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: %w", err)
	}
	temporary, err := os.CreateTemp(f.partial(), "put-")
	if err != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("put artifact: %w", err)
			_ = os.Remove(temporary.Name()) // sweep takes what cannot be removed now
		}
	}()
	if err = temporary.Chmod(f.fileMode() | alone); !f.shared {
		err = nil // it is the owner's alone as it is; without the mark it is taken for more than one's
	}
	if err == nil {
		ref, err = fill(ctx, temporary, r)
	}
	if err = errors.Join(err, temporary.Close()); err != nil {
		return activities.Ref{}, err
	}
	if err := f.install(temporary.Name(), ref.Digest); err != nil {
		return activities.Ref{}, err
	}
	return ref, nil
}

// Open returns the bytes of digest. It wraps activities.ErrMissing when they are not here; the reader's last Read wraps
// activities.ErrCorrupt when the file does not match its name.
func (f *Files) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("open artifact %s: %w", digest, err)
	}
	if err := CheckDigest(digest); err != nil {
		return nil, fmt.Errorf("open artifact: %w", err)
	}
	file, err := f.openStored(digest)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open artifact %s in %s: %w", digest, f.dir, activities.ErrMissing)
	}
	if errors.Is(err, errNotPlain) {
		return nil, fmt.Errorf("open artifact: %w: %w; remove it and let its task run again", activities.ErrCorrupt, err)
	}
	if err != nil {
		return nil, fmt.Errorf("open artifact: %w", err)
	}
	return Verify(file, digest, "the file"), nil
}

// Usage returns how many bytes the files of the store take, those of Puts that go on among them.
func (f *Files) Usage(ctx context.Context) (bytes int64, err error) {
	err = filepath.WalkDir(f.dir, func(_ string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a Put has renamed it meanwhile
		}
		if err = cmp.Or(err, ctx.Err()); err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("measure the artifact store %s: %w", f.dir, err)
	}
	return bytes, nil
}

func (f *Files) partial() string { return filepath.Join(f.dir, partial) }

func (f *Files) path(digest string) string {
	return filepath.Join(f.dir, digest[:fanOut], digest[fanOut:])
}

// install gives the finished temporary file its name, and returns once that name survives a loss of power. Where the
// name is there already, the file says that somebody else may count on it as well.
func (f *Files) install(temporary, digest string) error {
	path := f.path(digest)
	folder := filepath.Dir(path)
	switch err := os.Mkdir(folder, 0o700); {
	case err == nil:
		if err := safefile.SyncDirectory(f.dir); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	err := os.Link(temporary, path)
	if err == nil {
		if _, err := os.Lstat(f.asidePath(digest)); err == nil { // it was there, and is about to be removed
			if err := f.mark(digest); err != nil {
				return err
			}
		}
		if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return safefile.SyncDirectory(folder)
	}
	// Where it is not because of that, as in a file system without links, the file is never taken for one's alone.
	if err := os.Chmod(temporary, f.fileMode()); err != nil {
		return err
	}
	err = os.Rename(temporary, path)
	if info, missing := os.Lstat(path); err != nil && missing == nil && info.IsDir() { // of somebody who shares the store
		err = errors.Join(os.RemoveAll(path), os.Rename(temporary, path))
	}
	if err != nil {
		return err
	}
	return safefile.SyncDirectory(folder)
}

// sweep removes partial files whose last write is before limit, and those that have their name already. A file that
// another process renames or removes meanwhile is none of ours.
func (f *Files) sweep(limit time.Time) error {
	entries, err := os.ReadDir(f.partial())
	if err != nil {
		return err
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil || !info.Mode().IsRegular() || info.ModTime().After(limit) && links(info) == 1 {
			continue
		}
		if err := os.Remove(filepath.Join(f.partial(), entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// fill copies r into file, on to the disk, and returns the address of what it copied; it stops between two reads once
// ctx has ended.
func fill(ctx context.Context, file *os.File, r io.Reader) (activities.Ref, error) {
	sum := sha256.New()
	read := readFunc(func(p []byte) (int, error) {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return r.Read(p)
	})
	written, err := io.Copy(io.MultiWriter(file, sum), read)
	if err != nil {
		return activities.Ref{}, err
	}
	if err := file.Sync(); err != nil {
		return activities.Ref{}, err
	}
	return activities.Ref{Digest: hex.EncodeToString(sum.Sum(nil)), Bytes: written}, nil
}

// CheckDigest refuses everything that Put cannot have returned, path separators above all.
func CheckDigest(digest string) error {
	if len(digest) == hex.EncodedLen(sha256.Size) {
		valid := true
		for _, digit := range []byte(digest) {
			valid = valid && ('0' <= digit && digit <= '9' || 'a' <= digit && digit <= 'f')
		}
		if valid {
			return nil
		}
	}
	return fmt.Errorf("digest %.80q is not %d lower-case hexadecimal digits; use the one that Put returned", digest,
		hex.EncodedLen(sha256.Size))
}

// readFunc is an io.Reader.
type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }
