package torch_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec/torch"
	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// inPath puts a program named python3 before all others.
func inPath(t *testing.T, text string) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "python3"), []byte(text), 0o700); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+string(os.PathListSeparator)+os.Getenv("PATH"))
}

func TestTheInstalledPyTorchIsFound(t *testing.T) {
	python := torchtest.Python2(t)
	inPath(t, "#!/bin/sh\nexec "+python+" \"$@\"\n")
	for _, devices := range []bool{false, true} {
		found, err := torch.Installed(t.Context(), devices)
		if err != nil || !found.Replicas || found.Old || found.Version == "" || found.Python == "" {
			t.Errorf("got %+v, %v; want a PyTorch 2", found, err)
		}
		if devices != (found.Devices != nil) {
			t.Errorf("asked for devices %t: got %q", devices, found.Devices)
		}
	}
}

func TestAPythonThatFailsIsToldByItsLastWords(t *testing.T) {
	inPath(t, "#!/bin/sh\necho it is broken >&2\nexit 3\n")
	_, err := torch.Installed(t.Context(), false)
	const want = "ask python3 for PyTorch: exit status 3: it is broken"
	if err == nil || err.Error() != want || errors.Is(err, torch.ErrNoTorch) {
		t.Errorf("got %v, want %s", err, want)
	}
}
