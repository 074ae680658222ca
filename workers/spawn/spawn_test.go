package spawn_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/spawn"
)

func newSpawner(t *testing.T, opts spawn.Options) *spawn.Spawner {
	t.Helper()
	s, err := spawn.New(opts)
	if err != nil {
		t.Fatalf("New(%+v): %v", opts, err)
	}
	t.Cleanup(s.Close)
	return s
}

func TestAChildLeadsItsOwnProcessGroupAndKeepsItsOtherAttributes(t *testing.T) {
	t.Parallel()
	s := newSpawner(t, spawn.Options{})
	for _, tt := range []struct {
		name string
		attr *syscall.SysProcAttr
	}{
		{"without attributes of its own", nil},
		{"in a new session, which is a new group too", &syscall.SysProcAttr{Setsid: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "cat")
			cmd.SysProcAttr = tt.attr
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Start(cmd); err != nil {
				t.Fatal(err)
			}
			pgid, err := syscall.Getpgid(cmd.Process.Pid)
			if err != nil || pgid != cmd.Process.Pid {
				t.Errorf("process group of %d: got %d, %v, want its own", cmd.Process.Pid, pgid, err)
			}
			if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAnUnknownCPUIsRefusedByName(t *testing.T) {
	t.Parallel()
	for _, cpu := range []int{-1, 1 << 20} {
		_, err := spawn.New(spawn.Options{CPUs: []int{cpu}})
		if err == nil || !strings.Contains(err.Error(), strconv.Itoa(cpu)) {
			t.Errorf("New with cpu %d: got error %v, want one that names the cpu", cpu, err)
		}
	}
}

func TestAProgramThatDoesNotExistIsAnError(t *testing.T) {
	t.Parallel()
	s := newSpawner(t, spawn.Options{})
	if err := s.Start(exec.CommandContext(t.Context(), "/nonexistent/program")); err == nil {
		t.Error("got no error, want one")
	}
}

func TestAClosedSpawnerRefusesToStart(t *testing.T) {
	t.Parallel()
	s := newSpawner(t, spawn.Options{})
	s.Close()
	s.Close()
	if err := s.Start(exec.CommandContext(t.Context(), "true")); !errors.Is(err, spawn.ErrClosed) {
		t.Errorf("Start after Close: got %v, want ErrClosed", err)
	}
}

func TestManyChildrenStartConcurrently(t *testing.T) {
	t.Parallel()
	s := newSpawner(t, spawn.Options{})
	got := make([]string, 32)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() {
			cmd := exec.CommandContext(t.Context(), "echo", strconv.Itoa(i))
			var out strings.Builder
			cmd.Stdout = &out
			if err := s.Start(cmd); err != nil {
				t.Error(err)
				return
			}
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
			got[i] = strings.TrimSpace(out.String())
		})
	}
	wg.Wait()
	want := make([]string, len(got))
	for i := range want {
		want[i] = strconv.Itoa(i)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("output of the children (-want +got):\n%s", diff)
	}
}

func TestRunEndsTheWholeGroupWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cmd := exec.CommandContext(ctx, "sh", "-c", "sleep 60 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- spawn.Run(cmd) }()
	var child int
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-ended; err == nil {
		t.Error("got no error from what was killed")
	}
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", child)); err != nil ||
			strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %d still runs", child)
}
