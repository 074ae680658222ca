package function

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestCodeCanBeReadByWhoeverMayEnterItsDirectory changes the umask of this process, and so runs beside no other test.
func TestCodeCanBeReadByWhoeverMayEnterItsDirectory(t *testing.T) { //nolint:paralleltest // see above
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	parent := t.TempDir()
	dir := filepath.Join(parent, "code")
	if err := errors.Join(os.Mkdir(dir, 0o700), unzip(archive(t, 0o755, "a/b", "x"), dir)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/b"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: got %v, %v, want 0755", name, info.Mode(), err)
		}
	}
}

func TestAZipIsUnzippedInItsDirectoryOnly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		mode os.FileMode
		file string
		ok   bool
	}{
		{"a file below a directory", 0o755, "a/b", true},
		{"a file above", 0o755, "../b", false},
		{"a file at the root", 0o755, "/b", false},
		{"a link", os.ModeSymlink | 0o777, "b", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			dir := filepath.Join(parent, "code")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unzip(archive(t, tt.mode, tt.file, "x"), dir); (err == nil) != tt.ok {
				t.Errorf("got error %v, want ok %v", err, tt.ok)
			}
			if tt.ok {
				info, err := os.Stat(filepath.Join(dir, tt.file))
				if err != nil || info.Mode().Perm() != 0o755 {
					t.Errorf("got %v, %v, want an executable file", info, err)
				}
			}
			entries, err := os.ReadDir(parent)
			if err != nil || len(entries) != 1 {
				t.Errorf("got %v beside the directory, %v", entries, err)
			}
		})
	}
}
