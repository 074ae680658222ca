package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Bounds of a chain.
const (
	maxStages = 200
	// maxTasks bounds the tasks of one stage of one run.
	maxTasks = 10_000
	// maxAttempts bounds how often a stage may fail.
	maxAttempts = 100
)

func (c *chainReader) stages(node *yaml.Node) {
	entries := c.entries(node, "stages")
	switch {
	case resolve(node).Kind == yaml.MappingNode && len(entries) == 0:
		c.report(at(node), "stages is empty; add at least one stage that has a run")
	case len(entries) > maxStages:
		c.report(at(node), "the chain has %d stages; write at most %d, or fan out with for_each", len(entries), maxStages)
		return
	}
	for _, e := range entries {
		name := c.name(e.key, "stage", checkStage)
		c.names[e.key.Value] = at(e.key)
		c.d.Stages = append(c.d.Stages, stage{Name: name})
		c.stage(e.key.Value, e.value, len(c.d.Stages)-1)
	}
}

func checkStage(name string) error {
	if name == "inputs" || name == "parameters" {
		return fmt.Errorf("name %q is what files and values are referred to with: use another", name)
	}
	return runs.CheckName(name)
}

// CheckOutput refuses what is no name of an output.
func CheckOutput(name string) error {
	if name == "result" {
		return errors.New(`name "result" is that of what the program reports: use another`)
	}
	return runs.CheckName(name)
}

func (c *chainReader) stage(name string, node *yaml.Node, index int) {
	s := &c.d.Stages[index]
	hasRun := false
	text := func(to *string, what, example string) func(*yaml.Node) {
		return func(n *yaml.Node) {
			if value, ok := c.text(n, what, example); ok {
				*to = value
				if value == "" {
					c.report(at(n), "%s is empty; give one, such as %s, or leave the key out", what, example)
				}
			}
		}
	}
	c.fields(node, "stage "+name, map[string]func(*yaml.Node){
		"run":      func(n *yaml.Node) { hasRun = true; c.run(n, index) },
		"files":    func(n *yaml.Node) { c.files(n, index) },
		"outputs":  func(n *yaml.Node) { c.outputs(n, s) },
		"for_each": func(n *yaml.Node) { c.forEach(n, index) },
		"after":    func(n *yaml.Node) { c.after(n, index) },
		"cpu":      func(n *yaml.Node) { s.CPU = c.cpu(n) },
		"memory":   func(n *yaml.Node) { s.Memory = c.memory(n) },
		"gpu":      func(n *yaml.Node) { s.GPU = c.gpus(n, name) },
		"timeout":  func(n *yaml.Node) { s.Timeout = c.duration(n, "timeout") },
		"grace":    func(n *yaml.Node) { s.Grace = c.duration(n, "grace") },
		"image":    text(&s.Image, "image", "python:3.12"),
		"attempts": func(n *yaml.Node) {
			attempts, _ := c.whole(n, "attempts", 1, maxAttempts)
			s.MaxAttempts = int(attempts)
		},
		"cache": func(n *yaml.Node) { c.cache(n, name, s) },
		"directory": func(n *yaml.Node) {
			if value, ok := c.text(n, "directory", "src"); ok {
				if s.Directory, _ = c.path(n, value, "directory", true); s.Directory == "." {
					s.Directory = "" // the top
				}
			}
		},
		"environment": func(n *yaml.Node) { s.Environment = c.environment(n, index) },
		"secrets":     func(n *yaml.Node) { s.Secrets = c.secrets(n) },
	})
	if !hasRun && resolve(node).Kind == yaml.MappingNode {
		c.report(c.names[name], "stage %s has no run; give the program to run, such as run: python train.py", name)
	}
}

// gpus reads a number of GPUs, or which they are to be.
func (c *chainReader) gpus(node *yaml.Node, name string) (g quantity.GPUs) {
	before := len(c.problems)
	count := func(n *yaml.Node) {
		if share, err := strconv.ParseFloat(resolve(n).Value, 64); err == nil && share > 0 && share != math.Trunc(share) {
			c.report(at(n), "gpu is %s; GPUs are given whole, and shares of one are not offered yet: give a whole number "+
				"from 1 to %d", resolve(n).Value, mostGPUs)
			return
		}
		number, _ := c.whole(n, "gpu", 1, mostGPUs)
		g.Count = int(number)
	}
	if resolve(node).Kind != yaml.MappingNode {
		count(node)
		return g
	}
	g.Count = 1
	c.fields(node, "gpu of stage "+name, map[string]func(*yaml.Node){
		"count":  count,
		"memory": func(n *yaml.Node) { g.Memory = c.memory(n) },
		"class": func(n *yaml.Node) {
			if text, ok := c.plain(n, "class", "h100"); ok {
				g.Class = text
			}
		},
	})
	if err := g.Check(); err != nil && len(c.problems) == before {
		c.report(at(node), "gpu: %v", err)
	}
	return g
}

