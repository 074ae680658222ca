package command_test

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

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/command"
)

// standInVar makes this test the process that prepares a workspace and is killed; it holds where Python writes its number.
const standInVar = "COMMAND_TEST_STAND_IN"

func TestPythonEndsWithTheEngineThatStartedIt(t *testing.T) {
	if file := os.Getenv(standInVar); file != "" {
		h := newHost(t)
		h.Python = filepath.Join(filepath.Dir(file), "python3")
		// It ends when Python does, which is never.
		_, err := command.Prepare(t.Context(), h.Options, wire.Command{Arguments: []string{"true"}, Requirements: h.put(t, "a")}, activities.Ref{})
		t.Fatal(err)
	}
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "pid")
	script := "#!/bin/sh\necho $$ >'" + file + ".new'\nmv '" + file + ".new' '" + file + "'\nexec sleep 600\n"
	if err := os.WriteFile(filepath.Join(dir, "python3"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	standIn := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^"+t.Name()+"$")
	standIn.Env = append(os.Environ(), standInVar+"="+file, "TMPDIR="+dir)
	if err := standIn.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = standIn.Process.Kill() }()
	pid := 0
	waitUntil(t, "Python runs", func() bool {
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
	waitUntil(t, "Python has ended", func() bool {
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
