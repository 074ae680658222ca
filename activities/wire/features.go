package wire

import (
	"encoding/json"
	"maps"
	"math"
	"slices"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// Features returns the numbers that are known of a task before it runs and that its size may depend on, by name: of a
// command its parameters, of a function the numbers of its input, its booleans as 0 and 1, and the lengths of its
// lists, one object deep ("model.layers", "rows.length"). Numbers below zero are left out, and so are those whose name
// is longer than usage.MaxFeatureName. Of many, the first usage.MaxFeatures - 1 by name are taken; the bytes of the
// input are known besides.
func Features(task Task, input json.RawMessage) map[string]float64 {
	found := map[string]float64{}
	if task.Command {
		var command Command
		if json.Unmarshal(input, &command) == nil {
			for name, value := range command.Parameters {
				addFeature(found, name, value)
			}
		}
	} else {
		var value map[string]any
		if json.Unmarshal(input, &value) == nil {
			addFeatures(found, "", value)
		}
	}
	maps.DeleteFunc(found, func(name string, _ float64) bool { return len(name) > usage.MaxFeatureName })
	if len(found) == 0 {
		return nil
	}
	for i, name := range slices.Sorted(maps.Keys(found)) {
		if i >= usage.MaxFeatures-1 {
			delete(found, name)
		}
	}
	return found
}

func addFeatures(found map[string]float64, prefix string, object map[string]any) {
	if digest, isRef := object["digest"].(string); isRef && len(digest) == 64 {
		return // an artifact: its bytes are part of the input's
	}
	for key, value := range object {
		switch v := value.(type) {
		case float64:
			addFeature(found, prefix+key, v)
		case bool:
			if found[prefix+key] = 0; v {
				found[prefix+key] = 1
			}
		case []any:
			addFeature(found, prefix+key+".length", float64(len(v)))
		case map[string]any:
			if prefix == "" {
				addFeatures(found, key+".", v)
			}
		}
	}
}

func addFeature(found map[string]float64, name string, value float64) {
	if value >= 0 && !math.IsInf(value, 0) {
		found[name] = value
	}
}
