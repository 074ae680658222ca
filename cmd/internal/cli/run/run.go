// Package run has the commands that start a run and stay with it: run, retry, and check for the files of chains.
package run

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/apps"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/follow"
	"github.com/spillway-ml/spillway/cmd/internal/cli/program"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/transfer"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// Commands are the commands of this package.
func Commands(t *tool.Tool) []*cobra.Command {
	return []*cobra.Command{
		runCommand(t), retryCommand(t), checkCommand(t),
	}
}

// runFlags configure `run`.
type runFlags struct {
	event   flag.Event
	stack   flag.Stack
	command program.Flags
	out     transfer.Out
	json    bool
}

func runCommand(t *tool.Tool) *cobra.Command {
	flags := &runFlags{}
	command := &cobra.Command{
		Use:   "run PIPELINE|FILE.yaml [FLAGS] | run [FLAGS] -- PROGRAM ARGS...",
		Short: "Run a pipeline, a chain of commands or one command, show it live, and wait for its end",
		Long: `Run a pipeline to its end: trigger it with an event, show its stages, sizes, costs and the decisions
about them while it goes on, and print what was predicted and what came. The pipeline is that of the
app given with --app; else one that the stack serves or has stored; else, for "digits", the sample
that comes with Spillway. A name that ends in .yaml or .yml is the file of a chain of commands.

After -- stands one command, in any language. Its directory is sent along, what it prints is shown
as it comes, and the files that it made or changed are brought back when it has succeeded; a file
that was changed here meanwhile is never overwritten. The exit code is the program's own. A command
always runs, and so do stages of pipelines and chains, but for those that declare a cache: they take
the result of an earlier run of the same code whose input was the same. With --cache all stages do.

Not sent of a directory of code are version control, caches (__pycache__, *.pyc), environments of
this machine (.venv, venv, node_modules), which are named when there are any, and what the file
.spillwayignore at its top says, in the words of a .gitignore: a line such as !node_modules/ takes
one back. --requirements makes a Python environment where the command runs.

Where earlier runs tell, it says at the start when the run is expected to end and for how much, and
warns when that misses the deadline or the budget. A forecast never keeps a run from starting.

The stack that runs on the state directory is used; without one, a stack is started for the
occasion, with the flags below, and stopped afterwards. Ctrl-C cancels the run of a stack that was
started for the occasion, and that of a command; otherwise the run goes on without a display. The
exit code is 0 when the run succeeded and 1 when it failed or was cancelled.`,
		Example: `  spillway run digits --input '{"shards": 640}' --deadline 60s
  spillway run train --app ./myapp --input input.json --budget 0.50 --minimise latency
  spillway run train --app ./myapp --json --quiet > report.json
  spillway run churn.yaml --input '{"epochs": 5}' --out results
  spillway run -- python train.py --epochs 3
  spillway run --memory 2GiB --requirements needs.txt --output model=model.pt -- python train.py
  spillway run --in-place --env CUDA_VISIBLE_DEVICES -- ./benchmark > figures.txt`,
		Args:              runArguments,
		ValidArgsFunction: completeRun(t),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.ArgsLenAtDash() == 0:
				return runProgram(cmd.Context(), t, args, flags)
			case isChainFile(args[0]):
				return runChain(cmd.Context(), t, args[0], flags)
			default:
				return run(cmd.Context(), t, args[0], flags)
			}
		},
	}
	set := command.Flags()
	set.StringArrayVar(&flags.stack.Apps, "app", nil, "`DIR` of a Go main package, or a binary, that has the pipeline")
	set.BoolVar(&flags.json, "json", false, "write one JSON object to standard output at the end, and all else to "+
		"standard error")
	set.BoolVar(&t.Quiet, "quiet", false, "show no progress")
	set.Var(flag.Destination{Value: &flags.out.Dir}, "out",
		"`DIR` for the files that the run leaves, as spillway outputs puts them: of a chain the outputs of its last stages")
	flag.AddSharedOut(set, &flags.out.Shared, "--out")
	flags.event.Add(set)
	flags.command.Add(set)
	flags.stack.Add(set)
	return command
}

