package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/predictor/ledger"
)

// costFlags are the flags of `cost`.
type costFlags struct {
	by        string
	query     ledger.BillQuery
	csv, json bool
}

func (t *tool) costCommand() *cobra.Command {
	flags := &costFlags{by: string(ledger.ByStage)}
	command := &cobra.Command{
		Use:   "cost [FLAGS]",
		Short: "Say who spent what: by stage, run, pipeline, venue or host",
		Long: `Say what was spent, divided by stage, run, pipeline, venue or host. The columns are:

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

The exit code is 0 when the bill was printed, 1 when no stack runs or there is no such run, and 2
when a flag is wrong.`,
		Example: `  spillway cost
  spillway cost --by run --since 24h
  spillway cost --by venue --run digits-7f3a9c
  spillway cost --by pipeline --since 2026-11-01 --until 2026-12-01 --csv > november.csv
  spillway cost --by stage --json | jq '.lines[] | {name, total_picodollars}'`,
		Args:              positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return t.cost(cmd.Context(), flags) },
	}
	set := command.Flags()
	set.Var(choice{&flags.by, []string{
		string(ledger.ByStage), string(ledger.ByRun), string(ledger.ByPipeline), string(ledger.ByVenue), string(ledger.ByHost),
	}}, "by", "what the bill is divided by")
	set.Var(moment{value: &flags.query.Since}, "since", "begin here: a time such as 2026-11-20T09:00:00Z, a day, or how long ago, such as 24h or 7d (default: all that is known)")
	set.Var(moment{value: &flags.query.Until}, "until", "end here, written as --since is (default now)")
	set.StringVar(&flags.query.Run, "run", "", "keep only what this `RUN` has spent")
	set.StringVar(&flags.query.Pipeline, "pipeline", "", "keep only what the runs of this `PIPELINE` have spent")
	set.BoolVar(&flags.csv, "csv", false, "print comma-separated values; the first line names the columns and their units")
	set.BoolVar(&flags.json, "json", false, "print the bill as JSON; amounts are in picodollars")
	t.completeFlag(command, "run", runNames)
	t.completeFlag(command, "pipeline", pipelineNames)
	return command
}

func (t *tool) cost(ctx context.Context, flags *costFlags) error {
	query := flags.query
	query.By = ledger.Dimension(flags.by)
	if err := exclusive([]string{"--csv", "--json"}, flags.csv, flags.json); err != nil {
		return err
	}
	if !query.Since.IsZero() && !query.Until.IsZero() && !query.Since.Before(query.Until) {
		return &usage{problem: fmt.Sprintf("--since %s is not before --until %s", query.Since.Format(time.RFC3339), query.Until.Format(time.RFC3339)), hint: "exchange them"}
	}
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	if query.Run != "" { // a run that there is not has spent nothing, which would hide a mistyped name
		if _, err := session.client.Run(ctx, query.Run); err != nil {
			return t.withNearRuns(ctx, session, err, query.Run)
		}
	}
	if flags.csv {
		return session.client.CostCSV(ctx, query, t.out)
	}
	bill, err := session.client.Cost(ctx, query)
	if err != nil {
		return err
	}
	if flags.json {
		return t.writeJSON(bill)
	}
	style, _ := t.styleOf(t.out)
	for _, line := range display.Bill(bill, query.Since.IsZero(), style) {
		t.say("%s\n", own(line))
	}
	return nil
}

// moment is a flag that takes a time: as RFC 3339 has it, a day, or how long ago.
type moment struct{ value *time.Time }

// String returns the time as RFC 3339 has it; empty for none.
func (m moment) String() string {
	if m.value == nil || m.value.IsZero() {
		return ""
	}
	return m.value.Format(time.RFC3339)
}

// Type is the placeholder in the usage.
func (m moment) Type() string { return "TIME" }

// Set reads "2026-11-20T09:00:00Z", "2026-11-20", "24h" or "7d".
func (m moment) Set(text string) error {
	at, err := parseMoment(text, time.Now())
	if err == nil {
		*m.value = at
	}
	return err
}

// mostDays is more than a state directory lives: longer spans overflow a duration.
const mostDays = 36500

func parseMoment(text string, now time.Time) (time.Time, error) {
	const hint = "write a time such as 2026-11-20T09:00:00Z, a day such as 2026-11-20, or how long ago, such as 24h or 7d"
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		return at, nil
	}
	if at, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return at, nil
	}
	var ago time.Duration
	if digits, inDays := strings.CutSuffix(text, "d"); inDays {
		days, err := strconv.ParseUint(digits, 10, 32)
		if err != nil || days > mostDays {
			return time.Time{}, &usage{problem: "it is not a number of days", hint: hint}
		}
		ago = time.Duration(days) * 24 * time.Hour
	} else {
		var err error
		if ago, err = time.ParseDuration(text); err != nil {
			return time.Time{}, &usage{problem: "it is neither a time nor how long ago", hint: hint}
		}
	}
	if ago < 0 {
		return time.Time{}, &usage{problem: "it is negative", hint: hint}
	}
	return now.Add(-ago), nil
}
