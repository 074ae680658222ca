package teams

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/config"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/plan"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/nearest"
)

// Bounds of a file of teams.
const (
	// MostBytes is how large it may be.
	MostBytes = 1 << 20
	// MostTeams is how many teams it may declare: each has a row in every plan.
	MostTeams     = 200
	mostPipelines = 1000
	mostWeight    = 1000
	mostPerDay    = 1_000_000 // US dollars
)

// keys are those of a team.
var keys = []string{"name", "pipelines", "slots", "usd-per-day", "weight", "private"}

// Parse reads a file of teams, which name is in what is said of it:
//
//	teams:
//	  - name: vision              # "default" is who has no team
//	    pipelines: [digits, "vision-*"]
//	    slots: 8                  # of the pool, at most; 0 or nothing is no bound
//	    usd-per-day: 20           # in UTC, pool and functions; nothing is no bound
//	    weight: 2                 # of its share of the pool beside other teams; 1 where nothing is said
//	    private: true             # its runs are seen by its own people and admins alone
//
// It returns all that is wrong with it.
func Parse(name string, text []byte) (Teams, []config.Mistake) {
	r := reader{name: name, seen: map[string]int{}, patterns: map[string]string{}}
	if len(text) > MostBytes {
		r.report(&yaml.Node{Line: 1, Column: 1}, fmt.Sprintf("the file is larger than %s", quantity.Bytes(MostBytes)),
			"declare fewer teams")
		return nil, r.mistakes
	}
	if root := r.root(text); root != nil {
		r.read(root)
	}
	config.Sort(r.mistakes)
	if len(r.mistakes) > 0 {
		return nil, r.mistakes
	}
	return r.teams, nil
}

type reader struct {
	name     string
	teams    Teams
	mistakes []config.Mistake
	seen     map[string]int    // the line of each team
	patterns map[string]string // whose each pattern is
}

func (r *reader) report(at *yaml.Node, text, do string) {
	r.mistakes = append(r.mistakes, config.Mistake{
		Where: r.name, Line: max(1, at.Line), Column: max(1, at.Column), Text: text, Do: do,
	})
}

var syntaxError = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// root is the mapping of the file; nil where there is none that can be read.
func (r *reader) root(text []byte) *yaml.Node {
	var document yaml.Node
	switch err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&document); {
	case errors.Is(err, io.EOF):
		r.report(&document, "the file is empty", "write teams: and a list of them below it, or leave the setting out")
		return nil
	case err != nil:
		at := &yaml.Node{Line: 1}
		message := err.Error()
		if match := syntaxError.FindStringSubmatch(message); match != nil {
			message = message[len(match[0]):]
			if line, err := strconv.Atoi(match[1]); err == nil {
				at.Line = line
			}
		}
		r.report(at, "not YAML: "+message, "look at the indentation, colons and quotes here and on the line before")
		return nil
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		r.report(root, "the file is no mapping", "write teams: and a list of them below it")
		return nil
	}
	return root
}

func (r *reader) read(root *yaml.Node) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, list := root.Content[i], root.Content[i+1]
		switch {
		case key.Value != "teams":
			r.report(key, fmt.Sprintf("there is no key %q", key.Value), "the only one is teams")
		case list.Kind != yaml.SequenceNode:
			r.report(list, "teams is no list", "begin each team with a dash")
		case len(list.Content) > MostTeams:
			r.report(list, fmt.Sprintf("there are %d teams, and at most %d may be", len(list.Content), MostTeams), "")
		default:
			for _, node := range list.Content {
				r.team(node)
			}
		}
	}
}

