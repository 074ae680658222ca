package command

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// nobody is a user whom no file belongs to.
const nobody = 65534

func TestDirectoriesWithoutPermissionsAreDeletedByTheirOwner(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 { // to root every directory is open
		if err := errors.Join(os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755), os.Chown(filepath.Dir(dir), nobody, nobody),
			os.Chown(dir, nobody, nobody)); err != nil {
			t.Fatal(err)
		}
		runtime.LockOSThread() // for good: the thread ends with the test
		if err := errors.Join(unix.Setfsgid(nobody), unix.Setfsuid(nobody)); err != nil {
			t.Fatal(err)
		}
		defer func() { // the test's own directory is root's again
			if err := errors.Join(unix.Setfsuid(0), unix.Setfsgid(0)); err != nil {
				t.Error(err)
			}
		}()
	}
	deep := filepath.Join(dir, "a", "b", "c")
	for _, err := range []error{
		os.MkdirAll(deep, 0o700),
		os.WriteFile(filepath.Join(deep, "file"), nil, 0o000),
		os.Symlink("/etc", filepath.Join(dir, "a", "link")),
		os.Chmod(deep, 0o000),
		os.Chmod(filepath.Dir(deep), 0o000),
		os.Chmod(filepath.Dir(filepath.Dir(deep)), 0o500),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(dir); !errors.Is(err, fs.ErrPermission) {
		t.Fatalf("os.RemoveAll: got %v, want it to fail, or this proves nothing", err)
	}
	if err := removeAll(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory: got %v, want it gone", err)
	}
}
