package artifact

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// An artifact is removed in two steps, so that whoever puts or names it meanwhile loses nothing: Discard takes it
// aside, where Open still finds it, and once nobody turns out to need it, Delete removes it; Restore puts it back. Who
// puts the same bytes in between makes a file of its own.

// aside is the folder of what is about to be removed, pins that of marks for what is kept without being named.
const (
	aside = "aside"
	pins  = "pins"
	// refusal is the file that says why Puts are refused.
	refusal = "refused"
	// alone marks the file of an artifact that was put where none was, and neither put nor asked for since: the bit means
	// nothing else for files. Where it is missing, because binaries that were built before there was a mark have put the
	// file, or because it is a copy, nobody knows.
	alone fs.FileMode = 0o100
)

// Info says of a stored artifact what its file does.
type Info struct {
	Digest string
	// Bytes is its size, or for a pin 0.
	Bytes int64
	// Written is when it was last put, or asked for by Touch; of a pin, when it was made last.
	Written time.Time
	// Again says that it was put while it was there, or asked for by Touch, or that nobody knows: more than one may be
	// about to name it.
	Again bool
}

// List calls each with every artifact, those that were taken aside among them, once. What is put meanwhile may be left
// out. It stops at the first error that each returns. It must not go on beside Discard.
func (f *Files) List(ctx context.Context, each func(Info) error) error {
	// What is put back meanwhile has left the one place only once it is in the other.
	discarded := map[string]Info{}
	err := f.list(ctx, aside, "", func(info Info) error {
		discarded[info.Digest] = info
		return nil
	})
	if err != nil {
		return err
	}
	folders, err := os.ReadDir(f.dir)
	if err != nil {
		return fmt.Errorf("list artifacts: %w", err)
	}
	for _, folder := range folders {
		if len(folder.Name()) != fanOut || !folder.IsDir() {
			continue
		}
		err := f.list(ctx, folder.Name(), folder.Name(), func(info Info) error {
			delete(discarded, info.Digest)
			return each(info)
		})
		if err != nil {
			return err
		}
	}
	for _, info := range discarded {
		if err := each(info); err != nil {
			return err
		}
	}
	return nil
}

// Pins calls each with every pin.
func (f *Files) Pins(ctx context.Context, each func(Info) error) error {
	return f.list(ctx, pins, "", each)
}

// list calls each with the files of folder whose names, behind a prefix, are digests.
func (f *Files) list(ctx context.Context, folder, prefix string, each func(Info) error) error {
	entries, err := os.ReadDir(filepath.Join(f.dir, folder))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("list artifacts: %w", err)
	}
	for _, entry := range entries {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("list artifacts: %w", err)
		}
		digest := prefix + entry.Name()
		if CheckDigest(digest) != nil {
			continue // none of ours
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is gone meanwhile
		}
		if err != nil {
			return fmt.Errorf("list artifacts: %w", err)
		}
		if !info.Mode().IsRegular() {
			continue
		}
		if err := each(Info{
			Digest: digest, Bytes: info.Size(), Written: info.ModTime(), Again: info.Mode()&alone == 0,
		}); err != nil {
			return err
		}
	}
	return nil
}

// Pin keeps an artifact, from now on, as one that somebody from outside has put: nothing that the stack knows of names
// it yet.
func (f *Files) Pin(_ context.Context, digest string) error {
	if err := CheckDigest(digest); err != nil {
		return fmt.Errorf("pin artifact: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(f.dir, pins), 0o700); err != nil {
		return fmt.Errorf("pin artifact %s: %w", digest, err)
	}
	name := filepath.Join(f.dir, pins, digest)
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = errors.Join(file.Close(), os.Chtimes(name, time.Time{}, time.Now()))
	}
	if err != nil {
		return fmt.Errorf("pin artifact %s: %w", digest, err)
	}
	return nil
}

// Unpin removes a pin that was not made again after then; it is no error when there is none.
func (f *Files) Unpin(_ context.Context, digest string, then time.Time) error {
	if err := CheckDigest(digest); err != nil {
		return fmt.Errorf("unpin artifact: %w", err)
	}
	name := filepath.Join(f.dir, pins, digest)
	info, err := os.Lstat(name)
	if err == nil && !info.ModTime().After(then) {
		err = os.Remove(name)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin artifact %s: %w", digest, err)
	}
	return nil
}

// Touch notes that an artifact was asked for from outside: somebody may be about to name it. One that was taken aside
// is put back. It is no error when there is none.
func (f *Files) Touch(ctx context.Context, digest string) error {
	if err := CheckDigest(digest); err != nil {
		return fmt.Errorf("touch artifact: %w", err)
	}
	if err := f.Restore(ctx, digest); err != nil {
		return err
	}
	err := f.mark(digest)
	if err == nil {
		err = os.Chtimes(f.path(digest), time.Time{}, time.Now())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("touch artifact %s: %w", digest, err)
	}
	return nil
}

