package engine_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce/enforcetest"
)

// heavy is a module of others that takes 200 MiB wherever it is imported.
const heavy = `weights = b"x" * (200 << 20)
`

// A second, different script that imports the same heavy module begins with what the first one took, and not with a
// part of the host.
func TestAScriptBeginsWithWhatOneTookThatImportsTheSame(t *testing.T) {
	t.Parallel()
	needPython(t)
	enforcetest.Need(t)
	e := startEngine(t, t.TempDir(), "", "--no-burst")
	records := e.followRecords()
	modules := directory(t, map[string]string{"heavytensors.py": heavy})
	run := func(name, script string) predictor.Record {
		dir := directory(t, map[string]string{
			"chain.yaml": "name: " + name + "\nenvironment: {PYTHONPATH: '" + modules + "'}\nstages:\n  " + name +
				":\n    run: python3 " + name + ".py\n",
			name + ".py": script,
		})
		code, stdout, stderr := command(t, t.Context(), e.state, "run", filepath.Join(dir, "chain.yaml"))
		if code != cli.ExitOK {
			t.Fatalf("exit code %d\n%s\n%s\n%s", code, stdout, stderr, e.printed())
		}
		var found []predictor.Record
		e.until("the Record of "+name+" comes", func() bool {
			found = records(func(r predictor.Record) bool { return r.Stage.Name == name })
			return len(found) > 0
		})
		return found[0]
	}
	first := run("fit", "import heavytensors\nprint(len(heavytensors.weights))\n")
	plain := run("report", "import json\nprint(json.dumps({}))\n")
	second := run("score", "import sys\nfrom heavytensors import weights\nsys.exit(len(weights) != 200 << 20)\n")
	told := func(r predictor.Record) string {
		expected := r.Predicted.Memory
		return r.Stage.Name + " took " + r.Usage.PeakMemory.String() + ", expected " + quantity.Bytes(expected.Mid).String() +
			", granted " + r.Grant.Memory.String() + " at its end: " + r.Predicted.Source
	}
	want := "like 1 other stage with python3 that import heavytensors"
	if !strings.Contains(second.Predicted.Source, want) {
		t.Errorf("want a prediction %q: %s", want, told(second))
	}
	if mid := quantity.Bytes(second.Predicted.Memory.Mid); mid < 40*quantity.MiB || mid > quantity.GiB {
		t.Errorf("want it to begin with about what the first took: %s; first: %s", told(second), told(first))
	}
	if second.Grant.Memory > quantity.GiB || first.Grant.Memory > quantity.GiB {
		t.Errorf("want no part of the host: %s; first: %s", told(second), told(first))
	}
	if strings.Contains(plain.Predicted.Source, "heavytensors") ||
		plain.Predicted.Memory.Mid > second.Predicted.Memory.Mid {
		t.Errorf("want less for a script that imports nothing heavy: %s", told(plain))
	}
}
