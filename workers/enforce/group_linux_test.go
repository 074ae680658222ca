package enforce_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

func TestAChildIsInsideFromItsFirstInstruction(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			e := open(t, mode, 0)
			var wg sync.WaitGroup
			for i := range 16 {
				name := fmt.Sprintf("child-%d", i)
				g := group(t, e, name)
				wg.Go(func() {
					cmd := self("where")
					cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
					var out strings.Builder
					cmd.Stdout = &out
					if err := g.Start(cmd); err != nil {
						t.Error(err)
						return
					}
					if cmd.SysProcAttr == nil || !cmd.SysProcAttr.Setpgid || cmd.SysProcAttr.Pdeathsig != syscall.SIGKILL {
						t.Errorf("attributes of the child: got %+v, want those that were asked for", cmd.SysProcAttr)
					}
					if err := cmd.Wait(); err != nil {
						t.Error(err)
					}
					want := map[enforce.Mode]int{enforce.Unified: 1, enforce.Legacy: 2}[mode]
					if got := strings.Count(out.String(), "/"+name+"\n"); got < want {
						t.Errorf("the child is in %d cgroups of its group, want at least %d:\n%s", got, want, out.String())
					}
				})
			}
			wg.Wait()
			// The threads that forked in v1 are outside again.
			tasks, err := filepath.Glob("/proc/self/task/*/cgroup")
			if err != nil || len(tasks) == 0 {
				t.Fatal(tasks, err)
			}
			for _, task := range tasks {
				text, err := os.ReadFile(task)
				if err == nil && strings.Contains(string(text), "/child-") {
					t.Errorf("%s is still in a group:\n%s", task, text)
				}
			}
		})
	}
}

func TestAProgramThatDoesNotExistIsAnErrorAndLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			g := group(t, open(t, mode, 0), "nothing")
			cmd := self("nop")
			cmd.Path = "/nonexistent/program"
			if err := g.Start(cmd); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("got %v, want that it does not exist", err)
			}
			if err := g.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// What a cgroup around refuses counts as refused to the group in v1, and in v2 before Linux 6.11: then the most
// processes that the group had tell whose limit it was.
func TestARefusalOfACgroupAroundIsKnownByTheProcessesThatTheGroupHad(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const most, around = 100, 3
			dir := t.TempDir()
			e, err := enforce.Open(enforce.Options{StateDir: dir, Mode: mode, Processes: most})
			if err != nil {
				t.Fatal(err)
			}
			g := group(t, e, "crowded")
			told := false
			for _, path := range cgroupsOf(t, dir) {
				err := os.WriteFile(filepath.Join(path, "pids.max"), []byte(strconv.Itoa(around)), 0)
				if err != nil && !errors.Is(err, os.ErrPermission) && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				_, err = os.Stat(filepath.Join(path, "crowded", "pids.peak"))
				told = told || err == nil
			}
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "for i in 1 2 3 4 5; do sleep 60 & done")
			if err := g.Start(cmd); err != nil {
				t.Fatal(err)
			}
			if err := cmd.Wait(); err == nil {
				t.Error("it was not refused any process")
			}
			u := usage(t, g)
			if mode == enforce.Legacy && u.ForksRefused == 0 {
				t.Error("refused forks: got none")
			}
			// what is refused above counts for a moment
			if want := max(around, min(u.PeakProcesses, around+1)); told && u.PeakProcesses != want ||
				!told && u.PeakProcesses != 0 {
				t.Errorf("the most processes: got %d, want %d where the kernel tells (%t)", u.PeakProcesses, want, told)
			}
			if err := errors.Join(g.Kill(t.Context()), g.Remove(t.Context()), e.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAForkBombIsContainedAndKilled(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			const most = 100
			g := group(t, open(t, mode, most), "bomb")
			resize(t, g, quantity.Size{CPU: 500, Memory: 512 * quantity.MiB})
			start(t, g, "bomb")
			seen := make(map[int]bool)
			eventually(t, "the bomb to spread", func() bool {
				pids, err := g.Pids()
				if err != nil {
					t.Fatal(err)
				}
				if len(pids) > most {
					t.Fatalf("the group has %d processes, want at most %d", len(pids), most)
				}
				for _, pid := range pids {
					seen[pid] = true
				}
				return len(seen) >= 8
			})
			eventually(t, "a fork to be refused", func() bool { return usage(t, g).ForksRefused > 0 })
			resize(t, g, quantity.Size{CPU: enforce.MinimumCPU, Memory: 512 * quantity.MiB}) // killing it must not take longer
			if err := errors.Join(g.Kill(t.Context()), g.ForgetPeak()); err != nil {
				t.Fatal(err)
			}
			if usage(t, g).ForksRefused == 0 {
				t.Error("refused forks are forgotten with the peak")
			}
			if got := usage(t, g).PeakProcesses; got != most && got != 0 {
				t.Errorf("the most processes: got %d, want %d, or none where the kernel does not tell", got, most)
			}
			if err := g.ResetPeak(); err != nil {
				t.Fatal(err)
			}
			if u := usage(t, g); u.ForksRefused != 0 {
				t.Errorf("forks refused after a reset: got %d, want none", u.ForksRefused)
			}
			for pid := range seen {
				if alive(pid) && strings.Contains(environ(pid), helperVar+"=bomb") {
					t.Errorf("process %d has survived", pid)
				}
			}
			if err := g.Remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// environ is the environment of a process; empty when it is gone.
func environ(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	return string(text)
}

// alive reports whether a process runs; one that is to be collected does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(stat), ") Z ") && !strings.Contains(string(stat), ") X ")
}

func TestAChildThatForksTwiceInANewSessionDoesNotEscape(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			g := group(t, open(t, mode, 0), "leaver")
			cmd := self("leave")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Start(cmd); err != nil {
				t.Fatal(err)
			}
			pid := readPID(t, out)
			if err := cmd.Wait(); err != nil {
				t.Fatal(err)
			}
			if pids, err := g.Pids(); err != nil || !slices.Equal(pids, []int{pid}) {
				t.Errorf("processes of the group: got %v, %v, want %d", pids, err, pid)
			}
			if err := g.Kill(t.Context()); err != nil {
				t.Fatal(err)
			}
			if alive(pid) {
				t.Errorf("process %d has survived", pid)
			}
		})
	}
}

func readPID(t *testing.T, r io.Reader) int {
	t.Helper()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestRemoveWaitsForTheGroupToBeEmpty(t *testing.T) {
	t.Parallel()
	for _, mode := range kernelModes(t) {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			g := group(t, open(t, mode, 0), "busy")
			start(t, g, "wait")
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := g.Remove(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Remove of a group with a process: got %v, want that the time is over", err)
			}
			if err := errors.Join(g.Kill(t.Context()), g.Remove(t.Context())); err != nil {
				t.Error(err)
			}
		})
	}
}
