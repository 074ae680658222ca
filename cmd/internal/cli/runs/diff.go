package runs

import (
	"context"
	"errors"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

func diffCommand(t *tool.Tool) *cobra.Command {
	var all, asJSON bool
	command := &cobra.Command{
		Use:   "diff RUN RUN [FLAGS]",
		Short: "Compare two runs: input, build, goal, each stage, and what they ended with",
		Long: `Compare two runs: their input, build and goal, their time and cost, predicted and actual, for each
stage its tasks, time, cost, sizes, failures and the errors of its predictions, and what they ended
with: the values of their results, and the files that stages of chains left. Only what differs is
shown, as it is written: two costs that differ in the fifth digit read the same. With
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

// wholeResult puts the whole result of a run in place of the beginning of it that the ledger keeps, if it is kept.
func wholeResult(ctx context.Context, s *session.Session, run *ledger.RunView) error {
	if run.State != predictor.RunSucceeded {
		return nil
	}
	result, err := s.Client.Result(ctx, run.Run)
	if refused, ok := errors.AsType[*web.Error](err); ok && refused.Status == http.StatusGone {
		return nil
	}
	if err != nil {
		return err
	}
	run.Result = result
	return nil
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
	for _, run := range []*ledger.RunView{&diff.A, &diff.B} {
		if err := wholeResult(ctx, s, run); err != nil {
			return err
		}
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
