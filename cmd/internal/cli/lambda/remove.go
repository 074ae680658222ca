package lambda

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/activities/awslambda"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/predictor/words"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// removeFlags are the flags of `lambda remove`.
type removeFlags struct {
	place
	all, unused, yes, force bool
}

// removed is what `lambda remove --json` prints.
type removed struct {
	Removed []string `json:"removed"`
}

func removeCommand(t *tool.Tool) *cobra.Command {
	flags := &removeFlags{}
	command := &cobra.Command{
		Use:   "remove NAME... | --all | --unused [FLAGS]",
		Short: "Remove functions that were deployed",
		Long: `Remove functions that "spillway lambda list" lists: the ones named, all, or those of which it says
"no", for no engine uses them. It says which, and asks before it removes them, unless --yes is
given; --json needs it.

What an engine uses that runs on the state directory is not removed, unless --force is given: the
engine would deploy it again at the next task. Which these are is not known of engines on other
state directories or other machines. --unused needs an engine that runs here, and leaves every
function of which it is unknown whether one uses it.

The exit code is 0 when they are gone, 1 when AWS refused or did not answer, and 2 when a name is
not there, is in use, or was not confirmed; nothing is removed then.`,
		Example: `  spillway lambda remove spillway-myapp-0123456789ab-512
  spillway lambda remove --unused --yes
  spillway lambda remove --all --region eu-central-1`,
		RunE: func(cmd *cobra.Command, args []string) error { return remove(cmd.Context(), t, args, flags) },
	}
	set := command.Flags()
	set.BoolVar(&flags.all, "all", false, "remove all functions that are listed")
	set.BoolVar(&flags.unused, "unused", false, "remove those that no engine uses, as far as the one which runs can say")
	set.BoolVar(&flags.yes, "yes", false, "do not ask")
	set.BoolVar(&flags.force, "force", false, "remove also what the engine which runs uses")
	flags.add(set)
	return command
}

func remove(ctx context.Context, t *tool.Tool, names []string, flags *removeFlags) error {
	if err := flags.check(names); err != nil {
		return err
	}
	iv, err := flags.invoker(ctx, t, awslambda.Options{}, "")
	if err != nil {
		return err
	}
	used, runs, err := useOf(ctx, t, iv.Endpoint())
	if err != nil && !flags.force {
		return fault.Advise(fmt.Errorf("which functions are in use is not known: %w", err),
			"wait until the engine answers, or give --force")
	}
	switch {
	case flags.unused && !runs:
		return &fault.UsageError{
			Problem: "no engine runs on the state directory that could say which functions it uses",
			Hint:    "start it, or give --all, or name them",
		}
	case flags.unused && !used.known:
		return &fault.UsageError{
			Problem: "the engine that runs does not spill to " + display.CleanLine(iv.Endpoint()) +
				", or has only just started: which functions it uses there is not known",
			Hint: "write --endpoint as AWS_ENDPOINT_URL_LAMBDA of the engine, or local, try again in a minute, or name them",
		}
	}
	functions, err := iv.List(ctx)
	if err != nil {
		return err
	}
	chosen, err := flags.choose(names, functions, used)
	if err != nil {
		return err
	}
	if len(chosen) == 0 && !flags.asJSON {
		t.Say("nothing to remove at %s\n", display.CleanLine(iv.Endpoint()))
		return nil
	}
	if !flags.yes {
		if err := showList(t, chosen); err != nil {
			return err
		}
		if err := confirm(t, len(chosen), iv.Endpoint()); err != nil {
			return err
		}
	}
	return removeAll(ctx, t, iv, chosen, flags.asJSON)
}

// check refuses flags that contradict each other.
func (f *removeFlags) check(names []string) error {
	if err := flag.Exclusive([]string{"names", "--all", "--unused"}, len(names) > 0, f.all, f.unused); err != nil {
		return err
	}
	if len(names) == 0 && !f.all && !f.unused {
		return &fault.UsageError{
			Problem: "it needs the names of functions, --all or --unused",
			Hint:    "`spillway lambda list` lists them",
		}
	}
	if f.asJSON && !f.yes {
		return &fault.UsageError{Problem: "--json asks nobody", Hint: "give --yes with it"}
	}
	return nil
}

// choose returns the functions to remove.
func (f *removeFlags) choose(names []string, functions []awslambda.Function, used use) ([]listed, error) {
	known := make([]string, 0, len(functions))
	for _, function := range functions {
		known = append(known, function.Name)
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			hint := "`spillway lambda list` lists them"
			if near := nearest.Names(name, known); len(near) > 0 {
				hint = "did you mean " + strings.Join(near, ", ") + "?"
			}
			return nil, &fault.UsageError{Problem: "there is no function " + flag.Shown(name) + " of Spillway's", Hint: hint}
		}
	}
	chosen, inUse := []listed{}, []string{}
	for _, function := range functions {
		isUsed := used.uses(function)
		if f.unused && !used.unused(function) || len(names) > 0 && !slices.Contains(names, function.Name) {
			continue
		}
		if isUsed {
			inUse = append(inUse, function.Name)
		}
		chosen = append(chosen, listed{function, used.word(function)})
	}
	if len(inUse) > 0 && !f.force {
		return nil, &fault.UsageError{
			Problem: "the engine that runs uses " + strings.Join(inUse, ", "),
			Hint:    "leave it out, give --unused for the others, or --force to remove it all the same",
		}
	}
	return chosen, nil
}

// confirm asks whoever sits there.
func confirm(t *tool.Tool, n int, endpoint string) error {
	t.Complain("remove %s at %s? [y/N] ", words.Count(n, "function"), display.CleanLine(endpoint))
	line, err := bufio.NewReader(t.Deps.Stdin).ReadString('\n')
	if err != nil {
		t.Complain("\n")
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	default:
		return &fault.UsageError{Problem: "not confirmed, nothing is removed", Hint: "answer y, or give --yes"}
	}
}

// removeAll removes functions one by one, and tells how far it came where that is not to the end.
func removeAll(ctx context.Context, t *tool.Tool, iv *awslambda.Invoker, chosen []listed, asJSON bool) error {
	gone := removed{[]string{}}
	for _, function := range chosen {
		if err := iv.Remove(ctx, function.Name); err != nil {
			hint := cmp.Or(fault.AdviceOf(err), goesOn)
			if errors.Is(err, context.Canceled) {
				err = errors.New("interrupted")
			}
			return fault.Advise(fmt.Errorf("%d of %s removed: %w", len(gone.Removed),
				words.Count(len(chosen), "function"), err), hint)
		}
		gone.Removed = append(gone.Removed, function.Name)
		if !asJSON {
			t.Say("removed %s\n", display.CleanLine(function.Name))
		}
	}
	if asJSON {
		return t.WriteJSON(gone)
	}
	return nil
}
