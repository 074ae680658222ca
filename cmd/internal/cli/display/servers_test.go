package display_test

import (
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

func TestServersAreNamedWithWhoLeads(t *testing.T) {
	t.Parallel()
	got := display.Servers([]web.StackServer{
		{Name: "a", Address: "https://a:7475", Own: true}, {Name: "b", Address: "https://b:7475", Leads: true}, {Name: "c"},
	})
	want := "a (https://a:7475, stands by, answers here); b (https://b:7475, leads); c (stands by)"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestServersAreListedWithTermsAndLastSights(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 28, 14, 30, 0, 0, time.Local)
	at := func(ago time.Duration) time.Time { return now.Add(-ago) }
	got := strings.Join(display.ServerTable([]web.StackServer{
		{Name: "a", Address: "https://a:7475", Own: true, Version: "v1", StartedAt: at(time.Hour), SeenAt: now},
		{
			Name: "b", Leads: true, Term: 7, LeadsSince: at(20 * time.Minute), Version: "v2", StartedAt: at(48 * time.Hour),
			SeenAt: at(time.Second),
		},
		{Name: "c\x1b[2J", Leads: true, Version: "v0", StartedAt: at(time.Hour), SeenAt: now},
		{Name: "d", Gone: true, Version: "v1", StartedAt: at(2 * time.Hour), SeenAt: at(5 * time.Minute)},
	}, now, display.Style{Whole: true}), "\n")
	want := strings.Join([]string{
		"SERVER  STATE             TERM  LEADS SINCE  SEEN      STARTED       VERSION  ADDRESS",
		"a       stands by (here)  -     -            now       13:30:00      v1       https://a:7475",
		"b       leads             7     14:10:00     now       Nov 26 14:30  v2       -",
		"c       leads             -     -            now       13:30:00      v0       -",
		"d       gone              -     -            14:25:00  12:30:00      v1       -",
	}, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
