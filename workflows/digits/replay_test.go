package digits

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"go.temporal.io/sdk/workflow"

	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/app"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// The histories are those of a run with {"shards":6,"max_epochs":1} and of the first chunk of its Map, and of one with
// {"shards":2,"max_epochs":1,"views":1,"trials":9} and of its tuning.
var (
	recordedRun    = filepath.Join("testdata", "history.json")
	recordedChunk  = filepath.Join("testdata", "history-chunk.json")
	recordedTuned  = filepath.Join("testdata", "history-tuned.json")
	recordedTuning = filepath.Join("testdata", "history-tuning.json")
)

func TestTheRecordedRunGoesOnWithThePipelineAsItIsNow(t *testing.T) {
	t.Parallel()
	pipelines := []app.Pipeline{spillway.NewPipeline("digits", Digits)}
	for _, history := range []string{recordedRun, recordedChunk, recordedTuned, recordedTuning} {
		spillwaytest.Replay(t, history, pipelines, allStages...)
	}
}

func TestThePipelineWithItsStagesInAnotherOrderIsRefusedByTheRecordedRun(t *testing.T) {
	t.Parallel()
	evaluateLast := func(ctx workflow.Context, in Input) (Report, error) {
		in = in.withDefaults()
		raw, err := Load.Run(ctx, in)
		if err != nil {
			return Report{}, err
		}
		data, err := Preprocess.Run(ctx, PreprocessInput{Raw: raw, Seed: in.Seed})
		if err != nil {
			return Report{}, err
		}
		in = in.withEffort(data)
		model, err := Train.Run(ctx, TrainInput{
			Data: data, Seed: in.Seed, MaxEpochs: in.MaxEpochs,
			LearningRate: in.LearningRate,
		})
		if err != nil {
			return Report{}, err
		}
		scores, err := Score.Map(ctx, shards(data, model, in.Shards, in.Views))
		if err != nil {
			return Report{}, err
		}
		quality, err := Evaluate.Run(ctx, EvaluateInput{Data: data, Model: model})
		return report(nil, model, quality, scores, in.Views), err
	}
	refused := &refusal{TB: t}
	done := make(chan struct{})
	go func() { // Fatalf ends its goroutine, as it does in a real test
		defer close(done)
		spillwaytest.Replay(refused, recordedRun, []app.Pipeline{spillway.NewPipeline("digits", evaluateLast)}, allStages...)
	}()
	<-done
	if !strings.Contains(refused.text, "evaluate-0") ||
		!strings.Contains(refused.text, "hint: the pipeline's steps changed") {
		t.Errorf("got %q, want a refusal that names the task evaluate-0", refused.text)
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
