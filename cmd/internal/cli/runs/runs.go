// Package runs has the commands that look at runs and steer them: runs, show, logs, outputs, top, open, goal, cancel,
// cost, diff, compare, frontier.
package runs

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	return []*cobra.Command{
		runsCommand(t), showCommand(t), logsCommand(t), topCommand(t), openCommand(t), goalCommand(t), cancelCommand(t),
		costCommand(t), diffCommand(t), compareCommand(t), frontierCommand(t), outputsCommand(t),
	}
}

func runsCommand(t *tool.Tool) *cobra.Command {
	query := web.RunQuery{Limit: 20}
	var state string
	var asJSON, totals bool
	command := &cobra.Command{
		Use:   "runs [FLAGS]",
		Short: "List runs, newest first",
		Long: `List the runs of the running stack, newest first: their state, when they started, how long they
took, their goal and by how much they missed it, for how long they are or were expected to go on,
what they cost, and how many tasks were done at the pool and at functions. Below it stands what all
runs come to that match, also those that are not listed: how many there are in each state, what they
cost, and how many have missed the deadline or the budget of their goal. With --json an array is
printed, empty when there are none.

The exit code is 0, also when there are none.`,
		Example: `  spillway runs --status running
  spillway runs --pipeline train --limit 100 --json
  spillway runs --since 24h --limit 5000
  spillway runs --since 30d --totals --json`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			query.State = predictor.RunState(state)
			if totals {
				return runTotals(cmd.Context(), t, query, asJSON)
			}
			return runs(cmd.Context(), t, query, asJSON)
		},
	}
	flags := command.Flags()
	flags.Var(flag.Count{Value: &query.Limit, Least: 1}, "limit", "the most runs to list")
	flags.Var(flag.Moment{Value: &query.Since, Past: true}, "since", "keep only runs that started since: a time such as "+
		"2026-11-20T09:00:00Z, a day, or how long ago, such as 24h or 7d")
	flags.Var(flag.Choice{Value: &state, Of: []string{
		string(predictor.RunRunning), string(predictor.RunSucceeded), string(predictor.RunFailed),
		string(predictor.RunCancelled),
	}}, "status", "keep only runs that are so")
	flags.StringVar(&query.Pipeline, "pipeline", "", "keep only runs of this `PIPELINE`")
	flags.BoolVar(&totals, "totals", false, "print what all runs that match come to, and list none")
	flags.BoolVar(&asJSON, "json", false, "print the runs as JSON")
	session.CompleteFlag(t, command, "pipeline", session.PipelineNames)
	return command
}

func runs(ctx context.Context, t *tool.Tool, query web.RunQuery, asJSON bool) error {
	return session.List(ctx, t, asJSON, "no runs",
		func(s *session.Session) ([]ledger.RunView, error) { return s.Client.Runs(ctx, query) },
		func(s *session.Session, found []ledger.RunView) error {
			style, _ := t.StyleOf(t.Out)
			for _, line := range display.Runs(found, time.Now(), style) {
				t.Say("%s\n", display.Own(line))
			}
			for _, run := range found {
				if run.Notice != "" {
					t.Say("%s: %s\n", display.CleanLine(run.Run), display.CleanLine(run.Notice))
				}
			}
			if totals, err := s.Client.RunTotals(ctx, query); err == nil {
				t.Say("%s\n", display.RunTotals(totals))
			} else { // as on a full disk: the list is whole without it
				t.Say("what all runs come to is not known now: %v\n", err)
			}
			return nil
		})
}

// runTotals prints what the runs come to that match.
func runTotals(ctx context.Context, t *tool.Tool, query web.RunQuery, asJSON bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	totals, err := s.Client.RunTotals(ctx, query)
	if err != nil {
		return err
	}
	if asJSON {
		return t.WriteJSON(totals)
	}
	display.Printf(t.Out, "%s\n", display.RunTotals(totals))
	return nil
}
