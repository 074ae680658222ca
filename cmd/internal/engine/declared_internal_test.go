package engine

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/taskqueue/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/converter"

	"github.com/spillway-ml/spillway/activities/artifact"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// begun is Temporal with workflows that have begun.
type begun struct {
	client.Client

	queues map[string]string          // by workflow
	tuned  map[string]string          // the run of each workflow that tunes
	inputs map[string]json.RawMessage // by workflow
	away   error                      // what it answers instead
}

func (b *begun) DescribeWorkflowExecution(
	_ context.Context, id, _ string,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	queue, is := b.queues[id]
	if b.away != nil {
		return nil, b.away
	}
	if !is {
		return nil, serviceerror.NewNotFound("workflow not found")
	}
	described := &workflowservice.DescribeWorkflowExecutionResponse{
		ExecutionConfig:       &workflowpb.WorkflowExecutionConfig{TaskQueue: &taskqueue.TaskQueue{Name: queue}},
		WorkflowExecutionInfo: &workflowpb.WorkflowExecutionInfo{Type: &common.WorkflowType{Name: "one"}},
	}
	if run, tunes := b.tuned[id]; tunes {
		described.WorkflowExecutionInfo.Type.Name = runs.TuneWorkflow
		described.WorkflowExecutionInfo.ParentExecution = &common.WorkflowExecution{WorkflowId: run}
	}
	return described, nil
}

func (b *begun) GetWorkflowHistory(
	_ context.Context, id, _ string, _ bool, _ enums.HistoryEventFilterType,
) client.HistoryEventIterator {
	payloads, err := converter.GetDefaultDataConverter().ToPayloads(b.inputs[id])
	if err != nil {
		payloads = &common.Payloads{}
	}
	started := &historypb.WorkflowExecutionStartedEventAttributes{Input: payloads}
	return &oneEvent{event: &historypb.HistoryEvent{
		EventType: enums.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
		Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
			WorkflowExecutionStartedEventAttributes: started,
		},
	}}
}

