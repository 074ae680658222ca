package flag

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// MustComplete panics when a completion is for a flag that the command does not have: a mistake in this package, which
// every start shows.
func MustComplete(err error) {
	if err != nil {
		panic("complete a flag: " + err.Error())
	}
}

// Fixed completes the first argument with one of these words.
func Fixed(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteChoices completes every flag of a command that takes one of a few words.
func CompleteChoices(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if words, ok := flag.Value.(Choice); ok {
			MustComplete(cmd.RegisterFlagCompletionFunc(flag.Name,
				cobra.FixedCompletions(words.Of, cobra.ShellCompDirectiveNoFileComp)))
		}
	})
}
