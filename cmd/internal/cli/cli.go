// Package cli is the command line of spillway: the root command, help topics and exit codes. Each group of commands is
// a package below it.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/apps"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/events"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/hosts"
	"github.com/spillway-ml/spillway/cmd/internal/cli/lambda"
	"github.com/spillway-ml/spillway/cmd/internal/cli/login"
	"github.com/spillway-ml/spillway/cmd/internal/cli/plan"
	"github.com/spillway-ml/spillway/cmd/internal/cli/price"
	"github.com/spillway-ml/spillway/cmd/internal/cli/run"
	"github.com/spillway-ml/spillway/cmd/internal/cli/runs"
	"github.com/spillway-ml/spillway/cmd/internal/cli/settings"
	"github.com/spillway-ml/spillway/cmd/internal/cli/simulate"
	"github.com/spillway-ml/spillway/cmd/internal/cli/stack"
	"github.com/spillway-ml/spillway/cmd/internal/cli/teams"
	"github.com/spillway-ml/spillway/cmd/internal/cli/token"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/cli/train"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tune"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// Exit codes of Execute.
const (
	// ExitOK says that what was asked for was done; for `run` that the run succeeded. A command that `run` runs may end
	// with any other code, which is then that of `run`.
	ExitOK = 0
	// ExitFailure says that it was tried and did not work; for `run` that the run failed or was cancelled.
	ExitFailure = 1
	// ExitUsage says that the request was refused at the door: what it says is wrong, or names what is not there.
	ExitUsage = 2
)

// Execute runs the command that args name (without the program's name) and returns the exit code. When ctx ends, the
// command stops in good order. Where nobody reads stdout any more, commands that only show end, and the others go on.
// Errors are written to stderr as "spillway: what: what was wrong", with a hint on the next line.
func Execute(ctx context.Context, args []string, stdout, stderr io.Writer, deps Deps) int {
	if deps.Environment == nil {
		deps.Environment = func(string) (string, bool) { return "", false }
	}
	if deps.Stdin == nil {
		deps.Stdin = strings.NewReader("")
	}
	t := &tool.Tool{Deps: deps, Out: tool.NewOutput(stdout), Err: stderr}
	root := root(t) //nolint:contextcheck // each command gets the context of ExecuteContextC
	unknown := refuseUnknownHelp(root)
	root.SetArgs(args)
	root.SetOut(t.Out)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	return report(t, command, errors.Join(err, *unknown))
}

func root(t *tool.Tool) *cobra.Command {
	root := &cobra.Command{
		Use:   "spillway",
		Short: "Run machine-learning pipelines on this machine's pool and spill the excess to functions",
		Long: `Spillway runs machine-learning pipelines: Go Temporal workflows, chains of commands in any language,
and single commands. Every second it decides how much CPU and memory each stage holds, and whether
the excess spills to Lambda-style functions, so that each run meets its deadline or its budget at
the least cost. This binary holds all of it.`,
		Example: `  spillway run digits                        train and score on real handwritten digits
  spillway run -- python train.py            run a command, in any language
  spillway run churn.yaml                    run a chain of commands
  spillway train model.py:build --data text  train a model that is split over the devices
  spillway dev --app ./myapp                 serve your own app and reload it when it changes
  spillway trigger train --deadline 10m      start a run on the stack that dev has started
  spillway top                               watch that stack
  spillway retry train-7f3a9c                run again what failed, and reuse what did not
  spillway cost --by pipeline --since 24h    who spent what`,
		Args:          flag.UnknownVerb,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := flag.RefuseEmpty(cmd.Flags()); err != nil {
				return err
			}
			return settings.Apply(t, cmd)
		},
	}
	root.CompletionOptions.DisableDefaultCmd = true // ours is in completion.go
	root.SetHelpCommand(helpCommand())
	root.SetUsageTemplate(usageTemplate)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&t.State, "state", "",
		"`DIR` of the state: databases, builds, artifacts, log (default $XDG_STATE_HOME/spillway, else "+
			"~/.local/state/spillway)")
	root.PersistentFlags().StringVar(&t.Server, "server", "",
		"`URL` of a server of another machine to ask, in place of the stack of this state directory (see spillway login)")
	root.PersistentFlags().StringVar(&t.Config, "config", "",
		"`FILE` with settings in place of flags (default $SPILLWAY_CONFIG; see spillway help settings)")
	for _, group := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Run pipelines, chains, commands and trainings", slices.Concat(
			run.Commands(t), tune.Commands(t), train.Commands(t),
		)},
		{"Ask before it runs", slices.Concat(plan.Commands(t), simulate.Commands(t))},
		{"Follow and steer runs", runs.Commands(t)},
		{"Start runs by events", events.Commands(t)},
		{"This machine, others, your apps, your functions", slices.Concat(
			stack.Commands(t), hosts.Commands(t), login.Commands(t), token.Commands(t), teams.Commands(t), apps.Commands(t),
			lambda.Commands(t), price.Commands(t),
			[]*cobra.Command{completionCommand(t)},
		)},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title})
		for _, command := range group.commands {
			command.GroupID = group.title
			root.AddCommand(command)
		}
	}
	root.AddCommand(topics()...)
	settings.Mark(root)
	for _, command := range root.Commands() {
		flag.CompleteChoices(command)
		command.DisableFlagsInUseLine = true
		for _, below := range command.Commands() {
			below.DisableFlagsInUseLine = true
		}
	}
	return root
}

