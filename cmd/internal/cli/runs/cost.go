package runs

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// costFlags are the flags of `cost`.
type costFlags struct {
	by        string
	query     ledger.BillQuery
	csv, json bool
}

func costCommand(t *tool.Tool) *cobra.Command {
	flags := &costFlags{by: string(ledger.ByStage)}
	command := &cobra.Command{
		Use:   "cost [FLAGS]",
		Short: "Say who spent what: by stage, run, pipeline, venue or host",
		Long: `Say what was spent, divided by stage, run, pipeline, team, venue or host. The columns are:

  held       for how long attempts held what they were granted, added up over attempts
  attempts   how many attempts ended
  pool       what attempts held of hosts: the part of the host's price that their grants were of it
  function   what functions billed: each GiB-second begun, and each invoke
  idle       what hosts cost while nobody held them, shared out to those who held something then
  wasted     the part of pool and function that went to attempts which did not succeed
  total      pool, function and idle

The last line is the sum of all others, exactly. All amounts are US dollars at the prices in force
when they were spent; "spillway help money" says more. What lies across --since or --until is
divided in proportion to time. The first line says which period the bill is about; nothing is known
of times before the state directory was made. Where what told of a time is gone, as after the file
ledger.db was damaged, the bill says of which time it is not complete.

The exit code is 0 when the bill was printed, 1 when no stack runs, and 2 when a flag is wrong or
there is no such run or pipeline.`,
		Example: `  spillway cost
  spillway cost --by run --since 24h
  spillway cost --by team --since 2026-11-01
  spillway cost --by venue --run digits-7f3a9c
  spillway cost --by pipeline --since 2026-11-01 --until 2026-12-01 --csv > november.csv
  spillway cost --by stage --json | jq '.lines[] | {name, total_picodollars}'`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cost(cmd.Context(), t, flags) },
	}
	set := command.Flags()
	set.Var(flag.Choice{Value: &flags.by, Of: []string{
		string(ledger.ByStage), string(ledger.ByRun), string(ledger.ByPipeline), string(ledger.ByTeam),
		string(ledger.ByVenue),
		string(ledger.ByHost),
	}}, "by", "what the bill is divided by")
	set.Var(flag.Moment{Value: &flags.query.Since, Past: true}, "since",
		"begin here: a time such as 2026-11-20T09:00:00Z, a day, or how long ago, such as 24h or 7d (default: all "+
			"that is known)")
	set.Var(flag.Moment{Value: &flags.query.Until}, "until", "end here, written as --since is (default now)")
	set.StringVar(&flags.query.Run, "run", "", "keep only what this `RUN` has spent")
	set.StringVar(&flags.query.Pipeline, "pipeline", "", "keep only what the runs of this `PIPELINE` have spent")
	set.StringVar(&flags.query.Team, "team", "", "keep only what this `TEAM` has spent; default is who has none")
	set.BoolVar(&flags.csv, "csv", false, "print comma-separated values; the first line names the columns and their units")
	set.BoolVar(&flags.json, "json", false, "print the bill as JSON; amounts are in picodollars")
	session.CompleteFlag(t, command, "run", session.RunNames)
	session.CompleteFlag(t, command, "pipeline", session.PipelineNames)
	return command
}

func cost(ctx context.Context, t *tool.Tool, flags *costFlags) error {
	query := flags.query
	query.By = ledger.Dimension(flags.by)
	if err := flag.Exclusive([]string{"--csv", "--json"}, flags.csv, flags.json); err != nil {
		return err
	}
	if !query.Since.IsZero() && !query.Until.IsZero() && !query.Since.Before(query.Until) {
		return &fault.UsageError{Problem: fmt.Sprintf("--since %s is not before --until %s", query.Since.Format(time.RFC3339),
			query.Until.Format(time.RFC3339)), Hint: "exchange them"}
	}
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	if query.Run != "" { // a run that there is not has spent nothing, which would hide a mistyped name
		if _, err := s.Client.Run(ctx, query.Run); err != nil {
			return session.WithNearRuns(ctx, s, err, query.Run)
		}
	}
	if flags.csv {
		return s.Client.CostCSV(ctx, query, t.Out)
	}
	bill, err := s.Client.Cost(ctx, query)
	if err != nil {
		return err
	}
	if flags.json {
		return t.WriteJSON(bill)
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range display.Bill(bill, query.Since.IsZero(), style) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}
