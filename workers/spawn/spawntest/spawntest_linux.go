package spawntest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/procfs"
)

// standIn makes a test the process that is killed; it holds the directory of the helper program.
const standIn = "SPAWNTEST_STAND_IN"

// EndsWithItsStarter fails the test unless a helper program ends when the process that has started it is killed. The
// test runs once more as a process of its own, where start gets a directory that has the program under its name, and is
// first in PATH, and has to start it; it returns when the program ends, which is never. The program ends well, and at
// once, where its first argument is not argument; every one will do where that is empty.
func EndsWithItsStarter(t *testing.T, name, argument string, start func(dir string) error) {
	t.Helper()
	if dir := os.Getenv(standIn); dir != "" {
		t.Fatalf("%s has ended by itself: %v", name, start(dir))
	}
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "pid")
	script := "#!/bin/sh\n"
	if argument != "" {
		script += "[ \"$1\" = '" + argument + "' ] || exit 0\n"
	}
	script += "echo $$ >'" + file + ".new'\nmv '" + file + ".new' '" + file + "'\nexec sleep 600\n"
	if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	starter := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^"+t.Name()+"$")
	starter.Env = append(os.Environ(), standIn+"="+dir, "TMPDIR="+dir, "PATH="+dir+":"+os.Getenv("PATH"))
	if err := starter.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = starter.Process.Kill() }()
	pid := 0
	waitUntil(t, name+" runs", func() bool {
		text, _ := os.ReadFile(file) // it is not there yet
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0
	})
	if err := starter.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = starter.Wait() // it was killed
	defer func() {
		if t.Failed() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}()
	waitUntil(t, name+" has ended", func() bool {
		p, there := procfs.Read(pid)
		return !there || p.Ended()
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
	t.Fatalf("did not happen in time: %s", what)
}
