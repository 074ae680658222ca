package chain

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"go.temporal.io/sdk/workflow"
)

// checkUses refuses names that mean nothing, or not what is needed where they stand.
func (c *chainReader) checkUses() {
	for _, u := range c.uses {
		if len(c.problems) >= maxProblems {
			return
		}
		var err error
		switch u.as {
		case asFile:
			err = c.checkFile(u)
		case asVariable:
			err = c.checkVariable(u)
		case asValue:
			err = c.checkValue(u)
		case asAfter:
			_, err = c.stageNamed(u.text)
		}
		if err != nil && !errors.Is(err, errSaid) {
			c.report(u.where, "%v", err)
		}
	}
	for i := range c.d.Stages {
		c.checkNames(&c.d.Stages[i])
	}
}

// errSaid is the error for what follows from a problem that is reported already.
var errSaid = errors.New("reported already")

// stageNamed returns the stage of that name.
func (c *chainReader) stageNamed(name string) (*stage, error) {
	for i := range c.d.Stages {
		if c.d.Stages[i].Name == name {
			return &c.d.Stages[i], nil
		}
	}
	if _, written := c.names[name]; written {
		return nil, errSaid // under a name that was refused
	}
	return nil, fmt.Errorf("no stage is named %q; %s", name, suggestion(name, workflow.DeterministicKeys(c.names)))
}

// output returns the stage of a reference to an output.
func (c *chainReader) output(to reference) (*stage, error) {
	s, err := c.stageNamed(to.stage)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, output := range s.Outputs {
		names = append(names, output.Name)
	}
	if !slices.Contains(names, to.name) {
		return nil, fmt.Errorf("stage %s has no output %q; %s", to.stage, to.name, suggestion(to.name, names))
	}
	return s, nil
}

// checkFile refuses what is no file.
func (c *chainReader) checkFile(u use) error {
	isDirectory := strings.HasSuffix(u.path, "/")
	switch to := parseReference(u.text); to.kind {
	case toInput:
		return c.checkInput(to.name)
	case toOutput:
		s, err := c.output(to)
		if err == nil && s.fansOut() && !isDirectory {
			return fmt.Errorf("%s is one file for each task of %s; put them into a directory, such as %s/: %s", u.text, to.stage,
				u.path, u.text)
		}
		return err
	case toVariable:
		if v := c.variable(u.stage, to.name); v != nil {
			if v.From != "" && parseReference(v.From).kind == toOutput {
				return nil
			}
			return fmt.Errorf("variable %s is a value and no file; write ${%s} in run or environment", to.name, to.name)
		}
		return fmt.Errorf("%q is no file; write inputs.NAME or STAGE.OUTPUT", u.text)
	case toResult:
		return fmt.Errorf("%s is a value and no file; write ${%s} in run or environment", u.text, u.text)
	default:
		return fmt.Errorf("%q is no file; write inputs.NAME or STAGE.OUTPUT", u.text)
	}
}

func (c *chainReader) checkInput(name string) error {
	var names []string
	for _, in := range c.d.Inputs {
		names = append(names, in.Name)
	}
	if slices.Contains(names, name) {
		return nil
	}
	return fmt.Errorf("the chain has no input %q; %s", name, suggestion(name, names))
}

// variable returns a variable of a stage's for_each; nil when it has none of that name.
func (c *chainReader) variable(stage int, name string) *variable {
	if stage < 0 {
		return nil
	}
	for i := range c.d.Stages[stage].ForEach {
		if v := &c.d.Stages[stage].ForEach[i]; v.Name == name && name != "" {
			return v
		}
	}
	return nil
}

func (c *chainReader) parameter(name string) *parameter {
	for i := range c.d.Parameters {
		if c.d.Parameters[i].Name == name {
			return &c.d.Parameters[i]
		}
	}
	return nil
}

func (c *chainReader) parameterNames() []string {
	var names []string
	for _, p := range c.d.Parameters {
		names = append(names, p.Name)
	}
	return names
}

// checkVariable refuses what a variable of for_each cannot take its values from.
func (c *chainReader) checkVariable(u use) error {
	switch to := parseReference(u.text); to.kind {
	case toParameter:
		p := c.parameter(to.name)
		if p == nil {
			return fmt.Errorf("the chain has no parameter %q; %s", to.name, suggestion(to.name, c.parameterNames()))
		}
		if p.Type != "array" {
			return fmt.Errorf("parameter %s is no list; give it one, such as [1, 2, 3]", to.name)
		}
		return nil
	case toResult:
		_, err := c.stageNamed(to.stage)
		return err
	case toOutput:
		s, err := c.output(to)
		if err == nil && !s.fansOut() {
			return fmt.Errorf(
				`%s is one file or directory, and not a list; report a list, such as {"result": {"shards": [...]}}, and fan out `+
					`over %s.result.shards`, u.text, to.stage)
		}
		return err
	default:
		return fmt.Errorf("%q is no list of values; give [1, 2, 3], {from: 1, to: 3}, parameters.NAME, STAGE.result.KEY, "+
			"or STAGE.OUTPUT of a stage that fans out", u.text)
	}
}

