package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.temporal.io/sdk/workflow"
	"go.yaml.in/yaml/v3"
)

// Bounds of a chain's text.
const (
	maxBytes = 1 << 20
	// maxNodes bounds the values of a document with its aliases expanded: a few lines of aliases of aliases stand for
	// billions.
	maxNodes = 100_000
	maxDepth = 64
	// maxKeys bounds the keys of one mapping, such as the files of a stage.
	maxKeys = 1000
	// maxText bounds each text: Linux takes arguments and environment variables of up to 128 KiB.
	maxText = 100 << 10
)

// reader gathers what is wrong while it reads.
type reader struct {
	file     string
	problems []Problem
}

// place is where something stands in the file.
type place struct{ line, column int }

func at(node *yaml.Node) place { return place{node.Line, node.Column} }

func (r *reader) report(where place, format string, args ...any) {
	r.problems = append(r.problems, Problem{
		File: r.file, Line: max(1, where.line), Column: max(1, where.column),
		Text: fmt.Sprintf(format, args...),
	})
}

// document parses text and returns its root; nil when there is none that can be read.
func (r *reader) document(text []byte) *yaml.Node {
	top := place{1, 1}
	if len(text) > maxBytes {
		r.report(top, "the file has %d bytes: a chain has at most %d; put data into files and name them under inputs",
			len(text), maxBytes)
		return nil
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		r.report(top, "the file is empty; a chain begins with its name and its stages")
		return nil
	case err != nil:
		r.syntax(err)
		return nil
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		r.report(at(&second), "a second document begins here; write one chain per file")
		return nil
	case !errors.Is(err, io.EOF):
		r.syntax(err)
		return nil
	}
	root := document.Content[0]
	left := maxNodes
	if node := tooLarge(root, maxDepth, &left); node != nil {
		r.report(at(node), "the file is nested more than %d deep or stands for more than %d values; use fewer aliases",
			maxDepth, maxNodes)
		return nil
	}
	return root
}

// tooLarge returns the node at which more than left values were seen, or the nesting was deeper than depth; nil when
// there is none.
func tooLarge(node *yaml.Node, depth int, left *int) *yaml.Node {
	if *left--; *left < 0 || depth < 0 {
		return node
	}
	if node.Kind == yaml.AliasNode {
		if tooLarge(node.Alias, depth-1, left) != nil {
			return node
		}
		return nil
	}
	for _, inner := range node.Content {
		if found := tooLarge(inner, depth-1, left); found != nil {
			return found
		}
	}
	return nil
}

var syntaxError = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func (r *reader) syntax(err error) {
	message, line := err.Error(), 1
	if match := syntaxError.FindStringSubmatch(message); match != nil {
		message = message[len(match[0]):]
		if n, err := strconv.Atoi(match[1]); err == nil {
			line = n
		}
	}
	r.report(place{line, 1}, "not YAML: %s; look at the indentation, colons and quotes here and on the line before",
		message)
}

// resolve returns what an alias stands for.
func resolve(node *yaml.Node) *yaml.Node {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	return node
}

// entry is a key of a mapping with its value; neither is an alias.
type entry struct{ key, value *yaml.Node }

// entries returns the keys of a mapping in the order of the file, those of merges ("<<") last.
func (r *reader) entries(node *yaml.Node, what string) []entry {
	node = resolve(node)
	if node.Kind != yaml.MappingNode {
		r.report(at(node), "%s is %s; give a mapping, such as key: value", what, kindOf(node))
		return nil
	}
	if len(node.Content)/2 > maxKeys {
		r.report(at(node), "%s has %d keys; write at most %d", what, len(node.Content)/2, maxKeys)
		return nil
	}
	var own, merged []entry
	seen := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := resolve(node.Content[i]), resolve(node.Content[i+1])
		switch {
		case key.Kind != yaml.ScalarNode:
			r.report(at(key), "a key of %s is %s; give a word", what, kindOf(key))
		case key.ShortTag() == "!!merge":
			for _, from := range sources(value) {
				merged = append(merged, r.entries(from, "what "+what+" merges")...)
			}
		case seen[key.Value] != nil:
			r.report(at(key), "key %q is in %s twice, first on line %d; keep one of them", key.Value, what, seen[key.Value].Line)
		default:
			seen[key.Value] = key
			own = append(own, entry{key, value})
		}
	}
	for _, inherited := range merged {
		if seen[inherited.key.Value] == nil {
			seen[inherited.key.Value] = inherited.key
			own = append(own, inherited)
		}
	}
	return own
}

// sources are the mappings that a merge key names: one, or a list of them of which the first wins.
func sources(value *yaml.Node) []*yaml.Node {
	if value.Kind == yaml.SequenceNode {
		return value.Content
	}
	return []*yaml.Node{value}
}

// fields reads a mapping whose keys are known.
func (r *reader) fields(node *yaml.Node, what string, read map[string]func(value *yaml.Node)) {
	for _, e := range r.entries(node, what) {
		field, known := read[e.key.Value]
		if !known {
			r.report(at(e.key), "unknown key %q in %s; %s", e.key.Value, what,
				suggestion(e.key.Value, workflow.DeterministicKeys(read)))
			continue
		}
		field(e.value)
	}
}

