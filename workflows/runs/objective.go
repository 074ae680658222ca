package runs

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
)

// errNoObjective says that a task did not tell what is minimised.
var errNoObjective = errors.New("no objective")

// objectiveOf reads what a job told: the field of a function's output, with dots into objects, or a value that a
// command reported, or else one of the metrics of its last progress. What is no finite number is NaN: a null is one
// too, which is what programs are left with in JSON when a loss is NaN. An error wraps errNoObjective.
func objectiveOf(name string, command bool, result wire.Result) (float64, error) {
	output := result.Output
	path := strings.Split(name, ".")
	if command {
		return objectiveOfCommand(name, output, result)
	}
	for i, key := range path {
		var fields map[string]json.RawMessage
		where := "its output"
		if i > 0 {
			where = fmt.Sprintf("%q of its output", strings.Join(path[:i], "."))
		}
		if err := json.Unmarshal(output, &fields); err != nil || fields == nil {
			return 0, fmt.Errorf("%w: it told no %q: %s is no object", errNoObjective, name, where)
		}
		value, found := fields[key]
		if !found {
			return 0, fmt.Errorf("%w: it told no %q: the fields of %s are %s", errNoObjective, name, where,
				listed(workflow.DeterministicKeys(fields)))
		}
		output = value
	}
	return numberOf(name, output)
}

// objectiveOfCommand reads the objective of a command: a value of its result, or else a metric of its last progress.
func objectiveOfCommand(name string, output json.RawMessage, result wire.Result) (float64, error) {
	var told wire.CommandResult
	if err := json.Unmarshal(output, &told); err != nil {
		return 0, fmt.Errorf("%w: decode the result of a command: %w", errNoObjective, err)
	}
	value, found := told.Values[name]
	metric, followed := result.Metrics[name]
	switch {
	case found:
		encoded, err := json.Marshal(value)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", errNoObjective, err)
		}
		return numberOf(name, encoded)
	case slices.Contains(told.NotFinite, name):
		return math.NaN(), nil
	case followed:
		return metric, nil
	case slices.Contains(result.NotFinite, name):
		// A program that finds nothing left to do reports nothing: what an attempt before told last still stands.
		return math.NaN(), nil
	case len(told.Values)+len(result.Metrics) == 0:
		return 0, fmt.Errorf(`%w: it reported nothing: write {"result": {%q: 0.2}}, with what it has come to, to the file `+
			`that $SPILLWAY_REPORT names, in Python by spillway.result(%s=0.2)`, errNoObjective, name, name)
	}
	return 0, fmt.Errorf("%w: it told no %q: its results are %s, and the metrics of its last progress %s: name one of "+
		"them as the objective", errNoObjective, name, listed(workflow.DeterministicKeys(told.Values)),
		listed(workflow.DeterministicKeys(result.Metrics)))
}

func numberOf(name string, value json.RawMessage) (float64, error) {
	var number *float64
	if json.Unmarshal(value, &number) == nil {
		if number == nil {
			return math.NaN(), nil
		}
		return *number, nil
	}
	var text string
	if json.Unmarshal(value, &text) == nil { // "NaN", "inf" and "-Infinity" are how programs write what JSON has not
		if number, err := strconv.ParseFloat(text, 64); err == nil || math.IsInf(number, 0) {
			return number, nil
		}
	}
	return 0, fmt.Errorf("%w: its %q is %s, which is no number", errNoObjective, name, short(string(value), 60))
}

// maxListed is how many names an error lists.
const maxListed = 12

func listed(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	names = slices.Sorted(slices.Values(names))
	if more := len(names) - maxListed; more > 0 {
		names = append(slices.Clip(names[:maxListed]), fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// notEncoded begins what the JSON encoder says of a number that JSON has not.
const notEncoded = "json: unsupported value: "

// diverged reports whether a task failed because its output holds a NaN or an infinity, which JSON has not: a result of
// the training, and no failure of the stage.
func diverged(message string) bool {
	_, value, found := strings.Cut(message, notEncoded)
	return found && (strings.HasPrefix(value, "NaN") || strings.HasPrefix(value, "+Inf") ||
		strings.HasPrefix(value, "-Inf"))
}
