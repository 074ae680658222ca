// Package safefile writes files into directories that a user names and that other users may have been in: a link that
// one of them has planted is not followed, a name that one could guess is not written through, and a directory that one
// can change is used only by those who ask for it.
package safefile

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Error says why a directory is not written to, in one line.
type Error struct {
	Path   string
	Wrong  string // what is wrong with it
	Advice string // what to do
	// Shared says that Open takes the directory when it is told that it is shared.
	Shared bool
}

// Error implements error.
func (e *Error) Error() string { return e.Path + " " + e.Wrong + ": " + e.Advice }

const (
	othersWrite fs.FileMode = 0o002
	groupWrites fs.FileMode = 0o020
	// mostLinks bounds the links on the way to a directory.
	mostLinks = 255
)

// Open opens a directory to write in, and makes it, with the parents that it lacks, where it is not there; perm is
// before the umask. The caller closes it.
//
// A link on the way that belongs to another user, other than root, is an [*Error]: it may have been planted. Unless
// shared is set, so is a directory that belongs to such a user, or that others can write to without its sticky bit;
// with it, as in /tmp, they cannot touch what this user makes. The group whose only purpose is its user, of the same
// name, does not count as others.
func Open(dir string, perm fs.FileMode, shared bool) (*os.Root, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", dir, err)
	}
	// Before anything is made, and again of what was opened: in between, somebody could have put a link there.
	plain, err := withoutLinks(absolute)
	if err != nil {
		return nil, err
	}
	if !shared {
		if err := checkNearest(plain, dir); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(plain, perm); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(plain)
	if err != nil {
		return nil, err
	}
	if err := verify(root, plain, dir, shared); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return root, nil
}

// Check returns the error that [Open] would return for what dir is, and leaves nothing. It is for what is written
// later, after hours of work: where the directory would be made, or in it, it makes one and removes it again, because
// some file systems, such as /proc, say only then that nothing can be made there.
func Check(dir string, shared bool) error {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find %s: %w", dir, err)
	}
	plain, err := withoutLinks(absolute)
	if err != nil {
		return err
	}
	if !shared {
		if err := checkNearest(plain, dir); err != nil {
			return err
		}
	}
	return checkWritable(plain)
}

// checkWritable refuses a directory in which this user cannot make files, or, where it is not there, one that cannot be
// made.
func checkWritable(plain string) error {
	info, err := os.Lstat(plain)
	if parent := filepath.Dir(plain); errors.Is(err, fs.ErrNotExist) && parent != plain {
		return checkWritable(parent)
	}
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: plain, Err: syscall.ENOTDIR}
	}
	if err != nil {
		return err
	}
	if err := unix.Access(plain, unix.W_OK|unix.X_OK); err != nil {
		return &fs.PathError{Op: "write into", Path: plain, Err: err}
	}
	root, err := os.OpenRoot(plain)
	if err != nil {
		return err
	}
	name, scratch, err := Scratch(root, ".spillway-")
	if err != nil {
		wrong := fmt.Sprintf("takes nothing new (%v)", errors.Unwrap(err))
		return errors.Join(&Error{Path: plain, Wrong: wrong, Advice: "give another directory"}, root.Close())
	}
	return errors.Join(scratch.Close(), root.Remove(name), root.Close())
}

// checkNearest is check for a directory, or, where that is not there, for the one in which it or its parents would be
// made.
func checkNearest(plain, said string) error {
	info, err := os.Lstat(plain)
	if parent := filepath.Dir(plain); errors.Is(err, fs.ErrNotExist) && parent != plain {
		return checkNearest(parent, parent)
	}
	if err != nil {
		return err
	}
	return check(said, info)
}

// verify refuses a directory that is not the one of that path any more, or that is not to be written to.
func verify(root *os.Root, plain, said string, shared bool) error {
	opened, err := root.Stat(".")
	if err != nil {
		return err
	}
	there, err := os.Lstat(plain)
	if err != nil {
		return err
	}
	if again, err := withoutLinks(plain); err != nil || again != plain || !os.SameFile(opened, there) {
		const advice = "give a directory that others cannot write to"
		return errors.Join(err, &Error{Path: said, Wrong: "was moved while it was opened", Advice: advice})
	}
	if shared {
		return nil
	}
	return check(said, opened)
}

// check refuses a directory that other users can change.
func check(said string, info fs.FileInfo) error {
	wrong := &Error{Path: said, Advice: "give a directory of your own", Shared: true}
	mode := info.Mode()
	switch {
	case !trusted(info):
		wrong.Wrong = fmt.Sprintf("belongs to %s, and this is %s", ownerOf(info), nameOf(os.Geteuid()))
		return wrong
	case mode&fs.ModeSticky != 0:
		return nil
	case mode&othersWrite != 0, mode&groupWrites != 0 && !private(info):
		wrong.Wrong = fmt.Sprintf("can be written to by others (mode %04o)", mode.Perm())
		return wrong
	default:
		return nil
	}
}

