package exectest

import (
	"os"
	"runtime"
	"strings"
	"testing"
)

// RequireMeasuring skips a test that measures for a minute or more, unless SPILLWAY_MEASURE is 1.
func RequireMeasuring(tb testing.TB) {
	tb.Helper()
	if os.Getenv("SPILLWAY_MEASURE") != "1" {
		tb.Skip("it measures for a minute or more; set SPILLWAY_MEASURE=1")
	}
}

// LogLoad prints how busy the machine is, as figures are worth little on a busy one.
func LogLoad(tb testing.TB) {
	tb.Helper()
	if load, err := os.ReadFile("/proc/loadavg"); err == nil {
		tb.Logf("load: %s on %d cores", strings.TrimSpace(string(load)), runtime.NumCPU())
	}
}
