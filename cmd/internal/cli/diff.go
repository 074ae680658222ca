package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
)

func (t *tool) diffCommand() *cobra.Command {
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

The exit code is 0 whether the runs differ or not, and 1 when there is no such run.`,
		Example: `  spillway diff digits-7f3a9c digits-b41d02
  spillway diff digits-7f3a9c digits-b41d02 --all
  spillway diff digits-7f3a9c digits-b41d02 --json | jq '.stages[].b.cost_picodollars'`,
		Args:              positional("the name of a run", "the name of another run"),
		ValidArgsFunction: t.complete(runNames, runNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.diff(cmd.Context(), args[0], args[1], all, asJSON)
		},
	}
	command.Flags().BoolVar(&all, "all", false, "show what is equal too")
	command.Flags().BoolVar(&asJSON, "json", false, "print both runs and what is equal as JSON")
	return command
}

func (t *tool) diff(ctx context.Context, a, b string, all, asJSON bool) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	diff, err := session.client.Diff(ctx, a, b)
	if err != nil {
		return t.withNearRuns(ctx, session, err, a, b)
	}
	if asJSON {
		return t.writeJSON(diff)
	}
	style, _ := t.styleOf(t.out)
	for _, line := range display.Diff(diff, all, style) {
		t.say("%s\n", own(line))
	}
	return nil
}
