package session

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/settings"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

const (
	// completeLimit bounds how long the engine may take to tell names: a key press must not hang.
	completeLimit = 500 * time.Millisecond
	// completedRuns is how many runs, the newest, are offered.
	completedRuns = 100
)

// Names asks the engine for what an argument or a flag may be.
type Names func(ctx context.Context, calls *client.Client, args []string) ([]cobra.Completion, error)

// RunNames are the newest runs.
func RunNames(ctx context.Context, calls *client.Client, _ []string) (found []cobra.Completion, err error) {
	runs, err := calls.Runs(ctx, web.RunQuery{Limit: completedRuns})
	for _, run := range runs {
		found = append(found, cobra.CompletionWithDesc(run.Run, string(run.State)))
	}
	return found, err
}

// PipelineNames are the pipelines that are served.
func PipelineNames(ctx context.Context, calls *client.Client, _ []string) ([]cobra.Completion, error) {
	stack, err := calls.Stack(ctx)
	return stack.Pipelines(), err
}

// BindingKeys are the keys of bindings that were made by command.
func BindingKeys(ctx context.Context, calls *client.Client, _ []string) (found []cobra.Completion, err error) {
	bindings, err := calls.Bindings(ctx)
	for _, binding := range bindings {
		if !binding.Declared {
			found = append(found, cobra.CompletionWithDesc(binding.Key, binding.Pipeline))
		}
	}
	return found, err
}

// HostNames are the hosts that have joined or have a lease.
func HostNames(ctx context.Context, calls *client.Client, _ []string) (found []cobra.Completion, err error) {
	hosts, err := calls.Hosts(ctx)
	for _, host := range hosts {
		found = append(found, cobra.CompletionWithDesc(host.Name, string(host.State)))
	}
	return found, err
}

// TokenNames are those of the tokens that were made for others.
func TokenNames(ctx context.Context, calls *client.Client, _ []string) (found []cobra.Completion, err error) {
	tokens, err := calls.Tokens(ctx)
	for _, token := range tokens {
		found = append(found, cobra.CompletionWithDesc(token.Name, token.Role))
	}
	return found, err
}

// NoNames are none: of an argument that only whoever types it knows.
func NoNames(context.Context, *client.Client, []string) ([]cobra.Completion, error) { return nil, nil }

// StageNames are the stages of the run that the first argument names.
func StageNames(ctx context.Context, calls *client.Client, args []string) (found []cobra.Completion, err error) {
	if len(args) == 0 {
		return nil, nil
	}
	run, err := calls.Run(ctx, args[0])
	for _, stage := range run.Stages {
		found = append(found, stage.Name)
	}
	return found, err
}

// Complete makes a completion of the names for each argument in turn; a flag takes the last of them. It is silent when
// no engine answers.
func Complete(t *tool.Tool, of ...Names) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if len(args) >= len(of) {
			return nil, none
		}
		return Ask(t, cmd, of[len(args)], args), none
	}
}

// CompleteFlag makes a completion of a flag.
func CompleteFlag(t *tool.Tool, cmd *cobra.Command, name string, of Names) {
	complete := func(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return Ask(t, cmd, of, args), cobra.ShellCompDirectiveNoFileComp
	}
	flag.MustComplete(cmd.RegisterFlagCompletionFunc(name, complete))
}

// Ask asks the engine that runs on the state directory.
func Ask(t *tool.Tool, cmd *cobra.Command, of Names, args []string) []cobra.Completion {
	if err := settings.Apply(t, cmd); err != nil { // they may say where the stack is
		return nil
	}
	calls, err := near(t)
	if err != nil {
		return nil
	}
	defer calls.Close()
	ctx := cmd.Context()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	found, err := of(ctx, calls, args)
	if err != nil {
		return nil
	}
	return found
}

// near returns a client of what commands ask, and asks it nothing.
func near(t *tool.Tool) (*client.Client, error) {
	server, err := Server(t)
	if err != nil {
		return nil, err
	}
	if server != "" {
		return elsewhere(t, server)
	}
	_, file, token, err := findStack(t)
	if err != nil {
		return nil, err
	}
	return client.New(file.HTTP, token), nil
}
