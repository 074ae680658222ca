// Package cli is the command line of spillway: one file per verb.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// Exit codes of Execute.
const (
	// ExitOK says that what was asked for was done; for `run` that the run succeeded. A command that `run` runs may end with any other
	// code, which is then that of `run`.
	ExitOK = 0
	// ExitFailure says that it was tried and did not work; for `run` that the run failed or was cancelled.
	ExitFailure = 1
	// ExitUsage says that the request was refused at the door: the same command can never work.
	ExitUsage = 2
)

// Execute runs the command that args name (without the program's name) and returns the exit code. When ctx ends, the command stops
// in good order. Errors are written to stderr as "spillway: what: what was wrong", with a hint on the next line.
func Execute(ctx context.Context, args []string, stdout, stderr io.Writer, deps Deps) int {
	if deps.Environment == nil {
		deps.Environment = func(string) (string, bool) { return "", false }
	}
	if deps.Stdin == nil {
		deps.Stdin = strings.NewReader("")
	}
	t := &tool{deps: deps, out: stdout, err: stderr}
	root := t.root() //nolint:contextcheck // each command gets the context of ExecuteContextC
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	return t.report(command, err)
}

// tool is what all commands share.
type tool struct {
	deps     Deps
	out, err io.Writer
	state    string // the value of --state
	quiet    bool   // the value of --quiet: no progress is shown
}

func (t *tool) root() *cobra.Command {
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
		Args:          unknownVerb,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.CompletionOptions.DisableDefaultCmd = true // ours is in completion.go
	root.SetUsageTemplate(usageTemplate)
	root.SetFlagErrorFunc(flagError)
	root.PersistentFlags().StringVar(&t.state, "state", "", "`DIR` of the state: databases, builds, artifacts, log (default $XDG_STATE_HOME/spillway, else ~/.local/state/spillway)")
	root.AddCommand(
		t.runCommand(), t.trainCommand(), t.devCommand(), t.triggerCommand(),
		t.runsCommand(), t.showCommand(), t.logsCommand(), t.topCommand(), t.openCommand(),
		t.goalCommand(), t.retryCommand(), t.cancelCommand(), t.costCommand(), t.diffCommand(),
		t.bindCommand(), t.unbindCommand(), t.bindingsCommand(), t.deadCommand(),
		t.initCommand(), t.checkCommand(), t.planCommand(), t.doctorCommand(), t.versionCommand(), t.completionCommand(),
	)
	root.AddCommand(topics()...)
	for _, command := range root.Commands() {
		completeChoices(command)
		command.DisableFlagsInUseLine = true
		for _, below := range command.Commands() {
			below.DisableFlagsInUseLine = true
		}
	}
	return root
}

// usageTemplate is cobra's with lines of at most 100 columns and without what spillway does not use (aliases, groups).
const usageTemplate = `Usage:
  {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND [FLAGS]{{else}}{{.UseLine}}{{end}}{{if .HasExample}}

Examples:
{{.Example}}{{end}}{{if .HasAvailableSubCommands}}

Commands:{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if .HasHelpSubCommands}}

Topics of "{{.CommandPath}} help TOPIC":{{range .Commands}}{{if .IsAdditionalHelpTopicCommand}}
  {{rpad .Name .NamePadding }} {{.Short}}{{end}}{{end}}{{end}}{{if .HasAvailableLocalFlags}}

Flags:
{{.LocalFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableInheritedFlags}}

Flags of every command:
{{.InheritedFlags.FlagUsagesWrapped 100 | trimTrailingWhitespaces}}{{end}}{{if .HasAvailableSubCommands}}

Exit codes: 0 done, 1 tried and failed, 2 refused at the door ("spillway help exit-codes").
"{{.CommandPath}} COMMAND --help" tells more about a command.{{end}}
`

// usage is an error of whoever typed the command; it ends with ExitUsage.
type usage struct {
	problem, hint string
}

// Error returns the problem.
func (u *usage) Error() string { return u.problem }

// Advice returns the hint.
func (u *usage) Advice() string { return u.hint }

// advised is an error with what to do about it, for errors that do not bring their own.
type advised struct {
	error
	hint string
}

// Unwrap returns the error without the hint.
func (a *advised) Unwrap() error { return a.error }

// Advice returns the hint.
func (a *advised) Advice() string { return a.hint }

// errReported ends a command with ExitFailure when everything has been said already.
var errReported = errors.New("reported")

// exitError ends a command with the exit code of the program that it has run, when everything has been said already.
type exitError struct{ code int }

// Error names the code.
func (e *exitError) Error() string { return fmt.Sprintf("the program ended with exit code %d", e.code) }

