package config

import (
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Sources are where settings are said beside the command line.
type Sources struct {
	// File is the configuration file; the zero value says nothing.
	File Document
	// Environment looks up an environment variable; a value that is empty says nothing.
	Environment func(name string) (value string, set bool)
}

// Apply gives the settings among the flags the values that the file and the environment say, unless the command line
// has said them, notes where each comes from, and returns what is wrong with the values. What may be several has
// spaces between them in a variable. What the file says is checked where the environment says something else, too,
// and what was typed for a secret in place of its file.
func (s Sources) Apply(flags *pflag.FlagSet) (mistakes []Mistake) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if !noted(flag, settingNote) {
			return
		}
		if flag.Changed && !noted(flag, originNote) {
			mistakes = append(mistakes, typedInClear(flag)...)
			return
		}
		if said, ok := s.File.said[flag.Name]; ok {
			mistakes = append(mistakes, give(flag, File, said, func(v value, text, do string) Mistake {
				return Mistake{
					Where: s.File.Name, Line: v.line, Column: v.column, Setting: flag.Name, Text: flag.Name + " " + text, Do: do,
				}
			})...)
			noteOrigin(flag, s.File.Name, strconv.Itoa(said[0].line), strconv.Itoa(said[0].column))
		}
		name := Variable(flag)
		text, set := s.Environment(name)
		if !set || strings.TrimSpace(text) == "" {
			return
		}
		said := []value{{text: text}}
		if _, several := many(flag); several {
			said = nil
			for word := range strings.FieldsSeq(text) {
				said = append(said, value{text: word})
			}
		}
		mistakes = append(mistakes, give(flag, Environment, said, func(v value, text, do string) Mistake {
			if strings.HasPrefix(v.text, "tcp://") && strings.HasSuffix(name, "_PORT") {
				do = "Kubernetes sets it for a Service of that name: write enableServiceLinks: false into the pod's " +
					"specification, or rename the Service"
			}
			return Mistake{Where: name, Setting: flag.Name, Text: text, Do: do}
		})...)
		noteOrigin(flag, name)
	})
	Sort(mistakes)
	return mistakes
}

// toFile is what to do with a secret in clear.
const toFile = "write it into a file that only this user can read (mode 0600), and name that file here"

// typedInClear refuses a secret that was typed where a file is wanted: a message that there is no such file would
// repeat it, in a log among others.
func typedInClear(flag *pflag.Flag) (mistakes []Mistake) {
	if !IsPath(flag) {
		return nil
	}
	texts := []string{flag.Value.String()}
	if values, several := many(flag); several {
		texts = values.GetSlice()
	}
	for _, text := range texts {
		if wrong := clearSecret(flag, CommandLine, text); wrong != "" {
			mistakes = append(mistakes, Mistake{Where: Told(flag), Setting: flag.Name, Text: wrong, Do: toFile})
		}
	}
	return mistakes
}

// give sets a flag to the values, in place of what it had.
func give(flag *pflag.Flag, from Source, said []value, mistake func(v value, text, do string) Mistake) (
	mistakes []Mistake,
) {
	flag.Changed = true
	var texts []string
	for _, v := range said {
		if text := clearSecret(flag, from, v.text); text != "" {
			mistakes = append(mistakes, mistake(v, text, toFile))
			continue
		}
		texts = append(texts, v.text)
	}
	if values, several := many(flag); several {
		if err := values.Replace(texts); err != nil {
			mistakes = append(mistakes, mistake(said[0], plain(err), advice(err)))
		}
		return mistakes
	}
	for _, text := range texts {
		if err := flag.Value.Set(text); err != nil {
			mistakes = append(mistakes, mistake(said[0], Shown(flag, text)+": "+plain(err), advice(err)))
		}
	}
	return mistakes
}

// plain says in our words what strconv says of a switch, the only kind of flag that it parses for us.
func plain(err error) string {
	if strings.HasPrefix(err.Error(), "strconv.ParseBool") {
		return "it is neither true nor false"
	}
	return err.Error()
}
