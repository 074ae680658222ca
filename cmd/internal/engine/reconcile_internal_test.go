package engine

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/api/common/v1"
	"go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/spillway-ml/spillway/activities/ledgerstore"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/telemetry"
	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// noon is when the runs of these tests begin.
var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

var someStage = predictor.StageID{App: "app", Build: "b1", Name: "score"}

// someTemporal is a Temporal that knows a few workflows. As a real one it answers nobody whose context has ended.
type someTemporal struct {
	client.Client
	workflows  map[string]*workflowpb.WorkflowExecutionInfo // by ID
	children   map[string][]string                          // of those that are open, by the ID of their parent
	reasons    map[string]string                            // why it was terminated, by ID
	looked     []string                                     // in the order of the looks
	terminated []string                                     // in the order of their ends
	terminate  func(id string)                              // is told of each termination; nil for none
	began      map[string]*historypb.HistoryEvent           // how histories begin, by ID; those of others are gone
}

// service is what it answers in the form of its API.
type service struct {
	workflowservice.WorkflowServiceClient
	of *someTemporal
}

func (s *someTemporal) WorkflowService() workflowservice.WorkflowServiceClient { return service{of: s} }

func (s service) GetWorkflowExecutionHistory(
	_ context.Context, in *workflowservice.GetWorkflowExecutionHistoryRequest, _ ...grpc.CallOption,
) (*workflowservice.GetWorkflowExecutionHistoryResponse, error) {
	event := s.of.began[in.GetExecution().GetWorkflowId()]
	if event == nil {
		return nil, serviceerror.NewNotFound("workflow not found")
	}
	return &workflowservice.GetWorkflowExecutionHistoryResponse{
		History: &historypb.History{Events: []*historypb.HistoryEvent{event}},
	}, nil
}

// someServer is where it is.
type someServer struct{ temporalServer }

func (someServer) Namespace() string { return "default" }

func (s *someTemporal) DescribeWorkflowExecution(
	ctx context.Context, id, _ string,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	s.looked = append(s.looked, id)
	info := s.workflows[id]
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if info == nil {
		return nil, serviceerror.NewNotFound("workflow not found")
	}
	described := &workflowservice.DescribeWorkflowExecutionResponse{WorkflowExecutionInfo: info}
	for _, child := range s.children[id] {
		pending := &workflowpb.PendingChildExecutionInfo{WorkflowId: child}
		described.PendingChildren = append(described.PendingChildren, pending)
	}
	return described, nil
}

func (s *someTemporal) TerminateWorkflow(ctx context.Context, id, _, reason string, _ ...any) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	info := s.workflows[id]
	if info == nil || info.GetStatus() != enums.WORKFLOW_EXECUTION_STATUS_RUNNING {
		return serviceerror.NewNotFound("workflow execution already completed")
	}
	info.Status, info.CloseTime = enums.WORKFLOW_EXECUTION_STATUS_TERMINATED, timestamppb.Now()
	s.terminated, s.reasons[id] = append(s.terminated, id), reason
	if s.terminate != nil {
		s.terminate(id)
	}
	return nil
}

func (s *someTemporal) GetWorkflowHistory(
	_ context.Context, id, _ string, _ bool, _ enums.HistoryEventFilterType,
) client.HistoryEventIterator {
	terminated := &historypb.WorkflowExecutionTerminatedEventAttributes{Reason: s.reasons[id]}
	return &oneEvent{event: &historypb.HistoryEvent{
		EventType: enums.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
		Attributes: &historypb.HistoryEvent_WorkflowExecutionTerminatedEventAttributes{
			WorkflowExecutionTerminatedEventAttributes: terminated,
		},
	}}
}

func (s *someTemporal) ListWorkflow(
	context.Context, *workflowservice.ListWorkflowExecutionsRequest,
) (*workflowservice.ListWorkflowExecutionsResponse, error) {
	listed := &workflowservice.ListWorkflowExecutionsResponse{}
	for _, info := range s.workflows {
		if info.GetStatus() == enums.WORKFLOW_EXECUTION_STATUS_RUNNING {
			listed.Executions = append(listed.Executions, info)
		}
	}
	return listed, nil
}

// oneEvent iterates over a single event.
type oneEvent struct{ event *historypb.HistoryEvent }

func (o *oneEvent) HasNext() bool { return o.event != nil }

func (o *oneEvent) Next() (event *historypb.HistoryEvent, err error) {
	event, o.event = o.event, nil
	return event, nil
}

// workflowOf describes a workflow of an app of this engine.
func workflowOf(id, kind string, status enums.WorkflowExecutionStatus) *workflowpb.WorkflowExecutionInfo {
	return &workflowpb.WorkflowExecutionInfo{
		Execution: &common.WorkflowExecution{WorkflowId: id, RunId: id + " at noon"}, Type: &common.WorkflowType{Name: kind},
		TaskQueue: "app@b1", Status: status,
	}
}

