package display

import (
	"strconv"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// Servers names the servers of a stack in a line, with which of them leads and which one answers.
func Servers(servers []web.StackServer) string {
	texts := make([]string, len(servers))
	for i, one := range servers {
		text := one.Name
		var more []string
		if one.Address != "" {
			more = append(more, one.Address)
		}
		more = append(more, serverState(one))
		if one.Own {
			more = append(more, "answers here")
		}
		texts[i] = text + " (" + strings.Join(more, ", ") + ")"
	}
	return strings.Join(texts, "; ")
}

// serverState is how a server stands, in a word or two.
func serverState(server web.StackServer) string {
	switch {
	case server.Gone:
		return "gone"
	case server.Leads:
		return "leads"
	default:
		return "stands by"
	}
}

// ServerTable returns the list of the servers of a stack.
func ServerTable(servers []web.StackServer, now time.Time, s Style) []string {
	t := newTable("SERVER", "STATE", "TERM", "LEADS SINCE", "SEEN", "STARTED", "VERSION", "ADDRESS")
	t.spare, t.cuts = []int{7, 6, 5}, 7
	if !s.Whole {
		t.terminal = s.columns()
	}
	for _, one := range servers {
		state, term, since, seen := serverState(one), "-", "-", "now"
		if one.Own {
			state += " (here)"
		}
		if one.Leads && one.Term > 0 { // one of the version before does not say
			term, since = strconv.FormatUint(one.Term, 10), startedAt(one.LeadsSince, now)
		}
		if one.Gone {
			seen = startedAt(one.SeenAt, now)
		}
		t.add(Clean(one.Name), state, term, since, seen, startedAt(one.StartedAt, now), orDash(Clean(one.Version)),
			orDash(Clean(one.Address)))
	}
	lines := t.lines(s, "")
	return append(lines, t.note(s, "")...)
}
