package chain

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// writer writes definitions as the file that says the same, for the reader. The line of each of its nodes is an index
// into paths.
type writer struct {
	paths    []string // where each node is, such as "stages.train.files"
	problems []Problem
}

// entryOf is a key with its value; without a value there is none.
type entryOf struct {
	key   string
	value func(path string) *yaml.Node
}

// place gives a node of this path its line.
func (w *writer) place(path string, node *yaml.Node) *yaml.Node {
	w.paths = append(w.paths, path)
	node.Line, node.Column = len(w.paths), 1
	return node
}

// mapping writes the entries that have a value. A key that is there twice is a problem, and is written once.
func (w *writer) mapping(entries ...entryOf) func(path string) *yaml.Node {
	return func(path string) *yaml.Node {
		node := w.place(path, &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"})
		seen := map[string]bool{}
		for _, e := range entries {
			if e.value == nil {
				continue
			}
			inner := strings.TrimPrefix(path+"."+shortened(e.key), ".")
			if seen[e.key] {
				w.problems = append(w.problems, Problem{File: inner, Text: "it is there twice; rename or drop one of them"})
				continue
			}
			seen[e.key] = true
			node.Content = append(node.Content, w.text(e.key)(inner), e.value(inner))
		}
		return node
	}
}

func (w *writer) list(values ...func(string) *yaml.Node) func(path string) *yaml.Node {
	return func(path string) *yaml.Node {
		node := w.place(path, &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"})
		for i, value := range values {
			node.Content = append(node.Content, value(path+"["+strconv.Itoa(i)+"]"))
		}
		return node
	}
}

func (w *writer) scalar(tag, value string) func(path string) *yaml.Node {
	return func(path string) *yaml.Node {
		return w.place(path, &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: value})
	}
}

func (w *writer) text(value string) func(path string) *yaml.Node { return w.scalar("!!str", value) }

// given is text, unless it is empty: then the key is left out.
func (w *writer) given(value string) func(path string) *yaml.Node {
	if value == "" {
		return nil
	}
	return w.text(value)
}

func (w *writer) texts(values []string) func(path string) *yaml.Node {
	if len(values) == 0 {
		return nil
	}
	var list []func(string) *yaml.Node
	for _, value := range values {
		list = append(list, w.text(value))
	}
	return w.list(list...)
}

func (w *writer) environment(environment map[string]string) func(path string) *yaml.Node {
	var entries []entryOf
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		entries = append(entries, entryOf{name, w.text(environment[name])})
	}
	return w.some(entries)
}

// some is a mapping, unless it is empty.
func (w *writer) some(entries []entryOf) func(path string) *yaml.Node {
	if len(entries) == 0 {
		return nil
	}
	return w.mapping(entries...)
}

func (w *writer) whole(n int) func(path string) *yaml.Node {
	if n == 0 {
		return nil
	}
	return w.scalar("!!int", strconv.Itoa(n))
}

func (w *writer) duration(d time.Duration) func(path string) *yaml.Node {
	if d == 0 {
		return nil
	}
	return w.text(d.String())
}

func (w *writer) cpu(cpu quantity.Milli) func(path string) *yaml.Node {
	if cpu == 0 {
		return nil
	}
	return w.text(strconv.FormatInt(int64(cpu), 10) + "m")
}

func (w *writer) memory(memory quantity.Bytes) func(path string) *yaml.Node {
	if memory == 0 {
		return nil
	}
	return w.text(strconv.FormatInt(int64(memory), 10) + "B")
}

func (w *writer) gpus(g quantity.GPUs) func(path string) *yaml.Node {
	if g.Class == "" && g.Memory == 0 {
		return w.whole(g.Count)
	}
	return w.mapping(
		entryOf{"count", w.whole(g.Count)},
		entryOf{"memory", w.memory(g.Memory)},
		entryOf{"class", w.given(g.Class)},
	)
}

// json writes a JSON value; one that is none is null.
func (w *writer) json(value json.RawMessage) func(path string) *yaml.Node {
	decoder := json.NewDecoder(bytes.NewReader(value))
	decoder.UseNumber()
	var tree any
	if decoder.Decode(&tree) != nil {
		tree = nil
	}
	return w.tree(tree)
}

func (w *writer) tree(value any) func(path string) *yaml.Node {
	switch x := value.(type) {
	case map[string]any:
		var entries []entryOf
		for _, key := range slices.Sorted(maps.Keys(x)) {
			entries = append(entries, entryOf{key, w.tree(x[key])})
		}
		return w.mapping(entries...)
	case []any:
		var list []func(string) *yaml.Node
		for _, one := range x {
			list = append(list, w.tree(one))
		}
		return w.list(list...)
	case string:
		return w.text(x)
	case bool:
		return w.scalar("!!bool", strconv.FormatBool(x))
	case json.Number:
		if _, err := x.Int64(); err == nil {
			return w.scalar("!!int", x.String())
		}
		return w.scalar("!!float", x.String())
	default:
		return w.scalar("!!null", "null")
	}
}

