package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

func (t *tool) showCommand() *cobra.Command {
	var asJSON, follow, history bool
	command := &cobra.Command{
		Use:   "show RUN [FLAGS]",
		Short: "Show a run: its stages, what was predicted and what came, and every decision with its reason",
		Long: `Show one run: time, cost and accuracy, predicted and actual; what each stage queued, ran, used and cost; and
every decision about it with the reason. With --follow a run that goes on is shown live until its end.`,
		Example: `  spillway show digits-7f3a9c
  spillway show digits-7f3a9c --json | jq .stages
  spillway show digits-7f3a9c --history > testdata/first.json`,
		Args: positional("the name of a run"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if history {
				return t.history(cmd.Context(), args[0])
			}
			return t.show(cmd.Context(), args[0], asJSON, follow)
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the report as JSON")
	command.Flags().BoolVar(&follow, "follow", false, "show it live until it has ended; the exit code is then that of `run`")
	command.Flags().BoolVar(&history, "history", false, "print the run's recorded history as JSON, for the replay test of its pipeline")
	command.MarkFlagsMutuallyExclusive("history", "follow")
	command.MarkFlagsMutuallyExclusive("history", "json")
	return command
}

func (t *tool) history(ctx context.Context, run string) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	history, err := session.client.History(ctx, run)
	if err != nil {
		return err
	}
	t.say("%s\n", history)
	return nil
}

func (t *tool) show(ctx context.Context, run string, asJSON, follow bool) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	model, err := t.fetch(ctx, session, run, display.Model{})
	if err != nil {
		return err
	}
	if follow {
		viewer := t.newViewer(session, t.viewOutput(asJSON))
		model, err = t.followToEnd(ctx, session, web.Published{Run: run}, viewer, leave)
		if err != nil {
			return err
		}
		return t.conclude(model, session.stack, asJSON, viewer)
	}
	if asJSON {
		return t.writeJSON(display.NewReport(model, session.stack.PoolCPUs, session.stack.FunctionCPUs))
	}
	style, _ := t.styleOf(t.out)
	for _, line := range append(display.Summary(model, style), display.Decisions(model)...) {
		t.say("%s\n", line)
	}
	return nil
}
