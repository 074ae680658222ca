package runner

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
)

// TestWhatIsPrintedFitsIntoAnAnswerHoweverItIsPrinted prints to one stream, and short lines to both in turn.
func TestWhatIsPrintedFitsIntoAnAnswerHoweverItIsPrinted(t *testing.T) {
	t.Parallel()
	// what the word on the rest takes, too
	limit := base64.StdEncoding.EncodedLen(wire.MaxPrinted) + 1<<10
	for name, c := range map[string]struct {
		text  string
		turns bool
		least int // bytes that are kept
	}{
		"one stream":           {strings.Repeat("x", 99) + "\n", false, wire.MaxPrinted - 64<<10},
		"in turn":              {"x\n", true, 64 << 10},
		"in turn, large parts": {strings.Repeat("x", 32<<10), true, wire.MaxPrinted - 64<<10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLog(io.Discard)
			written := 0
			for turn := 0; written < 2*wire.MaxPrinted; turn++ {
				to := stream{log: l, error: c.turns && turn%2 == 1}
				if _, err := io.WriteString(to, c.text); err != nil {
					t.Fatal(err)
				}
				written += len(c.text)
			}
			_, _ = io.WriteString(stream{log: l}, "end\n")
			printed := l.printed()
			encoded, err := json.Marshal(printed)
			if err != nil || len(encoded) > limit {
				t.Errorf("it takes %d bytes, %v, want at most %d", len(encoded), err, limit)
			}
			kept := 0
			for _, part := range printed[1:] {
				kept += len(part.Text)
			}
			if kept < c.least || kept > wire.MaxPrinted {
				t.Errorf("%d bytes are kept, want %d to %d", kept, c.least, wire.MaxPrinted)
			}
			if word := string(printed[0].Text); !strings.Contains(word, "are not kept") {
				t.Errorf("it begins with %q, want a word on what is missing", word)
			}
			if last := string(printed[len(printed)-1].Text); !strings.HasSuffix(last, "end\n") {
				t.Errorf("it ends with %q, want the end", last)
			}
		})
	}
}
