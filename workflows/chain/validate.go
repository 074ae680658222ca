package chain

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Validate refuses a chain that UnmarshalJSON restored and that no file could say, such as one whose stages wait for
// each other, and one of whose files are not packed. It returns an *Error with all that is wrong; a Problem's File is
// then the place within the chain, such as "stages.train.files", and its Line is 0. It does nothing but what checks
// does, of which Stat is not asked: what was packed has left its directory.
//
// The checks are those of Parse, because they are made by its reader: the chain is written as a file's document and
// read again. What is read must be what was written, so a chain that is accepted is one that a file can say.
func (c Chain) Validate(checks Checks) error {
	checks.Stat = nil
	if c.d.Single {
		return c.validateSingle()
	}
	w := &writer{}
	root := w.chain(&c.d)
	left := math.MaxInt // there are no aliases
	if node := tooLarge(root, maxDepth, &left); node != nil {
		return newError([]Problem{{
			File: shortened(w.paths[node.Line-1]),
			Text: fmt.Sprintf("it is nested more than %d deep; put deeper data into a file", maxDepth),
		}})
	}
	r := &chainReader{checks: checks}
	r.read(root)
	problems := slices.Concat(w.problems, c.checkGoals(), c.checkPacked())
	for _, problem := range r.problems {
		problems = append(problems, Problem{File: w.paths[problem.Line-1], Text: problem.Text})
	}
	if len(problems) > 0 {
		return newError(problems)
	}
	if !c.d.says(r.d) {
		return newError([]Problem{{
			File: "chain " + c.d.Name,
			Text: "no file says this; send what `spillway run FILE.yaml` sends",
		}})
	}
	return nil
}

// validateSingle refuses what Single does not return.
func (c Chain) validateSingle() error {
	single, err := Single(c.d.Name)
	if err != nil {
		return newError([]Problem{{File: "name", Text: err.Error()}})
	}
	if !reflect.DeepEqual(single.d, c.d) {
		return newError([]Problem{{File: "single", Text: "the stage of a chain whose command comes with each run has " +
			"nothing but its name; leave the rest out"}})
	}
	return nil
}

// checkGoals refuses goals that no run can have.
func (c Chain) checkGoals() (problems []Problem) {
	check := func(path string, goal predictor.Goal) {
		err := runs.CheckGoal(goal)
		if err == nil && goal.Deadline > longest {
			err = fmt.Errorf("deadline is %s; give at most %.0fh", goal.Deadline, longest.Hours())
		}
		if err != nil {
			problems = append(problems, Problem{File: path, Text: err.Error()})
		}
	}
	check("goal", c.d.Goal)
	for i, binding := range c.d.Bindings {
		check(fmt.Sprintf("on[%d].goal", i), binding.Goal)
	}
	return problems
}

var digest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// checkPacked refuses what is not packed, or as what it cannot be.
func (c Chain) checkPacked() (problems []Problem) {
	d := c.d
	d.Inputs = slices.Clone(d.Inputs)
	_ = d.each(func(use string, s *source) error {
		if err := d.packable(use, *s); err != nil {
			problems = append(problems, Problem{File: use, Text: err.Error()})
		} else if !digest.MatchString(s.Artifact.Digest) || s.Artifact.Bytes < 0 {
			problems = append(problems, Problem{
				File: use,
				Text: "its artifact has no digest; pack it, and give what the engine answers",
			})
		}
		return nil
	})
	return problems
}

// says reports whether what was read of the document of d is d itself, but for what documents leave out.
func (d *definition) says(read definition) bool {
	read.Goal = d.Goal
	read.Code, read.Requirements = d.Code.packedAt(read.Code), d.Requirements.packedAt(read.Requirements)
	for i := range min(len(d.Inputs), len(read.Inputs)) {
		read.Inputs[i].source = d.Inputs[i].packedAt(read.Inputs[i].source)
	}
	for i := range min(len(d.Stages), len(read.Stages)) {
		read.Stages[i].Program, read.Stages[i].Imports = d.Stages[i].Program, d.Stages[i].Imports
	}
	for i := range min(len(d.Bindings), len(read.Bindings)) {
		read.Bindings[i].Goal = d.Bindings[i].Goal
	}
	return reflect.DeepEqual(asTree(*d), asTree(read))
}

// packedAt is read with the artifact of s, if it is a source.
func (s source) packedAt(read source) source {
	if read.Path != "" {
		read.Artifact, read.Tree = s.Artifact, s.Tree
	}
	return read
}

// asTree is a definition as JSON has it, without the order of keys and the ways to write a number.
func asTree(d definition) (tree map[string]any) {
	encoded, err := json.Marshal(d)
	if err != nil || json.Unmarshal(encoded, &tree) != nil {
		return nil
	}
	return tree
}
