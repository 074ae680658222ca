package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func (t *tool) triggerCommand() *cobra.Command {
	flags := &eventFlags{}
	var asJSON bool
	command := &cobra.Command{
		Use:   "trigger PIPELINE [FLAGS]",
		Short: "Start a run on the running stack and do not wait for it",
		Long: `Publish an event that starts a run of a pipeline, and print the run's name. The stack must be
running (` + "`spillway dev`" + `). An event with the ID of an earlier one starts nothing, so a trigger may be
repeated safely when its ID is given. Stages that declare a cache take the result of an earlier run
of the same code whose input was the same; with --cache all stages do.

The exit code is 0 when the event is durable, 1 when no stack runs, and 2 when there is no such
pipeline or the event can start nothing.`,
		Example: `  spillway trigger digits
  spillway trigger train --id nightly-2026-11-20 --input input.json --deadline 2h --budget 1.50`,
		Args:              positional("the name of a pipeline"),
		ValidArgsFunction: t.complete(pipelineNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return t.trigger(cmd.Context(), args[0], flags, asJSON) },
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the event and the run as JSON")
	flags.add(command.Flags())
	return command
}

func (t *tool) trigger(ctx context.Context, pipeline string, flags *eventFlags, asJSON bool) error {
	input, err := readInput(flags.input, t.deps.Stdin)
	if err != nil {
		return err
	}
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	published, err := session.client.Publish(ctx, flags.event(pipeline, input))
	if err != nil {
		return err
	}
	if asJSON {
		return t.writeJSON(published)
	}
	t.say("run %s is triggered by event %s; `spillway show %s --follow` shows it\n", published.Run, published.Event, published.Run)
	return nil
}
