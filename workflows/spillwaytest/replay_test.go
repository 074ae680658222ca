package spillwaytest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

var answer = workflows.NewStage("answer", func(context.Context, string) (int, error) { return 42, nil })

// history is the first event of a run of the pipeline `asked` with this memo and this input.
func history(tb testing.TB, options, input string) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "history.json")
	text := fmt.Sprintf(`{"events":[{
"eventId":"1","eventType":"EVENT_TYPE_WORKFLOW_EXECUTION_STARTED","workflowExecutionStartedEventAttributes":{
"workflowId":"asked-1","workflowType":{"name":"asked"},"taskQueue":{"name":"app@1"},"input":{"payloads":[%s]},
"memo":{"fields":{"spillway.options":%s}}}}]}`,
		input, options)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// The payloads of the histories, as protojson writes them: data is base64.
const (
	plainOptions = `{"metadata":{"encoding":"anNvbi9wbGFpbg=="},"data":"e30="}`                 // {}
	newerOptions = `{"metadata":{"encoding":"anNvbi9wbGFpbg=="},"data":"eyJ2ZXJzaW9uIjo5OX0="}` // {"version":99}
	// plainInput is not read before the pipeline is found.
	plainInput  = `{"metadata":{"encoding":"anNvbi9wbGFpbg=="},"data":"IngI"}`
	storedInput = `{"metadata":{"encoding":"anNvbi9wcm90b2J1Zg==","messageType"` +
		`:"dGVtcG9yYWwuYXBpLnNkay52MS5FeHRlcm5hbFN0b3JhZ2VSZWZlcmVuY2U="},
"data":"eyJkcml2ZXJOYW1lIjoic3BpbGx3YXktYXJ0aWZhY3RzIiwiY2xhaW1EYXRhIjp7ImRpZ2VzdCI6ImFhYWFhYWFhYWFhYWFhYWFhYWFh` +
		`YWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWFhYWEifX0="}`
)

func TestAHistoryThatCannotBeReplayedSaysWhy(t *testing.T) {
	t.Parallel()
	asked, other := workflows.NewPipeline("asked", answer.Run), workflows.NewPipeline("other", answer.Run)
	for name, c := range map[string]struct {
		history  string
		pipeline runs.AnyPipeline
		want     []string
	}{
		"of another pipeline": {
			history(t, plainOptions, plainInput), other,
			[]string{`a run of pipeline "asked", and this test is about other`, "hint: "},
		},
		"of a newer engine": {
			history(t, newerOptions, plainInput), asked,
			[]string{"a newer engine started the run", "version 99", "hint: update"},
		},
		"with payloads that are away": {
			history(t, plainOptions, storedInput), asked,
			[]string{"values of 64 KiB and more are not in it", "hint: record one"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failed := &fatalText{TB: t}
			done := make(chan struct{})
			go func() { // Fatalf ends its goroutine, as it does in a real test
				defer close(done)
				spillwaytest.Replay(failed, c.history, []runs.AnyPipeline{c.pipeline}, answer)
			}()
			<-done
			for _, want := range c.want {
				if !strings.Contains(failed.text, want) {
					t.Errorf("got %q, want that it says %q", failed.text, want)
				}
			}
		})
	}
}

// fatalText is a test that keeps the text of its failure for itself.
type fatalText struct {
	testing.TB

	text string
}

func (*fatalText) Helper() {}

func (f *fatalText) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
