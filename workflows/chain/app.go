package chain

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/jsonschema-go/jsonschema"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// App describes the chain as an app describes itself with `describe --json`: one pipeline, of the app's own name.
func (c Chain) App() wire.App {
	described, err := pipeline{c}.Describe()
	if err != nil {
		panic(fmt.Sprintf("chain %s has no description: %v", c.d.Name, err)) // Parse has checked all that it depends on
	}
	app := wire.App{
		Version: wire.Version, Name: c.d.Name, Pipelines: []wire.Pipeline{described},
		WorkflowVersion: wire.WorkflowVersion,
	}
	for i := range c.d.Stages {
		app.Stages = append(app.Stages, c.d.Stages[i].described())
	}
	return app
}

// Stages returns the stages, in the order of the file, for runs.Ports.
func (c Chain) Stages() []runs.AnyStage {
	stages := make([]runs.AnyStage, len(c.d.Stages))
	for i := range c.d.Stages {
		stages[i] = command{c.d.Stages[i].described()}
	}
	return stages
}

// Pipeline returns the pipeline, for runs.Register. Its result is a Result.
func (c Chain) Pipeline() runs.AnyPipeline { return pipeline{c} }

// CheckInput returns why the chain does not take an encoded input, of which its schema does not say all.
func (c Chain) CheckInput(encoded json.RawMessage) error {
	if !c.d.Single {
		_, err := c.bind(encoded)
		return err
	}
	var in SingleInput
	if err := json.Unmarshal(encoded, &in); err != nil {
		return fmt.Errorf("decode the input of a command: %w", err)
	}
	return in.Validate()
}

// described is what the engine knows of the stage.
func (s *stage) described() wire.Stage {
	return wire.Stage{
		Name: s.Name, Declared: quantity.Size{CPU: s.CPU, Memory: s.Memory}.WithGPUs(s.GPU), Timeout: s.Timeout,
		MaxAttempts: cmp.Or(s.MaxAttempts, runs.DefaultMaxAttempts), Command: true,
		Cache: s.Cache, CacheVersion: s.CacheVersion, CacheFor: s.CacheFor, NoCache: s.NoCache,
		Secrets: s.Secrets,
	}
}

// command makes a stage of a chain an runs.AnyStage. It is made from data: no binary has to list it.
type command struct{ stage wire.Stage }

// Name returns the stage's name.
func (c command) Name() string { return c.stage.Name }

// Describe returns what the engine knows of the stage.
func (c command) Describe() wire.Stage { return c.stage }

// Call fails: there is no function to call.
func (c command) Call(context.Context, json.RawMessage) (json.RawMessage, error) {
	return nil, fmt.Errorf("stage %s: %w: run the chain with an engine, such as `spillway run`", c.stage.Name,
		runs.ErrHostRuns)
}

// Recommend returns what is proposed.
func (c command) Recommend(_ context.Context, _ json.RawMessage, proposed wire.Proposal) (quantity.Size, error) {
	return proposed.Size, nil
}

// pipeline makes a chain an runs.AnyPipeline.
type pipeline struct{ chain Chain }

// Name returns the chain's name.
func (p pipeline) Name() string { return p.chain.d.Name }

// Describe returns what the engine knows of the pipeline.
func (p pipeline) Describe() (wire.Pipeline, error) {
	schema, err := p.chain.schema()
	if err != nil {
		return wire.Pipeline{}, fmt.Errorf("chain %s: input schema: %w", p.Name(), err)
	}
	return wire.Pipeline{
		Name: p.Name(), Input: schema, Validates: true, Goal: p.chain.d.Goal, Bindings: p.chain.d.Bindings,
	}, nil
}

// CheckInput returns why the chain does not take an encoded input.
func (p pipeline) CheckInput(input json.RawMessage) error { return p.chain.CheckInput(input) }

// Workflow returns the workflow function as it is registered with Temporal.
func (p pipeline) Workflow() any {
	if p.chain.d.Single {
		return p.chain.runSingle
	}
	return func(ctx workflow.Context, in json.RawMessage) (Result, error) { return p.chain.run(ctx, in) }
}

// schema is the JSON Schema of the run's input.
func (c Chain) schema() (json.RawMessage, error) {
	if c.d.Single {
		schema, err := jsonschema.For[SingleInput](nil)
		if err != nil {
			return nil, err
		}
		return json.Marshal(schema)
	}
	schema := object()
	for _, p := range c.d.Parameters {
		schema.Properties[p.Name] = p.schema()
		if p.Default == nil {
			schema.Required = append(schema.Required, p.Name)
		}
	}
	if len(c.d.Inputs) > 0 {
		ref, err := jsonschema.For[activities.Ref](nil)
		if err != nil {
			return nil, err
		}
		inputs := object()
		inputs.Description = "artifacts that take the place of inputs of the chain"
		for _, in := range c.d.Inputs {
			inputs.Properties[in.Name] = ref
		}
		schema.Properties[inputsField] = inputs
	}
	return json.Marshal(schema)
}

// object is the schema of an object of which every field is named.
func object() *jsonschema.Schema {
	return &jsonschema.Schema{
		Type: "object", Properties: map[string]*jsonschema.Schema{},
		AdditionalProperties: &jsonschema.Schema{Not: &jsonschema.Schema{}},
	}
}

func (p *parameter) schema() *jsonschema.Schema {
	schema := &jsonschema.Schema{Type: p.Type, Default: p.Default}
	if p.Type == "array" {
		schema.Items = &jsonschema.Schema{Types: []string{"boolean", "number", "string"}}
	}
	return schema
}
