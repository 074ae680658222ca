package events

import (
	"context"
	"fmt"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

func deadCommand(t *tool.Tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "dead COMMAND",
		Short: "List and replay events that could not start a run",
		Long: `An event that cannot start a run (it is not JSON, no pipeline is bound to its subject, its input is
refused) is kept as a dead letter with the reason. Once the cause is fixed it can be replayed: it
then starts the run that it would have started, once.`,
		Example: `  spillway dead list
  spillway dead replay 17
  spillway dead replay --all`,
		Args: flag.UnknownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var asJSON, replayedJSON, all bool
	list := &cobra.Command{
		Use: "list [FLAGS]", Short: "List dead letters, oldest first", Args: flag.Positional(),
		Long: `List the dead letters, oldest first, with the sequence that names each for a replay. With --json an
array is printed, empty when there are none, with the beginning of each event's body.`,
		Example: `  spillway dead list
  spillway dead list --json | jq -r '.[] | .reason'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return deadList(cmd.Context(), t, asJSON) },
	}
	list.Flags().BoolVar(&asJSON, "json", false, "print the dead letters as JSON")
	replay := &cobra.Command{
		Use: "replay [SEQUENCE | --all]", Short: "Publish a dead letter again, or all of them",
		Long: `Publish a dead letter again, by its sequence, or all of them. One that can start a run by now does
so, once, and is no longer a dead letter; one that cannot becomes a dead letter again.

It is waited for a few seconds for what becomes of them. The exit code is 0 when they were
published, 1 when one of them was refused again, and 2 when there is no such dead letter.`,
		Example: `  spillway dead replay 17
  spillway dead replay --all --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return deadReplay(cmd.Context(), t, args, all, replayedJSON)
		},
	}
	replay.Flags().BoolVar(&replayedJSON, "json", false, "print what became of them as JSON")
	replay.Flags().BoolVar(&all, "all", false, "replay every dead letter")
	command.AddCommand(list, replay)
	return command
}

func deadList(ctx context.Context, t *tool.Tool, asJSON bool) error {
	return session.List(ctx, t, asJSON, "no dead letters",
		func(s *session.Session) ([]web.DeadLetter, error) { return s.Client.Dead(ctx, session.MostDead) },
		func(_ *session.Session, letters []web.DeadLetter) error {
			table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
			display.Printf(table, "SEQUENCE\tAT\tSUBJECT\tEVENT\tREASON\n")
			for _, letter := range letters {
				display.Printf(table, "%d\t%s\t%s\t%s\t%s\n", letter.Sequence, letter.At.Local().Format(time.DateTime),
					letter.Subject, letter.Event, letter.Reason)
			}
			return table.Flush()
		})
}

func deadReplay(ctx context.Context, t *tool.Tool, args []string, all, asJSON bool) error {
	sequence, err := replayed(args, all)
	if err != nil {
		return err
	}
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	replayed, err := s.Client.Replay(ctx, sequence)
	if err != nil {
		return err
	}
	if asJSON {
		if err := t.WriteJSON(replayed); err != nil {
			return err
		}
	}
	refused := 0
	for _, outcome := range replayed.Outcomes {
		if !asJSON {
			t.Say("%s\n", replayLine(outcome))
		}
		if outcome.Refused != "" {
			refused++
		}
	}
	if all && !asJSON {
		t.Say("replayed: %d, refused again: %d\n", replayed.Replayed, refused)
	}
	if refused > 0 {
		return fault.ErrReported
	}
	return nil
}

// replayLine tells what became of a dead letter.
func replayLine(outcome web.ReplayOutcome) string {
	switch {
	case outcome.Refused != "":
		return fmt.Sprintf("dead letter %d was sent again and refused again: %s", outcome.Sequence, outcome.Refused)
	case outcome.Run != "":
		return fmt.Sprintf("dead letter %d has started run %s", outcome.Sequence, outcome.Run)
	default:
		return fmt.Sprintf("dead letter %d was sent again, and its event waits still; `spillway runs` and "+
			"`spillway dead list` show what becomes of it", outcome.Sequence)
	}
}

// replayed returns which dead letter is meant; 0 means all.
func replayed(args []string, all bool) (uint64, error) {
	const hint = "`spillway dead list` shows the sequences"
	switch {
	case len(args) > 1:
		return 0, &fault.UsageError{
			Problem: fmt.Sprintf("it does not take the argument %q", args[1]),
			Hint:    "replay one at a time, or all with --all",
		}
	case (len(args) == 1) == all:
		return 0, &fault.UsageError{Problem: "it needs either the sequence of a dead letter or --all", Hint: hint}
	case all:
		return 0, nil
	}
	sequence, err := strconv.ParseUint(args[0], 10, 64)
	if err != nil || sequence == 0 {
		return 0, &fault.UsageError{Problem: fmt.Sprintf("%q is not a sequence", args[0]), Hint: hint}
	}
	return sequence, nil
}
