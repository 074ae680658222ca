package command

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

// maxListed is how many names an error about a missing output lists.
const maxListed = 20

// Collect stores what a program that ended well has left: its outputs, and the files that it made or changed besides
// where the command asks for them. Those come without what an ignore file leaves out (see tree.ReadIgnore), without
// links out of the tree and without the outputs.
//
// What Follow has read by then is in the result, too: it has returned.
//
// An output that is not there, or that leads out of the tree, is an error that wraps ErrOutput. Other errors are the
// host's.
func (w *Workspace) Collect(ctx context.Context, values map[string]any) (wire.CommandResult, error) {
	result := wire.CommandResult{Values: values, NotFinite: w.notFinite}
	root, err := os.OpenRoot(w.work)
	if err != nil {
		return wire.CommandResult{}, fmt.Errorf("keep the outputs: %w", err)
	}
	defer root.Close() //nolint:errcheck // it was only read
	for _, output := range w.command.Outputs {
		kept, found, err := w.keepOutput(ctx, root, output)
		if err != nil {
			return wire.CommandResult{}, fmt.Errorf("keep output %s: %w", output.Name, err)
		}
		if !found {
			continue
		}
		if result.Outputs == nil {
			result.Outputs = make(map[string]wire.CommandFile)
		}
		result.Outputs[output.Name] = kept
	}
	if w.command.KeepChanged {
		if result.Changed, err = w.keepChanged(ctx); err != nil {
			return wire.CommandResult{}, fmt.Errorf("keep the changed files: %w", err)
		}
	}
	return result, nil
}

// keepOutput stores one output; found is false when it is optional and not there.
func (w *Workspace) keepOutput(
	ctx context.Context, root *os.Root, output wire.CommandOutput,
) (kept wire.CommandFile, found bool, err error) {
	name := filepath.FromSlash(path.Clean(output.Path))
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && output.Optional:
		return kept, false, nil
	case errors.Is(err, fs.ErrNotExist):
		return kept, false, fmt.Errorf("%w: the command ended without making %s; %s", ErrOutput, output.Path,
			present(root, name))
	case err != nil:
		return kept, false, fmt.Errorf("%w: %s is a link out of the working directory, or cannot be read: %w", ErrOutput,
			output.Path, err)
	}
	kept.Path = output.Path
	switch {
	case info.IsDir():
		kept.Tree = true
		// The directory may be reached by a link, which stays within the tree.
		kept.Artifact, err = w.keepTree(ctx, root, name)
	case info.Mode().IsRegular():
		kept.Artifact, err = w.keepFile(ctx, root, name)
	default:
		return kept, false, fmt.Errorf("%w: %s is neither a file nor a directory", ErrOutput, output.Path)
	}
	if errors.Is(err, tree.ErrLeaves) {
		err = fmt.Errorf("%w: %w", ErrOutput, err)
	}
	return kept, true, err
}

// keepTree stores a directory. It is opened below root: another program may put a link in its place at any time.
func (w *Workspace) keepTree(ctx context.Context, root *os.Root, name string) (activities.Ref, error) {
	dir, err := root.OpenRoot(name)
	if err != nil {
		return activities.Ref{}, err
	}
	defer dir.Close() //nolint:errcheck // it was only read
	return tree.PackRoot(ctx, w.store, dir, tree.Options{MaxBytes: tree.Unlimited})
}

func (w *Workspace) keepFile(ctx context.Context, root *os.Root, name string) (activities.Ref, error) {
	// What was a file may be a pipe by now, and nobody may write to it: do not wait.
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return activities.Ref{}, err
	}
	ref, err := w.store.Put(ctx, file)
	return ref, errors.Join(err, file.Close())
}

// present says what is where an output was expected: in the nearest directory that is there.
func present(root *os.Root, name string) string {
	dir := filepath.Dir(name)
	for dir != "." {
		if info, err := root.Stat(dir); err == nil && info.IsDir() {
			break
		}
		dir = filepath.Dir(dir)
	}
	where := "the working directory"
	if dir != "." {
		where = filepath.ToSlash(dir)
	}
	entries, err := fs.ReadDir(tree.FS(root), filepath.ToSlash(dir))
	if err != nil || len(entries) == 0 {
		return where + " is empty"
	}
	var names []string
	for _, entry := range entries[:min(len(entries), maxListed)] {
		if entry.IsDir() {
			names = append(names, entry.Name()+"/")
		} else {
			names = append(names, entry.Name())
		}
	}
	if len(entries) > maxListed {
		names = append(names, fmt.Sprintf("and %d more", len(entries)-maxListed))
	}
	return where + " has " + strings.Join(names, ", ")
}

// keepChanged stores the files that were made or changed, as one tree; the zero Ref when there are none.
func (w *Workspace) keepChanged(ctx context.Context) (activities.Ref, error) {
	changed, err := tree.Changed(ctx, w.before, w.work)
	if err != nil {
		return activities.Ref{}, err
	}
	changed = slices.DeleteFunc(changed, func(name string) bool {
		return slices.ContainsFunc(w.command.Outputs, func(output wire.CommandOutput) bool {
			top := path.Clean(output.Path)
			return top == "." || name == top || strings.HasPrefix(name, top+"/")
		})
	})
	if len(changed) == 0 {
		return activities.Ref{}, nil
	}
	return tree.Pack(ctx, w.store, w.work, tree.Options{Only: changed, MaxBytes: tree.Unlimited})
}
