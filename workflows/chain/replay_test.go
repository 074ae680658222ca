package chain_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// The histories are those of runs of the chains beside them, of the first chunk of the stage `work` of the first, and
// of a Single.

func replay(tb testing.TB, history string, c chain.Chain) {
	tb.Helper()
	spillwaytest.Replay(tb, filepath.Join("testdata", history), []runs.AnyPipeline{c.Pipeline()}, c.Stages()...)
}

func TestRecordedRunsGoOnWithTheCodeAsItIsNow(t *testing.T) {
	t.Parallel()
	single, err := chain.Single("train")
	if err != nil {
		t.Fatal(err)
	}
	for history, c := range map[string]chain.Chain{
		"report.json": testChain(t, "report"), "report-chunk.json": testChain(t, "report"), "fail.json": testChain(t, "fail"),
		"single.json": single,
	} {
		t.Run(history, func(t *testing.T) {
			t.Parallel()
			replay(t, history, c)
		})
	}
}

func TestAReplayIsRefusedWhenTheChainChanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]struct{ history, from, to string }{
		"a stage more": {"report", "stages:\n", "stages:\n  first: {run: [first]}\n"},
		"a stage less": {
			"report", "  worst:\n    for_each: {loss: work.result.loss}\n    run: [worst, \"${loss}\"]\n",
			"  worst: {run: [worst]}\n",
		},
		"another fan-out":    {"report", "half: [a, b]", "half: [a]"},
		"an earlier start":   {"report", "    after: [check, worst]\n", ""},
		"the failure is not": {"fail", ", for_each: {i: {to: 5}}, attempts: 1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(filepath.Join("testdata", change.history+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			changed := strings.Replace(string(text), change.from, change.to, 1)
			if changed == string(text) {
				t.Fatalf("the chain has no %q", change.from)
			}
			refused := &refusal{TB: t}
			done := make(chan struct{})
			go func() { // Fatalf ends its goroutine, as it does in a real test
				defer close(done)
				replay(refused, change.history+".json", mustParse(t, changed))
			}()
			<-done
			if !strings.Contains(refused.text, "[TMPRL1100]") {
				t.Errorf("got %q, want a refusal for non-determinism", refused.text)
			}
		})
	}
}

// refusal is a test that keeps the text of its failure for itself.
type refusal struct {
	testing.TB

	text string
}

func (*refusal) Helper() {}

func (r *refusal) Fatalf(format string, args ...any) {
	r.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
