package cli

import (
	"context"
	"errors"
	"net/http"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// goalFlags are the flags of `goal`.
type goalFlags struct {
	event  eventFlags
	none   bool
	dryRun bool
	json   bool
}

func (t *tool) goalCommand() *cobra.Command {
	flags := &goalFlags{}
	command := &cobra.Command{
		Use:   "goal RUN [FLAGS]",
		Short: "Show or change the goal of a run, and what is expected under it",
		Long: `Without flags, show the goal of a run, what is expected of it, and what else could be had: for each
way, when the run would end, counted from its start, and what it would cost altogether, each with
the interval in which 8 of 10 runs end. No way that is listed is both slower and dearer than
another.

With flags, change the goal of a run that goes on, and show the consequence. What is not given stays
as it is; --none begins with no goal at all. With --dry-run nothing is changed: it shows what would
be expected. The new goal is in force when the command returns. A goal that cannot be met is
refused, with the reason and what could be; the old one then stays.

The exit code is 0 when the goal was shown or changed, 1 when there is no such run or it has ended,
and 2 when a flag is wrong or the goal cannot be met.`,
		Example: `  spillway goal digits-7f3a9c
  spillway goal digits-7f3a9c --deadline 30m --budget 0.05
  spillway goal digits-7f3a9c --deadline 10m --dry-run
  spillway goal digits-7f3a9c --none --minimise cost
  spillway goal digits-7f3a9c --json | jq .alternatives`,
		Args:              positional("the name of a run"),
		ValidArgsFunction: t.complete(runNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return t.goal(cmd.Context(), args[0], flags) },
	}
	set := command.Flags()
	flags.event.addGoal(set)
	set.BoolVar(&flags.none, "none", false, "forget the goal in force; other flags then make a new one")
	set.BoolVar(&flags.dryRun, "dry-run", false, "change nothing, and show what would be expected")
	set.BoolVar(&flags.json, "json", false, "print what is expected as JSON; times are in seconds, costs in US dollars")
	return command
}

// over returns the goal that the flags make of one in force, and whether they say anything.
func (f *goalFlags) over(inForce predictor.Goal) (goal predictor.Goal, said bool) {
	if !f.none {
		goal = inForce
	}
	given := f.event.goalOrNil()
	if given == nil {
		return goal, f.none
	}
	if given.Deadline > 0 {
		goal.Deadline = given.Deadline
	}
	if given.Budget > 0 {
		goal.Budget = given.Budget
	}
	if given.Minimise != "" {
		goal.Minimise = given.Minimise
	}
	return goal, true
}

func (t *tool) goal(ctx context.Context, run string, flags *goalFlags) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	view, err := session.client.Run(ctx, run)
	if err != nil {
		return t.withNearRuns(ctx, session, err, run)
	}
	goal, said := flags.over(view.Goal)
	switch {
	case flags.dryRun && !said:
		return &usage{problem: "--dry-run is for a goal, and none is given", hint: "add --deadline, --budget, --minimise or --none, or leave --dry-run out"}
	case !said && display.Ended(view) && !flags.json:
		for _, line := range display.GoalKept(view) {
			t.say("%s\n", own(line))
		}
		return nil
	case !said:
		outlook, err := session.client.Outlook(ctx, run, nil)
		if err != nil {
			return err
		}
		return t.sayOutlook(outlook, "", flags.json)
	case flags.dryRun:
		outlook, err := session.client.Outlook(ctx, run, &goal)
		if err != nil {
			return err
		}
		return t.sayOutlook(outlook, "nothing was changed", flags.json)
	}
	outlook, err := session.client.SetGoal(ctx, run, goal)
	if err != nil {
		return t.explainRefusal(ctx, session, run, goal, err, flags.json)
	}
	return t.sayOutlook(outlook, "this is the goal from now on", flags.json)
}

// sayOutlook prints what is expected, and a last line.
func (t *tool) sayOutlook(outlook predictor.Outlook, last string, asJSON bool) error {
	if asJSON {
		return t.writeJSON(outlook)
	}
	style, _ := t.styleOf(t.out)
	for _, line := range display.Outlook(outlook, style) {
		t.say("%s\n", own(line))
	}
	if last != "" {
		t.say("\n%s\n", last)
	}
	return nil
}

// explainRefusal shows, with a goal that cannot be met, what could be had instead.
func (t *tool) explainRefusal(ctx context.Context, session *session, run string, goal predictor.Goal, refusal error, asJSON bool) error {
	refused, ok := errors.AsType[*web.Error](refusal)
	if !ok || refused.Status != http.StatusUnprocessableEntity || asJSON {
		return refusal
	}
	outlook, err := session.client.Outlook(ctx, run, &goal)
	if err != nil || !outlook.Known {
		return refusal // it says the reason
	}
	style, _ := t.styleOf(t.err)
	outlook.Summary = "" // the error says it
	for _, line := range display.Outlook(outlook, style) {
		t.complain("%s\n", own(line))
	}
	t.complain("\n")
	return refusal
}
