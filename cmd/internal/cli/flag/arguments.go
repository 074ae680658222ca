package flag

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// UnknownVerb refuses what is not a command and names those that are near.
func UnknownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return Unknown("command", args[0], cmd)
}

// Unknown is the error that a command has nothing of a kind, and names what is near.
func Unknown(kind, name string, cmd *cobra.Command) error {
	var names []string
	for _, command := range cmd.Commands() {
		if command.IsAvailableCommand() || command.IsAdditionalHelpTopicCommand() {
			names = append(names, command.Name())
		}
	}
	hint := "`" + cmd.CommandPath() + " --help` lists them"
	if near := nearest.Names(name, names); len(near) > 0 {
		hint = "did you mean " + strings.Join(near, ", ") + "?"
	}
	return &fault.UsageError{Problem: fmt.Sprintf("there is no %s %q", kind, name), Hint: hint}
}

// Shown is a value as messages show it; see [config.Redacted].
func Shown(value string) string { return config.Redacted(value) }

// RefuseEmpty refuses words that were given and are empty, as those of a shell's variable that is not set: leaving the
// flag out means something else than a mistake.
func RefuseEmpty(set *pflag.FlagSet) (err error) {
	set.Visit(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if many, ok := flag.Value.(pflag.SliceValue); ok {
			values = many.GetSlice()
		} else if flag.Value.Type() != "string" {
			return // of numbers, none is empty, and some write 0 as nothing
		}
		if slices.Contains(values, "") {
			err = &fault.UsageError{
				Problem: "--" + flag.Name + " " + Shown("") + ": it is empty",
				Hint:    "give a value, or leave the flag out",
			}
		}
	})
	return err
}

// Exclusive refuses flags that exclude each other when more than one of them is given.
func Exclusive(names []string, given ...bool) error {
	var both []string
	for i, name := range names {
		if given[i] {
			both = append(both, name)
		}
	}
	if len(both) < 2 {
		return nil
	}
	return &fault.UsageError{Problem: strings.Join(both, " and ") + " exclude each other", Hint: "leave one of them out"}
}

// Positional returns a check for exactly the named arguments.
func Positional(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		empty := slices.Index(args, "")
		switch {
		case empty >= 0 && empty < len(names):
			return &fault.UsageError{Problem: "it needs " + names[empty] + ", not an empty one", Hint: "usage: " + cmd.UseLine()}
		case len(args) < len(names):
			return &fault.UsageError{Problem: "it needs " + names[len(args)], Hint: "usage: " + cmd.UseLine()}
		case len(args) > len(names):
			return &fault.UsageError{
				Problem: fmt.Sprintf("it does not take the argument %q", args[len(names)]),
				Hint:    "usage: " + cmd.UseLine(),
			}
		}
		return nil
	}
}

// Changed returns the flags that were given.
func Changed(set *pflag.FlagSet) []string {
	var names []string
	set.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}

// Typed writes the flags that were given as a shell takes them.
func Typed(set *pflag.FlagSet) string {
	var typed []string
	set.VisitAll(func(flag *pflag.Flag) {
		values := []string{flag.Value.String()}
		if many, ok := flag.Value.(pflag.SliceValue); ok {
			values = many.GetSlice()
		}
		for _, value := range values {
			switch {
			case !flag.Changed:
			case flag.NoOptDefVal == "":
				typed = append(typed, "--"+flag.Name+" "+ShellWords(value))
			case flag.NoOptDefVal == value: // a switch that is on
				typed = append(typed, "--"+flag.Name)
			default: // it would not take a word of its own
				typed = append(typed, "--"+flag.Name+"="+ShellWords(value))
			}
		}
	})
	return strings.Join(typed, " ")
}

// Refuse refuses flags that were given and mean nothing here.
func Refuse(given []string, here, hint string) error {
	if len(given) == 0 {
		return nil
	}
	return &fault.UsageError{Problem: fmt.Sprintf("%s is not for %s", strings.Join(given, ", "), here), Hint: hint}
}
