package workflows

import (
	"context"
	"fmt"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// The messages of a command stage.
type (
	// Command is a program to run, with the files that it reads and writes.
	Command = wire.Command
	// CommandFile is an artifact in the working directory of a command.
	CommandFile = wire.CommandFile
	// CommandOutput names what a command leaves for later stages.
	CommandOutput = wire.CommandOutput
	// CommandResult is the output of a command stage.
	CommandResult = wire.CommandResult
	// Ref addresses the bytes of an artifact, such as a file of a command.
	Ref = activities.Ref
)

// NewCommand declares a stage that runs a program, in any language, instead of a Go function:
//
//	var Train = spillway.NewCommand("train").With(spillway.Hints{Memory: 2 * spillway.GiB})
//
//	result, err := Train.Run(ctx, spillway.Command{Arguments: []string{"python3", "train.py"}, Code: in.Code})
//
// It runs at functions, too, unless it needs what they do not have: see [Command.PoolOnly]. Declare it once, as a package variable, and list it in app.Main, like every stage.
// It panics when the name is no name (see NewStage).
func NewCommand(name string) Stage[Command, CommandResult] {
	mustName("stage", name)
	runs.Declare(name)
	return Stage[Command, CommandResult]{
		name: name, command: true,
		run: func(context.Context, Command) (CommandResult, error) {
			return CommandResult{}, fmt.Errorf("stage %s: %w: run the pipeline with an engine, such as `spillway run`; %w", name,
				runs.ErrHostRuns, ErrPermanent)
		},
	}
}
