package web

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"reflect"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/predictor/pricing"
	"github.com/spillway-ml/spillway/predictor/search"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// schemas makes the schemas of Go types. Structs with a name that other packages can see have one place in the
// document, to which the others refer.
type schemas struct {
	known map[reflect.Type]*jsonschema.Schema // how a type is written where it is used
	named map[string]*jsonschema.Schema       // the structs that are referred to
}

const components = "#/components/schemas/"

func newSchemas() *schemas {
	return &schemas{named: map[string]*jsonschema.Schema{}, known: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[time.Time]():         {Type: "string", Format: "date-time"},
		reflect.TypeFor[time.Duration]():     {Type: "integer", Description: "nanoseconds"},
		reflect.TypeFor[json.RawMessage]():   {Description: "any JSON"},
		reflect.TypeFor[[]byte]():            {},
		reflect.TypeFor[predictor.Venue]():   enum(predictor.Pool, predictor.Function),
		reflect.TypeFor[predictor.Outcome](): enum(outcomes[1:]...),
		reflect.TypeFor[predictor.RunState](): enum(predictor.RunRunning, predictor.RunSucceeded, predictor.RunFailed,
			predictor.RunCancelled),
		reflect.TypeFor[predictor.Objective](): enum(predictor.Cost, predictor.Latency),
		reflect.TypeFor[alerting.Kind](): enum(alerting.KindDeadlineAtRisk, alerting.KindBudgetAtRisk,
			alerting.KindGoalImpossible, alerting.KindRecovered, alerting.KindStreamsLost, alerting.KindLedgerFailing,
			alerting.KindDiskScarce),
		reflect.TypeFor[predictor.Cause](): enum(predictor.CauseMemoryLimit, predictor.CauseMemoryRefused,
			predictor.CauseHostMemory, predictor.CauseDeviceMemory,
			predictor.CauseDisk, predictor.CauseTimeout, predictor.CauseError, predictor.CausePanic, predictor.CauseExit,
			predictor.CauseSignal,
			predictor.CauseStart, predictor.CauseImpossible, predictor.CauseNoGPU, predictor.CauseNoMemory,
			predictor.CauseCancelled,
			predictor.CauseHostLost,
			predictor.CauseBudget, predictor.CauseVenue, predictor.CauseThrottled, predictor.CausePayload),
		reflect.TypeFor[runs.TrialState](): enum(runs.TrialRunning, runs.TrialWaiting, runs.TrialStopped,
			runs.TrialFinished, runs.TrialDiverged, runs.TrialFailed),
		reflect.TypeFor[search.Algorithm](): enum(search.ASHA, search.Random, search.Halving, search.Hyperband,
			search.BOHB),
		reflect.TypeFor[search.Kind]():  enum(search.Float, search.Int, search.Choice),
		reflect.TypeFor[search.Value](): {Types: []string{"number", "string"}},
		reflect.TypeFor[ledger.Dimension](): enum(ledger.ByRun, ledger.ByPipeline, ledger.ByStage, ledger.ByTeam,
			ledger.ByVenue, ledger.ByHost),
		reflect.TypeFor[pricing.Kind](): enum(pricing.OnDemandHost, pricing.SpotHost, pricing.Function, pricing.Container,
			pricing.StorageRequest,
			pricing.StorageMonth),
		reflect.TypeFor[pricing.Unit](): enum(pricing.PerHour, pricing.PerCoreHour, pricing.PerGiBHour, pricing.PerGiBSecond,
			pricing.PerRequest,
			pricing.PerGiBMonth),
		// What a chain says besides is for the engine that has packed it.
		reflect.TypeFor[chainShape](): {
			Type: "object", Required: []string{"name", "stages"},
			Properties: map[string]*jsonschema.Schema{
				"name": {Type: "string"}, "stages": {
					Type: "array", MinItems: new(1), MaxItems: new(mostStages),
					Items: &jsonschema.Schema{
						Type: "object", Required: []string{"name"}, Properties: map[string]*jsonschema.Schema{
							"name":   {Type: "string"},
							"script": {Type: "string"},
						},
					},
				},
			},
		},
	}}
}

func enum[S ~string](values ...S) *jsonschema.Schema {
	schema := &jsonschema.Schema{Type: "string"}
	for _, value := range values {
		schema.Enum = append(schema.Enum, string(value))
	}
	return schema
}

// of returns the schema of a type, and keeps those of the structs that it refers to.
func (s *schemas) of(t reflect.Type) (*jsonschema.Schema, error) {
	if err := s.name(t); err != nil {
		return nil, err
	}
	return s.make(t)
}

// make returns the schema of a type whose parts are known.
func (s *schemas) make(t reflect.Type) (*jsonschema.Schema, error) {
	known := s.known
	if t.Kind() == reflect.Struct {
		for _, field := range reflect.VisibleFields(t) {
			if field.Anonymous { // its fields are written in its place
				known = maps.Clone(known)
				delete(known, field.Type)
			}
		}
	}
	schema, err := jsonschema.ForType(t, &jsonschema.ForOptions{TypeSchemas: known})
	if err != nil {
		return nil, fmt.Errorf("describe %s: %w", t, err)
	}
	neverNull(schema)
	return schema, nil
}

// neverNull removes from references that they may be null: a pointer to a struct is left out of the JSON where it is
// nil.
func neverNull(schema *jsonschema.Schema) {
	if schema == nil {
		return
	}
	if schema.Ref != "" {
		schema.Types = nil
	}
	neverNull(schema.Items)
	neverNull(schema.AdditionalProperties)
	for _, property := range schema.Properties {
		neverNull(property)
	}
}

// name keeps the schemas of the structs that t is made of, those it refers to first.
func (s *schemas) name(t reflect.Type) error {
	if s.known[t] != nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
		return s.name(t.Elem())
	case reflect.Struct:
	default:
		return nil
	}
	for _, field := range reflect.VisibleFields(t) {
		if field.IsExported() && !field.Anonymous {
			if err := s.name(field.Type); err != nil {
				return err
			}
		}
	}
	if first := t.Name(); first == "" || strings.ToLower(first[:1]) == first[:1] {
		return nil
	}
	schema, err := s.make(t)
	if err != nil {
		return err
	}
	name := module(t.PkgPath()) + "." + t.Name()
	s.named[name] = schema
	s.known[t] = &jsonschema.Schema{Ref: components + name}
	return nil
}

// module is the package whose name clients know of what is declared in a package: the predictor gives its vocabulary
// from the packages below it.
func module(declared string) string {
	if path.Base(path.Dir(declared)) == "predictor" {
		switch name := path.Base(declared); name {
		case "fact", "plan", "size", "outlook":
			return "predictor"
		}
	}
	return path.Base(declared)
}
