package run

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/apps"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/follow"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// retryFlags are the flags of `retry`.
type retryFlags struct {
	goal           flag.Event
	from, app      string
	follow, detach bool
	json           bool
}

func retryCommand(t *tool.Tool) *cobra.Command {
	flags := &retryFlags{}
	command := &cobra.Command{
		Use:   "retry RUN [FLAGS]",
		Short: "Start a run again and reuse what succeeded",
		Long: `Start a run that has ended again, as a new run, with its input, its goal, and the build that is
current now. Results of stages that succeeded are reused where their inputs are the same and their
artifacts are still there; all else runs. A task that had left a checkpoint when it failed, or was
cancelled, goes on from the newest one, where its input is the same. With --from, nothing is reused
of that stage and of those that were first scheduled after it, and they begin anew. What is given of
--deadline, --confidence, --budget and --minimise replaces that part of the goal: the new run has a
budget of its own, to which the old one's cost is not charged. --app serves the fix first: the
directory of an app, or the file of a chain. An app that ` + "`spillway dev --app`" + ` watches needs no
such word.

On a terminal the new run is shown live until its end, as ` + "`spillway run`" + ` does; Ctrl-C leaves it
alone. With --detach, or where the output is no terminal and --follow is not given, its name is
printed at once.

The exit code is 0 when the new run was started (and, where it was followed, has succeeded), 1 when
the run goes on, its artifacts are gone, or the new run failed, and 2 when there is no such run or a
flag is wrong.`,
		Example: `  spillway retry digits-7f3a9c
  spillway retry digits-7f3a9c --from train --follow
  spillway retry fit-dd2jk36nuyno --app fit.yaml
  spillway retry fit-dd2jk36nuyno --budget 0.50
  spillway retry digits-7f3a9c --detach --json | jq -r .run`,
		Args:              flag.Positional("the name of a run"),
		ValidArgsFunction: session.Complete(t, session.RunNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return retry(cmd.Context(), t, args[0], flags) },
	}
	set := command.Flags()
	set.StringVar(&flags.from, "from", "", "first `STAGE` of which nothing is reused (default: reuse whatever succeeded)")
	set.StringVar(&flags.app, "app", "", "serve this app (`DIR`) or chain (FILE.yaml) first")
	flags.goal.AddGoal(set)
	set.BoolVar(&flags.follow, "follow", false, "show the new run until its end, also where the output is no terminal")
	set.BoolVar(&flags.detach, "detach", false, "do not show the new run")
	set.BoolVar(&flags.json, "json", false, "print the new run and what is reused as JSON and do not show it; with "+
		"--follow, print the report at its end")
	session.CompleteFlag(t, command, "from", session.StageNames)
	return command
}

func retry(ctx context.Context, t *tool.Tool, run string, flags *retryFlags) error {
	if err := flag.Exclusive([]string{"--follow", "--detach"}, flags.follow, flags.detach); err != nil {
		return err
	}
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	view, err := s.Client.Run(ctx, run)
	if err != nil {
		return session.WithNearRuns(ctx, s, err, run)
	}
	request := web.Retry{From: flags.from}
	if goal, said := flags.goal.GoalOver(view.Goal, false); said {
		request.Goal = &goal
	}
	if flags.from != "" {
		if err := session.CheckStage(view, flags.from); err != nil {
			return err
		}
	}
	if flags.app != "" {
		if err := serveFix(ctx, t, s, flags.app); err != nil {
			return err
		}
	}
	retried, err := s.Client.Retry(ctx, run, request)
	if err != nil {
		return adviseOnRetry(err)
	}
	live := flags.follow || !flags.detach && !flags.json && tool.IsTerminal(t.Out)
	if flags.json && !live {
		return t.WriteJSON(retried)
	}
	out := follow.Output(t, flags.json)
	display.Printf(out, "run %s tries %s again, and %s\n", retried.Run, run, reuseOf(retried))
	if first := retried.Resumed; len(first) > 0 {
		display.Printf(out, "%s from the newest checkpoint; --from %s begins anew\n", goesOn(first), first[0])
	}
	if !live {
		t.Say("`spillway show %s --follow` shows it\n", retried.Run)
		return nil
	}
	viewer := follow.NewViewer(t, s, out)
	model, err := follow.ToEnd(ctx, t, s, web.Published{Run: retried.Run, Event: retried.Event}, viewer, follow.Leave)
	if err != nil {
		return err
	}
	if steps := chainSteps(s.Stack, model.Run.Pipeline); len(steps) > 0 {
		return concludeChain(ctx, t, s, model, steps, &runFlags{json: flags.json}, viewer)
	}
	return follow.Conclude(t, model, s.Stack, flags.json, viewer)
}

// serveFix makes an app or a chain what new runs start with.
func serveFix(ctx context.Context, t *tool.Tool, s *session.Session, source string) error {
	if !isChainFile(source) {
		app, err := apps.Build(ctx, t, source)
		if err != nil {
			return err
		}
		_, err = s.Client.Register(ctx, app.Path)
		return err
	}
	c, err := readChain(t, source)
	if err != nil {
		return err
	}
	if c, err = pack(ctx, t, s, c, filepath.Dir(source)); err != nil {
		return err
	}
	_, err = s.Client.RegisterChain(ctx, c)
	return err
}

// goesOn says of stages that they go on.
func goesOn(stages []string) string {
	if len(stages) == 1 {
		return stages[0] + " goes on"
	}
	return strings.Join(stages, ", ") + " go on, each"
}

// reuseOf says what a new run takes from the one that it tries again.
func reuseOf(retried web.Retried) string {
	reused := "reuses nothing of it"
	if retried.Tasks > 0 {
		reused = fmt.Sprintf("reuses %s of %s", display.Count(retried.Tasks, "result"), strings.Join(retried.Stages, ", "))
	}
	if retried.Unsigned > 0 {
		reused += fmt.Sprintf("; it makes %s again that this engine did not sign (kept by an earlier version, or before "+
			"its keys were made anew)",
			display.Count(retried.Unsigned, "result"))
	}
	return reused
}

// adviseOnRetry says what to do where the engine does not.
func adviseOnRetry(err error) error {
	refused, ok := errors.AsType[*web.Error](err)
	if !ok || refused.Hint != "" {
		return err
	}
	switch refused.Status {
	case http.StatusGone:
		return fault.Advise(err, "run the stages that made them again: --from STAGE")
	case http.StatusConflict:
		return fault.Advise(err, "a run that goes on can be cancelled; one of which nothing is kept is started anew with "+
			"`spillway trigger`")
	default:
		return err
	}
}
