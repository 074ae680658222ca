// Package enforcetest says which tests can be held to sizes on this machine.
package enforcetest

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workers/enforce"
)

// Need skips the test where no process can be held to a size, and fails it where SPILLWAY_TEST_REQUIRE names cgroup.
func Need(tb testing.TB) {
	tb.Helper()
	offers := enforce.Detect()
	if slices.ContainsFunc(offers, func(o enforce.Offer) bool { return o.Usable && o.Mode != enforce.None }) {
		return
	}
	if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "cgroup") {
		tb.Fatalf("no cgroup can be made here: %+v", offers)
	}
	tb.Skipf("needs cgroups that this user may make: %+v", offers)
}
