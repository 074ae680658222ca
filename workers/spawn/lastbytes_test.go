package spawn_test

import (
	"bytes"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/spawn"
)

func TestTheLastBytesAreTheEndOfWhatWasWritten(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 50).Draw(t, "limit")
		last := spawn.NewLastBytes(limit)
		var all []byte
		for _, text := range rapid.SliceOf(rapid.StringOf(rapid.RuneFrom([]rune("a\n")))).Draw(t, "writes") {
			if n, err := last.Write([]byte(text)); n != len(text) || err != nil {
				t.Fatalf("Write(%q) = %d, %v", text, n, err)
			}
			all = append(all, text...)
		}
		want := all[max(0, len(all)-limit):]
		if got := last.Bytes(); !bytes.Equal(got, want) {
			t.Fatalf("of %q with a limit of %d: got %q, want %q", all, limit, got, want)
		}
		text := string(want)
		if _, after, found := strings.Cut(text, "\n"); found && len(all) > limit {
			text = after
		}
		if got := last.Text(); got != text {
			t.Fatalf("text of %q with a limit of %d: got %q, want %q", all, limit, got, text)
		}
		last.Reset()
		if got := last.Bytes(); len(got) > 0 {
			t.Fatalf("after a reset: got %q", got)
		}
	})
}

func TestAProgramInheritsNoSecret(t *testing.T) {
	t.Parallel()
	host := map[string]string{"PATH": "/bin", "HOME": "", "LANG": "C", "AWS_SECRET_ACCESS_KEY": "secret"}
	got := spawn.Environment(spawn.Inherited(func(name string) (string, bool) {
		value, set := host[name]
		return value, set
	}))
	if want := "HOME= LANG=C PATH=/bin"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
