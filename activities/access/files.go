package access

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spillway-ml/spillway/activities/access/safefile"
)

// Error says what is wrong with a file or directory of credentials, and what to do, in one line.
type Error struct {
	Path   string
	Wrong  string // what is wrong with it
	Advice string // what to do
}

// Error implements error.
func (e *Error) Error() string { return e.Path + ": " + e.Wrong + "; " + e.Advice }

const (
	othersRead  = 0o077
	othersWrite = 0o022
	// longest is the size of the largest file with one credential, in bytes.
	longest = 4 << 10
)

// claim takes the rights of others to the state directory, which its owner's usual mode has given them. Where they
// could write to it, and it has keys or something that is not this user's, it is left as it is: Open says what is
// wrong.
func claim(root *os.Root) error {
	info, err := root.Stat(".")
	if err != nil {
		return fmt.Errorf("look at the state directory: %w", err)
	}
	if !safefile.Own(info) || info.Mode().Perm()&othersRead == 0 {
		return nil
	}
	if info.Mode().Perm()&othersWrite != 0 {
		if clean, err := untouched(root); err != nil || !clean {
			return err
		}
	}
	if err := root.Chmod(".", 0o700); err != nil {
		return fmt.Errorf("make the state directory its owner's own: %w", err)
	}
	return nil
}

// untouched says whether the directory has no keys yet, and all that is in it is this user's.
func untouched(root *os.Root) (bool, error) {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return false, fmt.Errorf("look into the state directory: %w", err)
	}
	for _, entry := range entries {
		if held, err := entry.Info(); err != nil || !safefile.Own(held) || entry.Name() == keysDir {
			return false, nil //nolint:nilerr // what cannot be looked at is not known to be clean
		}
	}
	return true, nil
}

// openRoot opens a state directory, or that which a link of its owner's leads to.
func openRoot(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil, shut(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("open the state directory: %w", err)
	}
	return root, nil
}

// shut says whose a state directory is that this user may not look into.
func shut(dir string) error {
	const wrong = "may not be looked into by this user"
	info, err := os.Stat(dir)
	if err != nil { // not even that is allowed
		return &Error{dir, wrong, "run as its owner, or choose another state directory with --state"}
	}
	if err := check(info, dir, 0); err != nil {
		return err
	}
	return &Error{dir, wrong, "give its owner the right to: chmod u+rwx " + dir}
}

// openOwn opens a directory that belongs to this user and that nobody else can write to.
func openOwn(dir string) (*os.Root, error) {
	root, err := openRoot(dir)
	if err != nil {
		return nil, err
	}
	if err := checkDir(root, dir, "."); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// checkDir refuses a directory below root, which is that of dir, that others own or can write to.
func checkDir(root *os.Root, dir, name string) error {
	info, err := root.Lstat(name)
	if err != nil {
		return fmt.Errorf("look at %s: %w", filepath.Join(dir, name), err)
	}
	if !info.IsDir() {
		return &Error{
			filepath.Join(dir, name), "is no directory",
			"remove it, or choose another state directory with --state",
		}
	}
	return check(info, filepath.Join(dir, name), othersWrite)
}

// readOwn reads a small file that belongs to this user and that nobody else can read.
func readOwn(root *os.Root, dir, name string) ([]byte, error) {
	return readOwnUpTo(root, dir, name, longest)
}

// readOwnUpTo is readOwn for a file of at most so many bytes.
func readOwnUpTo(root *os.Root, dir, name string, most int64) ([]byte, error) {
	path := filepath.Join(dir, name)
	// A FIFO that somebody put there must not be waited for, nor a link be followed.
	file, err := root.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, &Error{path, err.Error(), "remove it and start the engine again: it writes it anew"}
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("look at %s: %w", path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, &Error{path, "is no plain file", "remove it and start the engine again: it writes it anew"}
	}
	if err := check(info, path, othersRead); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return content, nil
}

// check refuses what belongs to another user, or gives others any of the rights in forbidden.
func check(info fs.FileInfo, path string, forbidden fs.FileMode) error {
	if owner, known := info.Sys().(*syscall.Stat_t); known && !safefile.Own(info) {
		return &Error{
			path, fmt.Sprintf("belongs to user %d, and this is user %d", owner.Uid, os.Geteuid()),
			"run as its owner, or choose another state directory with --state",
		}
	}
	if mode := info.Mode().Perm(); mode&forbidden != 0 {
		rights := "go-rwx"
		if info.IsDir() {
			rights = "go-w"
		}
		return &Error{
			path, fmt.Sprintf("others have rights to it (mode %04o)", mode),
			fmt.Sprintf("take them away: chmod %s %s", rights, path),
		}
	}
	return nil
}