// Discard takes an artifact aside, unless it was put or touched after then. Taken is false when it was, and when there
// is none.
func (f *Files) Discard(
	ctx context.Context, digest string, then time.Time,
) (taken bool, err error) {
	if err := CheckDigest(digest); err != nil {
		return false, fmt.Errorf("discard artifact: %w", err)
	}
	if err := f.makeAside(); err != nil {
		return false, fmt.Errorf("discard artifact %s: %w", digest, err)
	}
	switch err := os.Rename(f.path(digest), f.asidePath(digest)); {
	case errors.Is(err, fs.ErrNotExist):
		info, err := os.Lstat(f.asidePath(digest)) // an earlier collection may have been killed
		return err == nil && !info.ModTime().After(then), nil
	case err != nil:
		return false, fmt.Errorf("discard artifact %s: %w", digest, err)
	}
	info, err := os.Lstat(f.asidePath(digest))
	if err != nil {
		return false, fmt.Errorf("discard artifact %s: %w", digest, err)
	}
	if info.ModTime().After(then) { // it was put anew between the decision and now
		return false, f.Restore(ctx, digest)
	}
	return true, nil
}

// Restore puts back what Discard took aside; it is no error when there is nothing.
func (f *Files) Restore(_ context.Context, digest string) error {
	if err := CheckDigest(digest); err != nil {
		return fmt.Errorf("restore artifact: %w", err)
	}
	err := os.Link(f.asidePath(digest), f.path(digest))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if errors.Is(err, fs.ErrExist) { // one that was put meanwhile takes its place
		err = f.mark(digest)
	}
	if err != nil {
		return fmt.Errorf("restore artifact %s: %w", digest, err)
	}
	return f.dropAside(digest)
}

// Delete removes what Discard took aside. Gone is false when the artifact is there by now all the same: somebody has
// put it, or asked for it, meanwhile.
func (f *Files) Delete(_ context.Context, digest string) (gone bool, err error) {
	if err := CheckDigest(digest); err != nil {
		return false, fmt.Errorf("delete artifact: %w", err)
	}
	if err := f.dropAside(digest); err != nil {
		return false, err
	}
	// Restore makes the one name before it removes the other: one that began before the removal is seen here.
	if _, err = os.Lstat(f.path(digest)); errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err := f.mark(digest); err != nil {
		return false, fmt.Errorf("delete artifact %s: %w", digest, err)
	}
	return false, nil
}

// mark notes of an artifact, where it is, that more than one may be about to name it.
func (f *Files) mark(digest string) error {
	path := f.path(digest)
	info, err := os.Lstat(path)
	if err == nil && info.Mode()&alone != 0 {
		err = os.Chmod(path, info.Mode().Perm()&^alone)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (f *Files) dropAside(digest string) error {
	if err := os.Remove(f.asidePath(digest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete artifact %s: %w", digest, err)
	}
	return nil
}

// RestoreAll puts back all that a killed process had taken aside. Call it before a collection, and beside none.
func (f *Files) RestoreAll(ctx context.Context) error {
	return f.list(ctx, aside, "", func(info Info) error { return f.Restore(ctx, info.Digest) })
}

// Refuse has every Put refused from now on, of whatever process, with activities.ErrNoRoom and why; empty takes them
// again. Processes of earlier versions do not look.
func (f *Files) Refuse(why string) error {
	name := filepath.Join(f.dir, refusal)
	if why == "" {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("take artifacts again: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(name, []byte(why), 0o644); err != nil { //nolint:gosec // the folder keeps others out
		return fmt.Errorf("refuse artifacts: %w", err)
	}
	return nil
}

func (f *Files) asidePath(digest string) string { return filepath.Join(f.dir, aside, digest) }

// makeAside makes the folder for what is taken aside, for the same readers as the rest of the store.
func (f *Files) makeAside() error {
	folder := filepath.Join(f.dir, aside)
	err := os.Mkdir(folder, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil || !f.shared {
		return err
	}
	like, err := os.Stat(f.partial())
	if err != nil {
		return err
	}
	if stat, known := like.Sys().(*syscall.Stat_t); known {
		err = os.Chown(folder, -1, int(stat.Gid))
	}
	return errors.Join(err, os.Chmod(folder, sharedTop))
}

// openStored opens the file of an artifact wherever it is now.
func (f *Files) openStored(digest string) (*os.File, error) {
	file, err := openPlain(f.path(digest))
	for _, place := range []string{f.asidePath(digest), f.path(digest)} { // it may be put back between the two looks
		if !errors.Is(err, fs.ErrNotExist) {
			break
		}
		file, err = openPlain(place)
	}
	return file, err
}

// admit returns why Puts are refused now; nil when they are not.
func (f *Files) admit() error {
	why, err := os.ReadFile(filepath.Join(f.dir, refusal))
	if err != nil { // there is none, or it cannot be read: what cannot be written will say so
		return nil //nolint:nilerr // see above
	}
	return fmt.Errorf("%w: %s", activities.ErrNoRoom, why)
}
