package spawn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ErrUser says that children cannot run as a user.
var ErrUser = errors.New("children cannot run as that user")

// User is another user of this machine, as whom children run: with its first group and no other, and with no way to
// more rights (no_new_privs, on Linux), set-user-ID programs included. Only root can start children as another
// user.
type User struct {
	Name     string
	UID, GID int
	// Home is the directory that the user database names; it may not exist.
	Home string
}

// LookupUser finds a user by name or number. Its errors wrap ErrUser: there is none, it is root or in root's group,
// or this process is not root.
func LookupUser(name string) (*User, error) {
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: only root can start processes as %s", ErrUser, name)
	}
	found, err := user.Lookup(name)
	if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
		found, err = user.LookupId(name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUser, notFound(name, err))
	}
	uid, uidErr := strconv.Atoi(found.Uid)
	gid, gidErr := strconv.Atoi(found.Gid)
	if err := errors.Join(uidErr, gidErr); err != nil {
		return nil, fmt.Errorf("%w: find user %q: %w", ErrUser, name, err)
	}
	if uid == 0 || gid == 0 {
		return nil, fmt.Errorf("%w: %s is root, or in root's group", ErrUser, name)
	}
	return &User{Name: found.Username, UID: uid, GID: gid, Home: found.HomeDir}, nil
}

// notFound says why a user was found neither by name nor, since err is of that, by number.
func notFound(name string, err error) error {
	_, isNoUser := errors.AsType[user.UnknownUserIdError](err)
	if _, isNoNumber := errors.AsType[*strconv.NumError](err); isNoNumber || isNoUser {
		return fmt.Errorf("there is no user %q", name)
	}
	return fmt.Errorf("find user %q: %w", name, err)
}

// credential is the user as the kernel takes it.
func (u *User) credential() *syscall.Credential {
	//nolint:gosec // the kernel's numbers are of 32 bits
	return &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID)}
}

// Admit gives the user's group the rights in mode to files of this process's user, such as 0710 to a directory that
// it passes on its way. A nil User needs none.
func (u *User) Admit(mode fs.FileMode, names ...string) error {
	if u == nil {
		return nil
	}
	for _, name := range names {
		if err := errors.Join(os.Chown(name, -1, u.GID), os.Chmod(name, mode)); err != nil {
			return fmt.Errorf("let %s reach %s: %w", u.Name, name, err)
		}
	}
	return nil
}

// Give makes a file or directory, or a link itself, the user's; not what is in it. A nil User has it already.
func (u *User) Give(name string) error {
	if u == nil {
		return nil
	}
	if err := os.Lchown(name, u.UID, u.GID); err != nil {
		return fmt.Errorf("give %s to %s: %w", name, u.Name, err)
	}
	return nil
}

// Reaches says why the user cannot pass to dir, an absolute path, by the modes of the directories on the way; nil
// when it can.
func (u *User) Reaches(dir string) error {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		if err != nil {
			return fmt.Errorf("look whether %s can enter %s: %w", u.Name, at, err)
		}
		if !u.enters(info) {
			return fmt.Errorf("%w: %s cannot enter %s (mode %04o)", ErrUser, u.Name, at, info.Mode().Perm())
		}
		if at == filepath.Dir(at) {
			return nil
		}
	}
}

// enters says whether the user may pass a directory.
func (u *User) enters(info fs.FileInfo) bool {
	stat, known := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode(); {
	case known && int(stat.Uid) == u.UID:
		return mode&0o100 != 0
	case known && int(stat.Gid) == u.GID:
		return mode&0o010 != 0
	default:
		return mode&0o001 != 0
	}
}

// Lookup finds the variables that a process of the user is given of this process's environment, by a function such as
// [os.LookupEnv]: another user has another home, no use for this one's temporary directory, and of PATH what it can
// enter. A nil User finds what lookup does.
func (u *User) Lookup(lookup func(name string) (value string, set bool)) func(string) (string, bool) {
	if u == nil {
		return lookup
	}
	return func(name string) (string, bool) {
		value, set := lookup(name)
		switch name {
		case "HOME":
			return u.Home, true
		case "TMPDIR":
			return "", false
		case "PATH":
			entered := slices.DeleteFunc(filepath.SplitList(value), func(dir string) bool {
				return !filepath.IsAbs(dir) || u.Reaches(dir) != nil
			})
			return strings.Join(entered, string(filepath.ListSeparator)), set
		}
		return value, set
	}
}
