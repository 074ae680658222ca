// Package events has the commands by which events start runs: trigger, bind, unbind, bindings, dead.
package events

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	return []*cobra.Command{
		triggerCommand(t), bindCommand(t), unbindCommand(t), bindingsCommand(t), deadCommand(t),
	}
}

func triggerCommand(t *tool.Tool) *cobra.Command {
	flags := &flag.Event{}
	var asJSON bool
	command := &cobra.Command{
		Use:   "trigger PIPELINE [FLAGS]",
		Short: "Start a run on the running stack and do not wait for it",
		Long: `Publish an event that starts a run of a pipeline, and print the run's name. The stack must be
running (` + "`spillway dev`" + `). An event with the ID of an earlier one starts nothing, so a trigger may be
repeated safely when its ID is given; with another input it is refused. Stages that declare a cache
take the result of an earlier run of the same code whose input was the same; with --cache all stages
do.

Where earlier runs tell, it says when the run is expected to end and for how much, each with the
interval in which 8 of 10 runs end, and warns when that misses the deadline or the budget. A
forecast never keeps a run from starting.

The exit code is 0 when the event is durable, 1 when no stack runs, and 2 when there is no such
pipeline or the event can start nothing.`,
		Example: `  spillway trigger digits
  spillway trigger train --id nightly-2026-11-20 --input input.json --deadline 2h --budget 1.50`,
		Args:              flag.Positional("the name of a pipeline"),
		ValidArgsFunction: session.Complete(t, session.PipelineNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return trigger(cmd.Context(), t, args[0], flags, asJSON)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the event and the run as JSON")
	flags.Add(command.Flags())
	return command
}

func trigger(ctx context.Context, t *tool.Tool, pipeline string, flags *flag.Event, asJSON bool) error {
	input, err := flag.ReadInput(flags.Input, t.Deps.Stdin)
	if err != nil {
		return err
	}
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	published, err := s.Client.Publish(ctx, flags.Event(pipeline, input))
	if err != nil {
		return err
	}
	view, began := s.Began(ctx, published.Run)
	began = began && !display.Ended(view) // an event of before starts nothing
	if asJSON {
		told := triggered{Published: published}
		if began && !view.Predicted.At.IsZero() {
			told.Forecast = &view.Predicted
		}
		return t.WriteJSON(told)
	}
	t.Say("run %s is triggered by event %s; `spillway show %s --follow` shows it\n", published.Run, published.Event,
		published.Run)
	if began {
		for _, line := range display.Expected(view) {
			t.Say("%s\n", display.Own(line))
		}
	}
	return nil
}

// triggered is what --json prints. Forecast is what is expected of the run; nil while nothing is, or the run has not
// begun within moments.
type triggered struct {
	web.Published

	Forecast *ledger.RunPrediction `json:"forecast,omitempty"`
}
