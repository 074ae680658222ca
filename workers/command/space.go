package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

// lookShare is the share of time that looking at a workspace may take: one part in so many. A workspace of a million
// files takes a second or two to walk, and would otherwise be walked all the time.
const lookShare = 20

// Used returns how much room the files of the workspace take on the disk, and an error that wraps ErrSpace when that is
// more than Options.MaxBytes. It may be called every second: it walks the workspace, and when that took long it answers
// with the last figure until looking again takes no more than a twentieth of the time.
//
// A directory that the program runs in in place is not counted. Nor are files that were deleted and are still open, nor
// what the program writes elsewhere. The kernel does not hold the bound: between two looks a program writes what the
// disk takes.
func (w *Workspace) Used(ctx context.Context) (quantity.Bytes, error) {
	w.looking.Lock()
	defer w.looking.Unlock()
	began := time.Now()
	if began.After(w.lookAfter) {
		used, err := diskUse(ctx, w.dir)
		if err != nil {
			return w.used, err
		}
		took := time.Since(began)
		w.used, w.lookAfter = used, began.Add(took*lookShare)
	}
	if w.options.MaxBytes > 0 && w.used > w.options.MaxBytes {
		return w.used, fmt.Errorf("%w: they are %s and may be %s; delete what is not needed while the command runs, or "+
			"give it more room", ErrSpace, w.used, w.options.MaxBytes)
	}
	return w.used, nil
}

// diskUse adds up what the files in dir take on the disk. What is deleted meanwhile, or cannot be read, is passed over.
func diskUse(ctx context.Context, dir string) (total quantity.Bytes, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		info, err := d.Info()
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			total += quantity.Bytes(stat.Blocks) * 512 // stat(2) counts so, whatever the file system's blocks are
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("add up the files in %s: %w", dir, err)
	}
	return total, nil
}

// removeAll deletes dir with all that is in it, also what its owner took the permission from. Nothing there is no
// error.
func removeAll(dir string) error {
	err := os.RemoveAll(dir)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	_ = os.Chmod(dir, 0o700) //nolint:gosec // it is about to be deleted
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	// Only directories need permissions to be emptied. Each is opened before it is read, as WalkDir calls before it reads;
	// below root, as another program may put a link in its place.
	_ = fs.WalkDir(tree.FS(root), ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = root.Chmod(name, 0o700)
		}
		return nil
	})
	return errors.Join(os.RemoveAll(dir), root.Close())
}