// checkValue refuses what ${} cannot stand for.
func (c *chainReader) checkValue(u use) error {
	to := parseReference(u.text)
	if to.kind == toResult {
		if u.stage < 0 {
			return fmt.Errorf("${%s} is not known for every stage; move it to the environment of the stages that need it",
				u.text)
		}
		s, err := c.stageNamed(to.stage)
		if err == nil && s.fansOut() {
			return fmt.Errorf("${%s} is one value for each task of %s; fan out over it with for_each", u.text, to.stage)
		}
		return err
	}
	if v := c.variable(u.stage, u.text); v != nil {
		if v.From != "" && parseReference(v.From).kind == toOutput {
			return fmt.Errorf("${%s} is a file; put it where the program finds it with files, such as {path: %s}", u.text,
				u.text)
		}
		return nil
	}
	if p := c.parameter(u.text); p != nil {
		if p.Type == "array" {
			return fmt.Errorf("${%s} is a list; fan out over it with for_each, such as {each: parameters.%s}", u.text, u.text)
		}
		return nil
	}
	known := c.parameterNames()
	if u.stage >= 0 {
		for _, v := range c.d.Stages[u.stage].ForEach {
			known = append(known, v.Name)
		}
	}
	return fmt.Errorf("${%s} is no parameter and no variable of for_each; %s; write $${%s} to leave it to the shell",
		u.text, suggestion(u.text, known), u.text)
}

// checkNames refuses names that stand for two things within a stage.
func (c *chainReader) checkNames(s *stage) {
	if s.Script == "" {
		return
	}
	for _, name := range valuesIn(s.Script) {
		_, inStage := s.Environment[name]
		_, inChain := c.d.Environment[name]
		if inStage || inChain {
			c.report(c.names[s.Name], "${%s} in run of stage %s is an environment variable as well; rename one of them", name,
				s.Name)
		}
	}
}

// checkOrder refuses stages that wait for each other.
func (c *chainReader) checkOrder() {
	index := map[string]int{}
	for i, s := range c.d.Stages {
		index[s.Name] = i
	}
	const (
		unseen = iota
		open
		closed
	)
	state := make([]int, len(c.d.Stages))
	var way []string
	var visit func(i int)
	visit = func(i int) {
		s := &c.d.Stages[i]
		state[i] = open
		way = append(way, s.Name)
		for _, name := range s.needs() {
			next, known := index[name]
			switch {
			case !known || name == "":
			case state[next] == unseen:
				visit(next)
			case state[next] == open:
				cycle := append(slices.Clone(way[slices.Index(way, name):]), name)
				slices.Reverse(cycle) // in the order in which they would run
				c.report(c.names[name], "stages wait for each other: %s; take one of these references out",
					strings.Join(cycle, " -> "))
			}
		}
		way = way[:len(way)-1]
		state[i] = closed
	}
	for i := range c.d.Stages {
		if state[i] == unseen {
			visit(i)
		}
	}
}

// checkPlaces refuses files of a stage that would be put over each other.
func (c *chainReader) checkPlaces() {
	taken := map[int][]use{}
	for _, u := range c.uses {
		if u.as != asFile {
			continue
		}
		for _, other := range taken[u.stage] {
			if overlap(strings.TrimSuffix(u.path, "/"), strings.TrimSuffix(other.path, "/")) {
				c.report(u.where, "%s would be put over %s, which is at %s; give it a place of its own", u.text, other.text,
					other.path)
				break
			}
		}
		taken[u.stage] = append(taken[u.stage], u)
	}
}

// overlap reports whether two cleaned paths are the same or one is below the other.
func overlap(a, b string) bool {
	return a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/")
}

// checkLocals refuses paths at which there is nothing, or something else.
func (c *chainReader) checkLocals() {
	if c.checks.Stat == nil {
		return
	}
	for _, l := range c.locals {
		if l.path == "" {
			continue
		}
		info, err := c.checks.Stat(l.path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			c.report(l.where, "%s: there is no %s beside the chain; correct the path, or create it", l.what, l.path)
		case err != nil:
			c.report(l.where, "%s: %v", l.what, err)
		case info.IsDir() && !l.dir:
			c.report(l.where, "%s: %s is a directory; name a file", l.what, l.path)
		case !info.IsDir() && !l.file:
			c.report(l.where, "%s: %s is a file; name the directory that holds it", l.what, l.path)
		case !info.IsDir() && !info.Mode().IsRegular():
			c.report(l.where, "%s: %s is no ordinary file; name a file or a directory", l.what, l.path)
		}
	}
}
