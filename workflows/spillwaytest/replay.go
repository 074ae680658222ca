package spillwaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"

	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Replay checks that the pipelines still take the same steps as in the recorded history: a JSON file written by
// `spillway show RUN --history`. It fails the test when a run that is going on could not be continued with the code as
// it is now. The history of one chunk of a Map replays too: `spillway show RUN/STAGE-FIRST --history`, where FIRST is
// the number of the chunk's first task, such as "digits-7f3a9c/score-0"; so does that of a tuning, RUN/STAGE-tune.
//
// How a run ended is compared for runs that succeeded; of others only the steps are.
func Replay(tb testing.TB, history string, pipelines []runs.AnyPipeline, stages ...runs.AnyStage) {
	tb.Helper()
	recorded, err := readHistory(tb, history)
	if err != nil {
		tb.Fatalf("replay %s: %v\n  hint: record one with `spillway show RUN --history > %s`", history, err, history)
	}
	if problem := recorded.unlike(pipelines); problem != "" {
		tb.Fatalf("replay %s: %s", history, problem)
	}
	ports := recorded.ports(stages)
	replayer, err := worker.NewWorkflowReplayerWithOptions(worker.WorkflowReplayerOptions{
		Interceptors: []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
	})
	if err != nil {
		tb.Fatalf("replay %s: %v", history, err)
	}
	runs.Register(replayer, ports, pipelines)
	silent := sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler))
	if err := replayer.ReplayWorkflowHistoryWithOptions(silent, recorded.events,
		worker.ReplayWorkflowHistoryOptions{OriginalExecution: recorded.execution}); err != nil {
		tb.Fatalf("replay %s: %v\n  hint: the pipeline's steps changed. Runs that go on keep their old build; record a new "+
			"history when the change is meant", history, err)
	}
}

// recording is a recorded history, and what its first event says of the run.
type recording struct {
	events *historypb.History
	// execution is whose history it is: the chunks of a Map are named after their run, so a replay needs the run's own
	// name.
	execution workflow.Execution
	// pipeline is the run's; for a chunk or a tuning that of the run which it is a part of.
	pipeline string
	// version is that of the engine's steps which the run takes.
	version int
	// queue names the app and the build.
	queue string
}

func readHistory(tb testing.TB, file string) (recording, error) {
	tb.Helper()
	opened, err := os.Open(file)
	if err != nil {
		return recording{}, err
	}
	history, err := client.HistoryFromJSON(opened, client.HistoryJSONOptions{})
	if err := errors.Join(err, opened.Close()); err != nil {
		return recording{}, fmt.Errorf("decode: %w", err)
	}
	if len(history.GetEvents()) == 0 {
		return recording{}, errors.New("it holds no events")
	}
	started := history.GetEvents()[0].GetWorkflowExecutionStartedEventAttributes()
	if started.GetWorkflowId() == "" {
		return recording{}, errors.New("its first event does not name the run")
	}
	if err := artifact.Restore(tb.Context(), store(tb), history); err != nil { // an earlier engine wrote it
		return recording{}, fmt.Errorf("its values of 64 KiB and more are not in it: %w", err)
	}
	r := recording{
		events: history, execution: workflow.Execution{
			ID:    started.GetWorkflowId(),
			RunID: started.GetOriginalExecutionRunId(),
		},
		pipeline: started.GetWorkflowType().GetName(), queue: started.GetTaskQueue().GetName(),
	}
	if r.pipeline == runs.MapWorkflow || r.pipeline == runs.TuneWorkflow {
		r.pipeline, r.version = partOf(started)
	} else if payload, told := started.GetMemo().GetFields()[runs.OptionsMemo]; told {
		var options wire.RunOptions
		if err := converter.GetDefaultDataConverter().FromPayload(payload, &options); err != nil {
			return recording{}, fmt.Errorf("read how the run was started: %w", err)
		}
		r.version = options.Version
	}
	return r, nil
}

// partOf returns the pipeline and the version of the run that a chunk of a Map, or a tuning, is a part of; the zero
// values when its input does not say.
func partOf(started *historypb.WorkflowExecutionStartedEventAttributes) (pipeline string, version int) {
	var part struct {
		Pipeline string `json:"pipeline"`
		Version  int    `json:"version"`
	}
	if err := converter.GetDefaultDataConverter().FromPayloads(started.GetInput(), &part); err != nil {
		return "", 0 // the replay says what is wrong with it
	}
	return part.Pipeline, part.Version
}

// unlike says why the history cannot be that of a run of pipelines; empty when it can.
func (r recording) unlike(pipelines []runs.AnyPipeline) string {
	names := make([]string, len(pipelines))
	for i, pipeline := range pipelines {
		names[i] = pipeline.Name()
	}
	switch {
	case r.version > wire.WorkflowVersion:
		return fmt.Sprintf("a newer engine started the run (its steps are of version %d, and this Spillway knows versions "+
			"up to %d)\n"+
			"  hint: update the module github.com/spillway-ml/spillway to that of the engine", r.version, wire.WorkflowVersion)
	case r.pipeline != "" && len(names) > 0 && !slices.Contains(names, r.pipeline):
		return fmt.Sprintf("it is the history of a run of pipeline %q, and this test is about %s\n"+
			"  hint: give Replay that pipeline, or record a run of this one", r.pipeline, strings.Join(names, ", "))
	default:
		return ""
	}
}

// ports lead to the same steps as the engine's: their effects are there wherever the engine's are, and a replay takes
// their outcome from the history.
func (r recording) ports(stages []runs.AnyStage) runs.Ports {
	app, build, found := wire.ParseWorkflowQueue(r.queue)
	if !found {
		app, build = "replay", "replay"
	}
	return runs.Ports{
		App: app, Build: build, Stages: stages,
		Find: func(context.Context, wire.Lookup) ([]*wire.Kept, error) { return nil, nil },
		End:  func(context.Context, runs.Ended) error { return nil },
	}
}