// items returns the values of a list; a single value that is no list is one that has one.
func (r *reader) items(node *yaml.Node) []*yaml.Node {
	node = resolve(node)
	if node.Kind != yaml.SequenceNode {
		return []*yaml.Node{node}
	}
	items := make([]*yaml.Node, len(node.Content))
	for i, inner := range node.Content {
		items[i] = resolve(inner)
	}
	return items
}

// text reads a string.
func (r *reader) text(node *yaml.Node, what, example string) (string, bool) {
	node = resolve(node)
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!str" {
		r.report(at(node), "%s is %s; give text, such as %s", what, kindOf(node), example)
		return "", false
	}
	return node.Value, r.printable(node, what)
}

// plain reads a string, or a number or truth value as it is written.
func (r *reader) plain(node *yaml.Node, what, example string) (string, bool) {
	node = resolve(node)
	if node.Kind != yaml.ScalarNode || !slices.Contains([]string{"!!str", "!!int", "!!float", "!!bool", "!!timestamp"},
		node.ShortTag()) {
		r.report(at(node), "%s is %s; give text, such as %s", what, kindOf(node), example)
		return "", false
	}
	return node.Value, r.printable(node, what)
}

// printable refuses what no argument and no path can hold.
func (r *reader) printable(node *yaml.Node, what string) bool {
	if len(node.Value) > maxText {
		r.report(at(node), "%s has %d bytes; write at most %d here, and put more into a file", what, len(node.Value), maxText)
		return false
	}
	if strings.ContainsRune(node.Value, 0) {
		r.report(at(node), "%s holds a NUL character; leave it out", what)
		return false
	}
	return true
}

// boolean reads true or false.
func (r *reader) boolean(node *yaml.Node, what string) bool {
	node = resolve(node)
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!bool" {
		r.report(at(node), "%s is %s; give true or false", what, kindOf(node))
		return false
	}
	return strings.EqualFold(node.Value, "true")
}

// whole reads a whole number between low and high.
func (r *reader) whole(node *yaml.Node, what string, low, high int64) (int64, bool) {
	node = resolve(node)
	if node.Kind != yaml.ScalarNode || node.ShortTag() != "!!int" {
		r.report(at(node), "%s is %s; give a whole number", what, kindOf(node))
		return 0, false
	}
	var n int64
	if err := node.Decode(&n); err != nil || n < low || n > high {
		r.report(at(node), "%s is %s; give a whole number from %d to %d", what, node.Value, low, high)
		return 0, false
	}
	return n, true
}

// scalar reads a number, a truth value or text, as JSON.
func (r *reader) scalar(node *yaml.Node, what string) (json.RawMessage, bool) {
	node = resolve(node)
	if node.Kind == yaml.ScalarNode {
		if value, ok := jsonOf(node); ok {
			return value, r.printable(node, what)
		}
	}
	r.report(at(node), "%s is %s; give a number, true, false or text", what, kindOf(node))
	return nil, false
}

// jsonOf is a scalar as JSON; false for null, for numbers that JSON cannot write, and for tags of YAML's own.
func jsonOf(node *yaml.Node) (json.RawMessage, bool) {
	var value any
	switch node.ShortTag() {
	case "!!str", "!!timestamp":
		value = node.Value
	case "!!bool":
		value = strings.EqualFold(node.Value, "true")
	case "!!int":
		var n int64
		if node.Decode(&n) != nil {
			return nil, false
		}
		value = n
	case "!!float":
		var x float64
		if node.Decode(&x) != nil || math.IsNaN(x) || math.IsInf(x, 0) {
			return nil, false
		}
		if json.Valid([]byte(node.Value)) { // as it was written: 1e-5 and not 0.00001
			return json.RawMessage(node.Value), true
		}
		value = x
	default:
		return nil, false
	}
	encoded, err := json.Marshal(value)
	return encoded, err == nil
}

// tree reads any value that JSON can write.
func (r *reader) tree(node *yaml.Node, what string) any {
	node = resolve(node)
	switch node.Kind {
	case yaml.MappingNode:
		value := map[string]any{}
		for _, e := range r.entries(node, what) {
			value[e.key.Value] = r.tree(e.value, what)
		}
		return value
	case yaml.SequenceNode:
		value := make([]any, len(node.Content))
		for i, inner := range r.items(node) {
			value[i] = r.tree(inner, what)
		}
		return value
	default:
		if node.ShortTag() == "!!null" {
			return nil
		}
		var value any
		if encoded, ok := r.scalar(node, what); !ok || json.Unmarshal(encoded, &value) != nil {
			return nil
		}
		return value
	}
}

// kindOf names what a node is, for messages.
func kindOf(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
	}
	shown := node.Value
	if characters := []rune(shown); len(characters) > 40 {
		shown = string(characters[:40]) + "..."
	}
	switch node.ShortTag() {
	case "!!null":
		return "empty"
	case "!!int", "!!float":
		return "the number " + shown
	case "!!bool":
		return "the truth value " + shown
	case "!!str", "!!timestamp":
		return fmt.Sprintf("the text %q", shown)
	default:
		return fmt.Sprintf("%q with the tag %s", shown, node.Tag)
	}
}
