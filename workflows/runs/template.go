package runs

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/search"
)

// Placeholders that every command of a tuning may use besides the names of its space's parameters: the number of the
// trial and of the rung, from 0, and from where to where the job trains, in the unit that the search counts in.
const (
	trialPlaceholder = "trial"
	rungPlaceholder  = "rung"
	fromPlaceholder  = "from"
	toPlaceholder    = "to"
)

var turnPlaceholders = []string{trialPlaceholder, rungPlaceholder, fromPlaceholder, toPlaceholder}

var placeholderName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// A text is cut into pieces: literal text, or the name of a value that takes its place.
type textPiece struct{ literal, name string }

// cutText finds the placeholders of a text: "{name}" is one, and "{{" stands for "{" itself.
func cutText(text string) (pieces []textPiece, err error) {
	var literal strings.Builder
	for i := 0; i < len(text); i++ {
		switch {
		case strings.HasPrefix(text[i:], "{{"):
			literal.WriteByte('{')
			i++
		case text[i] == '{':
			name, _, closed := strings.Cut(text[i+1:], "}")
			if !closed || !placeholderName.MatchString(name) {
				return nil, fmt.Errorf("%q is no placeholder: write {NAME}, or {{ for a brace itself", short(text[i:], 40))
			}
			if literal.Len() > 0 {
				pieces = append(pieces, textPiece{literal: literal.String()})
				literal.Reset()
			}
			pieces = append(pieces, textPiece{name: name})
			i += len(name) + 1
		default:
			literal.WriteByte(text[i])
		}
	}
	if literal.Len() > 0 {
		pieces = append(pieces, textPiece{literal: literal.String()})
	}
	return pieces, nil
}

// names are those of the placeholders among pieces.
func names(pieces []textPiece) (all []string) {
	for _, p := range pieces {
		if p.name != "" {
			all = append(all, p.name)
		}
	}
	return all
}

// PlaceholdersOf returns the placeholders of a command's arguments and environment, in the order of their names, or an
// error for braces that are none.
func PlaceholdersOf(command wire.Command) ([]string, error) {
	found := map[string]bool{}
	read := func(where, text string) error {
		pieces, err := cutText(text)
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		for _, name := range names(pieces) {
			found[name] = true
		}
		return nil
	}
	for i, argument := range command.Arguments {
		if err := read(fmt.Sprintf("argument %d", i), argument); err != nil {
			return nil, err
		}
	}
	for _, variable := range workflow.DeterministicKeys(command.Environment) {
		if err := read("variable "+variable, command.Environment[variable]); err != nil {
			return nil, err
		}
	}
	return workflow.DeterministicKeys(found), nil
}

// checkTemplate returns what is wrong with the placeholders of a command, of which each is to have a value and each
// parameter of the space a placeholder. Told says that the command is told how far to train.
func checkTemplate(command wire.Command, space search.Space) (told bool, err error) {
	used, err := PlaceholdersOf(command)
	if err != nil {
		return false, err
	}
	var wrong []error
	var known []string
	for _, p := range space {
		known = append(known, p.Name)
		switch {
		case slices.Contains(turnPlaceholders, p.Name):
			wrong = append(wrong, fmt.Errorf("parameter %q: {%s} is the job's own: give the parameter another name", p.Name,
				p.Name))
		case !slices.Contains(used, p.Name):
			wrong = append(wrong, fmt.Errorf("parameter %q is used nowhere: write {%s} where the command takes it", p.Name,
				p.Name))
		}
	}
	known = append(known, turnPlaceholders...)
	for _, name := range used {
		if !slices.Contains(known, name) {
			wrong = append(wrong, fmt.Errorf("placeholder {%s} is unknown: there are {%s}; write {{%s} to leave it to the "+
				"program", name, strings.Join(known, "}, {"), name))
		}
	}
	return slices.Contains(used, toPlaceholder), errors.Join(wrong...)
}

// fill puts the values of a configuration and of a turn into a command whose placeholders checkTemplate has found
// sound. An argument or a variable with a parameter that does not exist for the configuration is left out, and where
// the argument is nothing else, the option before it as well: "--momentum {momentum}" goes whole.
func fill(command wire.Command, configuration search.Configuration, turn Turn) wire.Command {
	values := map[string]string{
		trialPlaceholder: strconv.Itoa(turn.Number), rungPlaceholder: strconv.Itoa(turn.Rung),
		fromPlaceholder: search.Value{Number: turn.From}.String(), toPlaceholder: search.Value{Number: turn.To}.String(),
	}
	//workflowcheck:ignore the order changes nothing
	for name, value := range configuration {
		values[name] = value.String()
	}
	command = putInPlace(command, values)
	// What the size of an attempt may depend on: a width or a batch, and how far it trains.
	parameters := maps.Clone(command.Parameters)
	if parameters == nil {
		parameters = map[string]float64{}
	}
	//workflowcheck:ignore the order changes nothing
	for name, value := range configuration {
		addParameter(parameters, name, value)
	}
	parameters[unitsParameter] = turn.To - turn.From
	command.Parameters = parameters
	return command
}

// unitsParameter is how far a job trains, among what the size of an attempt may depend on.
const unitsParameter = "trial.units"

// addParameter adds a value of a configuration to what the size of an attempt may depend on.
func addParameter(parameters map[string]float64, name string, value search.Value) {
	if value.Text == "" {
		parameters[name] = value.Number
	} else {
		wire.AddCategories(parameters, name, value.Text)
	}
}

// putInPlace puts values, by name, into the arguments and the environment of a command.
func putInPlace(command wire.Command, values map[string]string) wire.Command {
	expand := func(text string) (expanded string, alone, exists bool) {
		pieces, _ := cutText(text) // checkTemplate has found it sound
		var out strings.Builder
		exists = true
		for _, p := range pieces {
			value, found := values[p.name]
			exists = exists && (found || p.name == "")
			out.WriteString(p.literal + value)
		}
		return out.String(), len(pieces) == 1, exists
	}
	arguments := make([]string, 0, len(command.Arguments))
	for i, argument := range command.Arguments {
		expanded, alone, exists := expand(argument)
		if exists {
			arguments = append(arguments, expanded)
			continue
		}
		if before := len(arguments) - 1; alone && before > 0 && isOption(command.Arguments[i-1]) {
			arguments = arguments[:before]
		}
	}
	command.Arguments = arguments
	if command.Environment != nil {
		environment := map[string]string{}
		//workflowcheck:ignore the order changes nothing
		for variable, text := range command.Environment {
			if expanded, _, exists := expand(text); exists {
				environment[variable] = expanded
			}
		}
		command.Environment = environment
	}
	return command
}

// isOption reports whether an argument is the name of an option whose value comes next.
func isOption(argument string) bool {
	return strings.HasPrefix(argument, "-") && !strings.ContainsAny(argument, "={")
}

// isWhole reports whether a number is a whole one.
func isWhole(number float64) bool { return number == math.Trunc(number) && !math.IsInf(number, 0) }
