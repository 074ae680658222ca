package devserver

import (
	"bytes"
	"fmt"
	"regexp"
	"runtime/pprof"
	"slices"
	"testing"
	"time"
)

// TestCloseLeavesNoGoroutineOfOurs looks at the stacks of the whole process, so it must not run beside other tests.
// What it lets pass are the workers of Temporal's own system workflows, which Temporal never stops, with their
// connections, and SQLite's connection.
func TestCloseLeavesNoGoroutineOfOurs(t *testing.T) {
	s := start(t, Options{Dir: t.TempDir()})
	get(t, s, "/api/v1/namespaces/default")
	nc := connect(t, s)
	publish(t, nc, "a")
	nc.Close()
	stop(t, s)

	ours := regexp.MustCompile(
		`spillway/cmd/internal/devserver\.[^T]\S*|nats-server/v2/server\.\S+|nats-io/nats\.go\.\S+|` +
			`net/http\.\(\*Server\)\.\S+|temporal\.io/server/service/\S+`)
	var left []string
	for range 50 { // connections take a moment to end
		var profile bytes.Buffer
		if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
			t.Fatal(err)
		}
		left = ours.FindAllString(profile.String(), -1)
		if len(left) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	slices.Sort(left)
	t.Error(fmt.Sprintf("goroutines left a second after Close: %d, in", len(left)), slices.Compact(left))
}
