package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/spillway-ml/spillway/activities/access"
)

// apiVersion is that of the API, which only grows within v1.
const apiVersion = "1.0.0"

// object is an object of the document, whose members are written in the order of their names.
type object map[string]any

// openAPI answers GET /api/v1/openapi.json, with what the first request has made.
func (s *Server) openAPI(*http.Request) (json.RawMessage, error) { return s.described() }

// document describes the table of routes as OpenAPI 3.1 (https://spec.openapis.org/oas/v3.1.1.html).
func (s *Server) document() (json.RawMessage, error) {
	made := newSchemas()
	refusal, err := made.of(reflect.TypeFor[Error]())
	if err != nil {
		return nil, err
	}
	paths := map[string]object{}
	for _, route := range s.table {
		operation, err := route.operation(made)
		if err != nil {
			return nil, fmt.Errorf("describe %s %s: %w", route.method, route.path, err)
		}
		if paths[route.path] == nil {
			paths[route.path] = object{}
		}
		paths[route.path][strings.ToLower(route.method)] = operation
	}
	return json.MarshalIndent(object{
		"openapi": "3.1.0",
		"info": object{
			"title": "Spillway", "version": apiVersion,
			"description": "Times are RFC 3339; durations are nanoseconds, money is 10^-12 US dollars, sizes are bytes and " +
				"thousandths of a core where the names say so. " +
				"Whoever asks must be on this machine: other hosts and origins are refused with 403. The owner's token is in the " +
				"file keys/token of the " +
				"state directory; keys/header has it as a header for curl.",
		},
		"servers":  []object{{"url": "http://127.0.0.1:7474"}},
		"security": []object{{"token": []string{}}, {"session": []string{}}},
		"paths":    paths,
		"components": object{
			"securitySchemes": object{
				"token": object{
					"type": "http", "scheme": "bearer",
					"description": "The token in keys/token; for /metrics that in keys/metrics does too.",
				},
				"session": object{
					"type": "apiKey", "in": "cookie", "name": "spillway_ID",
					"description": "What POST /api/v1/session sets; ID is of the state directory.",
				},
			},
			"schemas": made.named,
			"responses": object{"Refusal": object{
				"description": "Why what was asked is not done, and what to do.",
				"content": content("application/json", &jsonschema.Schema{
					Type: "object", Required: []string{"error"}, Properties: map[string]*jsonschema.Schema{"error": refusal},
				}),
			}},
		},
	}, "", "  ")
}

func content(kind string, schema any) object { return object{kind: object{"schema": schema}} }

var pathParameter = regexp.MustCompile(`\{(\w+)\}`)

// operation describes one route.
func (t route) operation(made *schemas) (object, error) {
	parameters := []object{}
	for _, name := range pathParameter.FindAllStringSubmatch(t.path, -1) {
		parameters = append(parameters, object{
			"name": name[1], "in": "path", "required": true,
			"schema": &jsonschema.Schema{Type: "string"},
		})
	}
	for _, p := range t.query {
		parameters = append(parameters, p.document())
	}
	responses, err := t.responses(made)
	if err != nil {
		return nil, err
	}
	operation := object{"operationId": t.name(), "summary": t.summary, "parameters": parameters, "responses": responses}
	if t.needs == access.Anyone {
		operation["security"] = []object{} // no credential
	}
	if t.bodyKind == "" {
		return operation, nil
	}
	schema, err := made.of(reflect.TypeOf(t.body))
	if err != nil {
		return nil, err
	}
	taken := object{"schema": schema}
	if t.bodyKind != octets {
		taken["example"] = t.body
	}
	operation["requestBody"] = object{"required": true, "content": object{t.bodyKind: taken}}
	return operation, nil
}

// name is what the operation is called in clients that are made from the document: "getRunsTimeline".
func (t route) name() string {
	var name strings.Builder
	name.WriteString(strings.ToLower(t.method))
	for part := range strings.SplitSeq(strings.TrimPrefix(t.path, "/api/v1"), "/") {
		if part = strings.Trim(part, "{}"); part != "" {
			part, _, _ = strings.Cut(part, ".")
			name.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return name.String()
}

// responses describes the answer and every refusal.
func (t route) responses(made *schemas) (object, error) {
	kinds := object{}
	if t.answer != nil {
		schema, err := made.of(t.answer)
		if err != nil {
			return nil, err
		}
		kinds = content("application/json", schema)
	}
	for _, kind := range t.kinds {
		kinds[kind] = object{"schema": &jsonschema.Schema{}}
	}
	if len(t.messages) > 0 {
		messages := map[string]*jsonschema.Schema{}
		for _, name := range slices.Sorted(maps.Keys(t.messages)) {
			schema, err := made.of(t.messages[name])
			if err != nil {
				return nil, err
			}
			messages[name] = schema
		}
		kinds["text/event-stream"] = object{"schema": &jsonschema.Schema{Type: "string"}, "x-messages": messages}
	}
	responses := object{"200": object{"description": "What was asked for.", "content": kinds}}
	for _, status := range t.statuses() {
		responses[strconv.Itoa(status)] = object{"$ref": "#/components/responses/Refusal"}
	}
	return responses, nil
}

// statuses are those of all refusals of the route, sorted.
func (t route) statuses() []int {
	statuses := append([]int{http.StatusForbidden, http.StatusInternalServerError, http.StatusServiceUnavailable},
		t.refusals...)
	if strings.HasPrefix(t.path, "/api/") {
		statuses = append(statuses, http.StatusBadRequest)
	}
	if t.needs != access.Anyone {
		statuses = append(statuses, http.StatusUnauthorized)
	}
	if t.bodyKind != "" {
		statuses = append(statuses, http.StatusRequestTimeout, http.StatusUnsupportedMediaType,
			http.StatusRequestEntityTooLarge)
	}
	slices.Sort(statuses)
	return slices.Compact(statuses)
}

// document describes a parameter of a query.
func (p parameter) document() object {
	schema := &jsonschema.Schema{Type: "string"}
	var example any = p.example
	switch p.kind {
	case wholeNumber:
		schema = &jsonschema.Schema{Type: "integer", Minimum: new(float64(p.least)), Maximum: new(float64(p.most))}
		example = json.RawMessage(p.example)
		if p.usual != "" {
			schema.Default = json.RawMessage(p.usual)
		}
	case probability:
		schema = &jsonschema.Schema{Type: "number", Minimum: new(p.low), Maximum: new(p.high)}
		example = json.RawMessage(p.example)
	case oneOf:
		schema = enum(p.choices...)
		if p.usual != "" {
			schema.Default = json.RawMessage(strconv.Quote(p.usual))
		}
	case yesOrNo:
		schema = &jsonschema.Schema{Type: "boolean", Default: json.RawMessage(p.usual)}
		example = json.RawMessage(p.example)
	case plainText, pointInTime:
	}
	return object{
		"name": p.name, "in": "query", "description": p.about, "required": p.required, "schema": schema,
		"example": example,
	}
}
