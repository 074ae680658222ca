package lambda

import (
	"context"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// listed is a function in a list.
type listed struct {
	awslambda.Function
	// InUse is "yes", "no" or "unknown".
	InUse string `json:"in_use"`
}

func listCommand(t *tool.Tool) *cobra.Command {
	flags := &place{}
	command := &cobra.Command{
		Use:   "list [FLAGS]",
		Short: "List the functions that were deployed, and whether the engine uses them",
		Long: `List the functions that "spillway lambda deploy" and engines have deployed in a region: of which
build, with how much memory, for which processor, how large, when they were changed last, and
whether the engine that runs on the state directory uses them: "yes" where it spills to this place
and may call them, as it serves their build, or runs of an old one go on, or they run its commands;
"no" where they are its own and it may not; "unknown" where no engine answers, where it has only
just started, and of what may be the functions of another engine.

Of all functions of the account only those are listed whose description says that they are
Spillway's. With --json an array is printed, empty when there are none.

The exit code is 0, also when there are none, and 1 when AWS refused or did not answer.`,
		Example: `  spillway lambda list
  spillway lambda list --json | jq -r '.[] | select(.in_use == "no") | .function'`,
		Args:              flag.Positional(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              func(cmd *cobra.Command, _ []string) error { return list(cmd.Context(), t, flags) },
	}
	flags.add(command.Flags())
	return command
}

func list(ctx context.Context, t *tool.Tool, flags *place) error {
	iv, err := flags.invoker(ctx, t, awslambda.Options{}, "")
	if err != nil {
		return err
	}
	functions, err := iv.List(ctx)
	if err != nil {
		return err
	}
	used, _, err := useOf(ctx, t, iv.Endpoint())
	if err != nil {
		t.Note("which are in use is not known: %v", err)
	}
	all := make([]listed, 0, len(functions))
	for _, f := range functions {
		all = append(all, listed{f, used.word(f)})
	}
	if flags.asJSON {
		return t.WriteJSON(all)
	}
	if len(all) == 0 {
		t.Say("no functions at %s\n", display.CleanLine(iv.Endpoint()))
		return nil
	}
	if err := showList(t, all); err != nil {
		return err
	}
	var code quantity.Bytes
	for _, f := range all {
		code += quantity.Bytes(f.CodeBytes)
	}
	t.Say("%s at %s, %s of code\n", words.Count(len(all), "function"), display.CleanLine(iv.Endpoint()), code)
	return nil
}

// showList prints functions in a table.
func showList(t *tool.Tool, all []listed) error {
	table := tabwriter.NewWriter(t.Out, 0, 0, 2, ' ', 0)
	display.Printf(table, "FUNCTION\tBUILD\tMEMORY\tPROCESSOR\tCODE\tCHANGED\tIN USE\n")
	for _, f := range all {
		changed := "-"
		if !f.Modified.IsZero() {
			changed = f.Modified.UTC().Format(time.DateTime)
		}
		display.Printf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", display.CleanLine(f.Name), short(f.Build),
			memoryText(f.Memory), display.CleanLine(f.Architecture), quantity.Bytes(f.CodeBytes), changed, f.InUse)
	}
	return table.Flush()
}
