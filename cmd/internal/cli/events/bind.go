package events

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/session"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// bindFlags configure `bind`.
type bindFlags struct {
	filter   []string
	maxRuns  int
	schedule string
	event    flag.Event
	json     bool
}

func bindCommand(t *tool.Tool) *cobra.Command {
	flags := &bindFlags{}
	command := &cobra.Command{
		Use:   "bind SUBJECT PIPELINE [FLAGS]",
		Short: "Start a run of a pipeline for each event on a NATS subject",
		Long: `Bind a NATS subject to a pipeline: each event on the subject starts exactly one run, with the
event's body as its input. The subject may have wildcards. With --schedule runs start at those times
too. The binding is kept in the state directory until ` + "`spillway unbind`" + `.`,
		Example: `  spillway bind uploads.images.> train
  spillway bind uploads.> train --filter kind=image --filter meta.size=large --max-runs 2
  spillway bind nightly train --schedule "0 3 * * *" --input '{"full": true}' --budget 2`,
		Args:              flag.Positional("a NATS subject", "the name of a pipeline"),
		ValidArgsFunction: session.Complete(t, session.NoNames, session.PipelineNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			return bind(cmd.Context(), t, args[0], args[1], flags)
		},
	}
	set := command.Flags()
	set.StringArrayVar(&flags.filter, "filter", nil,
		"keep only events whose body has this value at this path, as `PATH=VALUE`; may be given several times")
	set.Var(flag.Count{Value: &flags.maxRuns, Least: 1}, "max-runs",
		"the most runs of this binding at a time; events over it wait (default no cap)")
	set.StringVar(&flags.schedule, "schedule", "",
		"`CRON` expression of five fields, in UTC, at which an event is published too")
	set.StringVar(&flags.event.Input, "input", "",
		"body of scheduled events: `JSON`, the name of a file, or - for standard input (default {})")
	set.BoolVar(&flags.json, "json", false, "print the binding as JSON")
	flags.event.AddGoal(set)
	return command
}

func bind(ctx context.Context, t *tool.Tool, subject, pipeline string, flags *bindFlags) error {
	filter, err := parseFilter(flags.filter)
	if err != nil {
		return err
	}
	if flags.event.Input != "" && flags.schedule == "" {
		return &fault.UsageError{
			Problem: "--input is the body of scheduled events, and there is no --schedule",
			Hint:    "give --schedule, or leave --input out: events bring their own body",
		}
	}
	input, err := flag.ReadInput(flags.event.Input, t.Deps.Stdin)
	if err != nil {
		return err
	}
	binding := wire.Binding{
		Pipeline: pipeline, Subject: subject, Filter: filter, MaxRuns: flags.maxRuns,
		Schedule: flags.schedule, Input: input,
	}
	if goal := flags.event.GoalOrNil(); goal != nil {
		binding.Goal = *goal
	}
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	made, err := s.Client.Bind(ctx, binding)
	if err != nil {
		return err
	}
	if flags.json {
		return t.WriteJSON(made)
	}
	t.Say("binding %s: events on %s start %s\n", made.Key, subject, pipeline)
	return nil
}

// parseFilter reads PATH=VALUE. A value that is JSON is taken as such (3, true, "3"), all else as a string.
func parseFilter(pairs []string) (map[string]any, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	filter := map[string]any{}
	for _, pair := range pairs {
		path, text, found := strings.Cut(pair, "=")
		if !found || path == "" {
			return nil, &fault.UsageError{
				Problem: fmt.Sprintf("--filter %s: it is not PATH=VALUE", pair),
				Hint:    "write a path and a value, such as kind=image or meta.size=3",
			}
		}
		if _, twice := filter[path]; twice {
			return nil, &fault.UsageError{
				Problem: fmt.Sprintf("--filter %s: the path %s is given twice", pair, path),
				Hint:    "give each path once",
			}
		}
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			value = text
		}
		filter[path] = value
	}
	return filter, nil
}

func unbindCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "unbind KEY [FLAGS]",
		Short: "Remove a binding",
		Long: `Remove a binding that was made by command. Runs that it has started go on; events that wait for it
stay unread.`,
		Example: `  spillway unbind "$(spillway bindings | awk '/nightly/ {print $1}')"`,
		Args:    flag.Positional("the key of a binding"),
		RunE:    func(cmd *cobra.Command, args []string) error { return unbind(cmd.Context(), t, args[0], asJSON) },

		ValidArgsFunction: session.Complete(t, session.BindingKeys),
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the key as JSON")
	return command
}

func unbind(ctx context.Context, t *tool.Tool, key string, asJSON bool) error {
	s, err := session.Connect(ctx, t)
	if err != nil {
		return err
	}
	defer s.Client.Close()
	if err := s.Client.Unbind(ctx, key); err != nil {
		return err
	}
	if asJSON {
		return t.WriteJSON(map[string]string{"key": key})
	}
	t.Say("binding %s is removed\n", key)
	return nil
}

func bindingsCommand(t *tool.Tool) *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "bindings [FLAGS]",
		Short: "List which events start which pipelines",
		Long:  `List every binding: those that pipelines declare in code and those made by command.`,
		Example: `  spillway bindings
  spillway bindings --json | jq -r '.[] | select(.waiting > 0) | .key'`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return bindings(cmd.Context(), t, asJSON) },
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the bindings as JSON")
	return command
}

func bindings(ctx context.Context, t *tool.Tool, asJSON bool) error {
	return session.List(ctx, t, asJSON, "no bindings",
		func(s *session.Session) ([]web.Binding, error) { return s.Client.Bindings(ctx) },
		func(_ *session.Session, found []web.Binding) error {
			table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
			display.Printf(table, "KEY\tSUBJECT\tPIPELINE\tSCHEDULE\tMADE BY\tRUNNING\tWAITING\n")
			for _, binding := range found {
				by, most := "command", ""
				if binding.Declared {
					by = "code"
				}
				if binding.MaxRuns > 0 {
					most = fmt.Sprintf("/%d", binding.MaxRuns)
				}
				display.Printf(table, "%s\t%s\t%s\t%s\t%s\t%d%s\t%d\n", binding.Key, display.OrDash(binding.Subject),
					binding.Pipeline, display.OrDash(binding.Schedule), by, binding.Running, most, binding.Waiting)
			}
			return table.Flush()
		})
}
