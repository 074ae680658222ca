package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// bindFlags configure `bind`.
type bindFlags struct {
	filter   []string
	maxRuns  int
	schedule string
	event    eventFlags
	json     bool
}

func (t *tool) bindCommand() *cobra.Command {
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
		Args:              positional("a NATS subject", "the name of a pipeline"),
		ValidArgsFunction: t.complete(noNames, pipelineNames),
		RunE:              func(cmd *cobra.Command, args []string) error { return t.bind(cmd.Context(), args[0], args[1], flags) },
	}
	set := command.Flags()
	set.StringArrayVar(&flags.filter, "filter", nil, "keep only events whose body has this value at this path, as `PATH=VALUE`; may be given several times")
	set.Var(count{&flags.maxRuns, 1}, "max-runs", "the most runs of this binding at a time; events over it wait (default no cap)")
	set.StringVar(&flags.schedule, "schedule", "", "`CRON` expression of five fields, in UTC, at which an event is published too")
	set.StringVar(&flags.event.input, "input", "", "body of scheduled events: `JSON`, the name of a file, or - for standard input (default {})")
	set.BoolVar(&flags.json, "json", false, "print the binding as JSON")
	flags.event.addGoal(set)
	return command
}

func (t *tool) bind(ctx context.Context, subject, pipeline string, flags *bindFlags) error {
	filter, err := parseFilter(flags.filter)
	if err != nil {
		return err
	}
	if flags.event.input != "" && flags.schedule == "" {
		return &usage{problem: "--input is the body of scheduled events, and there is no --schedule", hint: "give --schedule, or leave --input out: events bring their own body"}
	}
	input, err := readInput(flags.event.input, t.deps.Stdin)
	if err != nil {
		return err
	}
	binding := wire.Binding{Pipeline: pipeline, Subject: subject, Filter: filter, MaxRuns: flags.maxRuns, Schedule: flags.schedule, Input: input}
	if goal := flags.event.goalOrNil(); goal != nil {
		binding.Goal = *goal
	}
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	made, err := session.client.Bind(ctx, binding)
	if err != nil {
		return err
	}
	if flags.json {
		return t.writeJSON(made)
	}
	t.say("binding %s: events on %s start %s\n", made.Key, subject, pipeline)
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
			return nil, &usage{problem: fmt.Sprintf("--filter %s: it is not PATH=VALUE", pair), hint: "write a path and a value, such as kind=image or meta.size=3"}
		}
		if _, twice := filter[path]; twice {
			return nil, &usage{problem: fmt.Sprintf("--filter %s: the path %s is given twice", pair, path), hint: "give each path once"}
		}
		var value any
		if json.Unmarshal([]byte(text), &value) != nil {
			value = text
		}
		filter[path] = value
	}
	return filter, nil
}

func (t *tool) unbindCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "unbind KEY [FLAGS]",
		Short: "Remove a binding",
		Long: `Remove a binding that was made by command. Runs that it has started go on; events that wait for it
stay unread.`,
		Example: `  spillway unbind "$(spillway bindings | awk '/nightly/ {print $1}')"`,
		Args:    positional("the key of a binding"),
		RunE:    func(cmd *cobra.Command, args []string) error { return t.unbind(cmd.Context(), args[0], asJSON) },

		ValidArgsFunction: t.complete(bindingKeys),
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the key as JSON")
	return command
}

func (t *tool) unbind(ctx context.Context, key string, asJSON bool) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	if err := session.client.Unbind(ctx, key); err != nil {
		return err
	}
	if asJSON {
		return t.writeJSON(map[string]string{"key": key})
	}
	t.say("binding %s is removed\n", key)
	return nil
}

func (t *tool) bindingsCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "bindings [FLAGS]",
		Short: "List which events start which pipelines",
		Long:  `List every binding: those that pipelines declare in code and those made by command.`,
		Example: `  spillway bindings
  spillway bindings --json | jq -r '.[] | select(.waiting > 0) | .key'`,
		Args: positional(),
		RunE: func(cmd *cobra.Command, _ []string) error { return t.bindings(cmd.Context(), asJSON) },
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the bindings as JSON")
	return command
}

func (t *tool) bindings(ctx context.Context, asJSON bool) error {
	session, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer session.client.Close()
	found, err := session.client.Bindings(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		if found == nil {
			found = []web.Binding{}
		}
		return t.writeJSON(found)
	}
	if len(found) == 0 {
		t.say("no bindings\n")
		return nil
	}
	table := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	printf(table, "KEY\tSUBJECT\tPIPELINE\tSCHEDULE\tMADE BY\tRUNNING\tWAITING\n")
	for _, binding := range found {
		by, most := "command", ""
		if binding.Declared {
			by = "code"
		}
		if binding.MaxRuns > 0 {
			most = fmt.Sprintf("/%d", binding.MaxRuns)
		}
		printf(table, "%s\t%s\t%s\t%s\t%s\t%d%s\t%d\n", binding.Key, orDash(binding.Subject), binding.Pipeline, orDash(binding.Schedule), by,
			binding.Running, most, binding.Waiting)
	}
	return table.Flush()
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
