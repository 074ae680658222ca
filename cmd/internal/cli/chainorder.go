package cli

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/workflows/chain"
)

// stageOrder is a stage of a chain among the others.
type stageOrder struct {
	name string
	// after are the stages that it waits for, in the order in which they run.
	after []string
	// fansOut says that it has a task for each of its values; over are the variables.
	fansOut bool
	over    []string
	// last says that no other stage waits for it.
	last bool
}

// String writes the stage with what it waits for.
func (s stageOrder) String() string {
	text := s.name
	if len(s.over) > 0 {
		text += " for each " + strings.Join(s.over, " and ")
	}
	if len(s.after) > 0 {
		text += ", after " + strings.Join(s.after, ", ")
	}
	return text
}

func names(stages []stageOrder) []string {
	all := make([]string, len(stages))
	for i, stage := range stages {
		all[i] = stage.name
	}
	return all
}

// chainText is what an encoded chain says of the order of its stages.
type chainText struct {
	Stages []struct {
		Name        string            `json:"name"`
		Script      string            `json:"script"`
		Arguments   []string          `json:"arguments"`
		Environment map[string]string `json:"environment"`
		After       []string          `json:"after"`
		Files       []struct {
			From string `json:"from"`
		} `json:"files"`
		ForEach []struct {
			Name string `json:"name"`
			From string `json:"from"`
		} `json:"for_each"`
	} `json:"stages"`
}

// reportedValue is ${STAGE.result.KEY}, but not $${ which stands for the characters.
var reportedValue = regexp.MustCompile(`(\$?)\$\{([a-z][a-z0-9_-]*)\.result\.[^}]*\}`)

// stagesOf returns the stages of a chain in an order in which they can run: that of the file where nothing else decides.
func stagesOf(c chain.Chain) ([]stageOrder, error) {
	encoded, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var text chainText
	if err := json.Unmarshal(encoded, &text); err != nil {
		return nil, fmt.Errorf("order the stages of chain %s: %w", c.Name(), err)
	}
	needs := map[string]map[string]bool{}
	var waiting []stageOrder
	for _, stage := range text.Stages {
		needed := map[string]bool{}
		refer := func(reference string) {
			if first, _, dotted := strings.Cut(reference, "."); dotted && first != "inputs" && first != "parameters" {
				needed[first] = true
			}
		}
		one := stageOrder{name: stage.Name, fansOut: len(stage.ForEach) > 0, last: true}
		for _, file := range stage.Files {
			refer(file.From)
		}
		for _, variable := range stage.ForEach {
			refer(variable.From)
			one.over = append(one.over, variable.Name)
		}
		for _, name := range stage.After {
			needed[name] = true
		}
		texts := append(slices.Clone(stage.Arguments), stage.Script)
		for _, value := range stage.Environment {
			texts = append(texts, value)
		}
		for _, match := range reportedValue.FindAllStringSubmatch(strings.Join(texts, "\n"), -1) {
			if match[1] == "" {
				needed[match[2]] = true
			}
		}
		needs[stage.Name] = needed
		waiting = append(waiting, one)
	}
	return ordered(waiting, needs), nil
}

// ordered puts stages that need each other in no circle one after the other.
func ordered(waiting []stageOrder, needs map[string]map[string]bool) []stageOrder {
	var done []stageOrder
	for len(waiting) > 0 {
		next := slices.IndexFunc(waiting, func(s stageOrder) bool {
			met := 0
			for _, earlier := range done {
				if needs[s.name][earlier.name] {
					met++
				}
			}
			return met == len(needs[s.name])
		})
		next = max(next, 0) // a circle was refused when the chain was read
		stage := waiting[next]
		waiting = slices.Delete(waiting, next, next+1)
		for i, earlier := range done {
			if needs[stage.name][earlier.name] {
				stage.after = append(stage.after, earlier.name)
				done[i].last = false
			}
		}
		done = append(done, stage)
	}
	return done
}
