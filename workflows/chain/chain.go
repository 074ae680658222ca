package chain

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Chain is a pipeline of command stages that was read and found to be right. It is a value that is never changed: any
// number of goroutines may use it. Its JSON is for storing it. The zero value is no chain.
type Chain struct{ d definition }

// definition is what a chain says; Parse has checked it. Texts are kept as they were written, so that their values take
// their place in a run.
type definition struct {
	Name         string            `json:"name"`
	Goal         predictor.Goal    `json:"goal"`
	Code         source            `json:"code"`
	Requirements source            `json:"requirements"`
	Environment  map[string]string `json:"environment,omitempty"`
	Parameters   []parameter       `json:"parameters,omitempty"` // by name
	Inputs       []input           `json:"inputs,omitempty"`     // by name
	Bindings     []wire.Binding    `json:"bindings,omitempty"`
	Stages       []stage           `json:"stages"` // as in the file
	// Single says that the run's input brings the only stage's command.
	Single bool `json:"single,omitempty"`
}

// source is something local that is packed into an artifact. Without a path there is none.
type source struct {
	Path     string         `json:"path,omitempty"`
	Artifact activities.Ref `json:"artifact"`
	Tree     bool           `json:"tree,omitempty"`
}

type input struct {
	Name string `json:"name"`
	source
}

// parameter is a field of the run's input.
type parameter struct {
	Name string `json:"name"`
	// Type is "integer", "number", "boolean", "string" or "array"; an array's members are scalars.
	Type string `json:"type"`
	// Default is a JSON value; without one the run must give it.
	Default json.RawMessage `json:"default,omitempty"`
}

// stage is a command as the chain has it: with the names of its values and files.
type stage struct {
	Name        string               `json:"name"`
	Script      string               `json:"script,omitempty"`    // for the shell
	Arguments   []string             `json:"arguments,omitempty"` // without a script
	Files       []file               `json:"files,omitempty"`
	Outputs     []wire.CommandOutput `json:"outputs,omitempty"`
	ForEach     []variable           `json:"for_each,omitempty"`
	After       []string             `json:"after,omitempty"`
	Environment map[string]string    `json:"environment,omitempty"`
	Directory   string               `json:"directory,omitempty"`
	Image       string               `json:"image,omitempty"`
	Program     string               `json:"program,omitempty"` // what was read in its code: see Chain.Reading
	Imports     []string             `json:"imports,omitzero"`
	CPU         quantity.Milli       `json:"cpu_milli,omitempty"`
	Memory      quantity.Bytes       `json:"memory_bytes,omitempty"`
	GPU         quantity.GPUs        `json:"gpu,omitzero"`
	Timeout     time.Duration        `json:"timeout_ns,omitempty"`
	Grace       time.Duration        `json:"grace_ns,omitempty"`
	MaxAttempts int                  `json:"max_attempts,omitempty"`
	Cache       bool                 `json:"cache,omitempty"`
	// CacheVersion tells results apart, CacheFor is how old one of another run may be.
	CacheVersion string        `json:"cache_version,omitempty"`
	CacheFor     time.Duration `json:"cache_for_ns,omitempty"`
	// NoCache says that the file refuses, by cache: false: results of other runs are not taken for --cache either.
	NoCache bool `json:"no_cache,omitempty"`
	// Secrets are names of what the operator has.
	Secrets []string `json:"secrets,omitempty"`
}

// file is a reference to what is put at a path; a path with a slash at its end is a directory.
type file struct {
	Path string `json:"path"`
	From string `json:"from"`
}

// variable is one of for_each: either values, or a reference to what a run will know.
type variable struct {
	Name   string            `json:"name"`
	Values []json.RawMessage `json:"values,omitempty"`
	From   string            `json:"from,omitempty"`
}

// MarshalJSON encodes the chain so that UnmarshalJSON restores it.
func (c Chain) MarshalJSON() ([]byte, error) { return json.Marshal(c.d) }

// UnmarshalJSON restores what MarshalJSON encoded. It does not check it: where others may have written it, ask Validate
// before anything else.
func (c *Chain) UnmarshalJSON(encoded []byte) error {
	var d definition
	if err := json.Unmarshal(encoded, &d); err != nil {
		return fmt.Errorf("decode chain: %w", err)
	}
	c.d = d
	return nil
}

// Name returns the name of the chain: that of its app and of its only pipeline.
func (c Chain) Name() string { return c.d.Name }

// Digest identifies the build: 12 hexadecimal digits that change with everything that the chain says and with the
// content of what was packed.
func (c Chain) Digest() string {
	encoded, err := json.Marshal(c.d)
	if err != nil {
		panic(fmt.Sprintf("chain %s does not encode: %v", c.d.Name, err)) // it holds no value that JSON lacks
	}
	sum := sha256.Sum256(encoded)
	return hex.EncodeToString(sum[:6])
}

// Local is a file or directory beside the chain's file that hosts need.
type Local struct {
	// Use says what for: "code", "requirements" or "inputs.NAME".
	Use string
	// Path is where it is, with slashes, from the directory of the chain's file.
	Path string
}

