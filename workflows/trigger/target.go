package trigger

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Target is a pipeline of the newest build of an app.
type Target struct {
	// App is the app's name, and Build the digest of its binary. New runs start on the task queue "App@Build".
	App, Build string
	// Version is the newest version of steps that the build takes (see wire.WorkflowVersion).
	Version int
	// Pipeline is what the app says of the pipeline. An empty Input schema takes every JSON value.
	Pipeline wire.Pipeline
}

// pipeline is a Target whose schema is resolved. Its methods may be called concurrently.
type pipeline struct {
	Target
	schema *jsonschema.Resolved // nil takes everything
}

func newPipeline(target Target) (*pipeline, error) {
	name := target.Pipeline.Name
	if name == "" || target.App == "" || target.Build == "" {
		return nil, fmt.Errorf("target %q of app %q, build %q: none of the three may be empty", name, target.App,
			target.Build)
	}
	if err := runs.CheckName(name); err != nil {
		return nil, fmt.Errorf("pipeline of app %s: %w", target.App, err)
	}
	p := &pipeline{Target: target}
	if len(target.Pipeline.Input) == 0 {
		return p, nil
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(target.Pipeline.Input, &schema); err != nil {
		return nil, fmt.Errorf("pipeline %s: input schema: %w", name, err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("pipeline %s: input schema: %w", name, err)
	}
	p.schema = resolved
	return p, nil
}

// queue is the task queue of the pipeline's workflows.
func (p *pipeline) queue() string { return wire.WorkflowQueue(p.App, p.Build) }

// check refuses an input that the pipeline cannot take, and says where it is wrong.
func (p *pipeline) check(input any) error {
	if p.schema == nil {
		return nil
	}
	err := p.schema.Validate(input)
	if err == nil {
		return nil
	}
	text := describeViolation(p.Pipeline.Name, err.Error())
	if strings.Contains(text, "additional properties") {
		text += p.instead(input)
	}
	return errors.New(text)
}

// instead says which properties the input may have, where it has one of another name itself.
func (p *pipeline) instead(input any) string {
	given, isObject := input.(map[string]any)
	known := p.schema.Schema().Properties
	if !isObject || len(known) == 0 {
		return ""
	}
	for name := range given {
		if known[name] == nil {
			return "; it may have " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
		}
	}
	return ""
}

// violation matches one step of the schema library's messages: "validating /properties/m/items: ".
var violation = regexp.MustCompile(`^validating (\S+): `)

// describeViolation turns the schema library's message, which names every schema on the way, into the place in the
// input and what is wrong there.
func describeViolation(pipeline, message string) string {
	place := ""
	for {
		step := violation.FindStringSubmatch(message)
		if step == nil {
			break
		}
		message = message[len(step[0]):]
		if strings.HasPrefix(step[1], "/") && !strings.HasPrefix(step[1], "/$defs/") {
			place = inputPath(step[1])
		}
	}
	message = strings.ReplaceAll(message, "<invalid reflect.Value>", "null")
	if place == "" {
		return fmt.Sprintf("input does not fit pipeline %s: %s", pipeline, message)
	}
	return fmt.Sprintf("input does not fit pipeline %s: at %s: %s", pipeline, place, message)
}

// inputPath writes a path through a schema as a path through its instances: "/properties/m/items/properties/k" is
// "m[].k".
func inputPath(pointer string) string {
	var path strings.Builder
	parts := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
	for i := 0; i < len(parts); i++ {
		switch parts[i] {
		case "properties":
			if i++; i < len(parts) {
				if path.Len() > 0 {
					path.WriteByte('.')
				}
				path.WriteString(strings.NewReplacer("~1", "/", "~0", "~").Replace(parts[i]))
			}
		case "items", "prefixItems":
			path.WriteString("[]")
		case "additionalProperties":
			path.WriteString("{}")
		}
	}
	return path.String()
}
