//go:build !linux

package function

import "os/exec"

// await collects the process of cmd when it has exited and then calls sweep. It returns the error of cmd.Wait.
func await(cmd *exec.Cmd, sweep func()) error {
	err := cmd.Wait()
	sweep()
	return err
}

// peakResident returns 0: this system does not tell.
func peakResident(int) int64 { return 0 }

// processTable measures nothing on this system, so no memory size is enforced.
type processTable struct{}

func newProcessTable() *processTable { return &processTable{} }

func (*processTable) resident(map[int]*environment) map[int]int64 { return nil }
