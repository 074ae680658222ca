package flag

import (
	"os"
	"strings"
	"time"
)

// clocksEnvironment names a file of lines such as "engine -1h0m0s" and "host 1h0m0s": what tests of wrong clocks add to
// the clock of the engine or of its host. The machine's clock is never set. It is for tests only, and in no help text.
const clocksEnvironment = "SPILLWAY_TEST_CLOCKS"

// clock returns the machine's clock, with what the file says of name added to it: now, or again at each look. A file
// that is not there, or does not say, adds nothing; an empty path is no file.
func clock(path, name string, again bool) func() time.Time {
	if path == "" {
		return time.Now
	}
	if again {
		return func() time.Time { return time.Now().Add(readOffset(path, name)) }
	}
	offset := readOffset(path, name)
	return func() time.Time { return time.Now().Add(offset) }
}

func readOffset(path, name string) time.Duration {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 2 || fields[0] != name {
			continue
		}
		if offset, err := time.ParseDuration(fields[1]); err == nil {
			return offset
		}
	}
	return 0
}
