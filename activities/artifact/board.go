package artifact

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

const (
	// Boards is the folder of messages, in files and in S3; below it each group has one of its own.
	Boards = "boards"
	// BoardsFor is how long a group is kept in which nothing happens: the attempts that it was for have ended long ago
	// then, and were killed where they left something.
	BoardsFor = 24 * time.Hour
)

var _ activities.Board = (*Files)(nil)

// Post leaves data under a name of a group; see activities.Board. It is not on the disk when Post returns: after a loss
// of power it may be damaged or missing, which who reads it has to find out.
func (f *Files) Post(_ context.Context, group, name string, data []byte) (first bool, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("post %s for %s: %w", name, group, err)
		}
	}()
	if err := errors.Join(activities.CheckMessage(group, name), f.admit()); err != nil {
		return false, err
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return false, err
	}
	defer root.Close() //nolint:errcheck // it holds nothing that could be lost
	temporary, err := os.CreateTemp(f.partial(), "post-")
	if err != nil {
		return false, err
	}
	defer os.Remove(temporary.Name()) //nolint:errcheck // sweep takes what cannot be removed now
	if f.shared {
		err = temporary.Chmod(f.fileMode())
	}
	if err == nil {
		_, err = temporary.Write(data)
	}
	if err := errors.Join(err, temporary.Close()); err != nil {
		return false, err
	}
	within, err := filepath.Rel(f.dir, temporary.Name())
	if err != nil {
		return false, err
	}
	for {
		err = root.Link(within, message(group, name))
		switch {
		case err == nil:
			return true, nil
		case errors.Is(err, fs.ErrExist):
			return false, nil
		case !errors.Is(err, fs.ErrNotExist):
			return false, fmt.Errorf("%w; boards need a file system that has links", err)
		}
		if err := f.boardOf(root, group); err != nil {
			return false, err
		}
	}
}

// boardOf makes the folder of a group.
func (f *Files) boardOf(root *os.Root, group string) error {
	for _, folder := range []string{Boards, filepath.Join(Boards, group)} {
		err := root.Mkdir(folder, 0o700)
		if err == nil && f.shared {
			err = root.Chmod(folder, sharedFolder) // its group is that of the folder around it
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// Look returns what is under a name; see activities.Board.
func (f *Files) Look(ctx context.Context, group, name string) (data []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("look at %s of %s: %w", name, group, err)
		}
	}()
	if err := errors.Join(ctx.Err(), activities.CheckMessage(group, name)); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close() //nolint:errcheck // it was only read
	file, err := openPlainBy(root.OpenFile, message(group, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, activities.ErrMissing
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = activities.Found(ctx, info.Size())
	}
	if err == nil {
		data, err = io.ReadAll(file)
	}
	return data, errors.Join(err, file.Close())
}

// Wipe removes messages; see activities.Board.
func (f *Files) Wipe(_ context.Context, group string, names ...string) error {
	err := activities.CheckMessage(group, names...)
	if err == nil {
		err = f.wipe(group, names)
	}
	if err != nil {
		return fmt.Errorf("wipe the board of %s: %w", group, err)
	}
	return nil
}

func (f *Files) wipe(group string, names []string) error {
	root, err := os.OpenRoot(f.dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // it holds nothing that could be lost
	if len(names) == 0 {
		return root.RemoveAll(filepath.Join(Boards, group))
	}
	for _, name := range names {
		if err := root.Remove(message(group, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// message is where a message is, below the store's folder. Whoever a store is shared with adds groups to its boards,
// and may put a link in place of one: [os.Root] keeps who follows it within the store.
func message(group, name string) string { return filepath.Join(Boards, group, name) }

// sweepBoards removes the groups in which nothing has happened since limit. What it cannot remove, as another user's,
// is left to whoever can: it keeps nobody from the artifacts.
func (f *Files) sweepBoards(limit time.Time) {
	groups, _ := os.ReadDir(filepath.Join(f.dir, Boards)) // there is none before the first message
	for _, group := range groups {
		if info, gone := group.Info(); gone == nil && info.ModTime().Before(limit) {
			_ = os.RemoveAll(filepath.Join(f.dir, Boards, group.Name()))
		}
	}
}
