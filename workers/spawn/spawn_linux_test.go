package spawn_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// helperVar makes the test binary a host that starts one child, prints its process ID and waits to be killed.
const helperVar = "SPAWN_TEST_HOST"

func TestMain(m *testing.M) {
	if os.Getenv(helperVar) != "" {
		if err := host(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func host() error {
	s, err := spawn.New(spawn.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	cmd := exec.CommandContext(context.Background(), "sleep", "60")
	if os.Getenv(helperVar) == "run" {
		cmd = exec.CommandContext(context.Background(), "sh", "-c", "echo $$; exec sleep 60")
		cmd.Stdout = os.Stdout
		return spawn.Run(cmd)
	}
	if err := s.Start(cmd); err != nil {
		return err
	}
	fmt.Println(cmd.Process.Pid)
	return cmd.Wait()
}

func TestAChildRunsOnItsCPUsAndThisProcessKeepsItsOwn(t *testing.T) {
	t.Parallel()
	before, err := spawn.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, cpu := range before {
		s := newSpawner(t, spawn.Options{CPUs: []int{cpu, cpu}})
		cmd := exec.CommandContext(t.Context(), "grep", "Cpus_allowed_list", "/proc/self/status")
		var out strings.Builder
		cmd.Stdout = &out
		if err := s.Start(cmd); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		_, got, _ := strings.Cut(strings.TrimSpace(out.String()), ":\t")
		if want := strconv.Itoa(cpu); got != want {
			t.Errorf("cpus of the child: got %q, want %q", got, want)
		}
	}
	after, err := spawn.AllowedCPUs()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("cpus of this process (-before +after):\n%s", diff)
	}
}

func TestAChildDiesWhenItsHostIsKilled(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"start", "run"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			diesWithItsHost(t, how)
		})
	}
}

func diesWithItsHost(t *testing.T, how string) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), helperVar+"="+how)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the host ended by itself, want it killed")
	}
	waitGone(t, pid)
}

func TestAChildDiesWhenItsSpawnerCloses(t *testing.T) {
	t.Parallel()
	for range 4 { // several times, because the first thread of a process needs special care
		s := newSpawner(t, spawn.Options{})
		cmd := exec.CommandContext(t.Context(), "sleep", "60")
		if err := s.Start(cmd); err != nil {
			t.Fatal(err)
		}
		s.Close()
		err := cmd.Wait()
		status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
		if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
			t.Errorf("end of the child: got %v, want killed", err)
		}
	}
}

// waitGone waits until no process pid runs; one that awaits collection by init counts as gone.
func waitGone(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
	}
	t.Errorf("process %d still runs, want it killed with its host", pid)
}
