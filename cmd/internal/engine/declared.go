package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.temporal.io/api/serviceerror"
	workflowpb "go.temporal.io/api/workflow/v1"
	"go.temporal.io/api/workflowservice/v1"

	loopwire "github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// declared says whether a host may run a command. A chain declares what its stages run; a single command is declared by
// the input of its run; a build declares which of its stages run commands, and its runs say which. Builds and chains
// are stored for as long as runs of theirs go on.
func (s *stores) declared(ctx context.Context, order slot.Order) error {
	stage := order.Task.Stage
	c, err := s.chains.Get(stage.App, stage.Build)
	switch {
	case errors.Is(err, build.ErrUnknownBuild):
		return s.declaredByBuild(ctx, order)
	case err != nil:
		return err
	case takesAnyCommand(&c):
		return s.declaredByRun(ctx, order)
	}
	if err := c.Permits(stage.Name, order.Command); err != nil {
		return fmt.Errorf("%w: %w", slot.ErrUndeclared, err)
	}
	return nil
}

// declaredByBuild is declared for the stages of a binary.
func (s *stores) declaredByBuild(ctx context.Context, order slot.Order) error {
	stage := order.Task.Stage
	app, err := s.builds.Get(ctx, stage.App, stage.Build)
	if err != nil {
		return err // it may be built again
	}
	for _, declared := range app.Descriptor.Stages {
		if declared.Name == stage.Name && declared.Command {
			_, err := s.isOfBuild(ctx, order)
			return err
		}
	}
	return fmt.Errorf("%w: app %s has no stage %s that runs commands", slot.ErrUndeclared, stage.App, stage.Name)
}

// isOfBuild refuses what a workflow asks for that is none of the task's build.
func (s *stores) isOfBuild(
	ctx context.Context, order slot.Order,
) (*workflowservice.DescribeWorkflowExecutionResponse, error) {
	described, err := s.temporal.DescribeWorkflowExecution(ctx, order.Workflow, "")
	if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
		return nil, fmt.Errorf("%w: there is no workflow %s", slot.ErrUndeclared, order.Workflow)
	}
	if err != nil {
		return nil, fmt.Errorf("look at workflow %s: %w", order.Workflow, err)
	}
	stage, queue := order.Task.Stage, described.GetExecutionConfig().GetTaskQueue().GetName()
	if queue != loopwire.WorkflowQueue(stage.App, stage.Build) {
		return nil, fmt.Errorf("%w: workflow %s is one of %s", slot.ErrUndeclared, order.Workflow, queue)
	}
	return described, nil
}

// broughtBy is the run whose input brings the commands that a workflow asks for: of a tuning, the run that it is a
// child of.
func broughtBy(workflow string, info *workflowpb.WorkflowExecutionInfo) string {
	if parent := info.GetParentExecution(); parent != nil && info.GetType().GetName() == runs.TuneWorkflow {
		return parent.GetWorkflowId()
	}
	return workflow
}

// declaredByRun is declared for a command that comes with its run.
func (s *stores) declaredByRun(ctx context.Context, order slot.Order) error {
	described, err := s.isOfBuild(ctx, order)
	if err != nil {
		return err
	}
	input, err := s.inputOf(ctx, broughtBy(order.Workflow, described.GetWorkflowExecutionInfo()))
	if err != nil {
		return err
	}
	var run chain.SingleInput
	if err := json.Unmarshal(input, &run); err != nil {
		return fmt.Errorf("%w: the input of run %s: %w", slot.ErrUndeclared, order.Workflow, err)
	}
	if err := run.Permits(order.Command); err != nil {
		return fmt.Errorf("%w: run %s: %w", slot.ErrUndeclared, order.Workflow, err)
	}
	return nil
}