// chain writes all of a definition but its goals.
func (w *writer) chain(d *definition) *yaml.Node {
	code := d.Code.Path
	if code == "" {
		code = "none"
	}
	var python, parameters, inputs, stages []entryOf
	if d.Requirements.Path != "" {
		python = []entryOf{{"requirements", w.text(d.Requirements.Path)}}
	}
	for _, p := range d.Parameters {
		typed := []entryOf{{"type", w.text(p.Type)}}
		if p.Default != nil {
			typed = append(typed, entryOf{"default", w.json(p.Default)})
		}
		parameters = append(parameters, entryOf{p.Name, w.mapping(typed...)})
	}
	for _, in := range d.Inputs {
		inputs = append(inputs, entryOf{in.Name, w.text(in.Path)})
	}
	for i := range d.Stages {
		stages = append(stages, entryOf{d.Stages[i].Name, w.stage(&d.Stages[i])})
	}
	return w.mapping(
		entryOf{"name", w.text(d.Name)},
		entryOf{"code", w.text(code)},
		entryOf{"python", w.some(python)},
		entryOf{"environment", w.environment(d.Environment)},
		entryOf{"parameters", w.some(parameters)},
		entryOf{"inputs", w.some(inputs)},
		entryOf{"on", w.bindings(d.Bindings)},
		entryOf{"stages", w.mapping(stages...)},
	)("")
}

func (w *writer) bindings(bindings []wire.Binding) func(path string) *yaml.Node {
	var list []func(string) *yaml.Node
	for _, b := range bindings {
		var filter, input func(string) *yaml.Node
		if len(b.Filter) > 0 {
			encoded, _ := json.Marshal(b.Filter) //nolint:errchkjson // it was JSON
			filter = w.json(encoded)
		}
		if len(b.Input) > 0 {
			input = w.json(b.Input)
		}
		list = append(list, w.mapping(
			entryOf{"subject", w.given(b.Subject)},
			entryOf{"schedule", w.given(b.Schedule)},
			entryOf{"filter", filter},
			entryOf{"max_runs", w.whole(b.MaxRuns)},
			entryOf{"input", input},
		))
	}
	if len(list) == 0 {
		return nil
	}
	return w.list(list...)
}

func (w *writer) stage(s *stage) func(path string) *yaml.Node {
	run := w.texts(s.Arguments)
	if s.Script != "" {
		run = w.text(s.Script)
	}
	var files, outputs, variables []entryOf
	for _, f := range s.Files {
		files = append(files, entryOf{f.Path, w.text(f.From)})
	}
	for _, output := range s.Outputs {
		outputs = append(outputs, entryOf{output.Name, w.mapping(
			entryOf{"path", w.text(output.Path)},
			entryOf{"optional", w.scalar("!!bool", strconv.FormatBool(output.Optional))},
		)})
	}
	for _, v := range s.ForEach {
		variables = append(variables, entryOf{v.Name, w.variable(v)})
	}
	return w.mapping(
		entryOf{"run", run},
		entryOf{"files", w.some(files)},
		entryOf{"outputs", w.some(outputs)},
		entryOf{"for_each", w.some(variables)},
		entryOf{"after", w.texts(s.After)},
		entryOf{"cpu", w.cpu(s.CPU)},
		entryOf{"memory", w.memory(s.Memory)},
		entryOf{"gpu", w.gpus(s.GPU)},
		entryOf{"timeout", w.duration(s.Timeout)},
		entryOf{"grace", w.duration(s.Grace)},
		entryOf{"image", w.given(s.Image)},
		entryOf{"attempts", w.whole(s.MaxAttempts)},
		entryOf{"cache", w.cache(s)},
		entryOf{"directory", w.given(s.Directory)},
		entryOf{"environment", w.environment(s.Environment)},
		entryOf{"secrets", w.texts(s.Secrets)},
	)
}

func (w *writer) variable(v variable) func(path string) *yaml.Node {
	if v.From != "" {
		return w.text(v.From)
	}
	var values []func(string) *yaml.Node
	for _, value := range v.Values {
		values = append(values, w.json(value))
	}
	return w.list(values...)
}

func (w *writer) cache(s *stage) func(path string) *yaml.Node {
	switch {
	case s.NoCache:
		return w.scalar("!!bool", "false")
	case s.CacheVersion != "" || s.CacheFor != 0:
		return w.mapping(entryOf{"version", w.given(s.CacheVersion)}, entryOf{"for", w.duration(s.CacheFor)})
	case s.Cache:
		return w.scalar("!!bool", "true")
	default:
		return nil
	}
}
