package runs

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

func diffCommand(t *tool.Tool) *cobra.Command {
	var all, asJSON bool
	command := &cobra.Command{
		Use:   "diff RUN RUN [FLAGS]",
		Short: "Compare two runs: input, build, goal, and each stage",
		Long: `Compare two runs: their input, build and goal, their time and cost, predicted and actual, and for
each stage its tasks, time, cost, sizes, failures and the errors of its predictions. Only what
differs is shown, as it is written: two costs that differ in the fifth digit read the same. With
--all everything is shown. The last column says how the second differs from the first. A stage that
only one run has is told in one line.

Times are summed over tasks, except "time of one", which is the mean of the attempts that succeeded.
The error of predictions is the median: 0% is exact, 100% is twice as much or half.

The exit code is 0 whether the runs differ or not, and 2 when there is no such run.`,
		Example: `  spillway diff digits-7f3a9c digits-b41d02
  spillway diff digits-7f3a9c digits-b41d02 --all
  spillway diff digits-7f3a9c digits-b41d02 --json | jq '.stages[].b.cost_picodollars'`,
		Args:              flag.Positional("the name of a run", "the name of another run"),
		ValidArgsFunction: session.Complete(t, session.RunNames, session.RunNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return diff(cmd.Context(), t, args[0], args[1], all, asJSON)
		},
	}
	command.Flags().BoolVar(&all, "all", false, "show what is equal too")
	command.Flags().BoolVar(&asJSON, "json", false, "print both runs and what is equal as JSON")
	return command
}

func diff(ctx context.Context, t *tool.Tool, a, b string, all, asJSON bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	diff, err := s.Client.Diff(ctx, a, b)
	if err != nil {
		return session.WithNearRuns(ctx, s, err, a, b)
	}
	if asJSON {
		return t.WriteJSON(diff)
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range display.Diff(diff, all, style) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}
