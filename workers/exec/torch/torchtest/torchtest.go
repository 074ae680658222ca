// Package torchtest finds PyTorch for tests.
package torchtest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
	if named != "" && !slices.Contains(spillway.Precisions(), named) {
		tb.Fatalf("SPILLWAY_TEST_PRECISION is %q; want one of %v", named, spillway.Precisions())
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

// python2 is a Python that has PyTorch 2 and the libraries of deploy/torch2.txt, or why there is none.
var python2 = sync.OnceValues(func() (string, error) {
	if named := os.Getenv("SPILLWAY_TORCH2_PYTHON"); named != "" {
		const find = "import torch, transformers"
		//nolint:gosec // whoever runs the tests names it
		said, err := exec.CommandContext(context.Background(), named, "-B", "-I", "-c", find).CombinedOutput()
		if err != nil {
			lines := bytes.Split(bytes.TrimSpace(said), []byte("\n"))
			return "", fmt.Errorf("SPILLWAY_TORCH2_PYTHON names %s, which does not import torch and transformers: %w: %s",
				named, err, lines[len(lines)-1])
		}
		return named, nil
	}
	return made()
})

// made is the Python of the environment that .ci/torch2 makes of this checkout's list.
func made() (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find deploy/torch2.txt: %w", err)
	}
	var pinned []byte
	for at := here; pinned == nil; at = filepath.Dir(at) {
		//nolint:gosec // a file of the checkout
		if pinned, err = os.ReadFile(filepath.Join(at, "deploy", "torch2.txt")); err != nil && at == filepath.Dir(at) {
			return "", errors.New("no directory above holds deploy/torch2.txt; name a Python with SPILLWAY_TORCH2_PYTHON")
		}
	}
	home, _ := os.UserHomeDir()
	key := fmt.Sprintf("torch2-%x", sha256.Sum256(pinned))[:len("torch2-")+12]
	directory := filepath.Join(cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(home, ".cache")), "spillway", key)
	installed, err := os.ReadFile(filepath.Join(directory, "installed.txt")) //nolint:gosec // as it is named above
	if err != nil || !bytes.Equal(installed, pinned) {
		return "", fmt.Errorf("PyTorch 2 is not installed in %s; run .ci/torch2, or name a Python with "+
			"SPILLWAY_TORCH2_PYTHON", directory)
	}
	return filepath.Join(directory, "bin", "python"), nil
}

// Python2 returns a Python that has PyTorch 2, torchvision, transformers, accelerate and lightning, of the versions of
// deploy/torch2.txt: that of SPILLWAY_TORCH2_PYTHON, or the one that .ci/torch2 made. Without one the test skips, or
// fails where SPILLWAY_TEST_REQUIRE names torch2.
func Python2(tb testing.TB) string {
	tb.Helper()
	found, err := python2()
	switch {
	case err == nil:
	case slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "torch2"):
		tb.Fatalf("%v; SPILLWAY_TEST_REQUIRE names torch2", err)
	default:
		tb.Skip(err)
	}
	return found
}
