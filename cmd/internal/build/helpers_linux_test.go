package build_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/build"
)

// standInVar makes this test the process that builds and is killed.
const standInVar = "BUILD_TEST_STAND_IN"

func TestTheGoCommandEndsWithTheEngineThatStartedIt(t *testing.T) {
	if dir := os.Getenv(standInVar); dir != "" {
		_, err := build.NewStore(filepath.Join(dir, "state"), nil).Build(t.Context(), dir) // ends when go does, which is never
		t.Fatal(err)
	}
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "pid")
	script := "#!/bin/sh\n[ $1 = build ] || exit 0\necho $$ >'" + file + ".new'\nmv '" + file + ".new' '" + file + "'\nexec sleep 600\n"
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	standIn := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^"+t.Name()+"$")
	standIn.Env = append(os.Environ(), standInVar+"="+dir, "PATH="+dir+":"+os.Getenv("PATH"))
	if err := standIn.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = standIn.Process.Kill() }()
	pid := 0
	waitUntil(t, "go runs", func() bool {
		text, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0
	})
	if err := standIn.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = standIn.Wait() // it was killed
	defer func() {
		if t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	waitUntil(t, "go has ended", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ")
	})
}

// waitUntil waits until a condition holds.
func waitUntil(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Errorf("did not happen in time: %s", what)
}
