package chain_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// churn is the chain of the package's comment.
const churn = `name: churn
goal: {deadline: 30m, confidence: 0.95, budget: 2.00, minimise: cost}
code: .
python: {requirements: requirements.txt}
environment: {PYTHONHASHSEED: 0}
parameters: {epochs: 3, lr: 0.1}
inputs: {raw: data/raw.csv}
on: [{subject: data.new, filter: {kind: csv}, max_runs: 1}, {schedule: "@daily", input: {epochs: 10}}]
stages:
  prepare:
    run: python prepare.py --in raw.csv --out clean.csv
    files: {raw.csv: inputs.raw}
    outputs: {clean: clean.csv, plots: {path: plots/, optional: true}}
    memory: 1GiB
  train:
    for_each: {lr: [0.1, 0.01], seed: {from: 1, to: 3}}
    run: [python, train.py, --lr, "${lr}", --epochs, "${epochs}"]
    files: {clean.csv: prepare.clean}
    outputs: {model: model.pt}
  pick:
    run: python pick.py models/
    files: {models/: train.model}
`

func mustParse(tb testing.TB, text string) chain.Chain {
	tb.Helper()
	parsed, err := chain.Parse("chain.yaml", []byte(text), chain.Checks{})
	if err != nil {
		tb.Fatalf("parse:\n%v\nof:\n%s", err, text)
	}
	return parsed
}

// problemsOf is what Parse says of a text; "" when nothing is wrong.
func problemsOf(tb testing.TB, text string, checks chain.Checks) string {
	tb.Helper()
	_, err := chain.Parse("c.yaml", []byte(text), checks)
	if err == nil {
		return ""
	}
	if _, ok := errors.AsType[*chain.Error](err); !ok {
		tb.Errorf("got an error of type %T, want *chain.Error", err)
	}
	return err.Error()
}

// one is the smallest chain, with more lines of its only stage.
func one(lines ...string) string {
	return "name: n\nstages:\n  a:\n    run: x\n" + indented("    ", lines)
}

// top is the smallest chain, with more lines before its stages.
func top(lines ...string) string {
	return "name: n\n" + indented("", lines) + "stages:\n  a:\n    run: x\n"
}

func indented(by string, lines []string) string {
	var text strings.Builder
	for _, line := range lines {
		text.WriteString(by + line + "\n")
	}
	return text.String()
}

