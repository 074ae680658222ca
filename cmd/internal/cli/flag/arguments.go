package flag

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// UnknownVerb refuses what is not a command and names those that are near.
func UnknownVerb(cmd *cobra.Command, args []string) error {
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
	return &fault.UsageError{Problem: fmt.Sprintf("there is no command %q", args[0]), Hint: hint}
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
		switch {
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
			case flag.NoOptDefVal == value: // a switch that is on
				typed = append(typed, "--"+flag.Name)
			case notPlain.MatchString(value):
				typed = append(typed, "--"+flag.Name+" '"+strings.ReplaceAll(value, "'", `'\''`)+"'")
			default:
				typed = append(typed, "--"+flag.Name+" "+value)
			}
		}
	})
	return strings.Join(typed, " ")
}

// notPlain is what a shell would read otherwise without quotes.
var notPlain = regexp.MustCompile(`[^A-Za-z0-9_@%+=:,./-]`)

// Refuse refuses flags that were given and mean nothing here.
func Refuse(given []string, here, hint string) error {
	if len(given) == 0 {
		return nil
	}
	return &fault.UsageError{Problem: fmt.Sprintf("%s is not for %s", strings.Join(given, ", "), here), Hint: hint}
}
