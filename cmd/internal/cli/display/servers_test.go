package display_test

import (
	"testing"

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
