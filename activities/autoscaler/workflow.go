package autoscaler

import (
	"context"
	"fmt"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"
)

const (
	// Queue is the engine's own task queue, on which the autoscaler runs.
	Queue = "spillway-engine"
	// WorkflowID is the ID of the one autoscaler of a namespace.
	WorkflowID = "spillway-autoscaler"
	// WorkflowType is the name under which Register registers Workflow.
	WorkflowType = "spillway.autoscaler"
	// ActivityType is the name under which Register registers Leader.Lead.
	ActivityType = "spillway.autoscaler.lead"
)

const (
	// heartbeatTimeout is how long Temporal waits before it elects again: the longest that nobody leads after a leader was killed.
	heartbeatTimeout = 10 * time.Second
	// attemptFor is the longest that one activity may take; serveFor, a little less, is when it ends by itself.
	attemptFor = 24 * time.Hour
	serveFor   = 23 * time.Hour
	// firstRetry and lastRetry bound the wait before the next leader after one that failed.
	firstRetry = 200 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// Workflow keeps one leader running for ever: each run of it is one activity, retried by the server, which adds nothing to the history.
func Workflow(ctx workflow.Context) error {
	leading := workflow.WithActivityOptions(ctx, workflow.ActivityOptions{
		StartToCloseTimeout: attemptFor,
		HeartbeatTimeout:    heartbeatTimeout,
		RetryPolicy:         &temporal.RetryPolicy{InitialInterval: firstRetry, BackoffCoefficient: 2, MaximumInterval: lastRetry},
	})
	err := workflow.ExecuteActivity(leading, ActivityType).Get(ctx, nil)
	if ctx.Err() != nil { // cancelled by a person: Start starts it again
		return ctx.Err()
	}
	if err != nil { // only an error that forbids retries gets here; wait, so that it cannot become a busy loop
		if err := workflow.Sleep(ctx, lastRetry); err != nil {
			return err
		}
	}
	return workflow.NewContinueAsNewError(ctx, WorkflowType)
}

// Register registers the workflow and the leader's activity.
func Register(registry worker.Registry, leader *Leader) {
	registry.RegisterWorkflowWithOptions(Workflow, workflow.RegisterOptions{Name: WorkflowType})
	registry.RegisterActivityWithOptions(leader.Lead, activity.RegisterOptions{Name: ActivityType})
}

// Start starts the autoscaler; when it runs already, that is fine.
func Start(ctx context.Context, c client.Client) error {
	_, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID:                       WorkflowID,
		TaskQueue:                Queue,
		WorkflowIDConflictPolicy: enumspb.WORKFLOW_ID_CONFLICT_POLICY_USE_EXISTING,
		WorkflowIDReusePolicy:    enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
	}, WorkflowType)
	if err != nil {
		return fmt.Errorf("start the autoscaler: %w", err)
	}
	return nil
}
