package runs

import (
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
)

func TestColoursTellTasksAndErrorsApart(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	p := &linePrinter{out: &out, style: display.Style{Color: true}}
	show := func(task string, origin wire.LogOrigin) string {
		t.Helper()
		out.Reset()
		line := logs.Line{
			LogSource: wire.LogSource{Stage: "score", Task: task, Attempt: 1},
			LogLine:   wire.LogLine{Origin: origin, Text: "hi"},
		}
		if err := p.show(line); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	name := func(line string) string {
		before, _, _ := strings.Cut(line, "m")
		return before
	}
	first := show("score-1", wire.LogOut)
	if again := show("score-1", wire.LogErr); name(first) != name(again) ||
		!strings.Contains(again, "\x1b[31m!\x1b[0m hi") {
		t.Errorf("the same task's lines are %q and %q", first, again)
	}
	if note := show("score-1", wire.LogNote); !strings.Contains(note, "\x1b[33m*\x1b[0m \x1b[33mhi\x1b[0m") {
		t.Errorf("a note is %q", note)
	}
	colours := map[string]bool{}
	for _, task := range []string{"score-1", "score-2", "score-3", "score-4", "score-5", "score-6"} {
		colours[name(show(task, wire.LogOut))] = true
	}
	if len(colours) < 3 {
		t.Errorf("six tasks have %d colours", len(colours))
	}
}
