package app

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/spawn/spawntest"
)

// stranger is a user that is not root; nil is this one.
func stranger() *syscall.SysProcAttr {
	if os.Getuid() != 0 {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// finds is what a program of the same user as the process finds of its environment.
func finds(t *testing.T, process *exec.Cmd) string {
	t.Helper()
	look := exec.CommandContext(t.Context(), "cat", "/proc/"+strconv.Itoa(process.Process.Pid)+"/environ")
	look.SysProcAttr = stranger()
	found, _ := look.CombinedOutput() // a refusal is found, too
	if err := process.Process.Signal(syscall.Signal(0)); err != nil {
		t.Fatalf("the process has ended: %v", err)
	}
	return string(found)
}

// TestAttackAStageFindsNoPasswordInAWorkflowWorker looks for the password of a build through /proc while its worker is
// at work, as its user.
func TestAttackAStageFindsNoPasswordInAWorkflowWorker(t *testing.T) {
	t.Parallel()
	// in the place of Temporal: it never answers
	reached, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reached.Close() }()
	address := admitted(t, natstest.Start(t))
	environment := []string{
		asApp + "=1", wire.RoleEnvironment + "=" + wire.RoleWorkflows, wire.BuildEnvironment + "=b1",
		wire.ArtifactsEnvironment + "=" + artifact.URL(spawntest.Everybodys(t)),
		wire.NATSEnvironment + "=" + address, wire.TemporalEnvironment + "=" + reached.Addr().String(),
	}
	start := func(program string, arguments ...string) *exec.Cmd {
		t.Helper()
		process := exec.CommandContext(t.Context(), program, arguments...)
		process.Env, process.SysProcAttr, process.Stderr = environment, stranger(), t.Output()
		if err := process.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = process.Process.Kill() })
		return process
	}
	open := start("sleep", "600")
	if found := finds(t, open); !strings.Contains(found, address) {
		t.Errorf("the attack finds %q in a process that is open, so it shows nothing", found)
	}
	if err := open.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = open.Wait() // it was killed
	worker := start(spawntest.Program(t))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = worker.Wait()
		_ = reached.Close() // nobody will come any more
	}()
	t.Cleanup(func() { <-ended }) // the test's context has ended by then, and the worker with it
	connection, err := reached.Accept()
	if err != nil {
		t.Fatalf("the worker has ended before it connected: %v", err)
	}
	defer func() { _ = connection.Close() }()
	if found := finds(t, worker); strings.Contains(found, address) || !strings.Contains(found, "Permission denied") {
		t.Errorf("a stage finds %q, want a refusal", strings.ReplaceAll(found, "\x00", " "))
	}
}
