package stack

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/display"
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/cli/settings"
	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
	"github.com/spillway-ml/spillway/cmd/internal/config"
)

func configCommand(t *tool.Tool) *cobra.Command {
	command := &cobra.Command{
		Use:   "config COMMAND",
		Short: "Check, show or describe the configuration file",
		Long: `Settings are flags, variables of the environment, and keys of the configuration file that --config
or SPILLWAY_CONFIG names; "spillway help settings" tells how they are written and which wins.`,
		Example: `  spillway config check spillway.yaml
  spillway config show --config spillway.yaml
  spillway config schema > config.schema.json`,
		Args: flag.UnknownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	command.AddCommand(configCheckCommand(t), configShowCommand(t), configSchemaCommand(t))
	return command
}

// told are all settings, with what the file and the environment say of them.
type told struct {
	file     string
	flags    *pflag.FlagSet
	stack    *flag.Stack
	mistakes []config.Mistake
	wrong    map[string]bool // settings of which something is wrong
	strange  []finding       // variables that say none
}

// readTold reads the settings; args may name the file.
func readTold(t *tool.Tool, cmd *cobra.Command, args []string) (*told, error) {
	file := settings.Name(t)
	if len(args) > 0 {
		file = args[0]
	}
	known := settings.Gather(cmd.Root())
	all := &told{
		file: file, stack: &flag.Stack{}, flags: pflag.NewFlagSet("settings", pflag.ContinueOnError),
		wrong: map[string]bool{}, strange: strangers(t, known),
	}
	all.stack.Add(all.flags)
	for name, setting := range known {
		if all.flags.Lookup(name) == nil {
			all.flags.AddFlag(setting.Flag)
		}
	}
	sources, mistakes, err := settings.Read(t, file, known)
	if err != nil {
		return nil, err
	}
	mistakes = append(mistakes, sources.Apply(all.flags)...)
	mistakes = append(mistakes, config.Conflicts(all.flags)...)
	config.Sort(mistakes)
	for _, mistake := range mistakes {
		all.wrong[mistake.Setting] = true
	}
	all.mistakes = mistakes
	return all, nil
}

// value is what was said of a setting, or its default; empty where something is wrong with it.
func (a *told) value(name string) string {
	setting := a.flags.Lookup(name)
	if setting == nil || a.wrong[name] {
		return ""
	}
	return setting.Value.String()
}

func configSchemaCommand(t *tool.Tool) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of the configuration file",
		Long: `Print the JSON schema (draft 2020-12) of the configuration file: each setting with its type,
default, unit, the words that it takes, the commands that have it and its environment variable.
Editors check and complete the file by it.`,
		Example: `  spillway config schema > config.schema.json
  spillway config schema | jq -r '.properties | to_entries[] | "\(.key)\t\(.value.description)"'`,
		Args: flag.Positional(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema, err := settings.Gather(cmd.Root()).Schema()
			if err != nil {
				return fmt.Errorf("write the schema: %w", err)
			}
			t.Say("%s", schema)
			return nil
		},
	}
}

// shown is one line of `config show`.
type shown struct {
	Setting string `json:"setting"`
	// Value is empty where there is none, and hidden where it may be a secret.
	Value  string `json:"value"`
	Source string `json:"source"`
	// Where is the place in the file, or the variable.
	Where string `json:"where,omitempty"`
}

func configShowCommand(t *tool.Tool) *cobra.Command {
	var asJSON, saidOnly bool
	command := &cobra.Command{
		Use:   "show [FILE] [FLAGS]",
		Short: "Print each setting and where it comes from",
		Long: `Print the settings that a command would start with, each with where it comes from: the file, with
its line and column, a variable of the environment, or the default. What may be a secret is not
printed.`,
		Example: `  spillway config show spillway.yaml
  spillway config show --config spillway.yaml --said
  SPILLWAY_VALUE_OF_TIME=3 spillway config show --json`,
		Args: optionalFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := readTold(t, cmd, args)
			if err != nil {
				return err
			}
			if err := settings.Refuse(all.mistakes); err != nil {
				return err
			}
			return showSettings(t, all, saidOnly, asJSON)
		},
	}
	command.Flags().BoolVar(&saidOnly, "said", false, "leave out what is by default")
	command.Flags().BoolVar(&asJSON, "json", false, "print the settings as JSON")
	return command
}

