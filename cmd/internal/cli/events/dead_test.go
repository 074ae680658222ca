package events

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

func TestAReplaySaysWhatBecameOfTheDeadLetter(t *testing.T) {
	t.Parallel()
	for want, outcome := range map[string]web.ReplayOutcome{
		"17 has started run digits-e1":             {Sequence: 17, Run: "digits-e1"},
		"18 was sent again and refused again: why": {Sequence: 18, Refused: "why"},
		"19 was sent again, and its event waits":   {Sequence: 19},
	} {
		if line := replayLine(outcome); !strings.Contains(line, want) {
			t.Errorf("got %q, want %q", line, want)
		}
	}
}