// engineOver is what of an engine looks after the ends of runs, with a NATS server of its own. Its observer has taken
// in the events.
func engineOver(t *testing.T, temporal *someTemporal, events ...predictor.Event) (*Engine, jetstream.JetStream) {
	t.Helper()
	stream := natstest.Start(t).Connect()
	if err := loop.EnsureStreams(t.Context(), stream); err != nil {
		t.Fatal(err)
	}
	done := jetstream.StreamConfig{Name: loopwire.DoneStream, Subjects: []string{loopwire.DoneSubjects}}
	if _, err := stream.CreateStream(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	discard := slog.New(slog.DiscardHandler)
	temporal.reasons = map[string]string{}
	accounts, err := ledgerstore.Open(t.Context(), "", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = accounts.Close() })
	e := &Engine{
		front: &front{venues: &venues{reports: &reports{
			stores: &stores{
				base: &base{
					lifecycle: newLifecycle(t.Context(), discard), servers: &servers{temporalServer: someServer{}},
				},
				temporal: temporal, ledger: accounts,
			},
			recorder: loop.NewRecorder(stream, nil), observer: newObserver(telemetry.NewMetrics(), false, extent{}, discard),
		}}},
	}
	e.lead.set(1)
	t.Cleanup(func() { _ = e.recorder.Close(context.WithoutCancel(t.Context())) })
	for i, event := range events {
		if err := e.observer.apply(lineOf(uint64(i)+1, event)); err != nil {
			t.Fatal(err)
		}
	}
	return e, stream
}

// inStream lists the events that the loop's stream holds.
func inStream(t *testing.T, stream jetstream.JetStream) (events []predictor.Event) {
	t.Helper()
	lines, err := stream.Stream(t.Context(), loopwire.LoopStream)
	if err != nil {
		t.Fatal(err)
	}
	for sequence := uint64(1); sequence <= lines.CachedInfo().State.LastSeq; sequence++ {
		raw, err := lines.GetMsg(t.Context(), sequence)
		if err != nil {
			t.Fatal(err)
		}
		message, err := loopwire.DecodeMessage(raw.Data)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, message.Event)
	}
	return events
}

// TestARunOfWhichOnlyAttemptsToldEndsInTheLedger has an engine begin whose stream does not tell any more of a run that
// the ledger knows by an attempt: its start and its end were lost, and Temporal has forgotten it.
func TestARunOfWhichOnlyAttemptsToldEndsInTheLedger(t *testing.T) {
	t.Parallel()
	e, stream := engineOver(t, &someTemporal{})
	e.config = &Config{Clock: time.Now}
	keeping, end := context.WithCancel(t.Context())
	var kept sync.WaitGroup
	t.Cleanup(kept.Wait)
	t.Cleanup(end)
	kept.Go(func() { _ = e.ledger.Keep(keeping, stream, nil) }) // until it ends
	reach := func(sequence int) {
		t.Helper()
		waiting, cancel := context.WithTimeout(t.Context(), natstest.Patience)
		defer cancel()
		if err := e.ledger.Reach(waiting, uint64(sequence)); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.recorder.Record(t.Context(), predictor.Record{
		Run: "r", Stage: someStage, Task: "score-0", Attempt: 1, Outcome: predictor.Succeeded, At: noon,
	}); err != nil {
		t.Fatal(err)
	}
	reach(1)
	if err := e.findRuns(t.Context(), time.Time{}); err != nil {
		t.Fatal(err)
	}
	reach(2) // that it began
	for i, event := range inStream(t, stream)[1:] {
		if err := e.observer.apply(lineOf(uint64(i)+2, event)); err != nil {
			t.Fatal(err)
		}
	}
	reconciler := newReconciler(e)
	for range goneSweeps {
		reconciler.sweep(t.Context(), e.observer.silent(time.Now().Add(time.Hour)))
	}
	reach(len(inStream(t, stream)))
	if view, known, err := e.ledger.Run(t.Context(), "r"); err != nil || !known || view.State != predictor.RunFailed {
		t.Errorf("the ledger knows the run: %t, %v; it is %s", known, err, view.State)
	}
	if err := e.ledger.EachRun(t.Context(), time.Now().Add(time.Hour), func(run string, _, _, _ time.Time) error {
		t.Errorf("run %s goes on", run)
		return nil
	}); err != nil {
		t.Error(err)
	}
}

func TestARunWhoseEndWasToldBeforeItWasHeardOfAgainIsToldOnce(t *testing.T) {
	t.Parallel()
	temporal := &someTemporal{workflows: map[string]*workflowpb.WorkflowExecutionInfo{
		"r": workflowOf("r", "digits", enums.WORKFLOW_EXECUTION_STATUS_TIMED_OUT),
	}}
	// The ledger knows nothing of the run but this late word.
	late := predictor.AttemptStarted{Run: "r", Stage: someStage, Task: "score-0", Attempt: 1, At: noon}
	e, stream := engineOver(t, temporal, late)
	over := runs.Conclude(predictor.RunStarted{Run: "r", Pipeline: "digits", At: noon}, nil, errTimedOut, noon)
	if err := e.recorder.End(t.Context(), over.Started, over.Ended, over.Done); err != nil {
		t.Fatal(err)
	}
	reconciler := newReconciler(e)
	for sweep := range 2 {
		silent := e.observer.silent(noon.Add(time.Hour))
		if want := 1 - sweep; len(silent) != want {
			t.Fatalf("sweep %d: %d runs seem to go on, want %d", sweep, len(silent), want)
		}
		reconciler.sweep(t.Context(), silent)
	}
	if view, err := e.Run(t.Context(), "r"); err != nil || view.State != predictor.RunFailed || view.Pipeline != "digits" {
		t.Errorf("the run of pipeline %q is %s, %v", view.Pipeline, view.State, err)
	}
	ends := slices.DeleteFunc(inStream(t, stream), func(event predictor.Event) bool {
		_, is := event.(predictor.RunEnded)
		return !is
	})
	if len(ends) != 1 {
		t.Errorf("its end is told %d times, want once", len(ends))
	}
	if !slices.Equal(temporal.looked, []string{"r"}) {
		t.Errorf("looked at %q, want once at the run", temporal.looked)
	}
}
