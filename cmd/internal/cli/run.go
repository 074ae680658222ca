package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// runFlags configure `run`.
type runFlags struct {
	event   eventFlags
	stack   stackFlags
	command commandFlags
	out     string
	// sharedOut takes a result directory that others can change.
	sharedOut bool
	json      bool
}

func (t *tool) runCommand() *cobra.Command {
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
		ValidArgsFunction: t.completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.ArgsLenAtDash() == 0:
				return t.runProgram(cmd.Context(), args, flags)
			case isChainFile(args[0]):
				return t.runChain(cmd.Context(), args[0], flags)
			default:
				return t.run(cmd.Context(), args[0], flags)
			}
		},
	}
	set := command.Flags()
	set.StringArrayVar(&flags.stack.apps, "app", nil, "`DIR` of a Go main package, or a binary, that has the pipeline")
	set.BoolVar(&flags.json, "json", false, "write one JSON object to standard output at the end, and all else to standard error")
	set.BoolVar(&t.quiet, "quiet", false, "show no progress")
	set.Var(destination{&flags.out}, "out", "`DIR` for the outputs of a chain's last stages, as STAGE/PATH, or STAGE/TASK/PATH where it fans out")
	addSharedOut(set, &flags.sharedOut, "--out")
	flags.event.add(set)
	flags.command.add(set)
	flags.stack.add(set)
	return command
}

// runArguments accepts one name, or a command after --.
func runArguments(cmd *cobra.Command, args []string) error {
	const hint = "usage: spillway run PIPELINE, spillway run FILE.yaml, or spillway run -- PROGRAM ARGS..."
	switch dash := cmd.ArgsLenAtDash(); {
	case dash > 0:
		return &usage{problem: fmt.Sprintf("%q stands before --: a command has only flags there", args[0]), hint: hint}
	case dash == 0 && (len(args) == 0 || args[0] == ""):
		return &usage{problem: "there is no program after --", hint: hint}
	case dash < 0 && len(args) > 1:
		return &usage{problem: fmt.Sprintf("it does not take the argument %q", args[1]), hint: "a command stands after --: spillway run -- " + strings.Join(args, " ")}
	case dash < 0 && len(args) == 0:
		return &usage{problem: "it needs the name of a pipeline, the file of a chain, or a command after --", hint: hint}
	}
	return nil
}

// refuse refuses flags that were given and mean nothing here.
func refuse(given []string, here, hint string) error {
	if len(given) == 0 {
		return nil
	}
	return &usage{problem: fmt.Sprintf("%s is not for %s", strings.Join(given, ", "), here), hint: hint}
}

func (t *tool) run(ctx context.Context, pipeline string, flags *runFlags) (err error) {
	given := changed(flags.command.set)
	if flags.out != "" {
		given = append(given, "--out")
	}
	if flags.sharedOut {
		given = append(given, "--"+sharedOutFlag)
	}
	if err := refuse(given, "a pipeline of an app", "a command stands after --, as in spillway run "+strings.Join(given, " ")+" -- PROGRAM"); err != nil {
		return err
	}
	input, err := readInput(flags.event.input, t.deps.Stdin)
	if err != nil {
		return err
	}
	session, err := t.connectOrStart(ctx, &flags.stack, func(ctx context.Context, stack *web.Stack) ([]build.App, error) {
		return t.appsFor(ctx, pipeline, flags.stack.apps, stack)
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.closeForcibly(ctx, session)) }()
	if !slices.Contains(session.stack.Pipelines(), pipeline) {
		if err := t.serveStoredChain(ctx, session, pipeline); err != nil {
			return err
		}
	}
	if known := session.stack.Pipelines(); !slices.Contains(known, pipeline) {
		return web.UnknownPipeline(pipeline, known)
	}
	published, err := session.client.Publish(ctx, flags.event.event(pipeline, input))
	if err != nil {
		return err
	}
	viewer := t.newViewer(session, t.viewOutput(flags.json))
	model, err := t.followToEnd(ctx, session, published, viewer, leave)
	if err != nil {
		return err
	}
	if steps := chainSteps(session.stack, pipeline); len(steps) > 0 {
		return t.concludeChain(ctx, session, model, steps, flags, viewer)
	}
	return t.conclude(model, session.stack, flags.json, viewer)
}

// chainSteps returns the stages of the chain that is served under a pipeline's name, in the order of its file; none when it is no chain.
func chainSteps(stack web.Stack, pipeline string) (steps []chain.Step) {
	for _, app := range stack.Apps {
		if app.Chain && app.Current && app.Name == pipeline {
			for _, stage := range app.Stages {
				steps = append(steps, chain.Step{Stage: stage.Name})
			}
		}
	}
	return steps
}

// viewOutput is where progress goes.
func (t *tool) viewOutput(asJSON bool) io.Writer {
	switch {
	case t.quiet:
		return io.Discard
	case asJSON:
		return t.err
	default:
		return t.out
	}
}

// conclude prints what is left of a run that has ended and returns an error when it did not succeed.
func (t *tool) conclude(model display.Model, stack web.Stack, asJSON bool, viewer *viewer) error {
	if asJSON {
		if err := t.writeJSON(display.NewReport(model, stack.PoolCPUs, stack.FunctionCPUs)); err != nil {
			return err
		}
	} else {
		style, _ := t.styleOf(t.out)
		if viewer.said() {
			t.say("\n")
		}
		for _, line := range display.Summary(model, style) {
			t.say("%s\n", own(line))
		}
	}
	if model.Run.State != predictor.RunSucceeded {
		return errReported // the summary says why
	}
	return nil
}

// writeJSON writes one indented JSON value to standard output.
func (t *tool) writeJSON(value any) error {
	encoder := json.NewEncoder(cleanWriter{t.out})
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// cancelLimit bounds how long a run of our own stack may take to end after it was cancelled: the usual grace of a command, and some more.
const cancelLimit = 15 * time.Second