func TestEachProblemIsNamedWithItsPlaceAndWhatToDo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"an empty file": {"", "c.yaml:1:1: the file is empty; a chain begins with its name and its stages"},
		"only a comment": {
			"# nothing\n",
			"c.yaml:1:1: the file is empty; a chain begins with its name and its stages",
		},
		"a list":                      {"- a\n", "c.yaml:1:1: the chain is a list; give a mapping, such as key: value"},
		"an unknown key":              {one("memroy: 1GiB"), `c.yaml:5:5: unknown key "memroy" in stage a; nearest: memory`},
		"an unknown key of the chain": {top("stagse: {}"), `c.yaml:2:1: unknown key "stagse" in the chain; nearest: stages`},
		"a key twice": {
			one("run: y"),
			`c.yaml:5:5: key "run" is in stage a twice, first on line 4; keep one of them`,
		},
		"a stage twice": {
			one() + "  a:\n    run: y\n",
			`c.yaml:5:3: key "a" is in stages twice, first on line 3; keep one of them`,
		},
		"a key that is a list": {
			"[a]: 1\nname: n\nstages: {a: {run: x}}\n",
			"c.yaml:1:1: a key of the chain is a list; give a word",
		},
		"no name": {
			"stages: {a: {run: x}}\n",
			"c.yaml:1:1: the chain has no name; begin with one, such as name: churn",
		},
		"a bad name": {
			"name: My Chain\nstages: {a: {run: x}}\n",
			`c.yaml:1:7: name of the chain: name "My Chain": use a lower-case letter, then letters, digits, '-' or '_', at ` +
				`most 40`,
		},
		"a name that is a number": {
			"name: 7\nstages: {a: {run: x}}\n",
			"c.yaml:1:7: name of the chain is the number 7; give text, such as churn",
		},
		"no stages": {"name: n\n", "c.yaml:1:1: the chain has no stages; add stages with at least one " +
			"stage that has a run"},
		"empty stages": {
			"name: n\nstages: {}\n",
			"c.yaml:2:9: stages is empty; add at least one stage that has a run",
		},
		"stages without a value": {
			"name: n\nstages:\n",
			"c.yaml:2:8: stages is empty; give a mapping, such as key: value",
		},
		"a stage without a run": {
			"name: n\nstages:\n  a: {cpu: 1}\n",
			"c.yaml:3:3: stage a has no run; give the program to run, such as run: python train.py",
		},
		"a stage that is a text": {
			"name: n\nstages: {a: python train.py}\n",
			`c.yaml:2:13: stage a is the text "python train.py"; give a mapping, such as key: value`,
		},
		"a directory outside": {
			one("directory: .."),
			`c.yaml:5:16: directory ".." leaves its directory; give a path below it`,
		},
		"a bad stage name": {
			"name: n\nstages: {Train: {run: x}}\n",
			`c.yaml:2:10: stage: name "Train": use a lower-case letter, then letters, digits, '-' or '_', at most 40`,
		},
		"a reserved stage name": {
			"name: n\nstages: {inputs: {run: x}}\n",
			`c.yaml:2:10: stage: name "inputs" is what files and values are referred to with: use another`,
		},
		"an empty run": {
			"name: n\nstages: {a: {run: ' '}}\n",
			"c.yaml:2:19: run is empty; give the program to run, such as python train.py",
		},
		"a run without a program": {
			"name: n\nstages: {a: {run: []}}\n",
			"c.yaml:2:19: run names no program; begin the list with one, such as [python, train.py]",
		},
		"a run that is a mapping": {
			"name: n\nstages: {a: {run: {x: y}}}\n",
			"c.yaml:2:19: run is a mapping; give text, such as python train.py or [python, train.py]",
		},
		"an argument that is a list": {
			"name: n\nstages: {a: {run: [x, [y]]}}\n",
			"c.yaml:2:23: argument 1 of run is a list; give text, such as python",
		},
		"cpu that is a word": {
			one("cpu: many"),
			`c.yaml:5:10: cpu is "many"; give 0.001 to 10000 cores, such as 2, 0.5 or 500m`,
		},
		"negative cpu": {
			one("cpu: -1"),
			`c.yaml:5:10: cpu is "-1"; give 0.001 to 10000 cores, such as 2, 0.5 or 500m`,
		},
		"too little cpu": {
			one("cpu: 0.0001"),
			`c.yaml:5:10: cpu is "0.0001"; give 0.001 to 10000 cores, such as 2, 0.5 or 500m`,
		},
		"cpu that is a list": {one("cpu: [1]"), "c.yaml:5:10: cpu is a list; give text, such as 2, 0.5 or 500m"},
		"less than no GPU":   {one("gpu: -1"), `c.yaml:5:10: gpu is -1; give a whole number from 1 to 1024`},
		"GPUs that are none": {one("gpu: .nan"), `c.yaml:5:10: gpu is the number .nan; give a whole number`},
		"endless GPUs":       {one("gpu: {count: .inf}"), `c.yaml:5:18: gpu is the number .inf; give a whole number`},
		"too many GPUs":      {one("gpu: 1_000_000"), `c.yaml:5:10: gpu is 1_000_000; give a whole number from 1 to 1024`},
		"no GPU":             {one("gpu: 0"), `c.yaml:5:10: gpu is 0; give a whole number from 1 to 1024`},
		"a share of a GPU": {
			one("gpu: 0.5"),
			"c.yaml:5:10: gpu is 0.5; GPUs are given whole, and shares of one are not offered yet: give a whole number " +
				"from 1 to 1024",
		},
		"a GPU by its model": {one("gpu: h100"), `c.yaml:5:10: gpu is the text "h100"; give a whole number`},
		"an unknown GPU": {
			one("gpu: {class: \"H 100\"}"),
			`c.yaml:5:10: gpu: it asks for a GPU of class "H 100"; give its model in lower case, such as h100, a10g or rtx-4090`,
		},
		"an unknown key of a GPU": {
			one("gpu: {model: h100}"), `c.yaml:5:11: unknown key "model" in gpu of stage a; known: class, count, memory`,
		},
		"GPU memory without a unit": {
			one("gpu: {memory: 1}"),
			`c.yaml:5:19: memory is "1"; give at most 1024 TiB with its unit, such as 512MiB, 1.5GiB or 2GB`,
		},
		"memory without a unit": {
			one("memory: 512"),
			`c.yaml:5:13: memory is "512"; give at most 1024 TiB with its unit, such as 512MiB, 1.5GiB or 2GB`,
		},
		"memory in another case": {
			one("memory: 512mib"),
			`c.yaml:5:13: memory is "512mib"; give at most 1024 TiB with its unit, such as 512MiB, 1.5GiB or 2GB`,
		},
		"memory in an unknown unit": {
			one("memory: 2 PB"),
			`c.yaml:5:13: memory is "2 PB"; give at most 1024 TiB with its unit, such as 512MiB, 1.5GiB or 2GB`,
		},
		"no memory": {
			one("memory: 0GiB"),
			`c.yaml:5:13: memory is "0GiB"; give at most 1024 TiB with its unit, such as 512MiB, 1.5GiB or 2GB`,
		},
		"endless memory": {
			one("memory: 99999999999999999999TiB"),
			`c.yaml:5:13: memory is "99999999999999999999TiB"; give at most 1024 TiB with its unit, such as 512MiB, 1.5GiB ` +
				`or 2GB`,
		},
		"a timeout without a unit": {
			one("timeout: 10"),
			`c.yaml:5:14: timeout is "10"; give a time with its unit, such as 30s, 10m or 1h30m`,
		},
		"a negative grace": {
			one("grace: -1s"),
			"c.yaml:5:12: grace is -1s; give a time of more than 0 and at most 720h",
		},
		"a cache that is a number": {one("cache: 1"), "c.yaml:5:12: cache is the number 1; give true or false"},
		"a cache version of nothing": {
			one(`cache: {version: ""}`),
			`c.yaml:5:22: version "" is no text of 1 to 100 printable characters; give one, such as 2`,
		},
		"a cache for no time": {
			one("cache: {for: 0s}"),
			"c.yaml:5:18: for is 0s; give a time of more than 0 and at most 720h",
		},
		"a cache of another kind": {
			one("cache: {until: 1h}"),
			`c.yaml:5:13: unknown key "until" in cache of stage a; known: for, version`,
		},
		"no attempts":     {one("attempts: 0"), "c.yaml:5:15: attempts is 0; give a whole number from 1 to 100"},
		"half an attempt": {one("attempts: 1.5"), "c.yaml:5:15: attempts is the number 1.5; give a whole number"},
		"an empty image": {
			one(`image: ""`),
			"c.yaml:5:12: image is empty; give one, such as python:3.12, or leave the key out",
		},
		"an unknown objective": {
			top("goal: {minimise: time}"),
			`c.yaml:2:18: minimise is "time"; give cost or latency`,
		},
		"a confidence that is no probability": {
			top("goal: {deadline: 5m, confidence: 95}"),
			`c.yaml:2:34: confidence is "95"; give the probability of meeting the deadline, 0.5 to 0.999`,
		},
		"a confidence without a deadline": {
			top("goal: {confidence: 0.95}"),
			`c.yaml:2:7: confidence has no deadline to meet; give one, such as deadline: 10m`,
		},
		"an endless budget": {
			top("goal: {budget: 1e9}"),
			`c.yaml:2:16: budget is "1e9"; give US dollars, such as 2 or 0.50`,
		},
		"no budget": {
			top("goal: {budget: 0}"),
			"c.yaml:2:16: budget is 0; give more than 0 and less than 4 million US dollars",
		},
		"an absolute path": {
			top("inputs: {raw: /etc/passwd}"),
			`c.yaml:2:15: input raw "/etc/passwd" is absolute; give a path from the directory of the chain or of the command`,
		},
		"a path of the home": {
			top("inputs: {raw: ~/x}"),
			`c.yaml:2:15: input raw "~/x" is absolute; give a path from the directory of the chain or of the command`,
		},
		"code outside": {
			top("code: ../src"),
			`c.yaml:2:7: code "../src" leaves its directory; give a path below it`,
		},
		"an output outside": {
			one("outputs: {m: a/../../m}"),
			`c.yaml:5:18: path of output m "a/../../m" leaves its directory; give a path below it`,
		},
		"an output of everything": {
			one("outputs: {m: .}"),
			`c.yaml:5:18: path of output m "." is the whole directory; give a path below it`,
		},
		"a backslash": {
			one(`outputs: {m: 'a\b'}`),
			`c.yaml:5:18: path of output m "a\\b" has a backslash; write paths with slashes`,
		},
		"an output without a path": {
			one("outputs: {m: {optional: true}}"),
			"c.yaml:5:18: output m has no path; give the file or directory that the program leaves",
		},
		"optional that is a word": {
			one("outputs: {m: {path: m, optional: maybe}}"),
			`c.yaml:5:38: optional is the text "maybe"; give true or false`,
		},
		"two outputs of one path": {
			one("outputs: {m: x, k: ./x}"),
			"c.yaml:5:24: outputs m and k are both at x; keep one of them",
		},
		"an output named result": {
			one("outputs: {result: x}"),
			`c.yaml:5:15: output: name "result" is that of what the program reports: use another`,
		},
		"an unknown stage in files": {
			one("files: {x: prepar.clean}") + "  prepare:\n    run: y\n",
			`c.yaml:5:16: no stage is named "prepar"; nearest: prepare`,
		},
		"an unknown output": {
			one("files: {x: b.clea}") + "  b:\n    run: y\n    outputs: {clean: c}\n",
			`c.yaml:5:16: stage b has no output "clea"; nearest: clean`,
		},
		"an output of none": {
			one("files: {x: b.clean}") + "  b:\n    run: y\n",
			`c.yaml:5:16: stage b has no output "clean"; there are none`,
		},
		"an unknown input": {
			one("files: {x: inputs.raw}"),
			`c.yaml:5:16: the chain has no input "raw"; there are none`,
		},
		"a file that is a path": {
			one("files: {x: data/raw.csv}"),
			`c.yaml:5:16: "data/raw.csv" is no file; write inputs.NAME or STAGE.OUTPUT`,
		},
		"a file that is a result": {
			one("files: {x: b.result.k}") + "  b:\n    run: y\n",
			"c.yaml:5:16: b.result.k is a value and no file; write ${b.result.k} in run or environment",
		},
		"an absolute file": {
			one("files: {/x: inputs.raw}"),
			`c.yaml:5:13: file "/x" is absolute; give a path from the directory of the chain or of the command`,
		},
		"an unknown stage in after": {one("after: b"), `c.yaml:5:12: no stage is named "b"; known: a`},
		"an unknown parameter": {
			top("parameters: {epochs: 3}") + "    environment: {E: '${epoch}'}\n",
			"c.yaml:6:22: ${epoch} is no parameter and no variable of for_each; nearest: epochs; write $${epoch} to leave it " +
				"to the shell",
		},
		"a value of no stage": {
			one("environment: {E: '${b.result.k}'}"),
			`c.yaml:5:22: no stage is named "b"; known: a`,
		},
		"a reference never closed": {
			one("environment: {E: '${epochs'}"),
			"c.yaml:5:22: ${ is never closed; write ${name}, or $${ for the characters themselves",
		},
		"an expansion of the shell": {
			one("environment: {E: '${x:-1}'}"),
			"c.yaml:5:22: ${x:-1} names no value; write ${name} or ${stage.result.key}, or $${x:-1} to leave it to the shell",
		},
		"a bad variable": {
			one("environment: {1A: x}"),
			`c.yaml:5:19: environment variable "1A": use letters, digits and '_', and begin with no digit`,
		},
		"a variable of Spillway": {
			one("environment: {SPILLWAY_RUN: x}"),
			"c.yaml:5:19: environment variable SPILLWAY_RUN: names that begin with SPILLWAY_ are set by Spillway; use another",
		},
		"a NUL": {
			one(`environment: {A: "a\0b"}`),
			"c.yaml:5:22: environment variable A holds a NUL character; leave it out",
		},
		"a parameter of a bad name": {
			top("parameters: {Epochs: 3}"),
			`c.yaml:2:14: parameter: name "Epochs": use a lower-case letter, then letters, digits or '_', at most 40`,
		},
		"a parameter named inputs": {
			top("parameters: {inputs: 3}"),
			`c.yaml:2:14: parameter: name "inputs" is taken by the files of a run's input: use another`,
		},
		"a parameter without default": {
			top("parameters: {epochs: }"),
			"c.yaml:2:22: parameter epochs is empty; give a number, true, false or text",
		},
		"an infinite parameter": {
			top("parameters: {lr: .inf}"),
			"c.yaml:2:18: parameter lr is the number .inf; give a number, true, false or text",
		},
		"a parameter without a type": {
			top("parameters: {lr: {default: 1}}"),
			"c.yaml:2:18: parameter lr has no type; give one of array, boolean, integer, number, string, or only a " +
				"default, such as 3",
		},
		"an unknown type": {
			top("parameters: {lr: {type: float}}"),
			`c.yaml:2:25: unknown type "float"; known: array, boolean, integer, number, string`,
		},
		"a default of another type": {
			top("parameters: {lr: {type: integer, default: x}}"),
			`c.yaml:2:18: default of parameter lr: "x" is no integer: give a value of that type`,
		},
		"an on without a start": {
			top("on: {max_runs: 1}"),
			"c.yaml:2:5: this says not what starts runs; give a subject or a schedule",
		},
		"an input without a schedule": {
			top("on: {subject: a.b, input: {}}"),
			"c.yaml:2:5: input is for scheduled runs; give a schedule as well, or leave the input out",
		},
		"a filter that is a word": {
			top("on: {subject: a.b, filter: csv}"),
			`c.yaml:2:28: filter is the text "csv"; give a mapping of paths in the event to values, such as {kind: csv}`,
		},
		"a second document": {
			one() + "---\nname: m\n",
			"c.yaml:5:1: a second document begins here; write one chain per file",
		},
		"no YAML": {
			"name: n\nstages:\n  a: b: c\n",
			"c.yaml:3:1: not YAML: mapping values are not allowed in this context; look at the indentation, colons and quotes " +
				"here and on the line before",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, problemsOf(t, test.text, chain.Checks{})); diff != "" {
				t.Errorf("problems (-want +got):\n%s\nof:\n%s", diff, test.text)
			}
		})
	}
}

