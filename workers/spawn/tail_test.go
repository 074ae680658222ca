package spawn_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workers/spawn"
)

func TestTheTailKeepsTheEndOfTheOutput(t *testing.T) {
	t.Parallel()
	output := spawn.NewTail(slog.New(slog.DiscardHandler))
	for range 10 * spawn.MaxTail / 10 {
		if _, err := output.Write([]byte("123456789\n")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := output.Write([]byte("the end")); err != nil {
		t.Fatal(err)
	}
	got := output.Text()
	if len(got) > spawn.MaxTail || !strings.HasPrefix(got, "123456789\n") || !strings.HasSuffix(got, "\nthe end") {
		t.Errorf("tail: got %d bytes from %q to %q", len(got), got[:12], got[len(got)-12:])
	}
	output.Reset()
	if got := output.Text(); got != "" {
		t.Errorf("tail after reset: got %q, want none", got)
	}
}
