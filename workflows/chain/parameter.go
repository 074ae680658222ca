package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

var parameterName = regexp.MustCompile(`^[a-z][a-z0-9_]{0,39}$`)

// inputsField is the field of a run's input that replaces inputs of the chain.
const inputsField = "inputs"

// checkParameter refuses what is no name of a parameter or of a variable of for_each.
func checkParameter(name string) error {
	switch {
	case !parameterName.MatchString(name):
		return fmt.Errorf("name %q: use a lower-case letter, then letters, digits or '_', at most 40", name)
	case name == inputsField:
		return fmt.Errorf("name %q is taken by the files of a run's input: use another", name)
	}
	return nil
}

// types are the JSON types that a parameter may have.
func types() []string { return []string{"array", "boolean", "integer", "number", "string"} }

// parameters reads defaults, and for a parameter without one {type: string}.
func (c *chainReader) parameters(node *yaml.Node) {
	for _, e := range c.entries(node, "parameters") {
		name := c.name(e.key, "parameter", checkParameter)
		if name == "" {
			continue
		}
		p := parameter{Name: name}
		what := "parameter " + name
		if e.value.Kind == yaml.MappingNode {
			c.typed(e.value, what, &p)
		} else if p.Default = c.value(e.value, what); p.Default != nil {
			p.Type = typeOf(p.Default)
		}
		c.d.Parameters = append(c.d.Parameters, p)
	}
	slices.SortFunc(c.d.Parameters, func(a, b parameter) int { return strings.Compare(a.Name, b.Name) })
}

// typed reads a parameter whose type is given.
func (c *chainReader) typed(node *yaml.Node, what string, p *parameter) {
	before := len(c.problems)
	c.fields(node, what, map[string]func(*yaml.Node){
		"type": func(n *yaml.Node) {
			if text, ok := c.text(n, "type", "number"); ok {
				p.Type = text
				if !slices.Contains(types(), text) {
					c.report(at(n), "unknown type %q; %s", text, suggestion(text, types()))
				}
			}
		},
		"default": func(n *yaml.Node) { p.Default = c.value(n, what) },
	})
	switch {
	case len(c.problems) > before:
	case p.Type == "":
		c.report(at(node), "%s has no type; give one of %s, or only a default, such as 3", what, strings.Join(types(), ", "))
	case p.Default != nil:
		if err := p.check(p.Default); err != nil {
			c.report(at(node), "default of %s: %v", what, err)
		}
	}
}

// value reads a scalar, or a list of scalars.
func (c *chainReader) value(node *yaml.Node, what string) json.RawMessage {
	if node.Kind != yaml.SequenceNode {
		value, _ := c.scalar(node, what)
		return value
	}
	values := []json.RawMessage{}
	for _, item := range c.items(node) {
		if value, ok := c.scalar(item, "a value of "+what); ok {
			values = append(values, value)
		}
	}
	encoded, err := json.Marshal(values)
	if err != nil {
		c.report(at(node), "%s: %v", what, err) // scalars are JSON already
	}
	return encoded
}

// typeOf is the narrowest JSON Schema type of a JSON value: 3 is an "integer", 3.0 a "number"; "" for null and objects.
func typeOf(value json.RawMessage) string {
	value = bytes.TrimSpace(value)
	if len(value) == 0 {
		return ""
	}
	switch first := value[0]; {
	case first == '"':
		return "string"
	case first == 't' || first == 'f':
		return "boolean"
	case first == '[':
		return "array"
	case first == '-' || first >= '0' && first <= '9':
		if bytes.ContainsAny(value, ".eE") {
			return "number"
		}
		return "integer"
	default:
		return ""
	}
}

// check refuses a JSON value of another type.
func (p *parameter) check(value json.RawMessage) error {
	if !p.takes(value) {
		return fmt.Errorf("%s is no %s: give a value of that type", shortened(string(value)), p.Type)
	}
	switch p.Type {
	case "string":
		return checkText(value)
	case "array":
		_, err := scalars(value)
		return err
	default:
		return nil
	}
}

// takes reports whether value has the parameter's type, as JSON Schema has it: 3 is a number as well, and 3.0 an
// integer.
func (p *parameter) takes(value json.RawMessage) bool {
	switch x, isNumber := number(value); p.Type {
	case "number":
		return isNumber
	case "integer":
		return isNumber && x == math.Trunc(x) && math.Abs(x) < 1<<53
	default:
		return typeOf(value) == p.Type
	}
}

// normal is a value that check has taken as programs read one of its type: an integer without a point or an exponent.
func (p *parameter) normal(value json.RawMessage) json.RawMessage {
	if x, isNumber := number(value); isNumber && p.Type == "integer" {
		return json.RawMessage(strconv.FormatFloat(x, 'f', 0, 64))
	}
	return value
}

// scalars are the members of a JSON array of scalars.
func scalars(value json.RawMessage) ([]json.RawMessage, error) {
	var members []json.RawMessage
	if err := json.Unmarshal(value, &members); err != nil || members == nil {
		return nil, fmt.Errorf("%s is no list: give a list of numbers, truth values or texts", shortened(string(value)))
	}
	for i, member := range members {
		switch typeOf(member) {
		case "", "array":
			return nil, fmt.Errorf("member %d is %s: give a number, a truth value or a text", i, shortened(string(member)))
		case "string":
			if err := checkText(member); err != nil {
				return nil, fmt.Errorf("member %d: %w", i, err)
			}
		}
	}
	return members, nil
}

// checkText refuses a text that no argument and no environment variable can hold.
func checkText(value json.RawMessage) error {
	if strings.ContainsRune(plain(value), 0) {
		return errors.New("the text holds a NUL character: leave it out")
	}
	return nil
}

// plain writes a scalar as a program reads it: text without its quotes, all else as in JSON.
func plain(value json.RawMessage) string {
	var text string
	if typeOf(value) == "string" && json.Unmarshal(value, &text) == nil {
		return text
	}
	return string(bytes.TrimSpace(value))
}

// number is the value of a JSON number; false for what is none, or is too large for one.
func number(value json.RawMessage) (float64, bool) {
	var x float64
	kind := typeOf(value)
	ok := (kind == "integer" || kind == "number") && json.Unmarshal(value, &x) == nil
	return x, ok
}
