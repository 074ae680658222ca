package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/workflows/nearest"
)

// MostBytes bounds a configuration file.
const MostBytes = 1 << 20

// value is one value in a file, and where it stands.
type value struct {
	text         string
	line, column int
}

// Document is a configuration file as it was read: flat, a key for each setting.
type Document struct {
	// Name is the file's, as messages tell it; empty for no file.
	Name string

	said map[string][]value
}

// Parse reads a configuration file: a YAML mapping of settings to their values, where what may be given several times
// is a list. It returns all that is wrong, but for what the values are, which [Sources.Apply] gives to the flags. An
// empty file says nothing.
func Parse(name string, text []byte, known Settings) (Document, []Mistake) {
	r := reader{known: known, document: Document{Name: name, said: map[string][]value{}}, lines: map[string]int{}}
	if root := r.root(text); root != nil {
		r.read(root)
	}
	Sort(r.mistakes)
	return r.document, r.mistakes
}

type reader struct {
	known    Settings
	document Document
	mistakes []Mistake
	lines    map[string]int // where each key was first seen
	at       string         // the setting that is read; empty for none
}

func (r *reader) report(line, column int, text, do string) {
	r.mistakes = append(r.mistakes, Mistake{
		Where: r.document.Name, Line: max(1, line), Column: max(1, column), Setting: r.at, Text: text, Do: do,
	})
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
	r.report(line, 1, "not YAML: "+message, "look at the indentation, colons and quotes here and on the line before")
}

// root returns the mapping of the file; nil where there is none that can be read.
func (r *reader) root(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		r.syntax(err)
		return nil
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		r.report(second.Line, second.Column, "a second document begins here", "write all settings into one")
		return nil
	case !errors.Is(err, io.EOF):
		r.syntax(err)
		return nil
	}
	root := document.Content[0]
	switch {
	case root.Kind == yaml.ScalarNode && root.ShortTag() == "!!null":
		return nil
	case root.Kind != yaml.MappingNode:
		r.report(root.Line, root.Column, "the file is "+kindOf(root), "write settings, such as http-port: 7474")
		return nil
	}
	return root
}

func (r *reader) read(root *yaml.Node) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, node := root.Content[i], resolve(root.Content[i+1])
		setting, known := r.known[key.Value]
		switch first := r.lines[key.Value]; {
		case key.Kind != yaml.ScalarNode:
			r.report(key.Line, key.Column, "a key is "+kindOf(key), "write the name of a setting")
		case !known:
			r.report(key.Line, key.Column, fmt.Sprintf("there is no setting %q", key.Value), r.near(key.Value))
		case first > 0:
			r.report(key.Line, key.Column, fmt.Sprintf("%s is said twice, first in line %d", key.Value, first),
				"leave one of them out")
		case IsSecret(setting.Flag) && r.known[key.Value+"-file"].Flag != nil:
			r.report(key.Line, key.Column, key.Value+" is a secret in clear", "write it into a file that only this user can "+
				"read (mode 0600), and name that file as "+key.Value+"-file")
		default:
			r.lines[key.Value] = key.Line
			r.at = key.Value
			r.setting(setting.Flag, node)
			r.at = ""
		}
	}
}

// near says which settings a name may mean.
func (r *reader) near(name string) string {
	plain := strings.ReplaceAll(strings.TrimLeft(strings.ToLower(name), "-"), "_", "-")
	if names := nearest.Names(plain, r.known.Names()); len(names) > 0 {
		return "did you mean " + strings.Join(names, ", ") + "?"
	}
	return "`spillway config schema` lists the settings"
}

// setting reads the value of a known key.
func (r *reader) setting(flag *pflag.Flag, node *yaml.Node) {
	_, takesMany := many(flag)
	items := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		if !takesMany {
			r.report(node.Line, node.Column, flag.Name+" is a list", "give one value")
			return
		}
		items = node.Content
	}
	for _, item := range items {
		item = resolve(item)
		isNone := item.ShortTag() == "!!null"
		switch isText := item.Kind == yaml.ScalarNode && !isNone; {
		case isNone || isText && item.Value == "":
			r.report(item.Line, item.Column, flag.Name+" has no value", "give one, or leave the key out")
		case !isText:
			r.report(item.Line, item.Column, flag.Name+" is "+kindOf(item), "give "+wanted(flag))
		case flag.Value.Type() == "bool" && item.ShortTag() != "!!bool":
			r.report(item.Line, item.Column, fmt.Sprintf("%s is %q: it is neither true nor false", flag.Name, item.Value),
				"write true or false, without quotes")
		default:
			text := item.Value
			if IsPath(flag) && !filepath.IsAbs(text) && clearSecret(flag, File, text) == "" {
				text = filepath.Join(filepath.Dir(r.document.Name), text)
			}
			r.document.said[flag.Name] = append(r.document.said[flag.Name], value{text, item.Line, item.Column})
		}
	}
}

// wanted says in a few words what a setting takes.
func wanted(flag *pflag.Flag) string {
	if _, ok := many(flag); ok {
		return "a text, or a list of them"
	}
	return "one value"
}

func resolve(node *yaml.Node) *yaml.Node {
	for node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	return node
}

// kindOf says what a node is.
func kindOf(node *yaml.Node) string {
	switch resolve(node).Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	default:
		return "a single value"
	}
}