// Packed is a Local as an artifact.
type Packed struct {
	// Artifact is its content.
	Artifact activities.Ref
	// Tree says that it is a packed directory. Code always is, requirements never are.
	Tree bool
}

// The uses of a Local that are there once.
const (
	codeUse         = "code"
	requirementsUse = "requirements"
)

// Files returns what must be packed, and given to With, before the chain runs.
func (c Chain) Files() []Local {
	var files []Local
	_ = c.d.each(func(use string, s *source) error {
		files = append(files, Local{Use: use, Path: s.Path})
		return nil
	})
	return files
}

// With returns the chain with what was packed, by use, in place. It fails when something is missing or packed as what
// it cannot be.
func (c Chain) With(packed map[string]Packed) (Chain, error) {
	d := c.d
	d.Inputs = slices.Clone(d.Inputs)
	err := d.each(func(use string, s *source) error {
		artifact := packed[use]
		s.Artifact, s.Tree = artifact.Artifact, artifact.Tree
		return d.packable(use, *s)
	})
	if err != nil {
		return Chain{}, err
	}
	return Chain{d}, nil
}

// Reading returns the chain with what is known of the programs of its stages before they run. Read is given the
// arguments of a stage, and in which directory of its code it starts; see wire.Command for what it returns.
func (c Chain) Reading(read func(directory string, arguments []string) (program string, imports []string)) Chain {
	d := c.d
	d.Stages = slices.Clone(d.Stages)
	for i := range d.Stages {
		s := &d.Stages[i]
		arguments := s.Arguments
		if s.Script != "" {
			arguments = newShellForm(s.Script).arguments()
		}
		s.Program, s.Imports = read(s.Directory, arguments)
	}
	return Chain{d}
}

// packable refuses a source that is not packed, or packed as what it cannot be.
func (d *definition) packable(use string, s source) error {
	switch {
	case s.Artifact.Digest == "":
		return fmt.Errorf("chain %s: %s at %s is not packed: pack everything that Files returns", d.Name, use, s.Path)
	case use == codeUse && !s.Tree:
		return fmt.Errorf("chain %s: code at %s is packed as a file: name a directory, or `code: none`", d.Name, s.Path)
	case use == requirementsUse && s.Tree:
		return fmt.Errorf("chain %s: requirements at %s are packed as a directory: name a file", d.Name, s.Path)
	}
	return nil
}

// each calls visit for everything that is packed, until it fails.
func (d *definition) each(visit func(use string, s *source) error) error {
	if d.Code.Path != "" {
		if err := visit(codeUse, &d.Code); err != nil {
			return err
		}
	}
	if d.Requirements.Path != "" {
		if err := visit(requirementsUse, &d.Requirements); err != nil {
			return err
		}
	}
	for i := range d.Inputs {
		if err := visit("inputs."+d.Inputs[i].Name, &d.Inputs[i].source); err != nil {
			return err
		}
	}
	return nil
}

// kind is what a reference refers to.
type kind int

const (
	toNothing kind = iota
	toInput
	toParameter
	toOutput
	toResult
	toVariable
)

// reference is what a text such as "prepare.clean" refers to.
type reference struct {
	kind  kind
	stage string // of an output or a result
	name  string
}

// parseReference reads a reference; whether there is such a thing is for others to say.
func parseReference(text string) reference {
	first, rest, dotted := strings.Cut(text, ".")
	switch {
	case strings.ContainsAny(text, "/ ") || first == "" || dotted && rest == "":
		return reference{}
	case !dotted:
		return reference{kind: toVariable, name: first}
	case first == "inputs":
		return reference{kind: toInput, name: rest}
	case first == "parameters":
		return reference{kind: toParameter, name: rest}
	}
	if key, isResult := strings.CutPrefix(rest, "result."); isResult && key != "" {
		return reference{kind: toResult, stage: first, name: key}
	}
	if strings.Contains(rest, ".") || rest == "result" {
		return reference{}
	}
	return reference{kind: toOutput, stage: first, name: rest}
}

// fansOut says that the stage has a task for each of its values, however many there are.
func (s *stage) fansOut() bool { return len(s.ForEach) > 0 }

// texts are the texts of the stage in which values take their place, besides its script.
func (s *stage) texts() []string {
	texts := slices.Clone(s.Arguments)
	for _, name := range workflow.DeterministicKeys(s.Environment) {
		texts = append(texts, s.Environment[name])
	}
	return texts
}

// valuesIn returns the names of the values that the texts name, each once, in their order.
func valuesIn(texts ...string) []string {
	var names []string
	seen := map[string]bool{}
	for _, text := range texts {
		pieces, _ := split(text)
		for _, p := range pieces {
			if p.name != "" && !seen[p.name] {
				seen[p.name] = true
				names = append(names, p.name)
			}
		}
	}
	return names
}

// needs are the names of the stages that must have ended before s starts, each once.
func (s *stage) needs() []string {
	var names []string
	add := func(name string) {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, f := range s.Files {
		add(parseReference(f.From).stage)
	}
	for _, v := range s.ForEach {
		add(parseReference(v.From).stage)
	}
	for _, name := range valuesIn(append(s.texts(), s.Script)...) {
		add(parseReference(name).stage)
	}
	for _, name := range s.After {
		add(name)
	}
	return names
}
