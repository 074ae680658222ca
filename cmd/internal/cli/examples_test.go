package cli

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/spillway-ml/spillway/cmd/internal/cli/tool"
)

// everyCommand returns all commands below root.
func everyCommand(root *cobra.Command) (all []*cobra.Command) {
	for _, command := range root.Commands() {
		all = append(append(all, command), everyCommand(command)...)
	}
	return all
}

func TestEveryCommandIsExplainedOnAPage(t *testing.T) {
	t.Parallel()
	t0 := &tool.Tool{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}}
	for _, command := range everyCommand(root(t0)) {
		if command.Short == "" || command.Long == "" || command.Runnable() && command.Example == "" {
			t.Errorf("%s has no Short, Long or Example", command.CommandPath())
		}
		for line := range strings.Lines(command.Long + "\n" + command.Example) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 100 {
				t.Errorf("%s: %d columns: %s", command.CommandPath(), n, line)
			}
		}
		if n := len(command.Short) + 16; n > 104 {
			t.Errorf("%s: its line in the list of commands has %d columns", command.CommandPath(), n)
		}
	}
}

// comment begins after two spaces in the examples of the root command.
var comment = regexp.MustCompile(`\s{2,}.*$`)

func TestEveryExampleIsAccepted(t *testing.T) {
	t.Parallel()
	commands := everyCommand(root(&tool.Tool{}))
	examples := []string{root(&tool.Tool{}).Example}
	for _, command := range commands {
		examples = append(examples, command.Example)
	}
	accepted := 0
	for line := range strings.Lines(strings.Join(examples, "\n")) {
		for _, example := range invocations(line) {
			if err := accept(example); err != nil {
				t.Errorf("%q: %v", example, err)
			}
			accepted++
		}
	}
	if accepted < 2*len(commands)/3 {
		t.Errorf("%d examples were found of %d commands", accepted, len(commands))
	}
}

// invocations returns the arguments of each use of spillway in a line of shell.
func invocations(line string) (found [][]string) {
	line = comment.ReplaceAllString(strings.TrimSpace(line), "")
	if inner := strings.Index(line, `"$(`); inner >= 0 {
		line = strings.Replace(line, line[inner:strings.Index(line, `)"`)+2], "KEY", 1)
	}
	words := shellWords(line)
	for len(words) > 0 && strings.Contains(words[0], "=") {
		words = words[1:] // variables of the environment
	}
	if len(words) == 0 || words[0] != "spillway" {
		return nil
	}
	var args []string
	for _, word := range words[1:] {
		if word == "|" || word == ">" || word == "&&" {
			break
		}
		args = append(args, word)
	}
	return append(found, args)
}

// shellWords splits a line as a shell does, as far as quotes go.
func shellWords(line string) (words []string) {
	var word strings.Builder
	var quote rune
	open := false
	for _, r := range line + " " {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, open = r, true
		case quote == 0 && r == ' ':
			if open || word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
			open = false
		default:
			word.WriteRune(r)
		}
	}
	return words
}

// accept parses the flags and checks the arguments of one use, and runs nothing.
func accept(args []string) error {
	command, rest, err := root(&tool.Tool{}).Find(args)
	if err != nil {
		return err
	}
	if err := command.ParseFlags(rest); err != nil {
		return err
	}
	return command.ValidateArgs(command.Flags().Args())
}

func TestAWrongExampleIsNotAccepted(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{
		"spillway cost --by user", "spillway goal", "spillway retry a b",
		"spillway top --twice", "spillway diff one",
	} {
		if err := accept(invocations(wrong)[0]); err == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}
