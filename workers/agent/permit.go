package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/slot"
)

// ErrUndeclared says that nothing that the engine serves declares a command.
var ErrUndeclared = errors.New("this command is not declared")

// Order is a command that a task asks the host for.
type Order struct {
	// Workflow is that which has scheduled the task: the run's, or that of a part of it.
	Workflow string
	// Task is the task, Command its input.
	Task    wire.Task
	Command wire.Command
}

// permit refuses a command that is not declared, before anything is accounted for: who reaches Temporal could else run
// any program here.
func (a *Agent) permit(ctx context.Context, task wire.Task, input json.RawMessage) error {
	if !task.Command {
		return nil
	}
	order := Order{Workflow: activity.GetInfo(ctx).WorkflowExecution.ID, Task: task}
	if err := json.Unmarshal(input, &order.Command); err != nil {
		return slot.Refuse(fmt.Errorf("task %s of %s: the command does not decode: %w", task.ID, task.Stage, err))
	}
	err := ErrUndeclared
	if a.declared != nil {
		err = a.declared(ctx, order)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUndeclared):
		a.logger.WarnContext(ctx, "a command was refused", "run", task.Run, "task", task.ID, "stage", task.Stage.String(),
			"error", err)
		return slot.Refuse(fmt.Errorf("task %s of %s: %w", task.ID, task.Stage, err))
	default:
		text := fmt.Sprintf("task %s of %s: find out whether its command is declared: %v", task.ID, task.Stage, err)
		return temporal.NewApplicationErrorWithOptions(text, wire.LostError, temporal.ApplicationErrorOptions{Cause: err})
	}
}
