package config

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/pflag"
)

// kind is what a setting takes, by the word for its value ([pflag.Value.Type]).
type kind struct {
	schema jsonschema.Schema
	unit   string
}

// number is a number, or a text where the flag takes more ways to write it.
func number(pattern, unit string, least float64) kind {
	return kind{unit: unit, schema: jsonschema.Schema{
		Types: []string{"number", "string"}, Minimum: &least, Pattern: pattern,
	}}
}

func whole(least, most float64) kind {
	return kind{schema: jsonschema.Schema{Type: "integer", Minimum: &least, Maximum: &most}}
}

func text(pattern, unit string, examples ...any) kind {
	return kind{unit: unit, schema: jsonschema.Schema{Type: "string", Pattern: pattern, Examples: examples}}
}

const (
	durations = `^([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)([0-9.]+(ns|us|µs|ms|s|m|h))*$|^0$`
	amounts   = `^[0-9]+(\.[0-9]+)?\s*([kKMGTPE]i?)?B?$`
)

// kinds are the kinds of values that are no words of a list; what is not here is a text.
var kinds = map[string]kind{
	"bool":     {schema: jsonschema.Schema{Type: "boolean"}},
	"PORT":     whole(1, 65535),
	"N":        whole(0, math.MaxInt32),
	"int":      whole(math.MinInt32, math.MaxInt32),
	"RATIO":    number(`^[0-9.eE+-]+$`, "", 0),
	"X":        number(`^[0-9.eE+-]+$`, "", 0),
	"USD":      number(`^\$?[0-9.eE+-]+$`, "US dollars", 0),
	"DURATION": text(durations, "a duration with its unit", "90s", "10m", "720h"),
	"MEMORY":   text(amounts, "bytes with their unit", "512MiB", "1.5GiB"),
	"SIZE":     text(amounts, "bytes with their unit", "500MiB", "200GiB"),
	"CORES":    {unit: "cores", schema: jsonschema.Schema{Types: []string{"number", "string"}}},
	"CPUS": {unit: "numbers of CPUs", schema: jsonschema.Schema{
		Types: []string{"integer", "string"}, Pattern: `^[0-9, -]+$`, Examples: []any{"0-3,8"},
	}},
}

// Schema returns the JSON schema (draft 2020-12) of the configuration file, indented, with a line break at its end: a
// property for each setting with its type, default, description, the words that it takes, the unit, the commands that
// have it (x-commands) and its environment variable (x-environment).
func (s Settings) Schema() ([]byte, error) {
	root := &jsonschema.Schema{
		Schema: "https://json-schema.org/draft/2020-12/schema",
		Title:  "Configuration of Spillway",
		Description: "The file that --config or " + FileVariable + " names. Each key is a flag of the commands that it " +
			"is for; the command line wins over the environment, and that over the file.",
		Type: "object", Properties: map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
		PropertyOrder:        s.Names(),
	}
	for name, setting := range s {
		root.Properties[name] = setting.schema()
	}
	encoded, err := json.MarshalIndent(root, "", "  ")
	return append(encoded, '\n'), err
}

func (s Setting) schema() *jsonschema.Schema {
	flag := s.Flag
	_, description := pflag.UnquoteUsage(flag)
	_, several := many(flag)
	one := kinds[flag.Value.Type()]
	schema := one.schema
	if schema.Type == "" && schema.Types == nil {
		schema.Type = "string"
	}
	if words := choices(flag); words != nil {
		schema.Enum = words
	}
	if schema.Type == "string" && !several {
		schema.MinLength = new(1)
	}
	if several {
		item := schema
		schema = jsonschema.Schema{
			Types: []string{"array", "string"}, Items: &jsonschema.Schema{Type: "string", MinLength: new(1)},
			MinLength: new(1), Enum: item.Enum,
		}
	} else if standard := asJSON(flag); standard != nil {
		schema.Default = standard
	}
	schema.Description = sentence(description)
	schema.Extra = map[string]any{"x-commands": s.Commands, "x-environment": Variable(flag)}
	if one.unit != "" {
		schema.Extra["x-unit"] = one.unit
	}
	return &schema
}

// choices are the words of a flag that takes one of a few; nil of others.
func choices(flag *pflag.Flag) (words []any) {
	chooser, ok := flag.Value.(interface{ Choices() []string })
	if !ok {
		return nil
	}
	for _, word := range chooser.Choices() {
		words = append(words, word)
	}
	return words
}

// asJSON is the default of a flag; nil where there is none.
func asJSON(flag *pflag.Flag) json.RawMessage {
	standard := flag.DefValue
	if standard == "" {
		return nil
	}
	var value any = standard
	schema := kinds[flag.Value.Type()].schema
	switch types := append(slices.Clone(schema.Types), schema.Type); {
	case slices.Contains(types, "boolean"):
		value = standard == "true"
	case slices.Contains(types, "number"), slices.Contains(types, "integer"):
		if number, err := strconv.ParseFloat(standard, 64); err == nil {
			value = number
		}
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return nil // a text, a number and a truth are JSON
	}
	return encoded
}

// sentence has the first letter of a text large and a full stop at its end.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + strings.TrimSuffix(text[1:], ".") + "."
}
