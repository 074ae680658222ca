package agent

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
)

func TestWhatPreparesAnAttemptIsHeldAndLeavesNothing(t *testing.T) {
	t.Parallel()
	enforcetest.Need(t)
	h := start(t, 1, nil)
	assist := h.agent.assist(t.Context(), of(1, 64))
	run := func(ctx context.Context, script string) (string, error) {
		var out bytes.Buffer
		cmd := exec.CommandContext(ctx, "sh", "-c", script)
		cmd.Stdout, cmd.Stderr = &out, &out
		err := assist(cmd)
		return strings.TrimSpace(out.String()), err
	}
	gone := func(pid string) {
		t.Helper()
		if n, err := strconv.Atoi(pid); err != nil || syscall.Kill(n, 0) == nil && !zombie(n) {
			t.Errorf("process %q: still there, or none (%v)", pid, err)
		}
	}
	out, err := run(t.Context(), "setsid sleep 600 & echo $!; cat /proc/self/cgroup")
	left, groups, _ := strings.Cut(out, "\n")
	if err != nil || !strings.Contains(groups, "/slot-") {
		t.Errorf("got %q, %v, want a group of its own", out, err)
	}
	gone(left)
	h.agent.assists <- struct{}{} // as many as may run
	full, end := context.WithCancel(t.Context())
	end()
	if err := h.agent.assist(full, of(1, 64))(exec.Command("true")); !errors.Is(err, context.Canceled) {
		t.Errorf("one more than may run: got %v, want that it waits until it is cancelled", err)
	}
	<-h.agent.assists
	if _, err := run(t.Context(), "head -c 3000000000 /dev/zero | tail -c 3000000000 >/dev/null; exit 3"); err == nil ||
		!strings.Contains(err.Error(), "more than the 512 MiB of memory") {
		t.Errorf("half of the host's memory exceeded: got %v, want an error that says so", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watched := exec.CommandContext(ctx, "sh", "-c", "sleep 600 & echo $!; wait")
	pipe, err := watched.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- assist(watched) }()
	buffer := make([]byte, 32)
	n, err := pipe.Read(buffer)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("got no error from what was cancelled")
	}
	gone(strings.TrimSpace(string(buffer[:n])))
}
