package temporalproxy

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// memoOf is the memo of a run that was started for a team.
func memoOf(t *testing.T, team string, version int) *commonpb.Memo {
	t.Helper()
	payload, err := converter.GetDefaultDataConverter().ToPayload(wire.RunOptions{Team: team, Version: version})
	if err != nil {
		t.Fatal(err)
	}
	return &commonpb.Memo{Fields: map[string]*commonpb.Payload{runs.OptionsMemo: payload}}
}

// TestAttackABuildNamesTheQueueOfAnotherTeam orders tasks, and goes on, as runs of other teams.
func TestAttackABuildNamesTheQueueOfAnotherTeam(t *testing.T) {
	t.Parallel()
	var (
		own, pool       = activity("app@1/stage~vision"), activity("app@1/stage~vision.pool")
		robots          = activity("app@1/stage~robots")
		everybodys      = activity("app@1/stage")
		vision, nobodys = owner{team: "vision"}, owner{}
		before, child   = owner{team: "vision", early: true}, owner{team: "vision", child: true}
		continued       = func(memo *commonpb.Memo) *workflowservice.RespondWorkflowTaskCompletedRequest {
			request := again("app@1")
			request.GetCommands()[0].GetContinueAsNewWorkflowExecutionCommandAttributes().Memo = memo
			return request
		}
		now = wire.WorkflowVersion
	)
	for _, c := range []struct {
		name    string
		of      owner
		request *workflowservice.RespondWorkflowTaskCompletedRequest
		refused string
	}{
		{"its team's queue", vision, own, ""},
		{"its team's queue for the pool", vision, pool, ""},
		{"another team's", vision, robots, "team vision"},
		{"the default team's", vision, everybodys, "team vision"},
		{"a team's by a run of none", nobodys, own, "team default"},
		{"the default team's by a run from before there were teams", before, everybodys, ""},
		{"another team's by such a run", before, robots, "team vision"},
		{"its parent's", child, own, ""},
		{"another's than its parent's", child, robots, "team vision"},
		{"going on as it is", vision, continued(memoOf(t, "vision", now)), ""},
		{"going on as another team's", vision, continued(memoOf(t, "robots", now)), "team robots"},
		{"going on as the default team's", vision, continued(memoOf(t, "", now)), "team default"},
		{"going on without a memo", vision, continued(nil), "team default"},
		{"going on as if from before there were teams", vision, continued(memoOf(t, "vision", 4)), "team vision"},
		{"going on as a team's by a run of none", nobodys, continued(memoOf(t, "vision", now)), "team vision"},
		{"going on without a memo by a run of none", nobodys, continued(nil), ""},
		{"going on as a run from before", before, continued(memoOf(t, "vision", 4)), ""},
		{"a child that goes on with no memo of its own", child, continued(nil), ""},
		{"a memo that does not decode", vision, continued(&commonpb.Memo{Fields: map[string]*commonpb.Payload{
			runs.OptionsMemo: {Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: []byte(`"`)},
		}}), "whose"},
	} {
		r, g := ours()
		g.own(run{"app-a", uuid}, c.of)
		err := r.check(c.request, g)
		if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%s: got %v, want a refusal that says %q", c.name, err, c.refused)
		}
	}
	r, g := ours()
	g.owners = map[run]owner{}
	if err := r.check(everybodys, g); err == nil {
		t.Error("a run that is nobody's may order tasks")
	}
}

// histories are how those begin that a Temporal has, by workflow; of a nil one it answers nothing.
type histories map[string]*historypb.WorkflowExecutionStartedEventAttributes

// knowing is a Temporal that has these.
type knowing struct {
	workflowservice.WorkflowServiceClient
	histories histories
}

// GetWorkflowExecutionHistory answers a page with the first event.
func (k knowing) GetWorkflowExecutionHistory(
	_ context.Context, in *workflowservice.GetWorkflowExecutionHistoryRequest, _ ...grpc.CallOption,
) (*workflowservice.GetWorkflowExecutionHistoryResponse, error) {
	started, known := k.histories[in.GetExecution().GetWorkflowId()]
	switch {
	case !known:
		return nil, status.Error(codes.NotFound, "workflow not found")
	case started == nil:
		return nil, status.Error(codes.Unavailable, "away")
	}
	return &workflowservice.GetWorkflowExecutionHistoryResponse{
		History: &historypb.History{Events: []*historypb.HistoryEvent{{
			Attributes: &historypb.HistoryEvent_WorkflowExecutionStartedEventAttributes{
				WorkflowExecutionStartedEventAttributes: started,
			},
		}}},
	}, nil
}

// TestAChildThatOutlivesItsParentIsToldWhyItMayOrderNothing has a child order a task, whose parent Temporal has, has no
// more, or cannot look for. That the task is not found would have its worker drop it without a word.
func TestAChildThatOutlivesItsParentIsToldWhyItMayOrderNothing(t *testing.T) {
	t.Parallel()
	below := func(parent string) *historypb.WorkflowExecutionStartedEventAttributes {
		return &historypb.WorkflowExecutionStartedEventAttributes{
			ParentWorkflowExecution: &commonpb.WorkflowExecution{WorkflowId: parent, RunId: uuid},
		}
	}
	top := &historypb.WorkflowExecutionStartedEventAttributes{Memo: memoOf(t, "", wire.WorkflowVersion)}
	for name, c := range map[string]struct {
		known histories
		want  codes.Code
		says  string
	}{
		"all are there": {histories{"app-a": below("app-b"), "app-b": top}, codes.OK, ""},
		"its parent is gone": {
			histories{"app-a": below("app-b")}, codes.FailedPrecondition, "run app-b has started app-a",
		},
		"its parent's is gone": {
			histories{"app-a": below("app-b"), "app-b": below("app-c")}, codes.FailedPrecondition, "app-c has started app-b",
		},
		"it is gone itself":      {histories{}, codes.NotFound, "app-a"},
		"its parent is not told": {histories{"app-a": below("app-b"), "app-b": nil}, codes.Unavailable, "away"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, g := ours()
			g.owners = map[run]owner{}
			p := &Proxy{
				rights: r, given: g, logger: slog.New(slog.DiscardHandler), temporal: knowing{histories: c.known},
			}
			_, err := p.serve(t.Context(), activity("app@1/stage"), &grpc.UnaryServerInfo{},
				func(context.Context, any) (any, error) {
					return &workflowservice.RespondWorkflowTaskCompletedResponse{}, nil
				})
			if got := status.Code(err); got != c.want || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v that says %q", err, c.want, c.says)
			}
		})
	}
}
