package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/build"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// runFlags configure `run`.
type runFlags struct {
	event eventFlags
	stack stackFlags
	json  bool
}

func (t *tool) runCommand() *cobra.Command {
	flags := &runFlags{}
	command := &cobra.Command{
		Use:   "run PIPELINE [FLAGS]",
		Short: "Run a pipeline, show it live, and wait for its end",
		Long: `Run a pipeline to its end: trigger it with an event, show its stages, sizes, costs and the decisions about
them while it goes on, and print what was predicted and what came.

The stack that runs on the state directory is used; without one, a stack is started for the occasion, with
the flags below, and stopped afterwards. The pipeline is that of the app given with --app; else one that
the stack serves or has stored; else, for "digits", the sample that comes with Spillway.

Ctrl-C cancels the run when the stack was started for the occasion; otherwise the run goes on without a
display. The exit code is 0 when the run succeeded and 1 when it failed or was cancelled.`,
		Example: `  spillway run digits
  spillway run digits --input '{"shards": 640}' --deadline 60s
  spillway run train --app ./myapp --input input.json --budget 0.50 --minimise latency
  spillway run train --app ./myapp --json --quiet > report.json`,
		Args: positional("the name of a pipeline"),
		RunE: func(cmd *cobra.Command, args []string) error { return t.run(cmd.Context(), args[0], flags) },
	}
	command.Flags().StringArrayVar(&flags.stack.apps, "app", nil, "`DIR` of a Go main package, or a binary, that has the pipeline")
	command.Flags().BoolVar(&flags.json, "json", false, "write one JSON object to standard output at the end, and progress to standard error")
	command.Flags().BoolVar(&t.quiet, "quiet", false, "show no progress")
	flags.event.add(command.Flags())
	flags.stack.add(command.Flags())
	return command
}

func (t *tool) run(ctx context.Context, pipeline string, flags *runFlags) (err error) {
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
	if known := session.stack.Pipelines(); !slices.Contains(known, pipeline) {
		return web.UnknownPipeline(pipeline, known)
	}
	published, err := session.client.Publish(ctx, web.Event{Pipeline: pipeline, ID: flags.event.id, Input: input, Goal: flags.event.goalOrNil()})
	if err != nil {
		return err
	}
	viewer := t.newViewer(session, t.viewOutput(flags.json))
	model, err := t.followToEnd(ctx, session, published, viewer)
	if err != nil {
		return err
	}
	return t.conclude(model, session.stack, flags.json, viewer)
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
			t.say("%s\n", line)
		}
	}
	if model.Run.State != predictor.RunSucceeded {
		return errReported // the summary says why
	}
	return nil
}

// writeJSON writes one indented JSON value to standard output.
func (t *tool) writeJSON(value any) error {
	encoder := json.NewEncoder(t.out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

// cancelLimit bounds how long a run of our own stack may take to end after it was cancelled.
const cancelLimit = 10 * time.Second
