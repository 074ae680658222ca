package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/search"
)

// FillCommand is the command of a trial: the values of a configuration and of a turn are put in the place of its
// placeholders. TuneRequest says which there are, and what becomes of those without a value.
func FillCommand(command wire.Command, configuration search.Configuration, turn Turn) wire.Command {
	return fill(command, configuration, turn)
}

// errPermit says that a command is none of a tuning's.
var errPermit = errors.New("it is the command of no trial")

// Permits returns nil where the tuning of a command may ask a host for this one: it is the command of the request with
// the values of a configuration of the space in their places, and any turn. The request is one that Check passes.
func (q TuneRequest) Permits(command wire.Command) error {
	var template wire.Command
	if err := json.Unmarshal(q.Input, &template); err != nil || !q.Command {
		return fmt.Errorf("%w: the tuning tunes none", errPermit)
	}
	configuration, err := q.configurationOf(command)
	if err != nil {
		return err
	}
	values := map[string]string{}
	for name, value := range configuration {
		values[name] = value.String()
	}
	for _, name := range turnPlaceholders {
		values[name] = anyNumber
	}
	want := putInPlace(template, values)
	if !slices.EqualFunc(want.Arguments, command.Arguments, matchesNumbers) {
		return fmt.Errorf("%w: its arguments are not those of configuration %v", errPermit, configuration)
	}
	if !maps.EqualFunc(want.Environment, command.Environment, matchesNumbers) {
		return fmt.Errorf("%w: its environment is not that of configuration %v", errPermit, configuration)
	}
	if !maps.Equal(q.known(template, configuration, command), command.Parameters) {
		return fmt.Errorf("%w: its parameters are not those of configuration %v", errPermit, configuration)
	}
	want.Arguments, want.Environment, want.Parameters = command.Arguments, command.Environment, command.Parameters
	if !sameEncoded(want, command) {
		return fmt.Errorf("%w: its code, files or outputs are others", errPermit)
	}
	return nil
}

// known is what the parameters of a command are for a configuration, however far its turn goes.
func (q TuneRequest) known(
	template wire.Command, configuration search.Configuration, command wire.Command,
) map[string]float64 {
	units := command.Parameters[unitsParameter]
	return fill(template, configuration, Turn{To: units}).Parameters
}

// configurationOf reads the configuration of a command in its parameters, where fill has put it.
func (q TuneRequest) configurationOf(command wire.Command) (search.Configuration, error) {
	configuration := search.Configuration{}
	for _, p := range q.Space {
		if p.When != nil && !slices.Contains(p.When.Values, configuration[p.When.Parameter].Text) {
			continue
		}
		value, found := valueOf(p, command.Parameters)
		if !found {
			return nil, fmt.Errorf("%w: parameter %q has no value of the space", errPermit, p.Name)
		}
		configuration[p.Name] = value
	}
	return configuration, nil
}

// valueOf is the value of a parameter of the space among those of a command.
func valueOf(p search.Parameter, parameters map[string]float64) (search.Value, bool) {
	if p.Kind == search.Choice {
		for _, choice := range p.Choices {
			of := map[string]float64{}
			addParameter(of, p.Name, search.Value{Text: choice})
			same := true
			for name, value := range of {
				same = same && parameters[name] == value
			}
			if same && len(of) > 0 {
				return search.Value{Text: choice}, true
			}
		}
		return search.Value{}, false
	}
	number, found := parameters[p.Name]
	const rounding = 1e-9 // of a range by equal factors
	slack := rounding * max(math.Abs(p.Low), math.Abs(p.High))
	whole := p.Kind != search.Int || number == math.Trunc(number)
	return search.Value{Number: number}, found && whole && number >= p.Low-slack && number <= p.High+slack
}

// anyNumber stands for a number that a turn has: no program can be given a text with it.
const anyNumber = "\x00"

const numberPattern = `-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?`

// matchesNumbers reports whether text is what want says, with any numbers where it has anyNumber.
func matchesNumbers(want, text string) bool {
	if !strings.Contains(want, anyNumber) {
		return want == text
	}
	pattern := strings.ReplaceAll(regexp.QuoteMeta(want), regexp.QuoteMeta(anyNumber), numberPattern)
	matcher, err := regexp.Compile("^(?s:" + pattern + ")$")
	return err == nil && matcher.MatchString(text)
}

// sameEncoded reports whether two commands are encoded alike: a map that is empty is one that is not there.
func sameEncoded(a, b wire.Command) bool {
	first, err := json.Marshal(a)
	second, other := json.Marshal(b)
	return err == nil && other == nil && reflect.DeepEqual(first, second)
}
