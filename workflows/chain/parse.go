package chain

import (
	"encoding/json"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Checks are what Parse asks about things outside the text. A nil function is not asked.
type Checks struct {
	// Stat says what is at a path of the chain's directory, such as fs.Stat(os.DirFS(directory), path).
	Stat func(path string) (fs.FileInfo, error)
	// Binding refuses events that cannot start runs.
	Binding func(wire.Binding) error
}

// Parse reads a chain. The file's name is only for messages. When something is wrong it returns an *Error with all that
// is. It does nothing but what checks does.
func Parse(file string, text []byte, checks Checks) (Chain, error) {
	c := &chainReader{reader: reader{file: file}, checks: checks}
	if root := c.document(text); root != nil {
		c.read(root)
	}
	if len(c.problems) > 0 {
		return Chain{}, newError(c.problems)
	}
	return Chain{c.d}, nil
}

// chainReader reads a chain: first what stands where, then whether it fits together.
type chainReader struct {
	reader

	checks Checks
	d      definition
	uses   []use
	names  map[string]place // of the stages
	locals []local
}

// use is a name that must mean something, and where it stands.
type use struct {
	as    useKind
	stage int // index of the stage that uses it; -1 for the chain's environment
	text  string
	path  string // of a file
	where place
}

type useKind int

const (
	asFile useKind = iota
	asVariable
	asValue
	asAfter
)

// local is a path that must be there.
type local struct {
	what      string
	path      string
	where     place
	file, dir bool // what it may be
}

func (c *chainReader) read(root *yaml.Node) {
	c.names = map[string]place{}
	c.d.Code.Path = "."
	code := local{what: "code", path: ".", where: place{1, 1}, dir: true}
	seen := map[string]bool{}
	c.fields(root, "the chain", map[string]func(*yaml.Node){
		"name": func(n *yaml.Node) {
			seen["name"] = true
			c.d.Name = c.name(n, "name of the chain", runs.CheckName)
		},
		"goal":        func(n *yaml.Node) { c.d.Goal = c.goal(n) },
		"code":        func(n *yaml.Node) { c.d.Code.Path, code = c.code(n) },
		"python":      c.python,
		"environment": func(n *yaml.Node) { c.d.Environment = c.environment(n, -1) },
		"parameters":  c.parameters,
		"inputs":      c.inputs,
		"on":          func(n *yaml.Node) { c.bindings(n) },
		"stages":      func(n *yaml.Node) { seen["stages"] = true; c.stages(n) },
	})
	if c.d.Code.Path != "" {
		c.locals = append(c.locals, code)
	}
	if resolve(root).Kind != yaml.MappingNode {
		return
	}
	if !seen["name"] {
		c.report(at(root), "the chain has no name; begin with one, such as name: churn")
	}
	if !seen["stages"] {
		c.report(at(root), "the chain has no stages; add stages with at least one stage that has a run")
	}
	c.checkUses()
	c.checkOrder()
	c.checkPlaces()
	c.checkLocals()
}

// name reads a name and lets check refuse it.
func (c *chainReader) name(node *yaml.Node, what string, check func(string) error) string {
	name, ok := c.text(node, what, "churn")
	if !ok {
		return ""
	}
	if err := check(name); err != nil {
		c.report(at(resolve(node)), "%s: %v", what, err)
		return ""
	}
	return name
}

func (c *chainReader) goal(node *yaml.Node) (goal predictor.Goal) {
	c.fields(node, "goal", map[string]func(*yaml.Node){
		"deadline": func(n *yaml.Node) { goal.Deadline = c.duration(n, "deadline") },
		"confidence": func(n *yaml.Node) {
			text, ok := c.plain(n, "confidence", "0.95")
			value, err := strconv.ParseFloat(text, 64)
			if ok && (err != nil || !(value >= predictor.LeastConfidence && value <= predictor.MostConfidence)) {
				c.report(at(n), "confidence is %q; give the probability of meeting the deadline, %g to %g", text,
					predictor.LeastConfidence, predictor.MostConfidence)
				return
			}
			goal.Confidence = value
		},
		"budget": func(n *yaml.Node) { goal.Budget = c.dollars(n, "budget") },
		"minimise": func(n *yaml.Node) {
			text, ok := c.text(n, "minimise", "cost")
			goal.Minimise = predictor.Objective(text)
			if ok && goal.Minimise != predictor.Cost && goal.Minimise != predictor.Latency {
				c.report(at(n), "minimise is %q; give %s or %s", text, predictor.Cost, predictor.Latency)
			}
		},
	})
	if goal.Confidence > 0 && goal.Deadline == 0 {
		c.report(at(node), "confidence has no deadline to meet; give one, such as deadline: 10m")
	}
	return goal
}

func (c *chainReader) code(node *yaml.Node) (string, local) {
	text, ok := c.text(node, "code", "src, or none")
	if !ok || text == "none" {
		return "", local{}
	}
	path, _ := c.path(node, text, "code", true)
	return path, local{what: "code", path: path, where: at(node), dir: true}
}

func (c *chainReader) python(node *yaml.Node) {
	c.fields(node, "python", map[string]func(*yaml.Node){
		"requirements": func(n *yaml.Node) {
			if text, ok := c.text(n, "requirements", "requirements.txt"); ok {
				c.d.Requirements.Path = c.local(n, text, "requirements", true, false)
			}
		},
	})
}

// local reads a path of something that must be there.
func (c *chainReader) local(node *yaml.Node, text, what string, file, dir bool) string {
	path, ok := c.path(node, text, what, dir)
	if ok {
		c.locals = append(c.locals, local{what: what, path: path, where: at(node), file: file, dir: dir})
	}
	return path
}

// environmentName is what POSIX promises to carry:
// https://pubs.opengroup.org/onlinepubs/9699919799/basedefs/V1_chap08.html.
var environmentName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reservedEnvironment begins the names of what every command is told.
const reservedEnvironment = "SPILLWAY_"

func (c *chainReader) environment(node *yaml.Node, stage int) map[string]string {
	environment := map[string]string{}
	for _, e := range c.entries(node, "environment") {
		name := e.key.Value
		switch {
		case !environmentName.MatchString(name):
			c.report(at(e.key), "environment variable %q: use letters, digits and '_', and begin with no digit", name)
			continue
		case strings.HasPrefix(name, reservedEnvironment):
			c.report(at(e.key), "environment variable %s: names that begin with %s are set by Spillway; use another", name,
				reservedEnvironment)
			continue
		}
		if text, ok := c.plain(e.value, "environment variable "+name, `"1"`); ok {
			environment[name] = text
			c.values(e.value, text, stage)
		}
	}
	return environment
}

// mostSecrets bounds the secrets of a stage.
const mostSecrets = 16

// secrets reads the names of a stage's secrets. Each is a variable of its program, which its environment says in vain.
func (c *chainReader) secrets(node *yaml.Node) (names []string) {
	var of []*yaml.Node
	for _, item := range c.items(node) {
		name, ok := c.text(item, "secret", "openai-api-key")
		if !ok {
			continue
		}
		if err := wire.CheckSecrets(append(slices.Clone(names), name)); err != nil {
			c.report(at(item), "%v", err)
			continue
		}
		names, of = append(names, name), append(of, item)
	}
	if len(names) > mostSecrets {
		c.report(at(of[mostSecrets]), "the stage names %d secrets; name at most %d", len(names), mostSecrets)
	}
	return names
}

// values notes the values that a text names.
func (c *chainReader) values(node *yaml.Node, text string, stage int) {
	pieces, mistakes := split(text)
	for _, p := range pieces {
		if p.name != "" {
			c.uses = append(c.uses, use{as: asValue, stage: stage, text: p.name, where: within(node, text, p.offset)})
		}
	}
	c.mistakes(node, text, mistakes)
}

func (c *chainReader) mistakes(node *yaml.Node, text string, mistakes []mistake) {
	for _, m := range mistakes {
		c.report(within(node, text, m.offset), "%s", m.text)
	}
}

// within is the place of a byte of a text: in a literal block each line of the text is one of the file, elsewhere it is
// where the text begins.
func within(node *yaml.Node, text string, offset int) place {
	where := at(node)
	if node.Style&yaml.LiteralStyle != 0 {
		where.line += 1 + strings.Count(text[:offset], "\n")
		where.column = 1
	}
	return where
}

func (c *chainReader) inputs(node *yaml.Node) {
	for _, e := range c.entries(node, "inputs") {
		what := "input " + e.key.Value
		name := c.name(e.key, "input", runs.CheckName)
		text, ok := c.text(e.value, what, "data/raw.csv")
		if !ok || name == "" {
			continue
		}
		c.d.Inputs = append(c.d.Inputs, input{Name: name, source: source{Path: c.local(e.value, text, what, true, true)}})
	}
	slices.SortFunc(c.d.Inputs, func(a, b input) int { return strings.Compare(a.Name, b.Name) })
}

// bindings reads one mapping, or a list of them.
func (c *chainReader) bindings(node *yaml.Node) {
	for _, item := range c.items(node) {
		before := len(c.problems)
		var binding wire.Binding
		c.fields(item, "on", map[string]func(*yaml.Node){
			"subject":  func(n *yaml.Node) { binding.Subject, _ = c.text(n, "subject", "data.new") },
			"schedule": func(n *yaml.Node) { binding.Schedule, _ = c.text(n, "schedule", `"@daily"`) },
			"goal":     func(n *yaml.Node) { binding.Goal = c.goal(n) },
			"filter": func(n *yaml.Node) {
				if value, ok := c.tree(n, "filter").(map[string]any); ok {
					binding.Filter = value
				} else {
					c.report(at(n), "filter is %s; give a mapping of paths in the event to values, such as {kind: csv}", kindOf(n))
				}
			},
			"max_runs": func(n *yaml.Node) {
				runs, _ := c.whole(n, "max_runs", 0, 1_000_000)
				binding.MaxRuns = int(runs)
			},
			"input": func(n *yaml.Node) {
				encoded, err := json.Marshal(c.tree(n, "input"))
				if err != nil {
					c.report(at(n), "input is not JSON: %v", err)
				}
				binding.Input = encoded
			},
		})
		switch {
		case len(c.problems) > before:
			continue
		case binding.Subject == "" && binding.Schedule == "":
			c.report(at(item), "this says not what starts runs; give a subject or a schedule")
			continue
		case binding.Schedule == "" && binding.Input != nil:
			c.report(at(item), "input is for scheduled runs; give a schedule as well, or leave the input out")
			continue
		}
		binding.Pipeline = c.d.Name
		if c.checks.Binding != nil {
			if err := c.checks.Binding(binding); err != nil {
				c.report(at(item), "%v", err)
			}
		}
		c.d.Bindings = append(c.d.Bindings, binding)
	}
}