// keepBuild stores a build with this description, and returns its digest.
func keepBuild(t *testing.T, state string, app loopwire.App) string {
	t.Helper()
	const digest = "0123456789ab"
	place := filepath.Join(state, "builds", app.Name+"@"+digest)
	description, err := json.Marshal(app)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(
		os.MkdirAll(place, 0o700), os.WriteFile(filepath.Join(place, app.Name), nil, 0o600),
		os.WriteFile(filepath.Join(place, "describe.json"), description, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	return digest
}

// keepChain stores a chain.
func keepChain(t *testing.T, e *stores, c chain.Chain, err error) predictor.StageID {
	t.Helper()
	if err == nil {
		_, _, err = e.chains.Put(c)
	}
	if err != nil {
		t.Fatal(err)
	}
	return predictor.StageID{App: c.Name(), Build: c.Digest(), Name: c.Name()}
}

// TestAttackCommandsThatNothingServedDeclares asks for commands in the name of stages of a build, a chain and a single
// command.
func TestAttackCommandsThatNothingServedDeclares(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	store, err := artifact.Open(filepath.Join(state, "artifacts"))
	if err != nil {
		t.Fatal(err)
	}
	e := &stores{builds: build.NewStore(state, nil), chains: build.NewChains(state), store: &artifacts{Store: store}}
	single, err := chain.Single("one")
	one := keepChain(t, e, single, err)
	parsed, err := chain.Parse("hello.yaml", []byte("name: hello\ncode: none\nstages:\n  hello:\n    run: echo hello\n"),
		chain.Checks{})
	hello := keepChain(t, e, parsed, err)
	digest := keepBuild(t, state, loopwire.App{
		Version: loopwire.Version, Name: "app",
		Stages: []loopwire.Stage{{Name: "shell", Command: true}, {Name: "score"}},
	})
	shell, score := predictor.StageID{App: "app", Build: digest, Name: "shell"},
		predictor.StageID{App: "app", Build: digest, Name: "score"}
	temporal := &begun{
		queues: map[string]string{
			"app-1": loopwire.WorkflowQueue("app", digest), "one-1": loopwire.WorkflowQueue(one.App, one.Build), "evil": "evil",
			"one-3": loopwire.WorkflowQueue(one.App, one.Build), "one-3/one-tune": loopwire.WorkflowQueue(one.App, one.Build),
		},
		tuned: map[string]string{"one-3/one-tune": "one-3"},
		inputs: map[string]json.RawMessage{
			"one-1": json.RawMessage(`{"command":{"arguments":["id"]}}`),
			"evil":  json.RawMessage(`{"command":{"arguments":["sh","-c","touch owned"]}}`),
			"one-3": json.RawMessage(`{"command":{"arguments":["echo","{word}"]},"tuning":{"objective":"loss",` +
				`"options":{"trials":1,"most":1},"space":[{"name":"word","kind":"choice","choices":["a","b"]}]}}`),
			"one-3/one-tune": json.RawMessage(`{"command":{"arguments":["sh","-c","touch owned"]}}`),
		},
	}
	e.temporal = temporal
	owned := []string{"sh", "-c", "touch owned"}
	for _, tt := range []struct {
		name, workflow string
		stage          predictor.StageID
		arguments      []string
		refused        bool
	}{
		{"a command of a build", "app-1", shell, owned, false},
		{"a function of a build", "app-1", score, owned, true},
		{"no stage of a build", "app-1", predictor.StageID{App: "app", Build: digest, Name: "none"}, owned, true},
		{"a command of a build, by a workflow of another queue", "evil", shell, owned, true},
		{"a command of a build, by no workflow", "none", shell, owned, true},
		{"the command of a chain", "hello-1", hello, []string{"sh", "-e", "-c", "echo hello"}, false},
		{"another command of a chain", "hello-1", hello, owned, true},
		{"the command of a run", "one-1", one, []string{"id"}, false},
		{"another command than the run's", "one-1", one, owned, true},
		{"the command of a run of another queue", "evil", one, owned, true},
		{"a command of no run", "one-2", one, owned, true},
		{"the command of a trial", "one-3/one-tune", one, []string{"echo", "b"}, false},
		{"another command than a trial's", "one-3/one-tune", one, owned, true},
		{"a value that is none of the space's", "one-3/one-tune", one, []string{"echo", "c"}, true},
	} {
		command := loopwire.Command{Arguments: tt.arguments}
		if tt.workflow == "one-3/one-tune" {
			command.Parameters = map[string]float64{"trial.units": 1}
			loopwire.AddCategories(command.Parameters, "word", tt.arguments[1])
		}
		err := e.declared(t.Context(), slot.Order{
			Workflow: tt.workflow, Task: loopwire.Task{Stage: tt.stage}, Command: command,
		})
		if tt.refused && !errors.Is(err, slot.ErrUndeclared) || !tt.refused && err != nil {
			t.Errorf("%s: got %v, want refused %t", tt.name, err, tt.refused)
		}
	}
	unknown := slot.Order{Workflow: "app-1", Task: loopwire.Task{Stage: predictor.StageID{
		App:   "app",
		Build: "ba9876543210", Name: "shell",
	}}}
	if err := e.declared(t.Context(), unknown); !errors.Is(err, build.ErrUnknownBuild) ||
		errors.Is(err, slot.ErrUndeclared) {
		t.Errorf("a build that is not here: got %v, want that it may be built again", err)
	}
	temporal.away = errors.New("temporal is away")
	if err := e.declared(t.Context(), slot.Order{Workflow: "app-1", Task: loopwire.Task{Stage: shell}}); err == nil ||
		errors.Is(err, slot.ErrUndeclared) {
		t.Errorf("while Temporal is away: got %v, want no word about the command", err)
	}
}
