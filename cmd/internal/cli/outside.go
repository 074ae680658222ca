package cli

import (
	"context"
	"os"
	"os/exec"
	"runtime"

	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
)

// Deps is what the commands need from outside.
type Deps = tool.Deps

// RunningEngine is the embedded stack while it runs.
type RunningEngine = tool.RunningEngine

// Embedded starts the engine in this process: what Deps.StartEngine is, but in tests.
func Embedded(ctx context.Context, config engine.Config) (RunningEngine, error) {
	started, err := engine.Start(ctx, config)
	if err != nil {
		return nil, err
	}
	return started, nil
}

// OpenBrowser shows a file in the browser of whoever sits before this machine, and says whether there is one; it is
// what Deps has outside tests.
func OpenBrowser(ctx context.Context, file string) (shown bool, err error) {
	program := "xdg-open"
	if runtime.GOOS == "darwin" {
		program = "open"
	} else if os.Getenv("DISPLAY") == "" && os.Getenv("WAYLAND_DISPLAY") == "" {
		return false, nil // nobody sits here
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return false, nil //nolint:nilerr // then there is none, and the link was printed
	}
	return true, exec.CommandContext(ctx, path, file).Run()
}
