package display_test

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/workflows/chain"
)

func TestAttackOutputsAreShownUnderTheirWholeNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"größe 1/a.txt":     "größe 1/a.txt",
		"evil\x1b[2J.txt":   `"evil\x1b[2J.txt"`,
		`"evil\x1b[2J.txt"`: `"\"evil\\x1b[2J.txt\""`,
		"a\tb\n":            `"a\tb\n"`,
		"\u202etxt":         `"\u202etxt"`,
		"\x9b2J":            `"\x9b2J"`,
	} {
		file := wire.CommandFile{Path: name, Artifact: activities.Ref{Digest: "0123456789abcdef"}}
		outputs := map[string][]wire.CommandFile{"o": {file}}
		result := chain.Result{Stages: map[string]chain.StageResult{"a": {Outputs: outputs}}}
		lines := display.Outputs(result, []string{"a"}, display.Style{})
		if shown := lines[len(lines)-1]; !strings.Contains(shown, "  "+want+" ") {
			t.Errorf("%q is shown as %q, want %s", name, shown, want)
		}
	}
}
