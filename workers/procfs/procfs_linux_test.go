package procfs_test

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workers/procfs"
)

func TestWhatAProcessHasStartedIsBelowIt(t *testing.T) {
	t.Parallel()
	own, there := procfs.Read(os.Getpid())
	if !there || own.Ended() || own.Parent != os.Getppid() || own.Born == 0 || own.Resident == 0 {
		t.Errorf("this process: %t, %+v", there, own)
	}
	if peak := procfs.Peak(os.Getpid()); peak < own.Resident/2 {
		t.Errorf("this process takes %s, and its peak is %s", own.Resident, peak)
	}
	command := exec.CommandContext(t.Context(), "sh", "-c", "sleep 600 & echo $!; wait")
	out, err := command.StdoutPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // neither is left, whatever fails
		for _, pid := range []int{grandchild, command.Process.Pid} {
			if p, err := os.FindProcess(pid); err == nil {
				_ = p.Kill()
			}
		}
		_ = command.Wait()
		if p, there := procfs.Read(command.Process.Pid); there && p.Parent == os.Getpid() {
			t.Errorf("a child that was collected is there: %+v", p)
		}
	})
	found := procfs.Below(os.Getpid())
	if !slices.Contains(found, command.Process.Pid) || !slices.Contains(found, grandchild) ||
		slices.Contains(found, os.Getpid()) || slices.Contains(found, 1) {
		t.Errorf("below this process are %v, want %d and %d among them", found, command.Process.Pid, grandchild)
	}
	if below := procfs.Below(command.Process.Pid); !slices.Equal(below, []int{grandchild}) {
		t.Errorf("below the child are %v, want %d", below, grandchild)
	}
}
