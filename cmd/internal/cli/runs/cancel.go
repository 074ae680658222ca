package runs

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

func cancelCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "cancel RUN [FLAGS]",
		Short: "End a run",
		Long: `Ask that a run ends. Its attempts are told, have a few seconds to stop, and are then killed; the run
ends as cancelled. What it has stored and spent stays. It returns at once; "spillway show RUN
--follow" waits.

The exit code is 0 when the run was told, 1 when it has ended, and 2 when there is none.`,
		Example:           `  spillway cancel digits-7f3a9c`,
		Args:              flag.Positional("the name of a run"),
		ValidArgsFunction: session.Complete(t, session.RunNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return cancel(cmd.Context(), t, args[0], asJSON) },
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the run as JSON")
	return command
}

func cancel(ctx context.Context, t *tool.Tool, run string, asJSON bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	if err := s.Client.Cancel(ctx, run); err != nil {
		return session.WithNearRuns(ctx, s, err, run)
	}
	if asJSON {
		return t.WriteJSON(map[string]string{"run": run})
	}
	t.Say("run %s is told to end\n", run)
	return nil
}
