package display_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

func TestAComparisonSaysWithWhatEachRunEnded(t *testing.T) {
	t.Parallel()
	const artifact = `{"path":"m.pt","artifact":{"digest":"DIGEST","bytes":5}}`
	fit := func(digest, loss string) string {
		return `{"stages":{"fit":{"tasks":1,"outputs":{"model":[` + strings.ReplaceAll(artifact, "DIGEST", digest) +
			`],"log":[{"path":"log","artifact":{"digest":"same","bytes":2}}]},"values":[{"loss":` + loss + `,"kind":"a"}]}}}`
	}
	for name, test := range map[string]struct {
		a, b string
		want []string
		not  string
	}{
		"of a pipeline": {
			`{"accuracy":0.5,"labels":[1,2],"by":{"class":3}}`, `{"accuracy":0.75,"labels":[1,3],"by":{"class":3}}`,
			[]string{"result accuracy  0.5    0.75   +50%", "result labels    [1,2]  [1,3]"},
			"class",
		},
		"of a chain": {
			fit("0123456789abcdef", "0.5"), fit("fedcba9876543210", "0.25"),
			[]string{
				"output fit.model  m.pt, 5 B, 0123456789ab  m.pt, 5 B, fedcba987654",
				"result fit loss   0.5                      0.25                     -50%",
			},
			"kind",
		},
		"of which one has none": {`3`, ``, []string{"result  3  -"}, "change  "},
	} {
		run := func(result string) ledger.RunView {
			return ledger.RunView{Run: "r", Pipeline: "p", Result: json.RawMessage(result)}
		}
		lines := strings.Join(display.Diff(ledger.Diff{A: run(test.a), B: run(test.b), SameInput: true}, false,
			display.Style{Width: 80}), "\n")
		for _, want := range test.want {
			if !strings.Contains(lines, want) {
				t.Errorf("%s: no %q in\n%s", name, want, lines)
			}
		}
		if strings.Contains(lines, test.not) {
			t.Errorf("%s: %q does not differ, and is in\n%s", name, test.not, lines)
		}
	}
}

func TestNothingIsCutWhereThereIsNoTerminal(t *testing.T) {
	t.Parallel()
	name := "spillway-digits-" + strings.Repeat("0123456789abcdef", 8)
	bill := ledger.Bill{By: ledger.ByHost, Lines: []ledger.Line{{Name: name, Held: time.Hour, Count: 3}}}
	diff := ledger.Diff{A: ledger.RunView{Run: name, Error: "failed"}, B: ledger.RunView{Run: "b"}, SameInput: true}
	for what, of := range map[string]func(display.Style) []string{
		"bill": func(s display.Style) []string { return display.Bill(bill, false, s) },
		"diff": func(s display.Style) []string { return display.Diff(diff, false, s) },
	} {
		terminal := strings.Join(of(display.Style{Width: 80}), "\n")
		piped := strings.Join(of(display.Style{Width: 80, Whole: true}), "\n")
		if strings.Contains(terminal, name) || !strings.Contains(piped, name) {
			t.Errorf("%s: on a terminal\n%s\nand elsewhere\n%s\nwant it cut on a terminal only", what, terminal, piped)
		}
	}
}
