package runs

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/search"
)

func TestACommandIsFilledWithTheValuesOfATrial(t *testing.T) {
	t.Parallel()
	turn := Turn{Number: 7, Rung: 1, From: 3, To: 9}
	for name, c := range map[string]struct {
		arguments, want []string
		configuration   search.Configuration
	}{
		"values": {
			[]string{"python", "train.py", "--lr", "{lr}", "--out=model-{trial}.{rung}", "--epochs", "{from}:{to}"},
			[]string{"python", "train.py", "--lr", "0.01", "--out=model-7.1", "--epochs", "3:9"},
			search.Configuration{"lr": {Number: .01}},
		},
		"whole numbers, and texts": {
			[]string{"train", "{width}", "{opt}-{opt}"},
			[]string{"train", "1000000", "adam-adam"},
			search.Configuration{"width": {Number: 1e6}, "opt": {Text: "adam"}},
		},
		"braces": {
			[]string{"awk", "{{print $1}", "${{HOME}", "{{{{{lr}}"},
			[]string{"awk", "{print $1}", "${HOME}", "{{1}"},
			search.Configuration{"lr": {Number: 1}},
		},
		"a value is no template": {
			[]string{"sh", "{opt}"},
			[]string{"sh", "{lr}"},
			search.Configuration{"opt": {Text: "{lr}"}, "lr": {Number: 1}},
		},
		"what does not exist is left out, with its option": {
			[]string{"t", "--opt", "{opt}", "--momentum", "{m}", "-m={m}", "end", "{m}", "--{opt}", "{m}"},
			[]string{"t", "--opt", "adam", "end", "--adam"},
			search.Configuration{"opt": {Text: "adam"}},
		},
	} {
		got := fill(wire.Command{Arguments: c.arguments}, c.configuration, turn)
		if diff := cmp.Diff(c.want, got.Arguments); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got.Parameters["trial.units"] != 6 {
			t.Errorf("%s: parameters %v", name, got.Parameters)
		}
	}
	base := wire.Command{Environment: map[string]string{"LR": "{lr}", "M": "{m}", "SEED": "1"}}
	got := fill(base, search.Configuration{"lr": {Number: .5}}, turn)
	if diff := cmp.Diff(map[string]string{"LR": "0.5", "SEED": "1"}, got.Environment); diff != "" ||
		base.Environment["LR"] != "{lr}" || base.Parameters != nil {
		t.Errorf("environment (-want +got), and the base stays %v:\n%s", base, diff)
	}
}

func TestAWrongTemplateIsRefused(t *testing.T) {
	t.Parallel()
	space := search.Space{{Name: "lr", Kind: search.Float, High: 1}}
	for name, c := range map[string]struct {
		argument string
		space    search.Space
		want     string // empty when it is sound
		told     bool
	}{
		"sound, and told how far": {"{lr}{to}", space, "", true},
		"sound, and not told":     {"{lr}", space, "", false},
		"unknown": {
			"{lr}{rate}", space, "{rate} is unknown: there are {lr}, {trial}, {rung}, {from}, {to}", false,
		},
		"of the shell":             {"{lr}${HOME}", space, "write {{HOME} to leave it to the program", false},
		"no placeholder":           {`{lr}{"a": 1}`, space, "is no placeholder", false},
		"never closed":             {"{lr", space, "is no placeholder", false},
		"a parameter nobody uses":  {"{to}", space, `"lr" is used nowhere`, false},
		"a parameter named a turn": {"{to}", search.Space{{Name: "to", Kind: search.Float, High: 1}}, "the job's own", false},
	} {
		told, err := checkTemplate(wire.Command{Arguments: []string{"t", c.argument}}, c.space)
		if c.want == "" && (err != nil || told != c.told) {
			t.Errorf("%s: got %v, told %v", name, err, told)
		}
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestTheObjectiveIsReadWhereItIs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		objective, output string
		command           bool
		metrics           map[string]float64
		want              string // the number, or what the error says
	}{
		"a field":                 {"loss", `{"loss": 0.25}`, false, nil, "0.25"},
		"one in an object":        {"m.val", `{"m": {"val": -3}}`, false, nil, "-3"},
		"a null":                  {"loss", `{"loss": null}`, false, nil, "NaN"},
		"a NaN as text":           {"loss", `{"loss": "NaN"}`, false, nil, "NaN"},
		"an infinity as text":     {"loss", `{"loss": "-Infinity"}`, false, nil, "-Inf"},
		"too large":               {"loss", `{"loss": "1e999"}`, false, nil, "+Inf"},
		"no field":                {"loss", `{"b": 1, "a": 2}`, false, nil, `no "loss": the fields of its output are a, b`},
		"no field of an object":   {"m.val", `{"m": {"x": 1}}`, false, nil, `the fields of "m" of its output are x`},
		"no object":               {"m.val", `{"m": 3}`, false, nil, `"m" of its output is no object`},
		"an output of one number": {"loss", `3`, false, nil, "its output is no object"},
		"a text":                  {"loss", `{"loss": "low"}`, false, nil, `"low", which is no number`},
		"a value of a command":    {"loss", `{"exit":0,"values":{"loss":0.5}}`, true, map[string]float64{"loss": 9}, "0.5"},
		"with a dot in its name":  {"val.loss", `{"exit":0,"values":{"val.loss":0.5}}`, true, nil, "0.5"},
		"a null of a command":     {"loss", `{"exit":0,"values":{"loss":null}}`, true, nil, "NaN"},
		"a metric":                {"loss", `{"exit":0}`, true, map[string]float64{"loss": 2}, "2"},
		"neither value nor metric": {
			"loss", `{"exit":0,"values":{"acc":1}}`, true,
			map[string]float64{"f1": 2},
			`no "loss": its results are acc, and the metrics of its last progress f1: name one of them`,
		},
		"nothing at all": {"loss", `{"exit":0}`, true, nil, `write {"result": {"loss": 0.2}}`},
		"a metric that an attempt before told as NaN": {
			"gradient", `{"exit":0}`, true, map[string]float64{"loss": 2}, "NaN",
		},
	} {
		result := wire.Result{
			Output: json.RawMessage(c.output), Metrics: c.metrics, NotFinite: []string{"gradient"},
		}
		got, err := objectiveOf(c.objective, c.command, result)
		said := search.Value{Number: got}.String()
		if err != nil {
			said = err.Error()
		}
		if said != c.want && (err == nil || !strings.Contains(said, c.want)) {
			t.Errorf("%s: got %q, want %q", name, said, c.want)
		}
	}
}