// report prints err and returns the exit code.
func (t *tool) report(command *cobra.Command, err error) int {
	if err == nil {
		return ExitOK
	}
	if errors.Is(err, errReported) {
		return ExitFailure
	}
	if program, ok := errors.AsType[*exitError](err); ok {
		return program.code
	}
	what := ""
	if command != nil && command.HasParent() {
		what = strings.TrimPrefix(command.CommandPath(), "spillway ") + ": "
	}
	message := strings.TrimSpace(err.Error())
	if errors.Is(err, context.Canceled) {
		message = "interrupted"
	}
	t.complain("spillway: %s%s\n", what, cleanLines(strings.ReplaceAll(message, "\n", "\n  ")))
	if hint := adviceOf(err); hint != "" {
		t.complain("  hint: %s\n", hint)
	}
	if isUsage(err) {
		return ExitUsage
	}
	return ExitFailure
}

// adviser is an error that says what to do.
type adviser interface {
	error
	Advice() string
}

func adviceOf(err error) string {
	if adviser, ok := errors.AsType[adviser](err); ok {
		return adviser.Advice()
	}
	if errors.Is(err, client.ErrUnreachable) {
		return "see whether the stack still runs; `spillway dev` starts it"
	}
	return ""
}

func isUsage(err error) bool {
	if _, ok := errors.AsType[*usage](err); ok {
		return true
	}
	refused, ok := errors.AsType[*web.Error](err)
	return ok && (refused.Status == http.StatusBadRequest || refused.Status == http.StatusUnprocessableEntity)
}

// complain writes to standard error; if that is gone there is nobody left to tell.
func (t *tool) complain(format string, args ...any) { printf(t.err, format, args...) }

// say writes to standard output.
func (t *tool) say(format string, args ...any) { printf(t.out, format, args...) }

// unknownVerb refuses what is not a command and names those that are near.
func unknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, command := range cmd.Commands() {
		if command.IsAvailableCommand() {
			names = append(names, command.Name())
		}
	}
	hint := "`" + cmd.CommandPath() + " --help` lists the commands"
	if near := nearest.Names(args[0], names); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, ", ") + "?"
	}
	return &usage{problem: fmt.Sprintf("there is no command %q", args[0]), hint: hint}
}

// flagError turns the flag parser's errors into ours, with the flags that are near.
func flagError(cmd *cobra.Command, err error) error {
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		problem := fmt.Sprintf("--%s %s: %s", invalid.GetFlag().Name, invalid.GetValue(), plainCause(invalid.Unwrap()))
		hint := adviceOf(invalid.Unwrap())
		if hint == "" {
			hint = "`" + cmd.CommandPath() + " --help` says what it takes"
		}
		return &usage{problem: problem, hint: hint}
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(cmd, unknown)
	}
	return &usage{problem: err.Error(), hint: "`" + cmd.CommandPath() + " --help` lists the flags"}
}

// unknownFlag refuses a flag that does not exist and names those that are near.
func unknownFlag(cmd *cobra.Command, unknown *pflag.NotExistError) error {
	if unknown.GetSpecifiedShortnames() != "" {
		return &usage{problem: "there is no flag -" + unknown.GetSpecifiedName(), hint: "flags have long names; `" + cmd.CommandPath() + " --help` lists them"}
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
	return &usage{problem: "there is no flag --" + unknown.GetSpecifiedName(), hint: hint}
}

// plainCause says in our words what strconv says of a flag that is true or false, the only kind that it parses for us.
func plainCause(err error) string {
	if strings.HasPrefix(err.Error(), "strconv.ParseBool") {
		return "it is neither true nor false"
	}
	return err.Error()
}

// exclusive refuses flags that exclude each other when more than one of them is given.
func exclusive(names []string, given ...bool) error {
	var both []string
	for i, name := range names {
		if given[i] {
			both = append(both, name)
		}
	}
	if len(both) < 2 {
		return nil
	}
	return &usage{problem: strings.Join(both, " and ") + " exclude each other", hint: "leave one of them out"}
}

// positional returns a check for exactly the named arguments.
func positional(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < len(names):
			return &usage{problem: "it needs " + names[len(args)], hint: "usage: " + cmd.UseLine()}
		case len(args) > len(names):
			return &usage{problem: fmt.Sprintf("it does not take the argument %q", args[len(names)]), hint: "usage: " + cmd.UseLine()}
		}
		return nil
	}
}

// stateDir returns the absolute path of the state directory; it may not exist.
func (t *tool) stateDir() (string, error) {
	dir := t.state
	if dir == "" {
		if home, set := t.deps.Environment("XDG_STATE_HOME"); set && filepath.IsAbs(home) {
			dir = filepath.Join(home, "spillway")
		} else if home, set := t.deps.Environment("HOME"); set && home != "" {
			dir = filepath.Join(home, ".local", "state", "spillway")
		} else {
			return "", &usage{problem: "neither XDG_STATE_HOME nor HOME is set", hint: "say where the state is kept with --state DIR"}
		}
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("state directory %s: %w", dir, err)
	}
	return absolute, nil
}

// makeStateDir returns the state directory and makes it when it is not there.
func (t *tool) makeStateDir() (string, error) {
	dir, err := t.stateDir()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", &advised{fmt.Errorf("make the state directory: %w", err), "choose another with --state DIR"}
	}
	return dir, nil
}
