package display_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display/displaytest"
	"github.com/spillway-ml/spillway/predictor"
)

func FuzzPrintable(f *testing.F) {
	for _, text := range []string{"plain", "a\tb", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "\x1b", "\u009b2J", "größe"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		shown := display.CleanLine(text)
		for _, r := range shown {
			if r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 {
				t.Fatalf("%q is shown as %q", text, shown)
			}
		}
		if again := display.CleanLine(shown); again != shown {
			t.Fatalf("%q is shown as %q and then as %q", text, shown, again)
		}
	})
}

func TestAttackTextFromOutsideReachesNoTerminalRaw(t *testing.T) {
	t.Parallel()
	for name, arg := range map[string]any{
		"text": displaytest.Hostile, "a named text": predictor.RunState(displaytest.Hostile),
		"an error":            errors.New(displaytest.Hostile),
		"an error in another": errors.Join(errors.New(displaytest.Hostile), errors.New(displaytest.Hostile)),
	} {
		var out bytes.Buffer
		display.Printf(&out, "[%s]\n", arg)
		line, ended := strings.CutSuffix(out.String(), "]\n")
		if !ended || displaytest.Obeyed(line) || !strings.Contains(line, "a") || !strings.Contains(line, "i") {
			t.Errorf("%s: %q reaches the terminal", name, out.String())
		}
	}
	var out bytes.Buffer
	display.Printf(&out, "%s %d", display.Own("\x1b[1mbold\x1b[0m"), 3)
	if out.String() != "\x1b[1mbold\x1b[0m 3" {
		t.Errorf("text of ours is shown as %q", out.String())
	}
}
