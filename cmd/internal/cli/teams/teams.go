// Package teams has the command teams, which says what each team has and may have.
package teams

import (
	"context"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "teams [FLAGS]",
		Short: "List the teams that share this stack, what they have and what they may have",
		Long: `List the teams that the stack's --teams-file declares, and who else has work. SLOTS are those of the
pool that a team has, and may have at most; SHARE is what part of the pool that is, and WEIGHT what
its part is in proportion to where others want more than there is. SPENT is what its attempts cost
that ended today, in UTC, at the pool and at functions, and what they may cost; RESERVED is what
those that run cost at most, and those that may begin. What a team's tasks wait for stands below.

The exit code is 0, also when none was declared, and 1 when no stack runs.`,
		Example: `  spillway teams
  spillway teams --json | jq -r '.[] | select(.why) | .name'`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return list(cmd.Context(), t, asJSON) },
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the teams as JSON")
	return []*cobra.Command{command}
}

func list(ctx context.Context, t *tool.Tool, asJSON bool) error {
	return session.List(ctx, t, asJSON, "no teams: start the stack with --teams-file to declare some",
		func(s *session.Session) ([]web.TeamStatus, error) { return s.Client.Teams(ctx) },
		func(_ *session.Session, found []web.TeamStatus) error {
			table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
			display.Printf(table, "TEAM\tSLOTS\tSHARE\tWEIGHT\tRUNNING\tWAITING\tSPENT TODAY\tRESERVED\n")
			for _, one := range found {
				display.Printf(table, "%s\t%s\t%.0f%%\t%g\t%d\t%d\t%s\t%s\n", display.CleanLine(predictor.TeamName(one.Name)),
					of(strconv.Itoa(one.Held), one.Slots > 0, strconv.Itoa(one.Slots)), 100*one.Share, weight(one.Weight), one.Running,
					one.Waiting, of(one.Spent.String(), one.PerDay > 0, one.PerDay.String()), reserved(one.Reserved))
			}
			if err := table.Flush(); err != nil {
				return err
			}
			for _, one := range found {
				if one.Why != "" {
					t.Say("%s: %s: %s\n", display.CleanLine(predictor.TeamName(one.Name)), words.Waiting(one.Waiting),
						display.CleanLine(one.Why))
				}
			}
			return nil
		})
}

// of writes how much there is of what may be.
func of(has string, bounded bool, most string) string {
	if !bounded {
		return has
	}
	return has + "/" + most
}

func weight(weight float64) float64 {
	if weight == 0 {
		return 1
	}
	return weight
}

func reserved(money quantity.Money) string {
	if money == 0 {
		return "-"
	}
	return money.String()
}
