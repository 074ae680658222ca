package chaos

import (
	"os"
	"testing"
)

// TestTheDiskIsItsOwnersOnly: the engine refuses a state directory that others may write to.
func TestTheDiskIsItsOwnersOnly(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d, err := mount(dir)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := d.unmount(); err != nil {
			t.Error(err)
		}
	})
	look := func(when string) {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: got %v, %v, want mode 0700", when, info.Mode(), err)
		}
	}
	look("mounted")
	free, err := d.fill()
	if err != nil {
		t.Fatal(err)
	}
	look("full")
	if err := free(); err != nil {
		t.Fatal(err)
	}
	look("with room again")
}
