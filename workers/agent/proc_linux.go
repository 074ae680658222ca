package agent

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/procfs"
)

// maxrssUnit is what a process's record of its highest memory is counted in.
const maxrssUnit = quantity.KiB

// memoryKills counts the processes that the kernel has killed for memory since the host started; 0 where it does not
// tell.
func memoryKills() int64 {
	vmstat, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0
	}
	return number(vmstat, "oom_kill ")
}

// availableMemory is how much memory the host can give without swapping.
func availableMemory() (quantity.Bytes, error) {
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the host's memory: %w", err)
	}
	return procfs.Kilobytes(meminfo, "MemAvailable:"), nil
}

// number returns the number after key at the start of a line; 0 when there is none.
func number(file []byte, key string) int64 {
	for line := range bytes.Lines(file) {
		if rest, found := bytes.CutPrefix(line, []byte(key)); found {
			fields := bytes.Fields(rest)
			if len(fields) == 0 {
				return 0
			}
			n, err := strconv.ParseInt(string(fields[0]), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}