// withoutLinks is an absolute path as it is when the links in it are followed. What is not there is as it was given.
func withoutLinks(path string) (string, error) {
	at, rest, links := string(filepath.Separator), parts(path), 0
	for len(rest) > 0 {
		next := filepath.Join(at, rest[0]) // nothing in at is a link: that makes ".." what it says
		rest = rest[1:]
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return filepath.Join(append([]string{next}, rest...)...), nil
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink == 0:
			at = next
			continue
		case !trusted(info):
			const advice = "give the directory that it leads to, if that is where you want to write"
			return "", &Error{Path: next, Wrong: "is a link of " + ownerOf(info), Advice: advice}
		}
		if links++; links > mostLinks {
			return "", &fs.PathError{Op: "open", Path: path, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if filepath.IsAbs(target) {
			at = string(filepath.Separator)
		}
		rest = append(parts(target), rest...)
	}
	return at, nil
}

// parts are the names in a path.
func parts(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == filepath.Separator })
}

// Write makes a file of that name below root, whole or not at all: fill writes it under a name that cannot be guessed,
// and then it takes its name, and the place of a file or link that has it. Links that lead out of root are not
// followed. Perm is before the umask.
func Write(root *os.Root, name string, perm fs.FileMode, fill func(*os.File) error) error {
	unfinished := name + "." + rand.Text() + ".part"
	file, err := root.OpenFile(unfinished, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	err = errors.Join(fill(file), file.Close())
	if err == nil {
		err = root.Rename(unfinished, name)
	}
	if err != nil {
		return errors.Join(err, root.Remove(unfinished))
	}
	return nil
}

// WriteFile is [Write] to a path, in a directory that is there and that [Open] takes. A terminal, a pipe or another
// device of this user's, such as /dev/stdout, is written to.
func WriteFile(path string, content []byte, perm fs.FileMode, shared bool) error {
	fill := func(file *os.File) error {
		_, err := file.Write(content)
		return err
	}
	switch info, err := os.Stat(path); {
	case err != nil || info.Mode().IsRegular(): // or it is not there
	case info.IsDir():
		return &fs.PathError{Op: "write", Path: path, Err: syscall.EISDIR}
	default:
		return writeDevice(path, fill)
	}
	dir, name := filepath.Dir(path), filepath.Base(path)
	if _, err := os.Stat(dir); err != nil {
		return err
	}
	root, err := Open(dir, 0o777, shared)
	if err != nil {
		return err
	}
	return errors.Join(Write(root, name, perm, fill), root.Close())
}

func writeDevice(path string, fill func(*os.File) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err == nil && (info.Mode().IsRegular() || !trusted(info)) {
		err = &Error{Path: path, Wrong: "is a file of " + ownerOf(info), Advice: "give another"}
	}
	if err == nil {
		err = fill(file)
	}
	return errors.Join(err, file.Close())
}

// Scratch makes a directory below root that only this user can use, under a name that begins with prefix and cannot be
// guessed. The caller closes it, and removes it.
func Scratch(root *os.Root, prefix string) (name string, scratch *os.Root, err error) {
	name = prefix + rand.Text()
	if err := root.Mkdir(name, 0o700); err != nil {
		return "", nil, err
	}
	scratch, err = root.OpenRoot(name)
	if err != nil {
		return "", nil, errors.Join(err, root.Remove(name))
	}
	return name, scratch, nil
}

// Own says whether this user owns a file. Where files have no owners, they are everybody's.
func Own(info fs.FileInfo) bool {
	owner, known := info.Sys().(*syscall.Stat_t)
	return !known || int(owner.Uid) == os.Geteuid()
}

// trusted says whether this user or root owns a file: root needs no tricks.
func trusted(info fs.FileInfo) bool {
	owner, known := info.Sys().(*syscall.Stat_t)
	return !known || owner.Uid == 0 || Own(info)
}

// private says whether the group of a file is the one that systems make for its owner alone, which has its name.
func private(info fs.FileInfo) bool {
	owner, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return true
	}
	who, err := user.LookupId(strconv.Itoa(int(owner.Uid)))
	if err != nil {
		return false
	}
	group, err := user.LookupGroupId(strconv.Itoa(int(owner.Gid)))
	return err == nil && group.Name == who.Username
}

func ownerOf(info fs.FileInfo) string {
	if owner, known := info.Sys().(*syscall.Stat_t); known {
		return nameOf(int(owner.Uid))
	}
	return "somebody"
}

// nameOf is what a user is called in messages.
func nameOf(id int) string {
	if who, err := user.LookupId(strconv.Itoa(id)); err == nil {
		return "user " + who.Username
	}
	return fmt.Sprintf("user %d", id)
}

// SyncDirectory makes the names in a directory durable: those of files that were made, renamed or removed there.
func SyncDirectory(path string) error {
	directory, err := os.Open(path)
	if err == nil {
		err = errors.Join(directory.Sync(), directory.Close())
	}
	if err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}
