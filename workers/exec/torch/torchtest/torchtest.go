// Package torchtest finds PyTorch for tests.
package torchtest

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	spillway "github.com/spillway-ml/spillway/workers/exec"
)

// Devices are those on which the conformance suite runs: of SPILLWAY_TEST_DEVICES, as "cuda:0,cuda:1", whose parts go
// round; a CPU device of one thread where that is empty.
func Devices(tb testing.TB) []spillway.Device {
	tb.Helper()
	var all []spillway.Device
	for name := range strings.SplitSeq(os.Getenv("SPILLWAY_TEST_DEVICES"), ",") {
		kind, number, numbered := strings.Cut(name, ":")
		index, err := strconv.Atoi(number)
		switch {
		case name == "" || name == spillway.CPU:
			all = append(all, spillway.Device{ID: spillway.CPU, Kind: spillway.CPU, Threads: 1})
		case kind != spillway.CUDA || numbered && (err != nil || index < 0):
			tb.Fatalf("SPILLWAY_TEST_DEVICES names %q; want cpu or cuda:NUMBER, with commas between them", name)
		default:
			all = append(all, spillway.Device{ID: name, Kind: spillway.CUDA, Index: index})
		}
	}
	return all
}

// Precision is that of the conformance suite: SPILLWAY_TEST_PRECISION, float32 where it is empty.
func Precision(tb testing.TB) spillway.Precision {
	tb.Helper()
	named := spillway.Precision(os.Getenv("SPILLWAY_TEST_PRECISION"))
	if !slices.Contains([]spillway.Precision{"", spillway.Float32, spillway.BFloat16}, named) {
		tb.Fatalf("SPILLWAY_TEST_PRECISION is %q; want %s or %s", named, spillway.Float32, spillway.BFloat16)
	}
	return named
}

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
