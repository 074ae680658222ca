package temporalproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	commandpb "go.temporal.io/api/command/v1"
	commonpb "go.temporal.io/api/common/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// owner is whose a run is. The zero value is the default team's.
type owner struct {
	team string
	// early is a run that was started before builds had to know of teams: its tasks may be the default team's, too.
	early bool
	// child is a workflow that another has started, whose team is that of the run at the top whatever it says itself.
	child bool
}

// ownerIn is whose a run is by the memo that it was started with, which is the engine's word.
func ownerIn(memo *commonpb.Memo) (owner, error) {
	var options wire.RunOptions
	if payload, told := memo.GetFields()[runs.OptionsMemo]; told {
		if err := converter.GetDefaultDataConverter().FromPayload(payload, &options); err != nil {
			return owner{}, fmt.Errorf("read whose the run is: %w", err)
		}
	}
	return owner{team: options.Team, early: options.Version < wire.TeamsVersion}, nil
}

// schedule checks that a task is of the run's own team: who polls a queue charges whom its name says.
func (o owner) schedule(app, build string, in *commandpb.ScheduleActivityTaskCommandAttributes) error {
	queue := in.GetTaskQueue().GetName()
	stage := predictor.StageID{App: app, Build: build, Name: in.GetActivityType().GetName(), Team: o.team}
	if stage.Has(queue) {
		return nil
	}
	if stage.Team = ""; o.early && stage.Has(queue) {
		return nil
	}
	if !strings.HasPrefix(queue, wire.WorkflowQueue(app, build)+"/") {
		return foreignQueue(queue)
	}
	return fmt.Errorf("task queue %q is none of stage %s of team %s, whose the run is: its tasks are that team's",
		queue, stage.Name, predictor.TeamName(o.team))
}

// goesOn checks that a run which continues as new stays whose it is.
func (o owner) goesOn(in *commandpb.ContinueAsNewWorkflowExecutionCommandAttributes) error {
	if o.child {
		return nil
	}
	next, err := ownerIn(in.GetMemo())
	if err != nil {
		return err
	}
	if next.team != o.team || next.early && !o.early && o.team != "" {
		return fmt.Errorf("it is team %s's and would go on as one of team %s: a run stays its team's, and keeps its memo %s",
			predictor.TeamName(o.team), predictor.TeamName(next.team), runs.OptionsMemo)
	}
	return nil
}

// asksWhose reports whether whose a run is decides about what it orders.
func asksWhose(in *workflowservice.RespondWorkflowTaskCompletedRequest) bool {
	for _, command := range in.GetCommands() {
		switch command.GetAttributes().(type) {
		case *commandpb.Command_ScheduleActivityTaskCommandAttributes,
			*commandpb.Command_ContinueAsNewWorkflowExecutionCommandAttributes:
			return true
		}
	}
	return false
}

// learn finds out whose the run is of which a request orders something, where it matters and was not told with a task.
func (p *Proxy) learn(ctx context.Context, request any) error {
	in, is := request.(*workflowservice.RespondWorkflowTaskCompletedRequest)
	if !is || !asksWhose(in) {
		return nil
	}
	of, ok := p.given.of(in.GetTaskToken())
	if !ok {
		return nil // it is refused for that
	}
	_, err := p.whose(ctx, of)
	return err
}

// ErrParentGone is of a child that outlives its parent: it is not the child that Temporal does not find.
var ErrParentGone = errors.New("the run is gone by which it is known whose its child is: it was deleted, or is past " +
	"Temporal's retention; cancel the child")

// whose is the owner of a run, or of the run that a workflow is a child of, from the beginnings of their histories: a
// memo changes while a run goes on, and a child's is its parent's word.
func (p *Proxy) whose(ctx context.Context, of run) (owner, error) {
	if o, known := p.given.owner(of); known {
		return o, nil
	}
	started, err := begun(ctx, p.temporal, p.rights.namespace, of)
	if err != nil {
		return owner{}, err
	}
	var o owner
	if parent := started.GetParentWorkflowExecution(); parent != nil {
		o, err = p.whose(ctx, runOf(parent))
		if status.Code(err) == codes.NotFound {
			err = fmt.Errorf("%w: run %s has started %s", ErrParentGone, parent.GetWorkflowId(), of.workflow)
		}
		o.child = true
	} else {
		o, err = ownerIn(started.GetMemo())
	}
	if err != nil {
		return owner{}, err
	}
	p.given.own(of, o)
	return o, nil
}

// TeamOf is the team of a run, empty for the default one, by the beginning of its history, or of that of the run at the
// top where it is a child: these are no build's word. Temporal is that of a client of the SDK. Where it has the run no
// more, the error is a serviceerror.NotFound; where it has a parent no more, it wraps ErrParentGone.
func TeamOf(
	ctx context.Context, temporal workflowservice.WorkflowServiceClient, namespace, workflow string,
) (string, error) {
	for of := (run{workflow: workflow}); ; {
		started, err := begun(ctx, temporal, namespace, of)
		if _, gone := errors.AsType[*serviceerror.NotFound](err); gone && of.workflow != workflow {
			return "", fmt.Errorf("%w: run %s is at the top of %s", ErrParentGone, of.workflow, workflow)
		}
		if err != nil {
			return "", err
		}
		parent := started.GetParentWorkflowExecution()
		if parent == nil {
			o, err := ownerIn(started.GetMemo())
			return o.team, err
		}
		of = runOf(parent)
	}
}

// begun is the start of a run; of its latest execution where it names none.
func begun(
	ctx context.Context, temporal workflowservice.WorkflowServiceClient, namespace string, of run,
) (*historypb.WorkflowExecutionStartedEventAttributes, error) {
	answer, err := temporal.GetWorkflowExecutionHistory(ctx, &workflowservice.GetWorkflowExecutionHistoryRequest{
		Namespace: namespace, MaximumPageSize: 1,
		Execution: &commonpb.WorkflowExecution{WorkflowId: of.workflow, RunId: of.run},
	})
	if err != nil {
		return nil, fmt.Errorf("find out whose run %s is: %w", of.workflow, err)
	}
	started := beginning(answer.GetHistory())
	if started == nil {
		return nil, fmt.Errorf("find out whose run %s is: its history does not begin with a start", of.workflow)
	}
	return started, nil
}

// beginning is the start of a run in its history; nil where that begins later.
func beginning(history *historypb.History) *historypb.WorkflowExecutionStartedEventAttributes {
	if events := history.GetEvents(); len(events) > 0 {
		return events[0].GetWorkflowExecutionStartedEventAttributes()
	}
	return nil
}
