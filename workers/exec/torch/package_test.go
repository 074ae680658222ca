package torch

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec/torch/torchtest"
)

// tools is the Python that `make python-tools` makes.
const tools = "../../../bin/python-tools/bin/python"

// pytest returns a Python that has PyTorch and pytest. Without one the test skips, or fails where SPILLWAY_TEST_REQUIRE
// names torch.
func pytest(t *testing.T) string {
	t.Helper()
	made, err := filepath.Abs(tools)
	if err != nil {
		t.Fatal(err)
	}
	for _, python := range []string{made, torchtest.Python(t)} {
		const find = "from importlib.util import find_spec as f; import sys; sys.exit(not (f('torch') and f('pytest')))"
		if exec.CommandContext(t.Context(), python, "-c", find).Run() == nil { //nolint:gosec // one of the two above
			return python
		}
	}
	if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "torch") {
		t.Fatal("no Python that has torch has pytest, and SPILLWAY_TEST_REQUIRE names torch; run make python-tools")
	}
	t.Skip("no Python that has torch has pytest; run make python-tools")
	return ""
}

func TestThePackagePassesItsOwnTests(t *testing.T) {
	t.Parallel()
	passesItsOwnTests(t, pytest(t))
}

func TestThePackagePassesItsOwnTestsWithPyTorch2(t *testing.T) {
	t.Parallel()
	passesItsOwnTests(t, torchtest.Python2(t))
}

func passesItsOwnTests(t *testing.T, python string) {
	t.Helper()
	//nolint:gosec // a Python that was looked for
	cmd := exec.CommandContext(t.Context(), python, "-B", "-m", "pytest", "-q", "--basetemp", t.TempDir())
	// Plugins that happen to be installed would write beside the sources.
	cmd.Env = append(os.Environ(), "OMP_NUM_THREADS=1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1")
	if printed, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, printed)
	}
}
