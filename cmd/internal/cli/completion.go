package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

const (
	// completeLimit bounds how long the engine may take to tell names: a key press must not hang.
	completeLimit = 500 * time.Millisecond
	// completedRuns is how many runs, the newest, are offered.
	completedRuns = 100
)

func (t *tool) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print the script that completes commands in a shell",
		Long: `Print a script that makes the tab key of a shell complete commands, flags, and the names of runs,
pipelines and stages, which the running stack is asked for. Where none runs, or it does not answer
within half a second, there are none to choose from, and nothing is said.

bash needs the package bash-completion; zsh needs "autoload -U compinit; compinit" in ~/.zshrc.`,
		Example: `  spillway completion bash > ~/.local/share/bash-completion/completions/spillway
  spillway completion zsh > "${fpath[1]}/_spillway"
  spillway completion fish > ~/.config/fish/completions/spillway.fish`,
		Args:              positional("the name of a shell: bash, zsh or fish"),
		ValidArgsFunction: fixed("bash", "zsh", "fish"),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch root := cmd.Root(); args[0] {
			case "bash":
				return root.GenBashCompletionV2(t.out, true)
			case "zsh":
				return root.GenZshCompletion(t.out)
			case "fish":
				return root.GenFishCompletion(t.out, true)
			default:
				return &usage{problem: "there is no completion for " + args[0], hint: "give bash, zsh or fish"}
			}
		},
	}
}

// names asks the engine for what an argument or a flag may be.
type names func(ctx context.Context, calls *client.Client, args []string) ([]cobra.Completion, error)

// runNames are the newest runs.
func runNames(ctx context.Context, calls *client.Client, _ []string) (found []cobra.Completion, err error) {
	runs, err := calls.Runs(ctx, web.RunQuery{Limit: completedRuns})
	for _, run := range runs {
		found = append(found, cobra.CompletionWithDesc(run.Run, string(run.State)))
	}
	return found, err
}

// pipelineNames are the pipelines that are served.
func pipelineNames(ctx context.Context, calls *client.Client, _ []string) ([]cobra.Completion, error) {
	stack, err := calls.Stack(ctx)
	return stack.Pipelines(), err
}

// bindingKeys are the keys of bindings that were made by command.
func bindingKeys(ctx context.Context, calls *client.Client, _ []string) (found []cobra.Completion, err error) {
	bindings, err := calls.Bindings(ctx)
	for _, binding := range bindings {
		if !binding.Declared {
			found = append(found, cobra.CompletionWithDesc(binding.Key, binding.Pipeline))
		}
	}
	return found, err
}

// noNames are none: of an argument that only whoever types it knows.
func noNames(context.Context, *client.Client, []string) ([]cobra.Completion, error) { return nil, nil }

// stageNames are the stages of the run that the first argument names.
func stageNames(ctx context.Context, calls *client.Client, args []string) (found []cobra.Completion, err error) {
	if len(args) == 0 {
		return nil, nil
	}
	run, err := calls.Run(ctx, args[0])
	for _, stage := range run.Stages {
		found = append(found, stage.Name)
	}
	return found, err
}

// complete makes a completion of the names for each argument in turn; a flag takes the last of them. It is silent when no engine answers.
func (t *tool) complete(of ...names) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if len(args) >= len(of) {
			return nil, none
		}
		return t.ask(cmd, of[len(args)], args), none
	}
}

// completeRun completes the pipeline of `run`, or a file: that of a chain, or after -- what a program takes.
func (t *tool) completeRun(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return t.ask(cmd, pipelineNames, args), cobra.ShellCompDirectiveDefault
}

// completeFlag makes a completion of a flag.
func (t *tool) completeFlag(cmd *cobra.Command, flag string, of names) {
	complete := func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return t.ask(cmd, of, args), cobra.ShellCompDirectiveNoFileComp
	}
	mustComplete(cmd.RegisterFlagCompletionFunc(flag, complete))
}

// mustComplete panics when a completion is for a flag that the command does not have: a mistake in this package, which every start shows.
func mustComplete(err error) {
	if err != nil {
		panic("complete a flag: " + err.Error())
	}
}

// ask asks the engine that runs on the state directory.
func (t *tool) ask(cmd *cobra.Command, of names, args []string) []cobra.Completion {
	_, file, token, err := t.findStack()
	if err != nil {
		return nil
	}
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	calls := client.New(file.HTTP, token)
	defer calls.Close()
	found, err := of(ctx, calls, args)
	if err != nil {
		return nil
	}
	return found
}

// fixed completes the first argument with one of these words.
func fixed(words ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeChoices completes every flag of a command that takes one of a few words.
func completeChoices(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if words, ok := flag.Value.(choice); ok {
			mustComplete(cmd.RegisterFlagCompletionFunc(flag.Name, cobra.FixedCompletions(words.of, cobra.ShellCompDirectiveNoFileComp)))
		}
	})
}
