package imports_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/command/imports"
)

func files(texts map[string]string) fstest.MapFS {
	found := fstest.MapFS{}
	for name, text := range texts {
		found[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return found
}

func TestWhatACommandRunsIsReadInItsTextAndItsCode(t *testing.T) {
	t.Parallel()
	code := files(map[string]string{
		"fit.py": `"""Fits a model.

import nothing_of_this
"""
from __future__ import annotations
import os, sys as system; import numpy as np
import spillway
from spillway.huggingface import SpillwayCallback
from torch import (
    nn,  # import this_neither
    optim)
text = 'import nor_this'
if system.argv: import yaml
from layers import attention
from . import helpers
def late():
    from sklearn.linear_model \
        import Ridge
for line in open(os.devnull):
    important = from_here = "import that"
`,
		"layers/__init__.py":  "import einops.layers\n",
		"layers/attention.py": "from .deep import mask\nimport os.path\n",
		"layers/deep.py":      "import opt_einsum\n",
		"helpers.py":          "import tqdm\nimport fit\n",
		"plain.py":            "import json\n",
		"src/main.py":         "import beside\nimport json\n",
		"src/beside.py":       "import requests\n",
	})
	fit := []string{"einops", "numpy", "opt_einsum", "sklearn", "torch", "tqdm", "yaml"}
	for _, test := range []struct {
		name, directory string
		arguments       []string
		want            imports.Program
	}{
		{
			"a program and what it imports of its own", "",
			[]string{"python3", "fit.py", "--epochs", "3"},
			imports.Program{Name: "python3", Imports: fit},
		},
		{
			"only the standard library", "",
			[]string{"python3", "-u", "-X", "dev", "plain.py"},
			imports.Program{Name: "python3", Imports: []string{}},
		},
		{
			"a directory in which it starts", "src",
			[]string{"/usr/bin/python3.12", "main.py"},
			imports.Program{Name: "python3.12", Imports: []string{"requests"}},
		},
		{
			"a program in another directory", "",
			[]string{"python", "src/main.py"},
			imports.Program{Name: "python", Imports: []string{"requests"}},
		},
		{
			"a module of the program", "",
			[]string{"python3", "-m", "layers.attention"},
			imports.Program{Name: "python3", Imports: []string{"einops", "opt_einsum"}},
		},
		{
			"a module of others", "",
			[]string{"python3", "-m", "pytest", "-q"},
			imports.Program{Name: "python3", Imports: []string{"pytest"}},
		},
		{"a text", "", []string{"python3", "-Ic", "import torch"}, imports.Program{Name: "python3", Imports: nil}},
		{
			"a text that is read", "",
			[]string{"python3", "-c", "import torch, json"},
			imports.Program{Name: "python3", Imports: []string{"torch"}},
		},
		{"a file that is not there", "", []string{"python3", "none.py"}, imports.Program{Name: "python3", Imports: nil}},
		{"a file of the host", "", []string{"python3", "/opt/fit.py"}, imports.Program{Name: "python3", Imports: nil}},
		{"what comes on standard input", "", []string{"python3"}, imports.Program{Name: "python3", Imports: nil}},
		{
			"a launcher", "",
			[]string{"torchrun", "--nproc-per-node", "2", "plain.py"},
			imports.Program{Name: "torchrun", Imports: []string{}},
		},
		{"another program", "", []string{"./fit", "data.csv"}, imports.Program{Name: "fit", Imports: nil}},
		{
			"a script of a shell", "",
			[]string{"sh", "-e", "-c", "mkdir -p out\nA=1 nice -n 5 python3 \"fit.py\" > out/log # slow"},
			imports.Program{Name: "python3", Imports: fit},
		},
		{
			"a script that goes to a directory", "",
			[]string{"bash", "-c", "cd src && python3 main.py"},
			imports.Program{Name: "python3", Imports: []string{"requests"}},
		},
		{
			"a script with two programs", "",
			[]string{"sh", "-c", "python3 plain.py; python3 src/main.py"},
			imports.Program{Name: "python3", Imports: []string{"requests"}},
		},
		{
			"a script of which one program is not known", "",
			[]string{"sh", "-c", "python3 fit.py; python3 $1"},
			imports.Program{Name: "python3", Imports: nil},
		},
		{
			"a script that runs one program", "",
			[]string{"sh", "-c", "exec ./fit data.csv"},
			imports.Program{Name: "fit", Imports: nil},
		},
		{
			"a script of small programs", "",
			[]string{"sh", "-c", "cat rows/* | uniq > all.txt; echo 'python3 fit.py'"},
			imports.Program{Name: "sh", Imports: nil},
		},
		{
			"a script of a builtin", "",
			[]string{"sh", "-c", `echo "$1 $(($2 * $3))" > out.txt`, "sh", "a"},
			imports.Program{Name: "sh", Imports: nil},
		},
		{
			"a script that mainly runs something large", "",
			[]string{"sh", "-c", "mkdir x\njava -jar fit.jar | grep loss"},
			imports.Program{Name: "java", Imports: nil},
		},
		{"a script in a file", "", []string{"sh", "run.sh"}, imports.Program{Name: "sh", Imports: nil}},
		{"nothing", "", nil, imports.Program{}},
	} {
		if diff := cmp.Diff(test.want, imports.Of(code, test.directory, test.arguments)); diff != "" {
			t.Errorf("%s: %q (-want +got):\n%s", test.name, test.arguments, diff)
		}
	}
}

func TestWhatIsReadOfAProgramIsBounded(t *testing.T) {
	t.Parallel()
	many := map[string]string{"long.py": strings.Repeat("x = 1\n", 1<<16) + "import torch\n"}
	for i := range 200 {
		many[fmt.Sprintf("m%d.py", i)] = fmt.Sprintf("import m%d\n", i+1)
		many["wide.py"] += fmt.Sprintf("import module_%03d\n", i)
	}
	many["wide.py"] += "import " + strings.Repeat("x", imports.MostName+1)
	if got := imports.Of(files(many), ".", []string{"python3", "m0.py"}); got.Imports != nil {
		t.Errorf("a program of 200 files: got %q, want that nothing is known", got.Imports)
	}
	if got := imports.Of(files(many), ".", []string{"python3", "long.py"}); got.Imports != nil {
		t.Errorf("a file of 400 KB: got %q, want that nothing is known", got.Imports)
	}
	if got := imports.Of(files(many), ".", []string{"python3", "wide.py"}); len(got.Imports) != imports.Most {
		t.Errorf("a file that imports 200 modules: got %d, want %d", len(got.Imports), imports.Most)
	}
}

func FuzzOf(f *testing.F) {
	f.Add("import a\nfrom b import c", "python3 x.py")
	f.Add(`'''`, `sh -c "'`)
	f.Fuzz(func(t *testing.T, text, script string) {
		for _, arguments := range [][]string{{"python3", "x.py"}, {"sh", "-c", script}, strings.Fields(script)} {
			got := imports.Of(files(map[string]string{"x.py": text}), ".", arguments)
			if len(got.Imports) > imports.Most {
				t.Errorf("%q and %q: got %d modules", text, arguments, len(got.Imports))
			}
		}
	})
}
