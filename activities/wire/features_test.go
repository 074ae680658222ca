package wire_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/usage"
)

func TestFeaturesAreTheNumbersOfAnInput(t *testing.T) {
	t.Parallel()
	digest := "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, c := range []struct {
		name    string
		command bool
		input   string
		want    map[string]float64
	}{
		{
			"numbers, booleans, lengths and one object deep", false,
			`{"epochs": 3, "rows": [1, 2], "model": {"layers": 4, "deeper": {"x": 1}}, "name": "a", "on": true, "off": false}`,
			map[string]float64{
				"epochs": 3, "rows.length": 2, "model.layers": 4, "on": 1, "off": 0, "name=": usage.Category("a"),
			},
		},
		{
			"artifacts are counted as input", false, `{"data": {"digest": "` + digest + `", "bytes": 7}, "n": 1}`,
			map[string]float64{"n": 1},
		},
		{
			"names that nobody reads are left out", false,
			`{"` + strings.Repeat("a", usage.MaxFeatureName+1) + `": 1, "b": {"` + strings.Repeat("b", 99) + `": [1]}, "c": 1}`,
			map[string]float64{"c": 1},
		},
		{
			"texts are categories, and so are the endings of files", false,
			`{"format": "csv", "m": {"kind": "a b", "empty": ""}, "path": "s3://b/` + strings.Repeat("a", 64) + `.JSON",
				"version": "1.2.3", "prompt": "` + strings.Repeat("word ", 13) + `end.", "k=": 1, "model": "m.pt"}`,
			map[string]float64{
				"format=": usage.Category("csv"), "m.kind=": usage.Category("a b"), "path.extension=": usage.Category("json"),
				"version=": usage.Category("1.2.3"), "model=": usage.Category("m.pt"), "model.extension=": usage.Category("pt"),
			},
		},
		{
			"the categories of a command", true, `{"arguments": ["x"], "parameters": {"model=": 17}}`,
			map[string]float64{"model=": 17},
		},
		{"negative numbers are left out", false, `{"offset": -1}`, nil},
		{"an input that is no object", false, `[1, 2]`, nil},
		{"an input that does not decode", false, `{`, nil},
		{
			"the parameters of a command", true, `{"arguments": ["x"], "parameters": {"lr": 0.1}, "grace_ns": 5}`,
			map[string]float64{"lr": 0.1},
		},
		{
			"more than are learned of at a time", false, `{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1,"g":1,"h":1,"i":1}`,
			map[string]float64{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "f": 1, "g": 1, "h": 1, "i": 1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, wire.Features(wire.Task{Command: c.command}, json.RawMessage(c.input))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestFeaturesAreBounded(t *testing.T) {
	t.Parallel()
	input := map[string]any{"a": "text"}
	for i := range 10_000 {
		input[fmt.Sprintf("%0100d", i)] = 1e-9 * float64(i+1)
	}
	data, err := json.Marshal(input)
	if err != nil {
		t.Fatal(err)
	}
	features := wire.Features(wire.Task{}, data)
	if len(features) != 2048 || features[fmt.Sprintf("%0100d", 2047)] == 0 {
		t.Errorf("got %d features, want the first 2,048 by name", len(features))
	}
	if encoded, err := json.Marshal(features); err != nil || len(encoded) > 1<<20 {
		t.Errorf("the features of a task are %d bytes (%v), more than a message holds", len(encoded), err)
	}
}
