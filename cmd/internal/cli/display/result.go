package display

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// shownResults is how many values of results that differ are shown one by one.
const shownResults = 30

// results adds a row for each value and each output with which one of the runs ended and the other not.
func (c *comparison) results(a, b json.RawMessage) {
	ofA, ofB := endedWith(a), endedWith(b)
	names := slices.Collect(maps.Keys(ofA))
	for name := range ofB {
		if _, both := ofA[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	before := len(c.table.rows)
	for i, name := range names {
		if len(c.table.rows)-before == shownResults {
			c.table.add(Count(len(names)-i, "more value")+" of results", "", "", "")
			return
		}
		change := ""
		if one, other := ofA[name].number, ofB[name].number; one != other {
			change = ratio(one, other)
		}
		c.row(name, ofA[name].text, ofB[name].text, change)
	}
}

// endValue is one value with which a run ended: how it reads, and the number that it is, or 0.
type endValue struct {
	text   string
	number float64
}

// endedWith are the values of a result by their places: "result accuracy". Of a chain they are what its last programs
// reported, and the files that its stages left, each with its size and the beginning of its digest.
func endedWith(encoded json.RawMessage) map[string]endValue {
	if len(encoded) == 0 {
		return nil
	}
	values := map[string]endValue{}
	var left chain.Result
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&left); err == nil && len(left.Stages) > 0 {
		for name, stage := range left.Stages {
			leftBy(values, Clean(name), stage)
		}
		return values
	}
	var result any
	if err := json.Unmarshal(encoded, &result); err != nil {
		return nil // the ledger keeps JSON only
	}
	flatten(values, "result", result)
	return values
}

// leftBy adds what a stage of a chain left.
func leftBy(values map[string]endValue, name string, stage chain.StageResult) {
	file := func(path string, artifact activities.Ref) endValue {
		digest := Clean(artifact.Digest)
		return endValue{text: fmt.Sprintf("%s%s, %s", path, quantity.Bytes(artifact.Bytes),
			digest[:min(len(digest), buildDigits)])}
	}
	for output, files := range stage.Outputs {
		for task, one := range files {
			place := "output " + name + "." + Clean(output)
			if len(files) > 1 {
				place += " " + strconv.Itoa(task)
			}
			if one.Artifact.Digest != "" { // no optional one that was left out
				values[place] = file(Name(one.Path)+", ", one.Artifact)
			}
		}
	}
	for task, reported := range stage.Values {
		place := "result " + name
		if len(stage.Values) > 1 {
			place += " " + strconv.Itoa(task)
		}
		for key, value := range reported {
			flatten(values, place+" "+Clean(key), value)
		}
	}
	if stage.Changed != nil {
		values["changed files of "+name] = file("", *stage.Changed)
	}
}

// flatten adds a value of JSON: an object by its members, all else as it is written.
func flatten(values map[string]endValue, place string, value any) {
	if members, ok := value.(map[string]any); ok {
		for name, member := range members {
			flatten(values, place+" "+Clean(name), member)
		}
		return
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return // it came as JSON
	}
	number, _ := value.(float64)
	values[place] = endValue{text: Clean(string(encoded)), number: number}
}