// cache reads true, false, or what results are to be taken of.
func (c *chainReader) cache(node *yaml.Node, name string, s *stage) {
	if resolve(node).Kind != yaml.MappingNode {
		s.Cache = c.boolean(node, "cache")
		s.NoCache = !s.Cache // said, not left out: --cache does not make it so
		return
	}
	s.Cache = true
	c.fields(node, "cache of stage "+name, map[string]func(*yaml.Node){
		"for": func(n *yaml.Node) { s.CacheFor = c.duration(n, "for") },
		"version": func(n *yaml.Node) {
			text, ok := c.plain(n, "version", "2")
			if !ok {
				return
			}
			if s.CacheVersion = text; runs.CheckCacheVersion(text) != nil || text == "" {
				c.report(at(n), "version %q is no text of 1 to 100 printable characters; give one, such as 2", text)
			}
		},
	})
}

// run reads a text for the shell, or a list of arguments.
func (c *chainReader) run(node *yaml.Node, index int) {
	s := &c.d.Stages[index]
	if node.Kind != yaml.SequenceNode {
		text, ok := c.text(node, "run", "python train.py or [python, train.py]")
		switch {
		case !ok:
		case strings.TrimSpace(text) == "":
			c.report(at(node), "run is empty; give the program to run, such as python train.py")
		default:
			s.Script = text
			c.values(node, text, index)
			c.quoting(node, text)
		}
		return
	}
	for i, item := range c.items(node) {
		what := fmt.Sprintf("argument %d of run", i)
		if text, ok := c.plain(item, what, "python"); ok {
			s.Arguments = append(s.Arguments, text)
			c.values(item, text, index)
		}
	}
	if len(node.Content) == 0 || len(s.Arguments) > 0 && s.Arguments[0] == "" {
		c.report(at(node), "run names no program; begin the list with one, such as [python, train.py]")
	}
}

// quoting refuses values where a shell cannot take one.
func (c *chainReader) quoting(node *yaml.Node, text string) {
	if _, wrong := split(text); len(wrong) > 0 {
		return // that is said already
	}
	_, mistakes := script(text, func(name string, _ where) string { return name })
	c.mistakes(node, text, mistakes)
}

func (c *chainReader) files(node *yaml.Node, index int) {
	s := &c.d.Stages[index]
	for _, e := range c.entries(node, "files") {
		where, ok := c.path(e.key, e.key.Value, "file", false)
		from, isText := c.text(e.value, "file "+e.key.Value, "inputs.raw or prepare.clean")
		if !ok || !isText {
			continue
		}
		if strings.HasSuffix(e.key.Value, "/") {
			where += "/"
		}
		s.Files = append(s.Files, file{Path: where, From: from})
		c.uses = append(c.uses, use{as: asFile, stage: index, text: from, path: where, where: at(e.value)})
	}
}

func (c *chainReader) outputs(node *yaml.Node, s *stage) {
	paths := map[string]string{}
	for _, e := range c.entries(node, "outputs") {
		name := c.name(e.key, "output", CheckOutput)
		output := wire.CommandOutput{Name: name}
		where := e.value
		if e.value.Kind == yaml.MappingNode {
			where = nil
			c.fields(e.value, "output "+e.key.Value, map[string]func(*yaml.Node){
				"path":     func(n *yaml.Node) { where = n },
				"optional": func(n *yaml.Node) { output.Optional = c.boolean(n, "optional") },
			})
		}
		if where == nil {
			c.report(at(e.value), "output %s has no path; give the file or directory that the program leaves", e.key.Value)
			continue
		}
		text, ok := c.text(where, "path of output "+e.key.Value, "model.pt")
		if !ok {
			continue
		}
		if output.Path, ok = c.path(where, text, "path of output "+e.key.Value, false); !ok || name == "" {
			continue
		}
		if other, taken := paths[output.Path]; taken {
			c.report(at(where), "outputs %s and %s are both at %s; keep one of them", other, name, output.Path)
			continue
		}
		paths[output.Path] = name
		s.Outputs = append(s.Outputs, output)
	}
	slices.SortFunc(s.Outputs, func(a, b wire.CommandOutput) int { return strings.Compare(a.Name, b.Name) })
}

