package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// What is noted on flags; pflag keeps it with them.
const (
	settingNote  = "spillway_setting"  // it is a setting
	variableNote = "spillway_variable" // the environment variable that says it, where that is not the usual one
	secretNote   = "spillway_secret"   // its value may be a secret
	originNote   = "spillway_origin"   // how it was said, where that was not the command line, and where
)

// FileVariable is the environment variable that names the configuration file.
const FileVariable = "SPILLWAY_CONFIG"

// Mark makes settings of all flags of a set.
func Mark(flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			note(flag, settingNote)
		}
	})
}

// MarkSecret says that the value of a flag may be a secret: no command prints it.
func MarkSecret(flag *pflag.Flag) { note(flag, secretNote) }

// MarkVariable gives a flag another environment variable than the usual one.
func MarkVariable(flag *pflag.Flag, name string) { note(flag, variableNote, name) }

func note(flag *pflag.Flag, name string, values ...string) {
	if flag.Annotations == nil {
		flag.Annotations = map[string][]string{}
	}
	flag.Annotations[name] = values
}

func noted(flag *pflag.Flag, name string) bool {
	_, there := flag.Annotations[name]
	return there
}

// IsSecret reports whether the value of a flag may be a secret.
func IsSecret(flag *pflag.Flag) bool { return noted(flag, secretNote) }

// Variable is the environment variable that says a setting: SPILLWAY_HTTP_PORT for --http-port, unless the flag has
// another.
func Variable(flag *pflag.Flag) string {
	if named := flag.Annotations[variableNote]; len(named) == 1 {
		return named[0]
	}
	return "SPILLWAY_" + strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
}

// IsPath reports whether a setting names a file or a directory, by the word that its help has for the value. In a
// configuration file, a relative one starts at the directory of that file, wherever the command is typed.
func IsPath(flag *pflag.Flag) bool {
	word, _ := pflag.UnquoteUsage(flag)
	return word == "FILE" || word == "DIR" || word == "PATH"
}

// many is the value of a flag that may be given several times; ok is false of others.
func many(flag *pflag.Flag) (values pflag.SliceValue, ok bool) {
	values, ok = flag.Value.(pflag.SliceValue)
	return values, ok
}

// Setting is a key of the configuration file.
type Setting struct {
	// Flag is that of the first command that has it, by its name.
	Flag *pflag.Flag
	// Commands are the commands that have it, sorted.
	Commands []string
}

// Settings are the settings that a tool has, by their names.
type Settings map[string]Setting

// Gather returns the settings of all commands, whose flags it is given by the command's name.
func Gather(commands map[string]*pflag.FlagSet) Settings {
	settings := Settings{}
	for _, command := range slices.Sorted(maps.Keys(commands)) {
		commands[command].VisitAll(func(flag *pflag.Flag) {
			if !noted(flag, settingNote) || flag.Hidden { // hidden where it means nothing for a command
				return
			}
			setting := settings[flag.Name]
			setting.Flag = cmp.Or(setting.Flag, flag)
			setting.Commands = append(setting.Commands, command)
			settings[flag.Name] = setting
		})
	}
	return settings
}

// Names are the names of the settings, sorted.
func (s Settings) Names() []string { return slices.Sorted(maps.Keys(s)) }

// Source is one of the places where a setting is said.
type Source int

// The sources, from the weakest to the strongest.
const (
	Default Source = iota
	File
	Environment
	CommandLine
)

// String names the source.
func (s Source) String() string {
	return [...]string{"default", "file", "environment", "command line"}[s]
}

// Origin is where the value of a setting comes from.
type Origin struct {
	Source Source
	// Where is the place in it: "spillway.yaml:3:12", "SPILLWAY_HTTP_PORT" or "--http-port"; empty of a default.
	Where string

	file         string // of a file, and where in it
	line, column int
}

// String is the place, or "default".
func (o Origin) String() string { return cmp.Or(o.Where, o.Source.String()) }

// OriginOf says where the value of a flag comes from, once [Sources.Apply] was called.
func OriginOf(flag *pflag.Flag) Origin {
	switch {
	case noted(flag, originNote):
		return readOrigin(flag.Annotations[originNote])
	case flag.Changed:
		return Origin{Source: CommandLine, Where: "--" + flag.Name}
	default:
		return Origin{}
	}
}

// noteOrigin notes on a flag where its value comes from: a variable, or a place in a file.
func noteOrigin(flag *pflag.Flag, where ...string) { note(flag, originNote, where...) }

func readOrigin(noted []string) Origin {
	if len(noted) == 1 {
		return Origin{Source: Environment, Where: noted[0]}
	}
	line, errLine := strconv.Atoi(noted[1])
	column, errColumn := strconv.Atoi(noted[2])
	if err := errors.Join(errLine, errColumn); err != nil {
		panic(fmt.Sprintf("where a setting was said is noted as %q: %v", noted, err))
	}
	return Origin{
		Source: File, Where: fmt.Sprintf("%s:%d:%d", noted[0], line, column), file: noted[0], line: line, column: column,
	}
}

// Told is how messages begin that are about the value of a setting: "--http-port", "SPILLWAY_HTTP_PORT", or
// "spillway.yaml:3:12: http-port".
func Told(flag *pflag.Flag) string {
	origin := OriginOf(flag)
	switch origin.Source {
	case File:
		return origin.Where + ": " + flag.Name
	case Environment:
		return origin.Where
	default:
		return "--" + flag.Name
	}
}
