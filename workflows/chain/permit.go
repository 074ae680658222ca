package chain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Permits returns nil when a run of the chain may ask a host for this command in this stage: it is what the file says,
// whatever the values of parameters and variables are and whatever the files hold. Whoever runs commands asks, so that
// one that came another way than from a run of the chain is not run. The command of a Single comes with its run, and is
// refused here: see SingleInput.
func (c Chain) Permits(name string, command wire.Command) error {
	refused := func(what string) error {
		return fmt.Errorf("stage %s of chain %s declares another command: %s", name, c.d.Name, what)
	}
	i := slices.IndexFunc(c.d.Stages, func(s stage) bool { return s.Name == name })
	if i < 0 {
		return fmt.Errorf("chain %s has no stage %s", c.d.Name, name)
	}
	if c.d.Single {
		return refused("each run brings its own")
	}
	s := &c.d.Stages[i]
	f, _ := c.d.shape(s)
	fixed := command
	fixed.Arguments, fixed.Environment, fixed.Files, fixed.Parameters = nil, nil, nil, nil
	if same, err := sameJSON(fixed, f.command); err != nil || !same {
		return refused("its code, requirements, image, directory or outputs differ")
	}
	if !slices.EqualFunc(command.Arguments, f.patterns(), matches) {
		return refused("its arguments differ")
	}
	if !maps.EqualFunc(command.Environment, f.variables(), matches) {
		return refused("its environment differs")
	}
	for _, name := range f.shell.arithmetic {
		if !wholeNumber.MatchString(command.Environment[f.shell.variables[name]]) {
			return refused(fmt.Sprintf("${%s} is no whole number", name))
		}
	}
	for _, file := range command.Files {
		if !c.d.puts(s, file.Path) {
			return refused("it has a file at " + strconv.Quote(file.Path))
		}
	}
	return nil
}

// Permits returns nil when command is the one that the input brings, or one of its tuning's.
func (in SingleInput) Permits(command wire.Command) error {
	if in.Tuning != nil {
		request, err := in.request("")
		if err != nil {
			return err
		}
		return request.Permits(command)
	}
	if same, err := sameJSON(in.Command, command); err != nil || !same {
		return errors.New("the run was started with another command")
	}
	return nil
}

// patterns are the texts of the arguments; the shell's come first, as in fill.
func (f *form) patterns() [][]piece {
	var all [][]piece
	if f.stage.Script != "" {
		for _, argument := range f.shell.arguments() {
			all = append(all, []piece{{literal: argument}})
		}
	}
	return append(all, f.arguments...)
}

// variables are the texts of the environment.
func (f *form) variables() map[string][]piece {
	all := map[string][]piece{}
	for _, variable := range f.shell.variables {
		all[variable] = []piece{{name: variable}}
	}
	maps.Copy(all, f.environment)
	return all
}

// matches reports whether text is what pieces are with some values in place.
func matches(text string, pieces []piece) bool {
	literals, free := []string{""}, false // the literals between values; free after a value
	for _, p := range pieces {
		switch {
		case p.name == "":
			literals[len(literals)-1] += p.literal
			free = false
		case !free:
			literals, free = append(literals, ""), true
		}
	}
	first, last := literals[0], literals[len(literals)-1]
	if len(literals) == 1 {
		return text == first
	}
	rest, begins := strings.CutPrefix(text, first)
	rest, ends := strings.CutSuffix(rest, last)
	for _, literal := range literals[1 : len(literals)-1] { // its first place leaves most for those that follow
		var found bool
		if _, rest, found = strings.Cut(rest, literal); !found {
			return false
		}
	}
	return begins && ends
}

// puts reports whether the chain puts a file at this path for the stage.
func (d *definition) puts(s *stage, path string) bool {
	return slices.ContainsFunc(s.Files, func(f file) bool {
		declared := strings.TrimSuffix(f.Path, "/")
		to := parseReference(f.From)
		if to.kind != toOutput || !d.stage(to.stage).fansOut() {
			return path == declared
		}
		number, below := strings.CutPrefix(path, declared+"/")
		i, err := strconv.Atoi(number)
		return below && err == nil && i >= 0 && strconv.Itoa(i) == number
	})
}

// sameJSON reports whether two values are encoded alike.
func sameJSON(a, b any) (bool, error) {
	first, err := json.Marshal(a)
	if err != nil {
		return false, err
	}
	second, err := json.Marshal(b)
	return bytes.Equal(first, second), err
}
