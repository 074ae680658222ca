package main_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestTheBinaryIsSmallAndStartsFast tells what a user's binary costs where it starts cold: its size, its start, its
// memory at rest.
func TestTheBinaryIsSmallAndStartsFast(t *testing.T) {
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("a measurement: run it with make measure")
	}
	binary := filepath.Join(t.TempDir(), "digits")
	if output, err := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", binary, ".").
		CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, output)
	}
	info, err := os.Stat(binary)
	if err != nil {
		t.Fatal(err)
	}
	var starts []time.Duration
	var resident quantity.Bytes
	for range 20 {
		took, rest := startChild(t, binary)
		starts, resident = append(starts, took), max(resident, rest)
	}
	slices.Sort(starts)
	t.Logf("digits: %s; from exec to ready p50 %s, p95 %s; resident at rest %s", quantity.Bytes(info.Size()),
		starts[len(starts)/2].Round(100*time.Microsecond), starts[len(starts)*95/100].Round(100*time.Microsecond), resident)
}

// startChild starts the binary as a slot's process, waits until it is ready and ends it.
func startChild(t *testing.T, binary string) (took time.Duration, resident quantity.Bytes) {
	t.Helper()
	input, toChild, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fromChild, output, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	child := exec.CommandContext(t.Context(), binary)
	child.Env = []string{wire.RoleEnvironment + "=" + wire.RoleChild, wire.ArtifactsEnvironment + "=file://" + t.TempDir()}
	child.ExtraFiles = []*os.File{input, output}
	began := time.Now()
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make([]byte, 64)
	n, err := fromChild.Read(ready)
	took = time.Since(began)
	if err != nil || !bytes.Contains(ready[:n], []byte("ready")) {
		t.Fatalf("first message: %q, %v", ready[:n], err)
	}
	if status, err := os.ReadFile("/proc/" + strconv.Itoa(child.Process.Pid) + "/status"); err == nil {
		for line := range strings.Lines(string(status)) {
			if rest, found := strings.CutPrefix(line, "VmRSS:"); found {
				kibibytes, _ := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
				resident = quantity.Bytes(kibibytes) * quantity.KiB
			}
		}
	}
	for _, file := range []*os.File{input, toChild, fromChild, output} {
		_ = file.Close()
	}
	if err := child.Wait(); err != nil {
		t.Fatalf("the child must end when its supervisor closes the pipe: %v", err)
	}
	return took, resident
}
