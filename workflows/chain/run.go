package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Result is what a run of a chain returns.
type Result struct {
	// Stages is what each stage left, by name.
	Stages map[string]StageResult `json:"stages"`
	// Tuned is what the tuning of a Single has found, whose stage has what the best trial left; nil where none was tuned.
	Tuned *Tuned `json:"tuned,omitempty"`
}

// StageResult is what the tasks of a stage left. A stage that does not fan out has one task.
type StageResult struct {
	// Tasks is how many there were.
	Tasks int `json:"tasks"`
	// Outputs are the files kept, by name, each in the order of the tasks; the zero CommandFile where a task left out an
	// optional one.
	Outputs map[string][]wire.CommandFile `json:"outputs,omitempty"`
	// Values are what the programs reported as their results, in the order of the tasks. Only stages that no other waits
	// for have them.
	Values []map[string]any `json:"values,omitempty"`
	// Changed are the files that the command of a Single made or changed, when it was asked to keep them.
	Changed *activities.Ref `json:"changed,omitempty"`
}

// refuse ends a run that no retry can help.
func refuse(kind string, err error) error {
	return temporal.NewNonRetryableApplicationError(err.Error(), kind, nil)
}

// run is the workflow of a chain: it starts each stage as soon as all that it needs is there, and stops all at the
// first that fails.
func (c Chain) run(ctx workflow.Context, encoded json.RawMessage) (Result, error) {
	b, err := c.bind(encoded)
	if err != nil {
		return Result{}, refuse(runs.InputError, fmt.Errorf("input of pipeline %s: %w", c.d.Name, err))
	}
	group, cancel := workflow.WithCancel(ctx)
	defer cancel()
	running := len(c.d.Stages)
	var failure error
	for i := range c.d.Stages {
		s := &c.d.Stages[i]
		needs := s.needs()
		workflow.Go(group, func(ctx workflow.Context) {
			defer func() { running-- }()
			ready := func() bool {
				return !slices.ContainsFunc(needs, func(name string) bool { _, ended := b.results[name]; return !ended })
			}
			err := workflow.Await(ctx, ready)
			var results []wire.CommandResult
			if err == nil {
				results, err = b.runStage(ctx, s)
			}
			if err == nil {
				b.results[s.Name] = results
			} else if failure == nil {
				failure = err
				cancel()
			}
		})
	}
	// Tasks that are being stopped are waited for, so that none outlives its run.
	settled, _ := workflow.NewDisconnectedContext(ctx)
	if err := workflow.Await(settled, func() bool { return running == 0 }); err != nil {
		return Result{}, err
	}
	if failure != nil {
		return Result{}, failure
	}
	return c.d.result(b.results), nil
}

// runStage runs the tasks of a stage.
func (b *binding) runStage(ctx workflow.Context, s *stage) ([]wire.CommandResult, error) {
	commands, err := b.commands(s)
	if err != nil {
		return nil, refuse(wire.StageError, fmt.Errorf("stage %s: %w", s.Name, err))
	}
	if s.fansOut() {
		return s.fanOut(ctx, commands)
	}
	result, err := s.call(ctx, commands[0])
	return []wire.CommandResult{result}, named(s.Name, err)
}

// call runs the stage's one task.
func (s *stage) call(ctx workflow.Context, command wire.Command) (result wire.CommandResult, err error) {
	input, err := json.Marshal(command)
	if err != nil {
		return result, fmt.Errorf("stage %s: encode its command: %w", s.Name, err)
	}
	var output json.RawMessage
	if err := runs.Start(ctx, s.described(), input).Get(ctx, &output); err != nil {
		return result, err
	}
	if err := json.Unmarshal(output, &result); err != nil {
		return result, fmt.Errorf("stage %s: decode the result of its command: %w", s.Name, err)
	}
	return result, nil
}

// fanOut runs a task for each command and returns the results in their order.
func (s *stage) fanOut(ctx workflow.Context, commands []wire.Command) ([]wire.CommandResult, error) {
	inputs := make([]json.RawMessage, len(commands))
	for i, command := range commands {
		input, err := json.Marshal(command)
		if err != nil {
			return nil, fmt.Errorf("stage %s: encode command %d: %w", s.Name, i, err)
		}
		inputs[i] = input
	}
	outputs, err := runs.Map(ctx, s.described(), inputs)
	if err != nil {
		return nil, err
	}
	results := make([]wire.CommandResult, len(outputs))
	for i, output := range outputs {
		if err := json.Unmarshal(output, &results[i]); err != nil {
			return nil, fmt.Errorf("stage %s: decode the result of command %d: %w", s.Name, i, err)
		}
	}
	return results, nil
}

// named says which stage failed, as a Map does; a cancellation stays what it is.
func named(stage string, err error) error {
	failed, ok := errors.AsType[*temporal.ApplicationError](err)
	if !ok {
		return err
	}
	return temporal.NewNonRetryableApplicationError(stage+": "+failed.Message(), failed.Type(), err)
}

