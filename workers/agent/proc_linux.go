package agent

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// clockTick is the unit of CPU times in /proc: USER_HZ is 100 on every Linux that Go runs on.
// Source: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
const clockTick = time.Second / 100

// look reads what the kernel says of process pid now; ok is false when it is gone.
func look(pid int) (l looked, ok bool) {
	directory := "/proc/" + strconv.Itoa(pid)
	status, err := os.ReadFile(directory + "/status")
	if err != nil {
		return looked{}, false
	}
	stat, err := os.ReadFile(directory + "/stat")
	if err != nil {
		return looked{}, false
	}
	l.resident = kilobytes(status, "VmRSS:")
	l.peak = kilobytes(status, "VmHWM:")
	l.cpu = processorTime(stat)
	return l, l.peak > 0 // a process that has ended but is not waited for has no memory
}

// processorTime reads user and system time from /proc/PID/stat, where they are the 14th and 15th field; the second may hold spaces.
func processorTime(stat []byte) time.Duration {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0
	}
	user, userErr := strconv.ParseInt(string(fields[11]), 10, 64)
	system, systemErr := strconv.ParseInt(string(fields[12]), 10, 64)
	if userErr != nil || systemErr != nil {
		return 0
	}
	return time.Duration(user+system) * clockTick
}

// resetPeak makes the kernel forget the highest memory of pid, where it allows that; ok tells whether it did.
// Source: https://man7.org/linux/man-pages/man5/proc_pid_clear_refs.5.html
func resetPeak(pid int) bool {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/clear_refs", []byte("5"), 0) == nil
}

// memoryKills counts the processes that the kernel has killed for memory since the host started; 0 where it does not tell.
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
	return kilobytes(meminfo, "MemAvailable:"), nil
}

func kilobytes(file []byte, key string) quantity.Bytes {
	return quantity.Bytes(number(file, key)) * quantity.KiB
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
