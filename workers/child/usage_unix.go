//go:build unix

package child

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/procfs"
)

// processTime is the processor time that this process has taken so far, user and system.
func processTime() time.Duration {
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// peakMemory is the highest resident memory of this process: since its peak was last reset on Linux, since its start
// elsewhere.
func peakMemory() quantity.Bytes {
	if status, err := os.ReadFile("/proc/self/status"); err == nil {
		if peak := procfs.Kilobytes(status, "VmHWM:"); peak > 0 {
			return peak
		}
	}
	var usage syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	if runtime.GOOS == "darwin" {
		return quantity.Bytes(usage.Maxrss)
	}
	return quantity.Bytes(usage.Maxrss) * quantity.KiB
}
