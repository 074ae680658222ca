package artifact

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	// sharedFolder lets a group add and replace artifacts; what is made there belongs to the group, too.
	sharedFolder = fs.ModeSetgid | 0o770
	// sharedTop lets a group pass, and neither add, replace nor rename a folder.
	sharedTop fs.FileMode = 0o750
	// ownFile and sharedFile are what artifacts have: the one is the owner's, the other lets the group read.
	ownFile    fs.FileMode = 0o600
	sharedFile fs.FileMode = 0o640
)

// Share lets the members of a group read artifacts and put their own, and change nothing else: all folders belong
// to the store's owner, so that no link can stand where its owner writes. An artifact that one of them spoils is
// found out by its digest. The owner is this user.
//
// What is in the store already is shared too, which takes a while once.
func (f *Files) Share(group int) error {
	if err := f.share(group); err != nil {
		return fmt.Errorf("share the artifact store %s with group %d: %w", f.dir, group, err)
	}
	f.shared = true
	return nil
}

func (f *Files) share(group int) error {
	shared, err := sharedWith(f.dir, group)
	if err != nil {
		return err
	}
	if shared { // by an engine that may have known no boards
		return shareFolder(filepath.Join(f.dir, Boards), group)
	}
	// What is on the boards is of this user alone. The workers of a training that goes on leave what is missing again.
	if err := os.RemoveAll(filepath.Join(f.dir, Boards)); err != nil {
		return err
	}
	folders := []string{f.partial(), filepath.Join(f.dir, Boards)}
	for n := range 1 << 8 {
		folders = append(folders, filepath.Join(f.dir, hex.EncodeToString([]byte{byte(n)})))
	}
	for _, folder := range folders {
		if err := shareFolder(folder, group); err != nil {
			return err
		}
	}
	// The store is opened to the group last: whoever finds it open knows that all of it is shared.
	return errors.Join(os.Chown(f.dir, -1, group), os.Chmod(f.dir, sharedTop))
}

// sharedWith says whether a store is shared with the group and has not been withdrawn since.
func sharedWith(dir string, group int) (bool, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return false, err
	}
	stat, known := info.Sys().(*syscall.Stat_t)
	return known && int(stat.Gid) == group && info.Mode().Perm() == sharedTop, nil
}

// shareFolder makes a folder where needed and shares it and what is in it.
func shareFolder(folder string, group int) error {
	if err := os.Mkdir(folder, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := errors.Join(os.Chown(folder, os.Geteuid(), group), os.Chmod(folder, sharedFolder)); err != nil {
		return err
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := shareFile(filepath.Join(folder, entry.Name()), group); err != nil {
			return err
		}
	}
	return nil
}

// shareFile lets the group read one file. What is no plain file, or has another name elsewhere, was not put here by
// a store.
func shareFile(name string, group int) error {
	file, err := openPlain(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNotPlain) {
		return nil // a Put has renamed it meanwhile, or it is none of ours
	}
	if err != nil {
		return err
	}
	mode := sharedFile
	if info, err := file.Stat(); err == nil {
		if links(info) > 1 {
			return file.Close()
		}
		mode |= info.Mode() & alone
	}
	return errors.Join(file.Chown(-1, group), file.Chmod(mode), file.Close())
}

// links is how many names a file has.
func links(info fs.FileInfo) uint64 {
	if stat, known := info.Sys().(*syscall.Stat_t); known {
		return uint64(stat.Nlink) //nolint:unconvert // it is narrower elsewhere
	}
	return 1
}

// fileMode is the mode of an artifact.
func (f *Files) fileMode() fs.FileMode {
	if f.shared {
		return sharedFile
	}
	return ownFile
}

// Withdraw ends what Share began: the store is its owner's alone again. For one that was never shared it does
// nothing.
func (f *Files) Withdraw() error {
	f.shared = false
	info, err := os.Stat(f.dir)
	if err == nil && info.Mode().Perm() == sharedTop {
		err = os.Chmod(f.dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("withdraw the artifact store %s: %w", f.dir, err)
	}
	return nil
}

// errNotPlain says that something else than a file is where an artifact should be.
var errNotPlain = errors.New("it is no plain file")

// openPlain opens a file to be read, follows no link and waits for nobody.
func openPlain(name string) (*os.File, error) { return openPlainBy(os.OpenFile, name) }

func openPlainBy(
	open func(name string, flag int, mode fs.FileMode) (*os.File, error), name string,
) (*os.File, error) {
	file, err := open(name, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) {
		return nil, fmt.Errorf("open %s: %w", name, errNotPlain)
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("open %s: %w", name, errNotPlain)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
