package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
)

// maxFiles bounds the files of all tasks of a stage together: fan-ins of fan-ins grow as a product.
const maxFiles = 100_000

// form is a stage within a run, with all in place that its tasks have in common: thousands of them are made within one
// workflow task, which may not take longer than a second.
type form struct {
	stage       *stage
	command     wire.Command               // without what each task has of its own
	values      map[string]json.RawMessage // by the names that the texts call them, besides variables
	arguments   [][]piece
	environment map[string][]piece
	shell       shellForm // when the stage has a script
}

// commands are the inputs of a stage's tasks: the text of the chain with all values in place.
func (b *binding) commands(s *stage) ([]wire.Command, error) {
	tasks, err := b.tasks(s)
	if err != nil {
		return nil, err
	}
	f, err := b.form(s)
	if err != nil {
		return nil, err
	}
	commands := make([]wire.Command, len(tasks))
	files := 0
	for i, t := range tasks {
		if commands[i], err = f.fill(t.values); err != nil {
			return nil, err
		}
		if i == 0 || t.files != nil {
			commands[i].Files, err = b.files(s, t.files)
			if err != nil {
				return nil, err
			}
		} else {
			commands[i].Files = commands[0].Files // none is changed any more
		}
		if files += len(commands[i].Files); files > maxFiles {
			return nil, fmt.Errorf("its tasks are given more than %d files in all: gather them into a directory in a "+
				"stage between", maxFiles)
		}
	}
	return commands, nil
}

// form puts in place what all tasks of a stage have in common.
func (b *binding) form(s *stage) (*form, error) {
	f, texts := b.chain.shape(s)
	var err error
	f.values, err = b.valuesIn(s, texts)
	return f, err
}

// shape is a stage as every run of the chain has it, and the texts in which values take their place.
func (d *definition) shape(s *stage) (f *form, texts []string) {
	f = &form{stage: s, environment: map[string][]piece{}, command: wire.Command{
		Code: d.Code.Artifact, Requirements: d.Requirements.Artifact, Directory: s.Directory, Image: s.Image,
		Outputs: s.Outputs, Grace: s.Grace, Program: s.Program, Imports: s.Imports,
	}}
	texts = append(slices.Clone(s.Arguments), s.Script)
	for _, argument := range s.Arguments {
		pieces, _ := split(argument)
		f.arguments = append(f.arguments, pieces)
	}
	for _, environment := range []map[string]string{d.Environment, s.Environment} {
		for _, name := range workflow.DeterministicKeys(environment) {
			texts = append(texts, environment[name])
			f.environment[name], _ = split(environment[name])
		}
	}
	if s.Script != "" {
		f.shell = newShellForm(s.Script)
	}
	return f, texts
}

// valuesIn are the values that texts of a stage name, besides those of its variables.
func (b *binding) valuesIn(s *stage, texts []string) (map[string]json.RawMessage, error) {
	values := map[string]json.RawMessage{}
	for _, name := range valuesIn(texts...) {
		to := parseReference(name)
		switch {
		case slices.ContainsFunc(s.ForEach, func(v variable) bool { return v.Name == name }):
		case to.kind != toResult:
			values[name] = b.parameters[name]
		default:
			value, err := b.value(to)
			if err != nil {
				return nil, err
			}
			if kind := typeOf(value); kind == "" || kind == "array" {
				return nil, fmt.Errorf("%s is %s: only a number, a truth value or a text can be put into a text", name,
					shortened(string(value)))
			}
			if err := checkText(value); err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			values[name] = value
		}
	}
	return values, nil
}