func showSettings(t *tool.Tool, all *told, saidOnly, asJSON bool) error {
	var lines []shown
	all.flags.VisitAll(func(flag *pflag.Flag) {
		origin := config.OriginOf(flag)
		if saidOnly && origin.Source == config.Default {
			return
		}
		line := shown{Setting: flag.Name, Source: origin.Source.String(), Where: origin.Where}
		for _, value := range valuesOf(flag) {
			if value != "" {
				line.Value = strings.TrimPrefix(line.Value+" "+config.Shown(flag, value), " ")
			}
		}
		lines = append(lines, line)
	})
	if asJSON {
		return t.WriteJSON(lines)
	}
	width, wide := 0, 0
	for _, line := range lines {
		width, wide = max(width, len(line.Setting)), max(wide, min(len(line.Value), mostValue))
	}
	for _, line := range lines {
		where := line.Source
		if line.Where != "" {
			where = line.Where
		}
		t.Say("%s\n", display.Own(fmt.Sprintf("%-*s  %-*s  %s", width, line.Setting, wide, line.Value, where)))
	}
	return nil
}

// mostValue is how wide the column of values becomes.
const mostValue = 40

func valuesOf(setting *pflag.Flag) []string {
	if many, ok := setting.Value.(pflag.SliceValue); ok {
		return many.GetSlice()
	}
	return []string{setting.Value.String()}
}

// optionalFile accepts a file, or none.
func optionalFile(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return flag.Positional("the configuration file")(cmd, args)
}

func configCheckCommand(t *tool.Tool) *cobra.Command {
	var asJSON, offline bool
	command := &cobra.Command{
		Use:   "check [FILE] [FLAGS]",
		Short: "Name every mistake in the settings, and try what they name",
		Long: `Name every mistake in the configuration file and the environment with its line: keys that there are
not, variables that are nearly those of settings, values that are wrong, settings that do not go
together. Then try what the settings name: directories and files and who may read them,
certificates, ports, and the servers at the addresses, with what the engine will ask of them. What is
made for that is removed again; nothing else changes.

The exit code is 1 when anything is wrong or failed.`,
		Example: `  spillway config check spillway.yaml
  spillway config check spillway.yaml --offline
  spillway config check --config spillway.yaml --json`,
		Args: optionalFile,
		RunE: func(cmd *cobra.Command, args []string) error {
			all, err := readTold(t, cmd, args)
			if err != nil {
				return err
			}
			return checkSettings(cmd.Context(), t, all, offline, asJSON)
		},
	}
	command.Flags().BoolVar(&offline, "offline", false, "read the settings and files only, and ask no server")
	command.Flags().BoolVar(&asJSON, "json", false, "print what was found as JSON")
	return command
}

// failed is what was tried and did not work, or is wrong in the settings.
const failed severity = "failed"

func checkSettings(ctx context.Context, t *tool.Tool, all *told, offline, asJSON bool) error {
	state, err := t.StateDir()
	if err != nil {
		return err
	}
	if len(all.mistakes) == 0 {
		if _, err := all.stack.Config(state, t.Deps.Version, t.Deps.Environment); err != nil {
			all.mistakes = append(all.mistakes, ofConfig(err))
		}
	}
	var findings []finding
	for _, mistake := range all.mistakes {
		where, _, _ := strings.Cut(mistake.String(), ": ")
		findings = append(findings, finding{where, failed, mistake.Text, mistake.Do})
	}
	if len(findings) == 0 {
		findings = append(findings, finding{"settings", fine, all.read(), ""})
	}
	findings = append(findings, all.strange...)
	findings = append(findings, tryFiles(all, state)...)
	if !offline {
		findings = append(findings, tryServers(ctx, all, state)...)
	}
	wrong := 0
	for _, one := range findings {
		if one.Severity == failed || one.Severity == problem {
			wrong++
		}
	}
	if asJSON {
		if err := t.WriteJSON(findings); err != nil {
			return err
		}
	} else {
		for _, line := range findingLines(findings) {
			t.Say("%s\n", display.Own(line))
		}
	}
	if wrong == 0 {
		return nil
	}
	if !asJSON {
		t.Say("failed: %d\n", wrong)
	}
	return fault.ErrReported
}

// read says what was read.
func (a *told) read() string {
	said := 0
	a.flags.VisitAll(func(flag *pflag.Flag) {
		if source := config.OriginOf(flag).Source; source == config.File || source == config.Environment {
			said++
		}
	})
	if a.file == "" {
		return display.Count(said, "setting") + " in the environment; no configuration file"
	}
	return display.Count(said, "setting") + " in " + a.file + " and the environment"
}

// ofConfig is what the engine's configuration refuses, which says where the setting stands.
func ofConfig(err error) config.Mistake {
	if wrong, ok := errors.AsType[*fault.UsageError](err); ok {
		where, text, ok := strings.Cut(wrong.Problem, ": ")
		if ok {
			return config.Mistake{Where: where, Text: text, Do: wrong.Hint}
		}
	}
	return config.Mistake{Where: "settings", Text: err.Error(), Do: fault.AdviceOf(err)}
}