// team reads one team.
func (r *reader) team(node *yaml.Node) {
	if node.Kind != yaml.MappingNode {
		r.report(node, "a team is no mapping", "give it a name and what it may have, such as {name: vision, slots: 8}")
		return
	}
	t := Team{}
	said, first := map[string]bool{}, node
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if said[key.Value] {
			r.report(key, key.Value+" is said twice", "leave one of them out")
			continue
		}
		if said[key.Value] = true; key.Value == "name" {
			first = value
		}
		r.value(&t, key, value)
	}
	if !said["name"] {
		r.report(node, "a team has no name", "give it one, such as name: vision")
		return
	}
	if line, twice := r.seen[t.Name]; twice {
		r.report(first, fmt.Sprintf("team %s is declared twice, first in line %d", predictor.TeamName(t.Name), line),
			"leave one of them out")
		return
	}
	r.seen[t.Name] = max(1, first.Line)
	for i, pattern := range t.Pipelines {
		if other, taken := r.patterns[pattern]; taken {
			at := first
			for j := 0; j+1 < len(node.Content); j += 2 {
				if node.Content[j].Value == "pipelines" && i < len(node.Content[j+1].Content) {
					at = node.Content[j+1].Content[i]
				}
			}
			r.report(at, fmt.Sprintf("pipeline %q is team %s's already", pattern, other), "leave one of them out")
			continue
		}
		r.patterns[pattern] = predictor.TeamName(t.Name)
	}
	r.teams = append(r.teams, t)
}

// value reads what a key of a team says.
func (r *reader) value(t *Team, key, value *yaml.Node) {
	switch key.Value {
	case "name":
		t.Name = r.called(value)
	case "pipelines":
		t.Pipelines = r.pipelines(value)
	case "slots":
		t.Slots = int(r.number(key, value, plan.MaxSlots, true))
	case "usd-per-day":
		t.PerDay, _ = quantity.Dollars(r.number(key, value, mostPerDay, false))
		if t.PerDay == 0 && value.Value == "0" {
			r.report(value, "usd-per-day is 0", "leave it out for no bound; slots and usd-per-day bound what a team may have")
		}
	case "weight":
		t.Weight = r.number(key, value, mostWeight, false)
	case "private":
		if err := value.Decode(&t.Private); err != nil {
			r.report(value, fmt.Sprintf("private is %q", value.Value), "write true or false")
		}
	default:
		do := "the keys are " + strings.Join(keys, ", ")
		if near := nearest.Names(key.Value, keys); len(near) > 0 {
			do = "did you mean " + strings.Join(near, ", ") + "?"
		}
		r.report(key, fmt.Sprintf("a team has no key %q", key.Value), do)
	}
}

// called reads the name of a team; empty is the default team.
func (r *reader) called(value *yaml.Node) string {
	if value.Kind != yaml.ScalarNode || value.Value == "" {
		r.report(value, "the name is no text", "write it like name: vision")
		return ""
	}
	if value.Value == predictor.DefaultTeam {
		return ""
	}
	if err := access.CheckTeam(value.Value); err != nil {
		r.report(value, err.Error(), "choose another")
	}
	return value.Value
}

func (r *reader) pipelines(value *yaml.Node) (patterns []string) {
	if value.Kind != yaml.SequenceNode || len(value.Content) > mostPipelines {
		r.report(value, fmt.Sprintf("pipelines is no list of at most %d names", mostPipelines),
			`write it like [digits, "vision-*"]`)
		return nil
	}
	for _, node := range value.Content {
		_, err := path.Match(node.Value, "")
		if node.Kind != yaml.ScalarNode || node.Value == "" || err != nil {
			r.report(node, fmt.Sprintf("%q is no name or pattern of a pipeline", node.Value),
				`write it like digits or "vision-*"`)
		}
		patterns = append(patterns, node.Value)
	}
	return patterns
}

// number reads one of 0 to most; a weight is more than 0.
func (r *reader) number(key, value *yaml.Node, most float64, whole bool) float64 {
	kind, least := "a number", "0"
	if whole {
		kind = "a whole number"
	}
	number, err := strconv.ParseFloat(value.Value, 64)
	can := value.Kind == yaml.ScalarNode && err == nil && number >= 0 && number <= most &&
		(!whole || number == math.Trunc(number))
	if key.Value == "weight" {
		least = "more than 0"
		can = can && number > 0
	}
	if !can {
		r.report(value, fmt.Sprintf("%s is %q", key.Value, value.Value),
			fmt.Sprintf("write %s from %s to %s", kind, least, strconv.FormatFloat(most, 'f', -1, 64)))
		return 0
	}
	return number
}