// refuseUnknownHelp makes --help after a command that there is not an error, which is told in what it returns: cobra
// prints the help of all instead, and ends well.
func refuseUnknownHelp(root *cobra.Command) *error {
	var unknown error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		if cmd.HasSubCommands() {
			unknown = flag.UnknownVerb(cmd, cmd.Flags().Args())
		}
		if unknown == nil {
			help(cmd, args)
		}
	})
	return &unknown
}

// helpCommand prints the help of a command or a topic. Cobra's own, asked of what there is not, prints that of all.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:               "help [COMMAND | TOPIC]",
		Short:             "Print what a command does, or about a topic",
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			found, rest, err := root.Find(args)
			if err != nil || len(args) > 0 && found == root || found.HasSubCommands() && len(rest) > 0 {
				return flag.Unknown("command or topic", strings.Join(args, " "), root)
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// usageTemplate is cobra's with lines of at most 100 columns and without what spillway does not use (aliases).
const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND [FLAGS]{{else}}{{.UseLine}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}{{range $group := .Groups}}

{{$group.Title}}:{{range $.Commands}}{{if and .IsAvailableCommand (eq .GroupID $group.ID)}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{else}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{end}}{{if .HasHelpSubCommands}}

Topics of "{{.CommandPath}} help TOPIC":{{range .Commands}}{{if .IsAdditionalHelpTopicCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags of every command:
{{.InheritedFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

Exit codes: 0 done, 1 tried and failed, 2 refused at the door ("spillway help exit-codes").
"{{.CommandPath}} COMMAND --help" tells more about a command.{{end}}
`

// report prints err and returns the exit code.
func report(t *tool.Tool, command *cobra.Command, err error) int {
	if err == nil {
		return ExitOK
	}
	if errors.Is(err, fault.ErrReported) {
		return ExitFailure
	}
	if program, ok := errors.AsType[*fault.ExitError](err); ok {
		return program.Code
	}
	what := ""
	if command != nil && command.HasParent() {
		what = strings.TrimPrefix(command.CommandPath(), "spillway ") + ": "
	}
	if errors.Is(err, context.Canceled) && t.Unread() {
		return ExitOK // whoever read has seen enough
	}
	message := strings.TrimSpace(err.Error())
	if errors.Is(err, context.Canceled) {
		message = "interrupted"
	}
	t.Complain("spillway: %s%s\n", what, display.CleanLines(strings.ReplaceAll(message, "\n", "\n  ")))
	if hint := fault.AdviceOf(err); hint != "" {
		t.Complain("  hint: %s\n", hint)
	}
	if fault.IsUsage(err) {
		return ExitUsage
	}
	return ExitFailure
}

// flagError turns the flag parser's errors into ours, with the flags that are near.
func flagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		problem := fmt.Sprintf("--%s %s: %s", invalid.GetFlag().Name, flag.Shown(invalid.GetValue()),
			plainCause(invalid.Unwrap()))
		hint := fault.AdviceOf(invalid.Unwrap())
		if hint == "" {
			hint = "`" + cmd.CommandPath() + " --help` says what it takes"
		}
		return &fault.UsageError{Problem: problem, Hint: hint}
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(cmd, unknown)
	}
	return &fault.UsageError{Problem: err.Error(), Hint: "`" + cmd.CommandPath() + " --help` lists the flags"}
}

// unknownFlag refuses a flag that does not exist and names those that are near.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	if unknown.GetSpecifiedShortnames() != "" {
		return &fault.UsageError{
			Problem: "there is no flag -" + unknown.GetSpecifiedName(),
			Hint:    "flags have long names; `" + cmd.CommandPath() + " --help` lists them",
		}
	}
	var names []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) { names = append(names, flag.Name) })
	hint := "`" + cmd.CommandPath() + " --help` lists the flags"
	if unknown.GetSpecifiedName() == "no-cache" {
		hint = "leave it out: runs take results of others only with --cache, or where a stage says that they may; " +
			"a stage of a chain refuses with cache: false"
	} else if near := nearest.Names(unknown.GetSpecifiedName(), names); len(near) > 0 {
		hint = "did you mean --" + strings.Join(near, ", --") + "?"
	}
	return &fault.UsageError{Problem: "there is no flag --" + unknown.GetSpecifiedName(), Hint: hint}
}

// plainCause says in our words what strconv says of a flag that is true or false, the only kind that it parses for us.
func plainCause(err error) string {
	if strings.HasPrefix(err.Error(), "strconv.ParseBool") {
		return "it is neither true nor false"
	}
	return err.Error()
}
