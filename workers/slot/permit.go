package slot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wire"
)

// ErrUndeclared says that nothing that the engine serves declares a command.
var ErrUndeclared = errors.New("this command is not declared")

// Order is a command that a task asks a venue for.
type Order struct {
	// Workflow is that which has scheduled the task: the run's, or that of a part of it.
	Workflow string
	// Task is the task, Command its input.
	Task    wire.Task
	Command wire.Command
}

// Declared says whether an order may be run: an error that wraps ErrUndeclared is final, any other is no word about the
// command.
type Declared func(context.Context, Order) error

// Permit refuses a command that is not declared, before anything is accounted for: who reaches Temporal could else run
// any program. The error is what a Handler returns. A nil Declared refuses every command. Ctx, task and input are those
// of a [Handler].
func Permit(
	ctx context.Context, declared Declared, task wire.Task, input json.RawMessage, logger *slog.Logger,
) error {
	if !task.Command {
		return nil
	}
	order := Order{Workflow: activity.GetInfo(ctx).WorkflowExecution.ID, Task: task}
	if err := json.Unmarshal(input, &order.Command); err != nil {
		return Refuse(fmt.Errorf("task %s of %s: the command does not decode: %w", task.ID, task.Stage, err))
	}
	err := ErrUndeclared
	if declared != nil {
		err = declared(ctx, order)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrUndeclared):
		logger.WarnContext(ctx, "a command was refused", "run", task.Run, "task", task.ID, "stage", task.Stage.String(),
			"error", err)
		return Refuse(fmt.Errorf("task %s of %s: %w", task.ID, task.Stage, err))
	default:
		text := fmt.Sprintf("task %s of %s: find out whether its command is declared: %v", task.ID, task.Stage, err)
		return temporal.NewApplicationErrorWithOptions(text, wire.LostError, temporal.ApplicationErrorOptions{Cause: err})
	}
}
