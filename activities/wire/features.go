package wire

import (
	"encoding/json"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// Features returns what is known of a task before it runs and what its size may depend on, as numbers by name: of a
// command its parameters, of a function the numbers of its input, its booleans as 0 and 1, the lengths of its lists,
// and its texts of at most maxText bytes as categories (usage.Category), one object deep ("model.layers",
// "rows.length", "format="); of a text that ends like the name of a file, the ending as well ("image.extension=").
// Numbers below zero are left out, and so are those whose name is longer than usage.MaxFeatureName, and of many the
// categories, then those that come last by name: what explains a task is looked for among maxFeatures of them
// (usage.Scout). The bytes of the input are known besides.
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
		names := slices.SortedFunc(maps.Keys(found), func(a, b string) int {
			if first, second := usage.IsCategory(a), usage.IsCategory(b); first != second {
				if second {
					return -1
				}
				return 1
			}
			return strings.Compare(a, b)
		})
		for _, name := range names[maxFeatures:] {
			delete(found, name)
		}
	}
	return found
}

// maxFeatures bounds what is known of a task: it travels with its Record, which must fit into a message of 1 MiB.
const maxFeatures = 2048

// maxText is the longest text, in bytes, that may be one of few: a name or a keyword, and no prose.
const maxText = 64

// extension is how a name of a file ends that says what is in it; "v1.2" and what ends a sentence are none.
var extension = regexp.MustCompile(`[^\s./\\]\.([A-Za-z][A-Za-z0-9]{0,7})$`)

// AddCategories adds what a text may tell of a task as the value of a feature of this name.
func AddCategories(found map[string]float64, name, text string) {
	if text != "" && len(text) <= maxText {
		found[usage.CategoryName(name)] = usage.Category(text)
	}
	if match := extension.FindStringSubmatch(text); match != nil {
		found[usage.CategoryName(name+".extension")] = usage.Category(strings.ToLower(match[1]))
	}
}

func addFeatures(found map[string]float64, prefix string, object map[string]any) {
	if digest, isRef := object["digest"].(string); isRef && len(digest) == 64 {
		return // an artifact: its bytes are part of the input's
	}
	for key, value := range object {
		switch v := value.(type) {
		case float64:
			if !usage.IsCategory(key) {
				addFeature(found, prefix+key, v)
			}
		case bool:
			one := 0.0
			if v {
				one = 1
			}
			if !usage.IsCategory(key) {
				addFeature(found, prefix+key, one)
			}
		case string:
			AddCategories(found, prefix+key, v)
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