// fill is the input of the task whose variables have these values, but for its files.
func (f *form) fill(variables map[string]json.RawMessage) (wire.Command, error) {
	text := func(name string) string {
		if value, isVariable := variables[name]; isVariable {
			return plain(value)
		}
		return plain(f.values[name])
	}
	command := f.command
	if f.stage.Script != "" {
		var err error
		if command.Arguments, command.Environment, err = f.shell.command(text); err != nil {
			return wire.Command{}, err
		}
	}
	for _, argument := range f.arguments {
		command.Arguments = append(command.Arguments, expand(argument, text))
	}
	for _, name := range workflow.DeterministicKeys(f.environment) {
		set(&command.Environment, name, expand(f.environment[name], text))
	}
	for _, values := range []map[string]json.RawMessage{f.values, variables} {
		for _, name := range workflow.DeterministicKeys(values) {
			if n, isNumber := number(values[name]); isNumber {
				set(&command.Parameters, name, n)
			}
		}
	}
	return command, nil
}

// shellForm is a script for the shell with the values that it reads from its environment.
//
// Parameters and variables are there under their own names, which begin with a lower-case letter; names of reported
// values are no names of environment variables.
type shellForm struct {
	script     string
	variables  map[string]string // names of environment variables, by name of value
	arithmetic []string          // names of values that stand in $(( ))
}

func newShellForm(text string) shellForm {
	shell := shellForm{variables: map[string]string{}}
	for _, name := range valuesIn(text) {
		shell.variables[name] = name
		if strings.Contains(name, ".") {
			shell.variables[name] = fmt.Sprintf("%sVALUE_%d", reservedEnvironment, len(shell.variables))
		}
	}
	shell.script, _ = script(text, func(name string, in where) string {
		if in == inNumber {
			shell.arithmetic = append(shell.arithmetic, name)
		}
		return shell.variables[name]
	})
	return shell
}

var wholeNumber = regexp.MustCompile(`^-?[0-9]{1,18}$`)

// command runs the script with these values. In arithmetic only whole numbers are taken: some shells read what else
// stands there as expressions, which may run commands (https://mywiki.wooledge.org/ArithmeticExpression).
func (s shellForm) command(
	value func(name string) string,
) (arguments []string, environment map[string]string, err error) {
	for _, name := range s.arithmetic {
		if text := value(name); !wholeNumber.MatchString(text) {
			return nil, nil, fmt.Errorf("${%s} stands in $(( )) and is %q: only a whole number can be reckoned with there", name,
				shortened(text))
		}
	}
	for _, name := range workflow.DeterministicKeys(s.variables) {
		set(&environment, s.variables[name], value(name))
	}
	return s.arguments(), environment, nil
}

// arguments are those of the shell.
func (s shellForm) arguments() []string { return []string{"sh", "-e", "-c", s.script} }

// files are what is put into the working directory of a task that has these files as variables.
func (b *binding) files(s *stage, variables map[string]wire.CommandFile) ([]wire.CommandFile, error) {
	var files []wire.CommandFile
	add := func(path string, from wire.CommandFile) {
		if from.Artifact.Digest != "" { // an optional output that was left out is no file
			files = append(files, wire.CommandFile{Path: path, Artifact: from.Artifact, Tree: from.Tree})
		}
	}
	for _, f := range s.Files {
		path := strings.TrimSuffix(f.Path, "/")
		switch to := parseReference(f.From); to.kind {
		case toInput:
			in := b.inputs[to.name]
			add(path, wire.CommandFile{Artifact: in.Artifact, Tree: in.Tree})
		case toVariable:
			add(path, variables[to.name])
		case toOutput:
			if !b.chain.stage(to.stage).fansOut() {
				add(path, b.results[to.stage][0].Outputs[to.name])
				continue
			}
			for i, result := range b.results[to.stage] {
				add(path+"/"+strconv.Itoa(i), result.Outputs[to.name])
			}
		default:
			return nil, errors.New(f.From + " is no file")
		}
	}
	return files, nil
}

// stage returns the stage of that name; the chain has it.
func (d *definition) stage(name string) *stage {
	for i := range d.Stages {
		if d.Stages[i].Name == name {
			return &d.Stages[i]
		}
	}
	return &stage{}
}