// result gathers what the stages left.
func (d *definition) result(results map[string][]wire.CommandResult) Result {
	needed := map[string]bool{}
	for i := range d.Stages {
		for _, name := range d.Stages[i].needs() {
			needed[name] = true
		}
	}
	all := Result{Stages: map[string]StageResult{}}
	for _, s := range d.Stages {
		left := StageResult{Tasks: len(results[s.Name])}
		if len(s.Outputs) > 0 {
			left.Outputs = map[string][]wire.CommandFile{}
		}
		for _, output := range s.Outputs {
			files := make([]wire.CommandFile, 0, left.Tasks)
			for _, one := range results[s.Name] {
				files = append(files, one.Outputs[output.Name])
			}
			left.Outputs[output.Name] = files
		}
		if !needed[s.Name] {
			left.Values = valuesOf(results[s.Name])
		}
		all.Stages[s.Name] = left
	}
	return all
}

// valuesOf is what the programs reported; nil when none reported anything.
func valuesOf(results []wire.CommandResult) []map[string]any {
	values := make([]map[string]any, len(results))
	reported := false
	for i, one := range results {
		values[i] = one.Values
		reported = reported || len(one.Values) > 0
	}
	if !reported {
		return nil
	}
	return values
}

// runSingle is the workflow of a Single.
func (c Chain) runSingle(ctx workflow.Context, in SingleInput) (Result, error) {
	if err := in.Validate(); err != nil {
		return Result{}, refuse(runs.InputError, fmt.Errorf("input of pipeline %s: %w", c.d.Name, err))
	}
	if in.Tuning != nil {
		return c.tune(ctx, in)
	}
	result, err := in.stage(c.d.Stages[0].Name).call(ctx, in.Command)
	if err != nil {
		return Result{}, err
	}
	return c.d.left(result), nil
}

// left is what the command of a Single left.
func (d *definition) left(result wire.CommandResult) Result {
	left := StageResult{Tasks: 1, Values: valuesOf([]wire.CommandResult{result})}
	for _, name := range workflow.DeterministicKeys(result.Outputs) {
		if left.Outputs == nil {
			left.Outputs = map[string][]wire.CommandFile{}
		}
		left.Outputs[name] = []wire.CommandFile{result.Outputs[name]}
	}
	if result.Changed != (activities.Ref{}) {
		left.Changed = &result.Changed
	}
	return Result{Stages: map[string]StageResult{d.Name: left}}
}

// binding is a chain with all that one run knows: its input, and what its stages have left so far.
type binding struct {
	chain      *definition
	parameters map[string]json.RawMessage
	inputs     map[string]source
	results    map[string][]wire.CommandResult // by stage, in the order of its tasks
}

// bind puts the input of a run in the place of the defaults. It needs no clock and no network: replays repeat it.
func (c Chain) bind(encoded json.RawMessage) (*binding, error) {
	d := c.d
	b := &binding{
		chain: &d, parameters: map[string]json.RawMessage{}, inputs: map[string]source{},
		results: map[string][]wire.CommandResult{},
	}
	given := map[string]json.RawMessage{}
	if len(encoded) > 0 && string(encoded) != "null" {
		if err := json.Unmarshal(encoded, &given); err != nil {
			return nil, fmt.Errorf("it is no JSON object: %w", err)
		}
	}
	known := []string{}
	for _, p := range d.Parameters {
		known = append(known, p.Name)
		value, isGiven := given[p.Name]
		if !isGiven {
			value = p.Default
		}
		if value == nil {
			return nil, fmt.Errorf("parameter %s has no default: give it", p.Name)
		}
		if err := p.check(value); err != nil {
			return nil, fmt.Errorf("parameter %s: %w", p.Name, err)
		}
		b.parameters[p.Name] = p.normal(value)
	}
	for _, name := range workflow.DeterministicKeys(given) {
		if !slices.Contains(known, name) && name != inputsField {
			return nil, fmt.Errorf("unknown parameter %q; %s", name, suggestion(name, known))
		}
	}
	return b, b.bindInputs(given[inputsField])
}

func (b *binding) bindInputs(encoded json.RawMessage) error {
	replaced := map[string]activities.Ref{}
	if len(encoded) > 0 {
		if err := json.Unmarshal(encoded, &replaced); err != nil {
			return fmt.Errorf("inputs are no artifacts by name: %w", err)
		}
	}
	known := []string{}
	for _, in := range b.chain.Inputs {
		known = append(known, in.Name)
		if ref, isReplaced := replaced[in.Name]; isReplaced {
			in.Artifact = ref
		}
		b.inputs[in.Name] = in.source
	}
	for _, name := range workflow.DeterministicKeys(replaced) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("unknown input %q; %s", name, suggestion(name, known))
		}
	}
	for _, name := range known {
		if !isPacked(b.inputs[name]) {
			return fmt.Errorf("input %s is no artifact: give its digest and its bytes", name)
		}
	}
	if !isPacked(b.chain.Code) || !isPacked(b.chain.Requirements) {
		return errors.New("the chain's code or requirements are not packed: start it with `spillway run`")
	}
	return nil
}

// digestDigits is the length of the hexadecimal SHA-256 that names an artifact.
const digestDigits = 64

// isPacked reports whether a source is an artifact, or is none that has to be.
func isPacked(s source) bool {
	return s.Path == "" || len(s.Artifact.Digest) == digestDigits && s.Artifact.Bytes >= 0
}
