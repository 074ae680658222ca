package display

import (
	"fmt"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Hosts returns the list of hosts.
func Hosts(found []web.Host, now time.Time, s Style) []string {
	t := newTable("HOST", "STATE", "USED", "CAPACITY", "SEEN", "VERSION", "PLATFORM", "STAGES")
	t.spare, t.cuts = []int{7, 6, 5, 2}, 7
	if !s.Whole {
		t.terminal = s.columns()
	}
	for _, host := range found {
		t.add(Clean(host.Name), hostState(host), roomOf(host.Used), roomOf(host.Capacity), seenAt(host, now),
			orDash(Clean(host.Version)), orDash(Clean(host.Platform)), orDash(Clean(strings.Join(host.Stages, ", "))))
	}
	lines := t.lines(s, "")
	return append(lines, t.note(s, "")...)
}

// hostState is how a host stands, in a word or two.
func hostState(host web.Host) string {
	state := string(host.State)
	if host.Drained {
		state += ", drained"
	}
	if host.DiskFull {
		state += ", disk full"
	}
	if host.Own {
		state += " (here)"
	}
	return state
}

// roomOf writes CPUs, memory and GPUs in short.
func roomOf(size quantity.Size) string {
	if size.IsZero() {
		return "-"
	}
	text := fmt.Sprintf("%s CPUs", size.CPU)
	if size.CPU == quantity.Core {
		text = "1 CPU"
	}
	if size.Memory > 0 { // one that has just joined has not measured it yet
		text += fmt.Sprintf(", %s", size.Memory)
	}
	if size.GPU > 0 {
		text += fmt.Sprintf(", %s GPU", size.GPU)
	}
	return text
}

// seenAt is when a host was heard of last.
func seenAt(host web.Host, now time.Time) string {
	switch {
	case host.State == web.HostUp:
		return "now"
	case host.Seen.IsZero():
		return "-"
	default:
		return startedAt(host.Seen, now)
	}
}