func TestForEachTakesWhatCanBeFannedOutAndNothingElse(t *testing.T) {
	t.Parallel()
	const others = "  b: {run: y, outputs: {o: o}}\n  c: {run: y, for_each: {i: [1]}, outputs: {o: o}}\n"
	for name, test := range map[string]struct{ line, want string }{
		"a list":                   {"for_each: {v: [1, b, true]}", ""},
		"a range":                  {"for_each: {v: {from: 0, to: 10, step: 5}}", ""},
		"a reported list":          {"for_each: {v: b.result.shards}", ""},
		"what every task reported": {"for_each: {v: c.result.loss}", ""},
		"the outputs of a fan-out": {"for_each: {v: c.o}", ""},
		"nothing": {
			"for_each: {}",
			"c.yaml:5:15: for_each is empty; give a variable and its values, such as {seed: [1, 2, 3]}, or leave the key out",
		},
		"no values": {
			"for_each: {v: []}",
			"c.yaml:5:19: variable v has no values; give at least one",
		},
		"a list of lists": {
			"for_each: {v: [[1]]}",
			"c.yaml:5:20: a value of variable v is a list; give a number, true, false or text",
		},
		"a number": {
			"for_each: {v: 3}",
			"c.yaml:5:19: variable v is the number 3; give text, such as [1, 2, 3], {from: 1, to: 3} or prepare.result.shards",
		},
		"an endless range": {
			"for_each: {v: {from: 3}}",
			"c.yaml:5:19: variable v has no end; give a range such as {from: 1, to: 10}, or a list",
		},
		"a range backwards": {
			"for_each: {v: {from: 3, to: 1}}",
			"c.yaml:5:19: variable v ends at 1 before it begins at 3; give a later end",
		},
		"a range of no steps": {
			"for_each: {v: {to: 3, step: 0}}",
			"c.yaml:5:33: step of variable v is 0; give a whole number from 1 to 2147483647",
		},
		"too long a range": {
			"for_each: {v: {to: 2000000000}}",
			"c.yaml:5:19: variable v has more than 10000 values; take fewer, or a larger step",
		},
		"too many combinations": {
			"for_each: {v: {to: 101}, w: {to: 100}}",
			"c.yaml:5:15: for_each has more than 10000 combinations; take fewer values",
		},
		"one directory": {
			"for_each: {v: b.o}",
			`c.yaml:5:19: b.o is one file or directory, and not a list; report a list, such as {"result": {"shards": [...]}}, ` +
				`and fan out over b.result.shards`,
		},
		"an unknown stage": {"for_each: {v: d.o}", `c.yaml:5:19: no stage is named "d"; known: a, b, c`},
		"a word": {
			"for_each: {v: seeds}",
			`c.yaml:5:19: "seeds" is no list of values; give [1, 2, 3], {from: 1, to: 3}, parameters.NAME, STAGE.result.KEY, ` +
				`or STAGE.OUTPUT of a stage that fans out`,
		},
		"a parameter that is no list": {
			"for_each: {v: parameters.p}",
			"c.yaml:5:19: parameter p is no list; give it one, such as [1, 2, 3]",
		},
		"an unknown parameter": {
			"for_each: {v: parameters.q}",
			`c.yaml:5:19: the chain has no parameter "q"; known: p`,
		},
		"a variable that hides a parameter": {"for_each: {p: [1]}", ""},
		"a value where a file is wanted": {
			"for_each: {v: [1]}\n    files: {x: v}",
			"c.yaml:6:16: variable v is a value and no file; write ${v} in run or environment",
		},
		"a file where a value is wanted": {
			"for_each: {v: c.o}\n    environment: {X: '${v}'}",
			"c.yaml:6:22: ${v} is a file; put it where the program finds it with files, such as {path: v}",
		},
		"many files at one place": {
			"files: {x: c.o}",
			"c.yaml:5:16: c.o is one file for each task of c; put them into a directory, such as x/: c.o",
		},
		"many values in one place": {
			"environment: {X: '${c.result.k}'}",
			"c.yaml:5:22: ${c.result.k} is one value for each task of c; fan out over it with for_each",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := one(test.line) + others + "parameters: {p: 1}\n"
			if diff := cmp.Diff(test.want, problemsOf(t, text, chain.Checks{})); diff != "" {
				t.Errorf("problems (-want +got):\n%s\nof:\n%s", diff, text)
			}
		})
	}
}