// runArguments accepts one name, or a command after --.
func runArguments(cmd *cobra.Command, args []string) error {
	const hint = "usage: spillway run PIPELINE, spillway run FILE.yaml, or spillway run -- PROGRAM ARGS..."
	switch dash := cmd.ArgsLenAtDash(); {
	case dash > 0:
		return &fault.UsageError{
			Problem: fmt.Sprintf("%q stands before --: a command has only flags there", args[0]),
			Hint:    hint,
		}
	case dash == 0 && (len(args) == 0 || args[0] == ""):
		return &fault.UsageError{Problem: "there is no program after --", Hint: hint}
	case dash < 0 && len(args) > 1:
		return &fault.UsageError{
			Problem: fmt.Sprintf("it does not take the argument %q", args[1]),
			Hint:    "a command stands after --: spillway run -- " + flag.ShellWords(args...),
		}
	case dash < 0 && (len(args) == 0 || args[0] == ""):
		return &fault.UsageError{
			Problem: "it needs the name of a pipeline, the file of a chain, or a command after --",
			Hint:    hint,
		}
	}
	return nil
}

func run(ctx context.Context, t *tool.Tool, pipeline string, flags *runFlags) (err error) {
	given := flag.Changed(flags.command.Set)
	if err := flag.Refuse(given, "a pipeline of an app",
		"a command stands after --, as in spillway run "+flag.Typed(flags.command.Set)+" -- PROGRAM"); err != nil {
		return err
	}
	input, err := flag.ReadInput(flags.event.Input, t.Deps.Stdin)
	if err != nil {
		return err
	}
	if err := flags.out.Check(); err != nil {
		return err
	}
	s, err := session.ConnectOrStart(ctx, t, &flags.stack,
		func(ctx context.Context, stack *web.Stack) ([]build.App, error) {
			return apps.For(ctx, t, pipeline, flags.stack.Apps, stack)
		})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.CloseForcibly(ctx, t.Deps.Interrupted)) }()
	if !slices.Contains(s.Stack.Pipelines(), pipeline) {
		if err := serveStoredChain(ctx, s, pipeline); err != nil {
			return err
		}
	}
	if known := s.Stack.Pipelines(); !slices.Contains(known, pipeline) {
		return web.UnknownPipeline(pipeline, known)
	}
	published, err := s.Client.Publish(ctx, flags.event.Event(pipeline, input))
	if err != nil {
		return err
	}
	viewer := follow.NewViewer(t, s, follow.Output(t, flags.json))
	model, err := follow.ToEnd(ctx, t, s, published, viewer, follow.Leave)
	if err != nil {
		return err
	}
	if steps := chainSteps(s.Stack, pipeline); len(steps) > 0 {
		return concludeChain(ctx, t, s, model, steps, flags, viewer)
	}
	if err := follow.Conclude(t, model, s.Stack, flags.json, viewer); err != nil || flags.out.Dir == "" {
		return err
	}
	encoded, err := s.Client.Result(ctx, model.Run.Run)
	if err != nil {
		return err
	}
	files, err := transfer.LeftInResult(encoded)
	if err != nil {
		return err
	}
	return fetchLeft(ctx, t, s, model.Run.Run, files, flags)
}

// chainSteps returns the stages of the chain that is served under a pipeline's name, in the order of its file; none
// when it is no chain.
func chainSteps(stack web.Stack, pipeline string) (steps []chain.Step) {
	for _, app := range stack.Apps {
		if !app.Chain || !app.Current || app.Name != pipeline {
			continue
		}
		if stored, err := build.NewChains(stack.StateDir).Get(app.Name, app.Build); err == nil {
			return stored.Steps()
		}
		for _, stage := range app.Stages { // its file is forgotten: which wait for which is not known
			steps = append(steps, chain.Step{Stage: stage.Name, Last: true})
		}
	}
	return steps
}

// completeRun completes the pipeline of `run`, or a file: that of a chain, or after -- what a program takes.
func completeRun(t *tool.Tool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return session.Ask(t, cmd, session.PipelineNames, args), cobra.ShellCompDirectiveDefault
	}
}
