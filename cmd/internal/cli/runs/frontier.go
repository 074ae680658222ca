package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// frontierFlags are the flags of `frontier`.
type frontierFlags struct {
	event flag.Event
	json  bool
}

func frontierCommand(t *tool.Tool) *cobra.Command {
	flags := &frontierFlags{}
	command := &cobra.Command{
		Use:   "frontier RUN|PIPELINE [FLAGS]",
		Short: "Show every time and cost that a run could come to, before anything is applied",
		Long: `Show the frontier of a run: the times and costs that no other way to run it is both faster and
cheaper than, what each stage gets for them, what twice as fast would cost and what half the money
would take. Of a run that goes on it is that of what is left, with the room that others leave it; of
one that has ended, what it could have come to by what its tasks were measured to take; of a
pipeline, what the next run of it will come to by its earlier ones, with the pool to itself.

The ways are: each number of slots of the pool, of each size at which the stage's speed is known,
each number of functions of each memory class, and both together. They are combined exactly. A stage
that uses GPUs could also have those of each other class that hosts have and on which tasks of it
have ended, whatever it asks for; the best is said where it is another one than it has, and classes
on which it has never run are named.
Times are the middle of what may come; what a slot of the pool costs is its part of its host's price
while it works, as spillway cost counts it. Stages that nobody has seen are unknown, and so is then
the frontier.

With a deadline or a budget, the plan for it is marked, with the probability that it is in time; a
goal that no plan meets is said, with what could be met. Nothing is changed by asking; spillway goal
changes the goal of a run that goes on. Without flags a run is asked about with its own goal.

The exit code is 0, also when the goal cannot be met or nothing is known, and 2 when there is no
such run or pipeline, or a flag is wrong.`,
		Example: `  spillway frontier digits-7f3a9c
  spillway frontier digits-7f3a9c --deadline 10m --confidence 0.95
  spillway frontier digits --input '{"shards": 16}' --budget 0.05
  spillway frontier digits --json | jq '.points[] | {seconds, cost_usd}'`,
		Args:              flag.Positional("the name of a run or of a pipeline"),
		ValidArgsFunction: session.Complete(t, session.RunNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return frontier(cmd.Context(), t, args[0], flags)
		},
	}
	set := command.Flags()
	set.StringVar(&flags.event.Input, "input", "", "of a pipeline: the input that its run would have, `JSON`, the name "+
		"of a file, or - for standard input (default one like those of earlier runs)")
	flags.event.AddGoal(set)
	set.BoolVar(&flags.json, "json", false, "print everything as JSON; the units are in the names")
	return command
}

func frontier(ctx context.Context, t *tool.Tool, name string, flags *frontierFlags) error {
	input, err := flag.ReadInput(flags.event.Input, t.Deps.Stdin)
	if err != nil {
		return err
	}
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	answer, err := askFrontier(ctx, s, name, input, flags.event.GoalOrNil())
	if err != nil {
		return err
	}
	if flags.json {
		return t.WriteJSON(answer)
	}
	style, _ := t.StyleOf(t.Out)
	for _, line := range display.WhatIf(answer, style) {
		t.Say("%s\n", display.Own(line))
	}
	return nil
}

// askFrontier asks about the run of the name, or, where there is none, about the pipeline.
func askFrontier(
	ctx context.Context, s *session.Session, name string, input json.RawMessage, goal *predictor.Goal,
) (answer whatif.Answer, err error) {
	answer, noRun := s.Client.Frontier(ctx, name, goal)
	switch refused, ok := errors.AsType[*web.Error](noRun); {
	case noRun == nil && input != nil:
		return answer, &fault.UsageError{
			Problem: "--input is for a pipeline, and " + name + " is a run",
			Hint:    "leave it out, or name the pipeline",
		}
	case !ok || refused.Status != http.StatusNotFound:
		return answer, noRun
	}
	asked := predictor.Goal{}
	if goal != nil {
		asked = *goal
	}
	answer, err = s.Client.PipelineFrontier(ctx, name, input, asked)
	refused, ok := errors.AsType[*web.Error](err)
	if !ok || refused.Status != http.StatusNotFound {
		return answer, err
	}
	unknown := &web.Error{
		Status: http.StatusNotFound, Message: fmt.Sprintf("there is no run or pipeline %q", name), Hint: refused.Hint,
	}
	if strings.HasPrefix(unknown.Hint, "did you mean ") {
		return answer, unknown
	}
	return answer, session.WithNearRuns(ctx, s, unknown, name)
}
