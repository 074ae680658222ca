package function

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/cgroup"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
)

func TestAnEnvironmentIsHeldToTheMemoryAndTheCPUOfItsSize(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	l := newLocal(t, Options{})
	for megabytes, cpuMilli := range map[int]int{128: 72, 512: 289, 1769: 1000} {
		name := "f" + strconv.Itoa(megabytes)
		l.deploy(t, name, fields{"MemorySize": megabytes, "Timeout": 60})
		quota, limit := kernelLimits(t, l.run(t, name, order{}).PID)
		// Quotas are whole microseconds of each 100 ms.
		want := []int{cpuMilli * 100, megabytes << 20}
		if diff := cmp.Diff(want, []int{quota, limit}); diff != "" {
			t.Errorf("%d MB: quota in µs and memory limit in bytes (-want +got):\n%s", megabytes, diff)
		}
	}
}

// kernelLimits reads from the kernel to what a process is held.
func kernelLimits(t *testing.T, pid int) (quotaMicroseconds, memoryBytes int) {
	t.Helper()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	unified, legacy := cgroup.Parse([]byte(read("/proc/self/mountinfo")),
		[]byte(read(fmt.Sprintf("/proc/%d/cgroup", pid))), []string{"cpu", "memory"})
	number := func(dir, file string) int {
		first, _, _ := strings.Cut(strings.TrimSpace(read(filepath.Join(dir, file))), " ")
		n, err := strconv.Atoi(first)
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		return n
	}
	for _, h := range legacy {
		for _, controller := range h.Controllers {
			switch controller {
			case "cpu":
				quotaMicroseconds = number(h.Own, "cpu.cfs_quota_us")
			case "memory":
				memoryBytes = number(h.Own, "memory.limit_in_bytes")
			}
		}
	}
	if quotaMicroseconds == 0 && unified != nil {
		quotaMicroseconds = number(unified.Own, "cpu.max")
	}
	if memoryBytes == 0 && unified != nil {
		memoryBytes = number(unified.Own, "memory.max")
	}
	return quotaMicroseconds, memoryBytes
}

func TestAnEnvironmentThatExceedsItsMemoryForAMomentEndsAsOneOutOfMemory(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	l := newLocal(t, Options{})
	l.deploy(t, "f", fields{"MemorySize": 128, "Timeout": 60})
	for _, op := range []string{"alloc for a moment", "alloc in a session of its own"} {
		l.outOfMemory(t, order{Op: op, N: 300}, "Max Memory Used: 128 MB")
	}
}

// Only a bootstrap that cannot be executed is a fault of the function. What the host lacks to start it is the host's.
func TestAHostThatCannotStartABootstrapIsNotTakenForAnInvalidEntrypoint(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	dir := t.TempDir()
	enforcer, err := enforce.Open(enforce.Options{StateDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	group, err := enforcer.Group("gone")
	if err != nil {
		t.Fatal(err)
	}
	var written struct {
		Directories []string `json:"directories"`
	}
	text, err := os.ReadFile(filepath.Join(dir, "cgroups.lock"))
	if err = errors.Join(err, json.Unmarshal(text, &written)); err != nil {
		t.Fatal(err)
	}
	bootstrap := filepath.Join(dir, "bootstrap")
	missing := group.Start(exec.CommandContext(t.Context(), bootstrap))
	if !isEntrypointError(missing, bootstrap) {
		t.Errorf("no bootstrap: got %v, want an error of the function", missing)
	}
	if err := os.WriteFile(bootstrap, []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if denied := group.Start(exec.CommandContext(t.Context(), bootstrap)); !isEntrypointError(denied, bootstrap) {
		t.Errorf("a bootstrap that is not executable: got %v, want an error of the function", denied)
	}
	for _, directory := range written.Directories {
		if err := os.Remove(filepath.Join(directory, "gone")); err != nil {
			t.Fatal(err)
		}
	}
	works, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	if lost := group.Start(exec.CommandContext(t.Context(), works)); lost == nil || isEntrypointError(lost, works) {
		t.Errorf("no cgroup: got %v, want an error of the host", lost)
	}
	for _, directory := range written.Directories { // the enforcer misses it
		if err := os.Mkdir(filepath.Join(directory, "gone"), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := enforcer.Close(); err != nil {
		t.Error(err)
	}
}

func TestWhereTheKernelHoldsNothingMemoryIsSampled(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{Enforcement: enforce.None})
	l.deploy(t, "f", fields{"MemorySize": 128, "Timeout": 60})
	for _, op := range []string{"alloc", "alloc in a child"} {
		l.outOfMemory(t, order{Op: op, N: 300}, "Max Memory Used: ")
	}
}

// outOfMemory invokes f, which must end as AWS ends a function without memory, and run again in a new environment.
func (l local) outOfMemory(t *testing.T, in order, used string) {
	t.Helper()
	got := l.invoke(t, "f", in)
	body := strings.ReplaceAll(got.body, got.header.Get("X-Amzn-Requestid"), "ID")
	if want := `{"errorType":"Runtime.ExitError","errorMessage":"RequestId: ID Error: Runtime exited with error: ` +
		`signal: killed"}`; body != want || got.functionError() != "Unhandled" {
		t.Errorf("%s: got %d %q %s, want %s", in.Op, got.status, got.functionError(), body, want)
	}
	for _, want := range []string{used, "Status: error\tError Type: Runtime.OutOfMemory"} {
		if tail := got.tail(t); !strings.Contains(tail, want) {
			t.Errorf("%s: got log %q, want %q", in.Op, tail, want)
		}
	}
	l.run(t, "f", order{})
}

func TestAHostLeavesNoGroup(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	dir := t.TempDir()
	l := newLocal(t, Options{Dir: dir})
	l.deploy(t, "f", fields{"Timeout": 60})
	l.run(t, "f", order{})
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// What was left is written down for the next owner.
	text, err := os.ReadFile(filepath.Join(dir, "cgroups.lock"))
	if err != nil || !strings.Contains(string(text), `"directories":null`) {
		t.Errorf("groups that are left: got %s, %v, want none", text, err)
	}
}
