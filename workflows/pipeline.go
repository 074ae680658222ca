package workflows

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Pipeline is a named workflow function that events start. It is a value: On and WithGoal return changed copies.
type Pipeline[In, Out any] struct {
	name     string
	run      func(workflow.Context, In) (Out, error)
	goal     Goal
	bindings []Binding
}

// Binding says which events start a pipeline.
type Binding struct {
	// Subject is a NATS subject; wildcards are allowed. Empty with a Schedule: only the schedule starts runs.
	Subject string
	// Filter keeps only events whose body has these values at these paths ("kind", "meta.size"); nil keeps all.
	Filter map[string]any
	// MaxRuns caps the runs that go on at a time; 0 means no cap. Events over the cap wait.
	MaxRuns int
	// Schedule is a cron expression in UTC ("0 3 * * *", "@hourly"); each firing starts a run with Input.
	Schedule string
	// Input is the input of scheduled runs; nil means an empty object.
	Input any
	// Goal is the goal of the runs that this binding starts; the zero Goal leaves the pipeline's own.
	Goal Goal
}

// NewPipeline declares a pipeline. The input is validated against the JSON Schema of In before a run starts (fields
// without omitempty are required, unknown fields refused), and then by its method Validate() error, where it has one:
// an event whose input it refuses becomes a dead letter. Validate looks at its value only and returns at once.
// It panics when the name is no name (see NewStage) or run is nil.
//
// It may start child workflows of its own. One that it gives a WorkflowID must be named below its run: that of the run,
// from workflow.GetInfo(ctx).WorkflowExecution.ID, then "/" and a name. The engine refuses any other: the run waits,
// and the engine's log says why. A child without an ID is given one that will do.
func NewPipeline[In, Out any](name string, run func(workflow.Context, In) (Out, error)) Pipeline[In, Out] {
	mustName("pipeline", name)
	if run == nil {
		panic(fmt.Sprintf("spillway: pipeline %q has no function", name))
	}
	return Pipeline[In, Out]{name: name, run: run}
}

// On returns the pipeline with one more binding. Without any, events on the subject "events.NAME" start it.
func (p Pipeline[In, Out]) On(binding Binding) Pipeline[In, Out] {
	p.bindings = append(slices.Clip(p.bindings), binding)
	return p
}

// WithGoal returns the pipeline with a goal for runs that bring none.
func (p Pipeline[In, Out]) WithGoal(goal Goal) Pipeline[In, Out] {
	p.goal = goal
	return p
}

// Name returns the name that the pipeline was declared with.
func (p Pipeline[In, Out]) Name() string { return p.name }

// Describe returns what the engine knows of the pipeline. It fails when In has no JSON Schema or a binding is wrong.
func (p Pipeline[In, Out]) Describe() (wire.Pipeline, error) {
	if err := runs.CheckGoal(p.goal); err != nil {
		return wire.Pipeline{}, fmt.Errorf("pipeline %s: %w", p.name, err)
	}
	schema, err := jsonschema.For[In](nil)
	if err != nil {
		return wire.Pipeline{}, fmt.Errorf("pipeline %s: input %T as JSON Schema: %w", p.name, *new(In), err)
	}
	encoded, err := json.Marshal(schema)
	if err != nil {
		return wire.Pipeline{}, fmt.Errorf("pipeline %s: input schema: %w", p.name, err)
	}
	_, validates := any(*new(In)).(validated)
	described := wire.Pipeline{Name: p.name, Input: encoded, Validates: validates, Goal: p.goal}
	for _, binding := range p.bindings {
		if err := runs.CheckGoal(binding.Goal); err != nil {
			return wire.Pipeline{}, fmt.Errorf("pipeline %s: binding %s: %w", p.name, binding.Subject, err)
		}
		var input json.RawMessage
		if binding.Input != nil {
			if input, err = json.Marshal(binding.Input); err != nil {
				return wire.Pipeline{}, fmt.Errorf("pipeline %s: binding %s: encode input: %w", p.name, binding.Subject, err)
			}
		}
		described.Bindings = append(described.Bindings, wire.Binding{
			Pipeline: p.name, Subject: binding.Subject, Filter: binding.Filter, MaxRuns: binding.MaxRuns,
			Schedule: binding.Schedule, Input: input, Goal: binding.Goal,
		})
	}
	return described, nil
}

// validated is an input that says of itself what is wrong with it.
type validated interface{ Validate() error }

// CheckInput returns why the pipeline does not take an encoded input; nil where In has no method Validate. The engine
// asks before it starts a run.
func (p Pipeline[In, Out]) CheckInput(input json.RawMessage) (err error) {
	var in In
	if err := json.Unmarshal(input, &in); err != nil {
		return fmt.Errorf("decode it as %T: %w", in, err)
	}
	checked, ok := any(in).(validated)
	if !ok {
		return nil
	}
	defer func() {
		if told := recover(); told != nil {
			err = fmt.Errorf("its Validate panicked: %v", told)
		}
	}()
	return checked.Validate()
}

// Workflow returns the workflow function as it is registered with Temporal.
func (p Pipeline[In, Out]) Workflow() any {
	return func(ctx workflow.Context, in In) (out Out, err error) {
		if checked, ok := any(in).(validated); ok {
			if err := checked.Validate(); err != nil {
				return out, temporal.NewNonRetryableApplicationError(fmt.Sprintf("input of pipeline %s: %v", p.name, err),
					runs.InputError, err)
			}
		}
		return p.run(ctx, in)
	}
}
