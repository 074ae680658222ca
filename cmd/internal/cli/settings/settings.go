// Package settings gives commands what the configuration file and the environment say in place of flags.
package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/config"
)

// EveryCommand stands for all commands where it is told which have a setting.
const EveryCommand = "every command"

// long are the commands that stay: all their flags are settings. Of the others those that configure a stack are, which
// [flag.Stack] marks.
var long = []string{"dev", "server", "agent"}

// Mark makes settings of the flags of the commands that stay, of --state and of --server.
func Mark(root *cobra.Command) {
	for _, command := range root.Commands() {
		if slices.Contains(long, command.Name()) {
			config.Mark(command.Flags())
		}
	}
	everywhere := pflag.NewFlagSet("", pflag.ContinueOnError)
	everywhere.AddFlag(root.PersistentFlags().Lookup("state"))
	everywhere.AddFlag(root.PersistentFlags().Lookup("server"))
	config.Mark(everywhere)
}

// Gather returns the settings of all commands.
func Gather(root *cobra.Command) config.Settings {
	commands := map[string]*pflag.FlagSet{EveryCommand: root.PersistentFlags()}
	for _, command := range root.Commands() {
		commands[command.Name()] = command.LocalNonPersistentFlags()
	}
	return config.Gather(commands)
}

// unconfigured are commands that no setting concerns, or that look at the settings themselves.
var unconfigured = []string{"config", "completion", "help", "python", "version"}

// Apply gives a command the settings that the configuration file and the environment say, where the command line does
// not, and refuses what is wrong with them.
func Apply(t *tool.Tool, cmd *cobra.Command) error {
	top := cmd
	for top.HasParent() && top.Parent().HasParent() {
		top = top.Parent()
	}
	if slices.Contains(unconfigured, top.Name()) {
		return nil
	}
	sources, mistakes, err := Read(t, Name(t), Gather(cmd.Root()))
	if err != nil {
		return err
	}
	mistakes = append(mistakes, sources.Apply(cmd.Flags())...)
	if len(mistakes) == 0 {
		mistakes = config.Conflicts(cmd.Flags())
	}
	return Refuse(mistakes)
}

// Refuse is the error that the settings have these mistakes; nil without any.
func Refuse(mistakes []config.Mistake) error {
	switch len(mistakes) {
	case 0:
		return nil
	case 1:
		alone := mistakes[0]
		hint := alone.Do
		alone.Do = ""
		return &fault.UsageError{Problem: alone.String(), Hint: hint}
	}
	config.Sort(mistakes)
	lines := []string{"the settings have " + display.Count(len(mistakes), "mistake") + ":"}
	for _, mistake := range mistakes {
		lines = append(lines, mistake.String())
	}
	return &fault.UsageError{
		Problem: strings.Join(lines, "\n"),
		Hint:    "correct them; `spillway config check` looks again, and tries what they name",
	}
}

// Name is the name of the configuration file, from --config or SPILLWAY_CONFIG; empty for none.
func Name(t *tool.Tool) string {
	if t.Config != "" {
		return t.Config
	}
	name, _ := t.Deps.Environment(config.FileVariable)
	return name
}

// Read reads the configuration file; without a name there is none. A file that cannot be read is an error, what is
// wrong in it are mistakes.
func Read(t *tool.Tool, name string, known config.Settings) (
	sources config.Sources, mistakes []config.Mistake, err error,
) {
	sources.Environment = environment(t)
	if name == "" {
		return sources, nil, nil
	}
	text, err := flag.ReadFile(name, config.MostBytes)
	if err != nil {
		return sources, nil, &fault.UsageError{
			Problem: fmt.Sprintf("read the configuration file %s: %v", name, fault.WithoutPath(err)),
			Hint:    "give a file that this user can read, with --config FILE or in " + config.FileVariable,
		}
	}
	sources.File, mistakes = config.Parse(name, text, known)
	return sources, mistakes, nil
}

// environment looks variables up that say settings. What the engine tells a stage is none: SPILLWAY_ARTIFACTS is a
// store with a token there.
func environment(t *tool.Tool) func(string) (string, bool) {
	_, inStage := t.Deps.Environment(wire.RoleEnvironment)
	return func(name string) (string, bool) {
		if inStage && name == wire.ArtifactsEnvironment {
			return "", false
		}
		return t.Deps.Environment(name)
	}
}