func TestStagesThatWaitForEachOtherAreNamedInOrder(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"itself": {one("after: a"), "c.yaml:3:3: stages wait for each other: a -> a; take one of these references out"},
		"three, by three kinds of references": {
			"name: n\nstages:\n  start: {run: x}\n  a: {run: x, files: {f: c.o}, after: start}\n  b: {run: 'x ${a.result.k}', " +
				"outputs: {o: o}}\n" +
				"  c: {run: x, for_each: {v: b.result.k}, outputs: {o: o}}\n",
			"c.yaml:4:26: c.o is one file for each task of c; put them into a directory, such as f/: c.o\n" +
				"c.yaml:4:3: stages wait for each other: a -> b -> c -> a; take one of these references out",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := strings.Split(problemsOf(t, test.text, chain.Checks{}), "\n")
			want := strings.Split(test.want, "\n")
			if diff := cmp.Diff(want, got, sorted); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFilesOfAStageHavePlacesOfTheirOwn(t *testing.T) {
	t.Parallel()
	for paths, overlaps := range map[string]bool{
		"{x: inputs.r, y: inputs.r}": false, "{x: inputs.r, ./x: inputs.r}": true, "{x: inputs.r, x/y: inputs.r}": true,
		"{x/y: inputs.r, x/: inputs.r}": true, "{x/y: inputs.r, x/z: inputs.r}": false, "{x: inputs.r, xy: inputs.r}": false,
	} {
		got := problemsOf(t, one("files: "+paths)+"inputs: {r: r}\n", chain.Checks{})
		if (got != "") != overlaps || overlaps && !strings.Contains(got, "would be put over") {
			t.Errorf("%s: got %q, want a problem: %v", paths, got, overlaps)
		}
	}
}

func TestAllProblemsAreGatheredInTheOrderOfTheFile(t *testing.T) {
	t.Parallel()
	text := "name: N\nparameters: {p: [x, {}]}\nstages:\n  a:\n    run: |\n      echo ok\n      echo ${nope}\n    cpu: " +
		"none\n  b:\n    after: [c]\n"
	want := `c.yaml:1:7: name of the chain: name "N": use a lower-case letter, then letters, digits, '-' or '_', at most 40
c.yaml:2:21: a value of parameter p is a mapping; give a number, true, false or text
c.yaml:7:1: ${nope} is no parameter and no variable of for_each; known: p; write $${nope} to leave it to the shell
c.yaml:8:10: cpu is "none"; give 0.001 to 10000 cores, such as 2, 0.5 or 500m
c.yaml:9:3: stage b has no run; give the program to run, such as run: python train.py
c.yaml:10:13: no stage is named "c"; known: a, b`
	if diff := cmp.Diff(want, problemsOf(t, text, chain.Checks{})); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestWhatTheChainNamesMustBeThere(t *testing.T) {
	t.Parallel()
	files := fstest.MapFS{
		"data/raw.csv": {Data: []byte("1,2\n")}, "requirements.txt": {}, "pipe": {Mode: fs.ModeNamedPipe}, "src/train.py": {},
	}
	checks := chain.Checks{Stat: func(path string) (fs.FileInfo, error) { return fs.Stat(files, path) }}
	for name, test := range map[string]struct{ lines, want string }{
		"all there": {"code: src/\npython: {requirements: requirements.txt}\ninputs: {raw: " +
			"data/raw.csv, all: data}", ""},
		"no code": {"code: none", ""},
		"a missing input": {
			"inputs: {raw: data/row.csv}",
			"c.yaml:2:15: input raw: there is no data/row.csv beside the chain; correct the path, or create it",
		},
		"missing code": {"code: lib", "c.yaml:2:7: code: there is no lib beside the chain; correct the path, " +
			"or create it"},
		"code that is a file": {
			"code: requirements.txt",
			"c.yaml:2:7: code: requirements.txt is a file; name the directory that holds it",
		},
		"requirements in a tree": {
			"python: {requirements: data}",
			"c.yaml:2:24: requirements: data is a directory; name a file",
		},
		"an input that is a pipe": {
			"inputs: {raw: pipe}",
			"c.yaml:2:15: input raw: pipe is no ordinary file; name a file or a directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, problemsOf(t, top(strings.Split(test.lines, "\n")...), checks)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBindingsAreCheckedByTheirOwner(t *testing.T) {
	t.Parallel()
	checks := chain.Checks{Binding: func(b wire.Binding) error {
		if b.Pipeline != "n" || b.Subject != "bad..subject" {
			t.Errorf("checked %+v, want the binding with its pipeline", b)
		}
		return errors.New("subject has an empty part: put one dot between the parts")
	}}
	want := "c.yaml:2:6: subject has an empty part: put one dot between the parts"
	if diff := cmp.Diff(want, problemsOf(t, top("on: [{subject: bad..subject}]"), checks)); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}

func TestAStageNamesSecretsAndNeverTheirValues(t *testing.T) {
	t.Parallel()
	parsed := mustParse(t, one("secrets: [openai-api-key, db]"))
	if got, want := parsed.App().Stages[0].Secrets, []string{"openai-api-key", "db"}; !cmp.Equal(got, want) {
		t.Errorf("the stage names %q, want %q", got, want)
	}
	if parsed.Digest() == mustParse(t, one()).Digest() {
		t.Error("a chain with secrets is the build of one without")
	}
	var again chain.Chain
	if err := json.Unmarshal(encoded(t, parsed), &again); err != nil || again.Digest() != parsed.Digest() {
		t.Errorf("it comes back as build %s (%v), want %s", again.Digest(), err, parsed.Digest())
	}
	for text, want := range map[string]string{
		"[OPENAI_API_KEY]": "use a lower-case word", "[path]": "PATH", "[a-b, a_b]": "both the variable A_B",
		"{openai: sk-1}": "secret is a mapping", "[" + strings.Repeat("a, ", 16) + "b]": "both",
		"[a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q]": "at most 16",
	} {
		if problems := problemsOf(t, one("secrets: "+text), chain.Checks{}); !strings.Contains(problems, want) {
			t.Errorf("secrets: %s: %q, want %q", text, problems, want)
		}
	}
}

func TestAStageMayDeclareACache(t *testing.T) {
	t.Parallel()
	none := mustParse(t, one()).Digest()
	for _, c := range []struct {
		cache string
		want  wire.Stage
	}{
		{"false", wire.Stage{NoCache: true}},
		{"true", wire.Stage{Cache: true}},
		{"{}", wire.Stage{Cache: true}},
		{`{version: "2"}`, wire.Stage{Cache: true, CacheVersion: "2"}},
		{"{version: 2, for: 24h}", wire.Stage{Cache: true, CacheVersion: "2", CacheFor: 24 * time.Hour}},
	} {
		parsed := mustParse(t, one("cache: "+c.cache))
		got := parsed.App().Stages[0]
		got = wire.Stage{Cache: got.Cache, CacheVersion: got.CacheVersion, CacheFor: got.CacheFor, NoCache: got.NoCache}
		if !cmp.Equal(got, c.want) || parsed.Digest() == none {
			t.Errorf("cache: %s: got %+v of build %s, want %+v; without a cache the build is %s", c.cache, got, parsed.Digest(),
				c.want, none)
		}
		var again chain.Chain
		if err := json.Unmarshal(encoded(t, parsed), &again); err != nil || again.Digest() != parsed.Digest() {
			t.Errorf("cache: %s: stored and read again it is build %s (error %v), want %s", c.cache, again.Digest(), err,
				parsed.Digest())
		}
	}
}

func TestAChainThatAnEarlierEngineStoredKeepsItsBuildAndItsStagesThatRefuse(t *testing.T) {
	t.Parallel()
	const stored = `{"name":"n","stages":[{"name":"a","script":"x","no_cache":true}]}`
	var c chain.Chain
	if err := json.Unmarshal([]byte(stored), &c); err != nil {
		t.Fatal(err)
	}
	if text := string(encoded(t, c)); !c.App().Stages[0].NoCache || !strings.Contains(text, `"no_cache":true`) ||
		strings.Contains(text, `"cache`) {
		t.Errorf("got %s of %+v, want what was stored", text, c.App().Stages[0])
	}
}

func TestADirectoryIsCleaned(t *testing.T) {
	t.Parallel()
	for directory, want := range map[string]string{
		".": "", "./": "", ".src": `"directory":".src"`,
		"a/./b/": `"directory":"a/b"`,
	} {
		got := string(encoded(t, mustParse(t, one("directory: "+directory))))
		if want == "" && strings.Contains(got, "directory") || !strings.Contains(got, want) {
			t.Errorf("%s: got %s, want %s", directory, got, want)
		}
	}
}

func TestAnchorsAndMergesAreReadAsTheyStand(t *testing.T) {
	t.Parallel()
	parsed := mustParse(t, `name: n
stages:
  a: &common
    run: x
    cpu: 2
    attempts: 1
  b:
    <<: *common
    cpu: 3
    after: [a]
`)
	plain := mustParse(t, "name: n\nstages:\n  a: {run: x, cpu: 2, attempts: 1}\n  b: {run: x, cpu: 3, attempts: 1, "+
		"after: [a]}\n")
	if parsed.Digest() != plain.Digest() {
		t.Errorf("got %s, want %s", encoded(t, parsed), encoded(t, plain))
	}
}

func TestAFileThatStandsForBillionsIsRefused(t *testing.T) {
	t.Parallel()
	var bomb strings.Builder
	bomb.WriteString("name: n\non:\n  filter:\n    a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&bomb, "    a%d: &a%d [%s]\n", i, i,
			strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	bomb.WriteString("stages: {a: {run: x}}\n")
	for name, text := range map[string]string{
		"aliases of aliases": bomb.String(),
		"an endless alias":   "name: n\nstages: &s\n  a: *s\n",
		"an endless merge":   "name: n\nstages: &s\n  <<: *s\n",
		"deep nesting":       "name: n\nstages: " + strings.Repeat("[", 200) + strings.Repeat("]", 200) + "\n",
	} {
		if got := problemsOf(t, text, chain.Checks{}); !strings.Contains(got, "use fewer aliases") &&
			!strings.Contains(got, "contains itself") {
			t.Errorf("%s: got %q, want a refusal", name, got)
		}
	}
	if got := problemsOf(t, strings.Repeat("#", 1<<20+1), chain.Checks{}); !strings.Contains(got,
		"a chain has at most 1048576") {
		t.Errorf("a file of more than 1 MiB: got %q", got)
	}
}

func TestTheChainOfTheDocumentationIsRight(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var documented strings.Builder
	for line := range strings.SplitSeq(string(source), "\n") {
		if text, found := strings.CutPrefix(line, "//\t"); found {
			documented.WriteString(text + "\n")
		}
	}
	if fromDoc := mustParse(t, documented.String()); fromDoc.Digest() != mustParse(t, churn).Digest() {
		t.Errorf("got %s, want %s", encoded(t, fromDoc), encoded(t, mustParse(t, churn)))
	}
}

// FuzzParse finds texts that crash the reader, or that it takes and cannot describe.
func FuzzParse(f *testing.F) {
	f.Add([]byte(churn))
	f.Add([]byte(one("for_each: {v: {from: 1, to: 3}}", "environment: {X: '${v}'}")))
	f.Add([]byte("name: &a n\nstages: {a: {run: *a, <<: [{cpu: 1}, {cpu: 2}]}}"))
	f.Add([]byte("name: n\nstages: &s\n  <<: *s\n"))
	f.Add([]byte(one("memory: 1e400GiB", "timeout: 99999999999h", "after: [a, a]")))
	if seeds, err := filepath.Glob("testdata/*.yaml"); err == nil {
		for _, seed := range seeds {
			if text, err := os.ReadFile(seed); err == nil {
				f.Add(text)
			}
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		parsed, err := chain.Parse("c.yaml", text, chain.Checks{})
		if err != nil {
			problems, ok := errors.AsType[*chain.Error](err)
			if !ok || len(problems.Problems) == 0 {
				t.Fatalf("an error without problems: %v", err)
			}
			return
		}
		if app := parsed.App(); len(app.Stages) == 0 || app.Name == "" {
			t.Fatalf("accepted without stages or name: %+v", app)
		}
		if restored := decoded(t, encoded(t, parsed)); restored.Digest() != parsed.Digest() {
			t.Fatalf("%s restores as %s", encoded(t, parsed), encoded(t, restored))
		}
		if err := decoded(t, encoded(t, packed(t, parsed))).Validate(chain.Checks{}); err != nil {
			t.Fatalf("what a file says is not valid: %v", err)
		}
	})
}
