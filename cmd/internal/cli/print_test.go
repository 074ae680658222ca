package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spillway-ml/spillway/predictor"
)

// hostile is what somebody may call a run, a subject or a file: it clears the screen, sets the title, ends the line, turns text around, and
// does so again in the eight-bit codes and in bytes that are no UTF-8.
const hostile = "a\x1b[2J\x1b]0;title\x07b\r\nc\u202ed\u2066e\u009b2Jf\x9b31mg\x7fh\u2028i"

func TestAttackTextFromOutsideReachesNoTerminalRaw(t *testing.T) {
	t.Parallel()
	for name, arg := range map[string]any{
		"text": hostile, "a named text": predictor.RunState(hostile), "an error": errors.New(hostile),
		"an error in another": errors.Join(errors.New(hostile), errors.New(hostile)),
	} {
		var out bytes.Buffer
		printf(&out, "[%s]\n", arg)
		line, ended := strings.CutSuffix(out.String(), "]\n")
		if !ended || obeyed(line) || !strings.Contains(line, "a") || !strings.Contains(line, "i") {
			t.Errorf("%s: %q reaches the terminal", name, out.String())
		}
	}
	var out bytes.Buffer
	printf(&out, "%s %d", own("\x1b[1mbold\x1b[0m"), 3)
	if out.String() != "\x1b[1mbold\x1b[0m 3" {
		t.Errorf("text of ours is shown as %q", out.String())
	}
}

func TestAttackJSONReachesNoTerminalRaw(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	tool := &tool{out: &out}
	valid := strings.ToValidUTF8(hostile, "?")
	if err := tool.writeJSON(map[string]string{"run": valid}); err != nil {
		t.Fatal(err)
	}
	if obeyed(strings.ReplaceAll(out.String(), "\n", "")) {
		t.Errorf("%q reaches the terminal", out.String())
	}
	var back map[string]string
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || back["run"] != valid {
		t.Errorf("%q reads as %q, %v, want the value itself", out.String(), back["run"], err)
	}
}

// obeyed reports whether a terminal may act on text: whether it has any of the characters that hostile names, or bytes that are no UTF-8.
func obeyed(text string) bool {
	return !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\a\r\n\x7f\u009b\u202e\u2066\u2028")
}
