package python_test

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/python"
)

// interpreter returns a Python.
func interpreter(t *testing.T) string {
	t.Helper()
	found, err := exec.LookPath("python3")
	if err != nil {
		commandtest.Skip(t, "python", err)
	}
	return found
}

func TestTheModulePassesItsOwnTests(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), interpreter(t), "-B", "-m", "unittest", "discover", "tests")
	cmd.Env = append(os.Environ(), "TMPDIR="+t.TempDir())
	if printed, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(printed), "\nOK") {
		t.Errorf("%v\n%s", err, printed)
	}
}

func TestWhatIsWrittenIsImportedAndNotWrittenTo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	t.Cleanup(func() { // so that it can be deleted
		for _, name := range []string{dir, filepath.Join(dir, "spillway")} {
			if err := os.Chmod(name, 0o700); err != nil { //nolint:gosec // a directory
				t.Error(err)
			}
		}
	})
	if err := errors.Join(python.Write(dir), python.Seal(dir)); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		info, statErr := d.Info()
		if err := errors.Join(err, statErr); err != nil {
			return err
		}
		if info.Mode().Perm()&0o222 != 0 || info.Mode().Perm()&0o444 != 0o444 {
			t.Errorf("%s has mode %s", name, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	//nolint:gosec // a Python that was looked for
	cmd := exec.CommandContext(t.Context(), interpreter(t), "-c", "import spillway; print(spillway.__file__)")
	cmd.Env = append(os.Environ(), python.Variable+"="+python.Path("/nowhere", dir))
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if want := filepath.Join(dir, "spillway", "__init__.py"); err != nil || strings.TrimSpace(string(out)) != want {
		t.Errorf("got %q, %v, want %q", out, err, want)
	}
}

func TestWhatAUserHasOnThePathComesFirst(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{"": "/m", "/a": "/a:/m", "/a::/b": "/a::/b:/m"} {
		if got := python.Path(list, "/m"); got != want {
			t.Errorf("Path(%q) = %q, want %q", list, got, want)
		}
	}
}
