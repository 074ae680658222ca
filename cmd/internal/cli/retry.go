package cli

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// retryFlags are the flags of `retry`.
type retryFlags struct {
	goal           goalFlags
	from, app      string
	follow, detach bool
	json           bool
}

func (t *tool) retryCommand() *cobra.Command {
	flags := &retryFlags{}
	command := &cobra.Command{
		Use:   "retry RUN [FLAGS]",
		Short: "Start a run again and reuse what succeeded",
		Long: `Start a run that has ended again, as a new run, with its input, its goal, and the build that is
current now. Results of stages that succeeded are reused where their inputs are the same and their
artifacts are still there; all else runs. With --from, nothing is reused of that stage and of those
that were first scheduled after it. What is given of --deadline, --budget and --minimise replaces
that part of the goal: the new run has a budget of its own, to which the old one's cost is not
charged. --app serves the fix first: the directory of an app, or the file of a chain. An app that
` + "`spillway dev --app`" + ` watches needs no such word.

On a terminal the new run is shown live until its end, as ` + "`spillway run`" + ` does; Ctrl-C leaves it
alone. With --detach, or where the output is no terminal and --follow is not given, its name is
printed at once.

The exit code is 0 when the new run was started (and, where it was followed, has succeeded), 1 when
there is no such run, it goes on, its artifacts are gone, or the new run failed, and 2 when a flag
is wrong.`,
		Example: `  spillway retry digits-7f3a9c
  spillway retry digits-7f3a9c --from train --follow
  spillway retry fit-dd2jk36nuyno --app fit.yaml
  spillway retry fit-dd2jk36nuyno --budget 0.50
  spillway retry digits-7f3a9c --detach --json | jq -r .run`,
		Args:              positional("the name of a run"),
		ValidArgsFunction: t.complete(runNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return t.retry(cmd.Context(), args[0], flags) },
	}
	set := command.Flags()
	set.StringVar(&flags.from, "from", "", "first `STAGE` of which nothing is reused (default: reuse whatever succeeded)")
	set.StringVar(&flags.app, "app", "", "serve this app (`DIR`) or chain (FILE.yaml) first")
	flags.goal.event.addGoal(set)
	set.BoolVar(&flags.follow, "follow", false, "show the new run until its end, also where the output is no terminal")
	set.BoolVar(&flags.detach, "detach", false, "do not show the new run")
	set.BoolVar(&flags.json, "json", false, "print the new run and what is reused as JSON and do not show it; with --follow, print the report at its end")
	t.completeFlag(command, "from", stageNames)
	return command
}

func (t *tool) retry(ctx context.Context, run string, flags *retryFlags) error {
	if err := exclusive([]string{"--follow", "--detach"}, flags.follow, flags.detach); err != nil {
		return err
	}
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	view, err := session.client.Run(ctx, run)
	if err != nil {
		return t.withNearRuns(ctx, session, err, run)
	}
	request := web.Retry{From: flags.from}
	if goal, said := flags.goal.over(view.Goal); said {
		request.Goal = &goal
	}
	if flags.from != "" {
		if err := stageOf(view, flags.from); err != nil {
			return err
		}
	}
	if flags.app != "" {
		if err := t.serveFix(ctx, session, flags.app); err != nil {
			return err
		}
	}
	retried, err := session.client.Retry(ctx, run, request)
	if err != nil {
		return adviseOnRetry(err)
	}
	follow := flags.follow || !flags.detach && !flags.json && isTerminal(t.out)
	if flags.json && !follow {
		return t.writeJSON(retried)
	}
	out := t.viewOutput(flags.json)
	printf(out, "run %s tries %s again, and %s\n", retried.Run, run, reuseOf(retried))
	if !follow {
		t.say("`spillway show %s --follow` shows it\n", retried.Run)
		return nil
	}
	viewer := t.newViewer(session, out)
	model, err := t.followToEnd(ctx, session, web.Published{Run: retried.Run, Event: retried.Event}, viewer, leave)
	if err != nil {
		return err
	}
	if steps := chainSteps(session.stack, model.Run.Pipeline); len(steps) > 0 {
		return t.concludeChain(ctx, session, model, steps, &runFlags{json: flags.json}, viewer)
	}
	return t.conclude(model, session.stack, flags.json, viewer)
}

// serveFix makes an app or a chain what new runs start with.
func (t *tool) serveFix(ctx context.Context, session *session, source string) error {
	if !isChainFile(source) {
		app, err := t.buildApp(ctx, source)
		if err != nil {
			return err
		}
		_, err = session.client.Register(ctx, app.Path)
		return err
	}
	c, err := t.readChain(source)
	if err != nil {
		return err
	}
	if c, err = t.pack(ctx, session, c, filepath.Dir(source)); err != nil {
		return err
	}
	_, err = session.client.RegisterChain(ctx, c)
	return err
}

// reuseOf says what a new run takes from the one that it tries again.
func reuseOf(retried web.Retried) string {
	reused := "reuses nothing of it"
	if retried.Tasks > 0 {
		reused = fmt.Sprintf("reuses %s of %s", counted(retried.Tasks, "result"), strings.Join(retried.Stages, ", "))
	}
	if retried.Unsigned > 0 {
		reused += fmt.Sprintf("; it makes %s again that this engine did not sign (kept by an earlier version, or before its keys were made anew)",
			counted(retried.Unsigned, "result"))
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
		return &advised{err, "run the stages that made them again: --from STAGE"}
	case http.StatusConflict:
		return &advised{err, "a run that goes on can be cancelled; one of which nothing is kept is started anew with `spillway trigger`"}
	default:
		return err
	}
}
