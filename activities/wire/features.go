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
// is longer than usage.MaxFeatureName, and of many those that come last by name: what explains a task is looked for
// among maxFeatures of them (usage.Scout). The bytes of the input are known besides.
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
	if len(found) > maxFeatures {
		for _, name := range slices.Sorted(maps.Keys(found))[maxFeatures:] {
			delete(found, name)
		}
	}
	return found
}

// maxFeatures bounds what is known of a task: it travels with its Record, which must fit into a message of 1 MiB.
const maxFeatures = 2048

func addFeatures(found map[string]float64, prefix string, object map[string]any) {
	if digest, isRef := object["digest"].(string); isRef && len(digest) == 64 {
		return // an artifact: its bytes are part of the input's
	}
	for key, value := range object {
		switch v := value.(type) {
		case float64:
			addFeature(found, prefix+key, v)
		case bool:
			one := 0.0
			if v {
				one = 1
			}
			addFeature(found, prefix+key, one)
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
