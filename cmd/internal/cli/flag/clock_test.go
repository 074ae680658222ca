package flag

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestATestsClocksAreReadFromItsFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "clocks")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	offset := func(now func() time.Time) time.Duration { return time.Until(now()).Round(time.Minute) }
	write("engine -1h0m0s\nhost 2h\n")
	engine, host, other := clock(path, "engine", true), clock(path, "host", false), clock(path, "other", true)
	if offset(engine) != -time.Hour || offset(host) != 2*time.Hour || offset(other) != 0 ||
		offset(clock("", "engine", true)) != 0 {
		t.Errorf("offsets: engine %s, host %s, other %s", offset(engine), offset(host), offset(other))
	}
	write("engine 10m\nhost none\n")
	if offset(engine) != 10*time.Minute || offset(host) != 2*time.Hour || offset(clock(path, "host", false)) != 0 {
		t.Errorf("once the file has changed: engine %s, host %s; a host keeps its offset, and what is no duration "+
			"adds nothing", offset(engine), offset(host))
	}
}
