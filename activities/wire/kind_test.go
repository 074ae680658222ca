package wire_test

import (
	"encoding/json"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestWhatAFunctionReadsIsNamedByItsFilesOrItsInput(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		`{"image": "a/cat.JPG", "labels": "cat.json", "seed": 1}`: "jpg and json",
		`{"seed": 1, "model": "v1.2"}`:                            "an object",
		`{"a": "1.csv", "b": "2.csv"}`:                            "csv",
		`{"a": "1.csv", "b": "2.tsv", "c": "3.txt", "d": "4.md"}`: "an object",
		`["a.csv"]`:    "a list",
		`"words.txt"`:  "txt",
		`"some words"`: "a text",
		`7`:            "a number",
		`null`:         "",
		`{`:            "",
	} {
		if got := wire.InputKind(json.RawMessage(input)); got != want {
			t.Errorf("%s: got %q, want %q", input, got, want)
		}
	}
}

func TestWhatACommandReadsIsNamedByItsFilesOrItsArguments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		command wire.Command
		want    string
	}{
		{wire.Command{Arguments: []string{"python3", "fit.py"}}, ""},
		{wire.Command{Arguments: []string{"python3", "fit.py", "--in", "raw.CSV", "--seed", "1"}}, "csv"},
		{
			wire.Command{
				Arguments: []string{"python3", "fit.py", "notes.txt"},
				Files:     []wire.CommandFile{{Path: "data/raw.parquet"}, {Path: "rows/0"}, {Path: "labels.json"}},
			},
			"json and parquet",
		},
	} {
		if got := c.command.InputKind(); got != c.want {
			t.Errorf("%v with %v: got %q, want %q", c.command.Arguments, c.command.Files, got, c.want)
		}
	}
}
