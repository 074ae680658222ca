package chain

import (
	"encoding/json"
	"fmt"
	"maps"

	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
)

// task is what one task of a stage knows besides its run.
type task struct {
	values map[string]json.RawMessage // by name of variable
	files  map[string]wire.CommandFile
}

// tasks are all combinations of the stage's variables, the last varying fastest; without variables there is one.
func (b *binding) tasks(s *stage) ([]task, error) {
	tasks := []task{{}}
	for _, v := range s.ForEach {
		values, files, err := b.spread(v)
		if err != nil {
			return nil, fmt.Errorf("variable %s of for_each: %w", v.Name, err)
		}
		n := max(len(values), len(files))
		if len(tasks)*n > maxTasks {
			return nil, fmt.Errorf("for_each has %d combinations: at most %d are run", len(tasks)*n, maxTasks)
		}
		product := make([]task, 0, len(tasks)*n)
		for _, t := range tasks {
			for i := range n {
				next := task{values: maps.Clone(t.values), files: maps.Clone(t.files)}
				if values != nil {
					set(&next.values, v.Name, values[i])
				} else {
					set(&next.files, v.Name, files[i])
				}
				product = append(product, next)
			}
		}
		tasks = product
	}
	return tasks, nil
}

func set[V any](in *map[string]V, name string, value V) {
	if *in == nil {
		*in = map[string]V{}
	}
	(*in)[name] = value
}

// spread is what a variable stands for, task by task: values, or the outputs of a stage that fans out.
func (b *binding) spread(v variable) (values []json.RawMessage, files []wire.CommandFile, err error) {
	if v.From == "" {
		return v.Values, nil, nil
	}
	switch to := parseReference(v.From); to.kind {
	case toParameter:
		values, err = scalars(b.parameters[to.name])
		return values, nil, err
	case toResult:
		values, err = b.reported(to)
		return values, nil, err
	default:
		files = []wire.CommandFile{}
		for _, result := range b.results[to.stage] {
			files = append(files, result.Outputs[to.name])
		}
		return nil, files, nil
	}
}

// reported is the list that a stage reported, or of a stage that fans out the values of all its tasks.
func (b *binding) reported(to reference) ([]json.RawMessage, error) {
	if !b.chain.stage(to.stage).fansOut() {
		value, err := b.value(to)
		if err != nil {
			return nil, err
		}
		return scalars(value)
	}
	all := make([]any, len(b.results[to.stage]))
	for i, result := range b.results[to.stage] {
		value, found := result.Values[to.name]
		if !found {
			return nil, fmt.Errorf("task %d of stage %s did not report %q as its result", i, to.stage, to.name)
		}
		all[i] = value
	}
	encoded, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	return scalars(encoded)
}

// value is what a stage of one task reported.
func (b *binding) value(to reference) (json.RawMessage, error) {
	results := b.results[to.stage]
	if len(results) != 1 {
		return nil, fmt.Errorf("stage %s has %d results", to.stage, len(results))
	}
	value, found := results[0].Values[to.name]
	if !found {
		return nil, fmt.Errorf("stage %s did not report %q; %s", to.stage, to.name,
			suggestion(to.name, workflow.DeterministicKeys(results[0].Values)))
	}
	return json.Marshal(value)
}
