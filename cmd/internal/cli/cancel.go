package cli

import (
	"context"

	"github.com/spf13/cobra"
)

func (t *tool) cancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel RUN",
		Short: "End a run",
		Long: `Ask that a run ends. Its attempts are told, have a few seconds to stop, and are then killed; the run ends as
cancelled. What it has stored and spent stays.`,
		Example: `  spillway cancel digits-7f3a9c`,
		Args:    positional("the name of a run"),
		RunE:    func(cmd *cobra.Command, args []string) error { return t.cancel(cmd.Context(), args[0]) },
	}
}

func (t *tool) cancel(ctx context.Context, run string) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	if err := session.client.Cancel(ctx, run); err != nil {
		return err
	}
	t.say("run %s is told to end\n", run)
	return nil
}