func (c *chainReader) after(node *yaml.Node, index int) {
	for _, item := range c.items(node) {
		if name, ok := c.text(item, "after", "prepare"); ok {
			c.d.Stages[index].After = append(c.d.Stages[index].After, name)
			c.uses = append(c.uses, use{as: asAfter, stage: index, text: name, where: at(item)})
		}
	}
}

func (c *chainReader) forEach(node *yaml.Node, index int) {
	s := &c.d.Stages[index]
	before := len(c.problems)
	for _, e := range c.entries(node, "for_each") {
		v := variable{Name: c.name(e.key, "variable", checkParameter)}
		switch what := "variable " + e.key.Value; e.value.Kind {
		case yaml.SequenceNode:
			v.Values = c.list(e.value, what)
		case yaml.MappingNode:
			v.Values = c.span(e.value, what)
		default:
			text, ok := c.text(e.value, what, "[1, 2, 3], {from: 1, to: 3} or prepare.result.shards")
			v.From = text
			if ok {
				c.uses = append(c.uses, use{as: asVariable, stage: index, text: text, where: at(e.value)})
			}
		}
		s.ForEach = append(s.ForEach, v)
	}
	if len(s.ForEach) == 0 && len(c.problems) == before {
		c.report(at(node), "for_each is empty; give a variable and its values, such as {seed: [1, 2, 3]}, or leave "+
			"the key out")
	}
	product := 1
	for _, v := range s.ForEach {
		product = min(product*max(1, len(v.Values)), maxTasks+1)
	}
	if product > maxTasks {
		c.report(at(node), "for_each has more than %d combinations; take fewer values", maxTasks)
	}
}

func (c *chainReader) list(node *yaml.Node, what string) (values []json.RawMessage) {
	for _, item := range c.items(node) {
		if value, ok := c.scalar(item, "a value of "+what); ok {
			values = append(values, value)
		}
	}
	if len(node.Content) == 0 {
		c.report(at(node), "%s has no values; give at least one", what)
	}
	return values
}

// span reads a range of whole numbers, both ends included.
func (c *chainReader) span(node *yaml.Node, what string) (values []json.RawMessage) {
	const bound = math.MaxInt32
	from, to, step := int64(1), int64(0), int64(1)
	hasEnd, ok := false, true
	read := func(n *int64, name string, low int64) func(*yaml.Node) {
		return func(node *yaml.Node) {
			value, read := c.whole(node, name+" of "+what, low, bound)
			*n, ok = value, ok && read
		}
	}
	c.fields(node, what, map[string]func(*yaml.Node){
		"from": read(&from, "from", -bound),
		"to":   func(n *yaml.Node) { hasEnd = true; read(&to, "to", -bound)(n) },
		"step": read(&step, "step", 1),
	})
	switch {
	case !ok:
		return nil
	case !hasEnd:
		c.report(at(node), "%s has no end; give a range such as {from: 1, to: 10}, or a list", what)
		return nil
	case to < from:
		c.report(at(node), "%s ends at %d before it begins at %d; give a later end", what, to, from)
		return nil
	case (to-from)/step >= maxTasks:
		c.report(at(node), "%s has more than %d values; take fewer, or a larger step", what, maxTasks)
		return nil
	}
	for n := from; n <= to; n += step {
		values = append(values, json.RawMessage(strconv.FormatInt(n, 10)))
	}
	return values
}

// path reads a path with slashes that does not leave the directory it starts in; the directory itself is one only where
// top says so.
func (r *reader) path(node *yaml.Node, text, what string, top bool) (string, bool) {
	cleaned := path.Clean(text)
	switch {
	case text == "":
		r.report(at(node), "%s is empty; give a path", what)
	case path.IsAbs(text) || strings.HasPrefix(text, "~"):
		r.report(at(node), "%s %q is absolute; give a path from the directory of the chain or of the command", what, text)
	case cleaned == ".." || strings.HasPrefix(cleaned, "../"):
		r.report(at(node), "%s %q leaves its directory; give a path below it", what, text)
	case strings.ContainsRune(text, '\\'):
		r.report(at(node), "%s %q has a backslash; write paths with slashes", what, text)
	case strings.ContainsRune(text, 0):
		r.report(at(node), "%s holds a NUL character; leave it out", what)
	case cleaned == "." && !top:
		r.report(at(node), "%s %q is the whole directory; give a path below it", what, text)
	default:
		return cleaned, true
	}
	return "", false
}
