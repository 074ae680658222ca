package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func (t *tool) cancelCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "cancel RUN [FLAGS]",
		Short: "End a run",
		Long: `Ask that a run ends. Its attempts are told, have a few seconds to stop, and are then killed; the run
ends as cancelled. What it has stored and spent stays. It returns at once; "spillway show RUN
--follow" waits.

The exit code is 0 when the run was told, and 1 when there is none or it has ended.`,
		Example:           `  spillway cancel digits-7f3a9c`,
		Args:              positional("the name of a run"),
		ValidArgsFunction: t.complete(runNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return t.cancel(cmd.Context(), args[0], asJSON) },
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the run as JSON")
	return command
}

func (t *tool) cancel(ctx context.Context, run string, asJSON bool) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	if err := session.client.Cancel(ctx, run); err != nil {
		return t.withNearRuns(ctx, session, err, run)
	}
	if asJSON {
		return t.writeJSON(map[string]string{"run": run})
	}
	t.say("run %s is told to end\n", run)
	return nil
}
