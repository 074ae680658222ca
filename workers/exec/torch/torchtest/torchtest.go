// Package torchtest finds PyTorch for tests.
package torchtest

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

// python is the first Python that has PyTorch, of those that the engine tries; empty where none has.
var python = sync.OnceValue(func() string {
	for _, name := range []string{"python3", "/usr/bin/python3"} {
		const find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
		if exec.CommandContext(context.Background(), name, "-c", find).Run() == nil {
			return name
		}
	}
	return ""
})

// Python returns a Python that has PyTorch. Without one the test skips, or fails where SPILLWAY_TEST_REQUIRE names
// torch.
func Python(tb testing.TB) string {
	tb.Helper()
	found := python()
	switch {
	case found != "":
	case slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "torch"):
		tb.Fatal("neither python3 nor /usr/bin/python3 has torch, and SPILLWAY_TEST_REQUIRE names it")
	default:
		tb.Skip("neither python3 nor /usr/bin/python3 has torch; install python3-torch")
	}
	return found
}
