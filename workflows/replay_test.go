package workflows_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.temporal.io/sdk/workflow"

	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// The pipelines below are those of which testdata keeps histories, recorded with an engine: `fan` maps its shards over
// the stage `work`, `fail` calls a stage that never works.
type (
	fanShard struct {
		Index        int `json:"index"`
		Milliseconds int `json:"milliseconds,omitempty"`
	}
	fanInput struct {
		Shards       int `json:"shards"`
		Milliseconds int `json:"milliseconds,omitempty"`
	}
	fanResult struct {
		Shards int   `json:"shards"`
		Sum    int64 `json:"sum"`
		Wrong  int   `json:"wrong"`
	}
)

var (
	fanWork = spillway.NewStage("work", func(_ context.Context, in fanShard) (int, error) { return in.Index, nil })
	fanFail = spillway.NewStage("fail", func(context.Context, fanShard) (int, error) {
		return 0, errors.New("it never works")
	}).
		With(spillway.Hints{MaxAttempts: 2})
	fanCheck = spillway.NewStage("check", func(context.Context, fanShard) (int, error) { return 0, nil })
)

func fan(ctx workflow.Context, in fanInput) (fanResult, error) {
	outputs, err := fanWork.Map(ctx, fanShards(in))
	if err != nil {
		return fanResult{}, err
	}
	result := fanResult{Shards: len(outputs)}
	for i, output := range outputs {
		result.Sum += int64(output)
		if output != i {
			result.Wrong++
		}
	}
	return result, nil
}

func fanShards(in fanInput) []fanShard {
	shards := make([]fanShard, in.Shards)
	for i := range shards {
		shards[i] = fanShard{Index: i, Milliseconds: in.Milliseconds}
	}
	return shards
}

var fanStages = []runs.AnyStage{fanWork, fanFail, fanCheck}

func TestRecordedRunsGoOnWithTheCodeAsItIsNow(t *testing.T) {
	t.Parallel()
	pipelines := []runs.AnyPipeline{spillway.NewPipeline("fan", fan), spillway.NewPipeline("fail", fanFail.Run)}
	for name, file := range map[string]string{
		"a Map":                    "fan.json",
		"a chunk of a Map":         "fan-chunk.json",
		"a Map within a budget":    "fan-budget.json",
		"a stage that fails twice": "fail.json",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spillwaytest.Replay(t, filepath.Join("testdata", file), pipelines, fanStages...)
		})
	}
}

func TestAReplayIsRefusedWhenTheStepsChanged(t *testing.T) {
	t.Parallel()
	changed := map[string]struct {
		history  string
		pipeline runs.AnyPipeline
		stages   []runs.AnyStage
		want     string
	}{
		"another stage runs before the Map": {
			"fan.json",
			spillway.NewPipeline("fan", func(ctx workflow.Context, in fanInput) (fanResult, error) {
				if _, err := fanCheck.Run(ctx, fanShard{}); err != nil {
					return fanResult{}, err
				}
				return fan(ctx, in)
			}), fanStages, "nondeterministic",
		},
		"the Map is over another number of shards": {
			"fan.json",
			spillway.NewPipeline("fan", func(ctx workflow.Context, in fanInput) (fanResult, error) {
				return fan(ctx, fanInput{Shards: 3 * in.Shards})
			}), fanStages, "nondeterministic",
		},
		"a stage runs after the Map": {"fan.json", spillway.NewPipeline("fan",
			func(ctx workflow.Context, in fanInput) (fanResult, error) {
				result, err := fan(ctx, in)
				if err != nil {
					return result, err
				}
				_, err = fanCheck.Run(ctx, fanShard{})
				return result, err
			}), fanStages, "nondeterministic"},
		"nothing is mapped any more": {"fan.json", spillway.NewPipeline("fan",
			func(_ workflow.Context, in fanInput) (fanResult, error) {
				return fanResult{Shards: in.Shards, Sum: 66}, nil
			}), fanStages, "nondeterministic"},
		"another stage takes the place of the failing one": {
			"fail.json", spillway.NewPipeline("fail", fanCheck.Run),
			fanStages, "nondeterministic",
		},
		"the stage is not listed any more": {
			"fan.json", spillway.NewPipeline("fan", fan),
			[]runs.AnyStage{fanCheck},
			"nondeterministic",
		},
		"the pipeline is gone": {
			"fan.json", spillway.NewPipeline("other", fan), fanStages,
			`a run of pipeline "fan", and this test is about other`,
		},
		"there is no such file": {
			"missing.json", spillway.NewPipeline("fan", fan), fanStages,
			"hint: record one with",
		},
	}
	for name, c := range changed {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			failure := refusal(t, func(tb testing.TB) {
				tb.Helper()
				spillwaytest.Replay(tb, filepath.Join("testdata", c.history), []runs.AnyPipeline{c.pipeline}, c.stages...)
			})
			if !strings.Contains(strings.ToLower(failure), c.want) {
				t.Errorf("got %q, want a failure that says %q", failure, c.want)
			}
		})
	}
}

func TestAChunkWithOtherTasksIsRefused(t *testing.T) {
	t.Parallel()
	recorded, err := os.ReadFile(filepath.Join("testdata", "fan-chunk.json"))
	if err != nil {
		t.Fatal(err)
	}
	altered := filepath.Join(t.TempDir(), "altered.json")
	if err := os.WriteFile(altered, []byte(strings.Replace(string(recorded), `"activityId":"work-3"`,
		`"activityId":"work-9"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	failure := refusal(t, func(tb testing.TB) {
		tb.Helper()
		spillwaytest.Replay(tb, altered, nil, fanStages...)
	})
	if !strings.Contains(failure, "work-9") {
		t.Errorf("got %q, want a refusal that names the task work-9", failure)
	}
}

// refusal runs check with a test of its own and returns the text with which it failed; "" when it passed.
func refusal(t *testing.T, check func(testing.TB)) string {
	t.Helper()
	fatal := &fatalText{TB: t}
	done := make(chan struct{})
	go func() { // Fatalf ends its goroutine, as it does in a real test
		defer close(done)
		check(fatal)
	}()
	<-done
	return fatal.text
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
