package runs

import (
	"context"
	"errors"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// goalFlags are the flags of `goal`.
type goalFlags struct {
	event  flag.Event
	none   bool
	dryRun bool
	json   bool
}

func goalCommand(t *tool.Tool) *cobra.Command {
	flags := &goalFlags{}
	command := &cobra.Command{
		Use:   "goal RUN [FLAGS]",
		Short: "Show or change the goal of a run, and what is expected under it",
		Long: `Without flags, show the goal of a run, what is expected of it, and what else could be had: for each
way, when the run would end, counted from its start, and what it would cost altogether, each with
the interval in which 8 of 10 runs end. No way that is listed is both slower and dearer than
another.

With flags, change the goal of a run that goes on, and show the consequence. What is not given stays
as it is; --none begins with no goal at all. A deadline is met with the probability that
--confidence says, 0.9 for nine runs in ten unless given: a higher one holds more functions, and
costs more. With --dry-run nothing is changed: it shows what would be expected. The new goal is in
force when the command returns. A goal that the middle of what is expected misses, whatever is
given, is refused, with the reason and what could be; the old one then stays. A goal that is met
with less than the probability asked is taken, and an alert says so, as "spillway frontier" does.

The exit code is 0 when the goal was shown or changed, 1 when the run has ended, and 2 when there is
no such run, a flag is wrong or the goal cannot be met.`,
		Example: `  spillway goal digits-7f3a9c
  spillway goal digits-7f3a9c --deadline 30m --budget 0.05
  spillway goal digits-7f3a9c --deadline 10m --confidence 0.99
  spillway goal digits-7f3a9c --deadline 10m --dry-run
  spillway goal digits-7f3a9c --none --minimise cost
  spillway goal digits-7f3a9c --json | jq .alternatives`,
		Args:              flag.Positional("the name of a run"),
		ValidArgsFunction: session.Complete(t, session.RunNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return goal(cmd.Context(), t, args[0], flags) },
	}
	set := command.Flags()
	flags.event.AddGoal(set)
	set.BoolVar(&flags.none, "none", false, "forget the goal in force; other flags then make a new one")
	set.BoolVar(&flags.dryRun, "dry-run", false, "change nothing, and show what would be expected")
	set.BoolVar(&flags.json, "json", false, "print what is expected as JSON; the units are in the names")
	return command
}

func goal(ctx context.Context, t *tool.Tool, run string, flags *goalFlags) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	view, err := s.Client.Run(ctx, run)
	if err != nil {
		return session.WithNearRuns(ctx, s, err, run)
	}
	goal, said := flags.event.GoalOver(view.Goal, flags.none)
	switch {
	case flags.dryRun && !said:
		return &fault.UsageError{
			Problem: "--dry-run is for a goal, and none is given",
			Hint:    "add --deadline, --budget, --minimise or --none, or leave --dry-run out",
		}
	case !said && display.Ended(view) && !flags.json:
		for _, line := range display.GoalKept(view) {
			t.Say("%s\n", display.Own(line))
		}
		return nil
	case !said:
		outlook, err := s.Client.Outlook(ctx, run, nil)
		if err != nil {
			return err
		}
		return sayOutlook(t, outlook, "", flags.json)
	case flags.dryRun:
		outlook, err := s.Client.Outlook(ctx, run, &goal)
		if err != nil {
			return err
		}
		return sayOutlook(t, outlook, "nothing was changed", flags.json)
	}
	outlook, err := s.Client.SetGoal(ctx, run, goal)
	if err != nil {
		return explainRefusal(ctx, t, s, run, goal, err, flags.json)
	}
	return sayOutlook(t, outlook, "this is the goal from now on", flags.json)
}

// sayOutlook prints what is expected, and a last line.
func sayOutlook(t *tool.Tool, outlook predictor.Outlook, last string, asJSON bool) error {
	if asJSON {
		return t.WriteJSON(outlook)
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range display.Outlook(outlook, style) {
		t.Say("%s\n", display.Own(line))
	}
	if last != "" {
		t.Say("\n%s\n", last)
	}
	return nil
}

// explainRefusal shows, with a goal that cannot be met, what could be had instead.
func explainRefusal(
	ctx context.Context, t *tool.Tool, s *session.Session, run string, goal predictor.Goal, refusal error, asJSON bool,
) error {
	refused, ok := errors.AsType[*web.Error](refusal)
	if !ok || refused.Status != http.StatusUnprocessableEntity || asJSON {
		return refusal
	}
	outlook, err := s.Client.Outlook(ctx, run, &goal)
	if err != nil || !outlook.Known {
		return refusal // it says the reason
	}
	style, _ := t.StyleOf(t.Err)
	outlook.Summary = "" // the error says it
	for _, line := range display.Outlook(outlook, style) {
		t.Complain("%s\n", display.Own(line))
	}
	t.Complain("\n")
	return refusal
}
