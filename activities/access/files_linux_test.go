package access

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
)

// asNobody calls look on a thread without the rights of root to files.
func asNobody(t *testing.T, look func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can look as another user")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for ever: the thread ends with the goroutine, and so does what it is
		err := syscall.Setfsuid(65534)
		if err == nil {
			look()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Skip(err)
	}
}

func TestAStateDirectoryThatMayNotBeLookedIntoIsSaidToBeAnothers(t *testing.T) {
	t.Parallel()
	top := newDir(t)
	chmod(t, top, 0o711)
	chmod(t, filepath.Dir(top), 0o711)
	const another, advice = 4711, "run as its owner, or choose another state directory with --state"
	for _, test := range []struct {
		name  string
		make  func(dir string) error
		below string
		want  string
	}{
		{"another's", func(dir string) error {
			return os.Chown(dir, another, another)
		}, "", "belongs to user 4711, and this is user 0; " + advice},
		{
			"one's own", func(string) error { return nil }, "",
			"may not be looked into by this user; give its owner the right to: chmod u+rwx ",
		},
		{"below", func(string) error { return nil }, "state", "may not be looked into by this user; " + advice},
	} {
		dir := filepath.Join(top, test.name)
		if err := errors.Join(os.Mkdir(dir, 0o700), test.make(dir)); err != nil {
			t.Fatal(err)
		}
		state := filepath.Join(dir, test.below)
		asNobody(t, func() {
			_, openErr := Open(state)
			_, livesErr := EngineLives(state)
			for _, err := range []error{openErr, livesErr} {
				if err == nil || !strings.Contains(err.Error(), state+": "+test.want) {
					t.Errorf("%s: got %v, want %q", test.name, err, test.want)
				}
			}
		})
	}
}
