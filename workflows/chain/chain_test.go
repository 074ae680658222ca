package chain_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/jsonschema-go/jsonschema"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

var sorted = cmpopts.SortSlices(func(a, b string) bool { return a < b })

func encoded(tb testing.TB, c chain.Chain) []byte {
	tb.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		tb.Fatal(err)
	}
	return text
}

func decoded(tb testing.TB, text []byte) chain.Chain {
	tb.Helper()
	var c chain.Chain
	if err := json.Unmarshal(text, &c); err != nil {
		tb.Fatal(err)
	}
	return c
}

// ref is a reference to bytes that nobody reads here.
func ref(digit string) activities.Ref {
	return activities.Ref{Digest: strings.Repeat(digit, 64), Bytes: 10}
}

// packed packs everything that the chain names, each as what it usually is.
func packed(tb testing.TB, c chain.Chain) chain.Chain {
	tb.Helper()
	artifacts := map[string]chain.Packed{}
	for i, local := range c.Files() {
		artifacts[local.Use] = chain.Packed{Artifact: ref(string("abcdef"[i%6])), Tree: local.Use == "code"}
	}
	c, err := c.With(artifacts)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func TestAChainSaysWhatMustBePackedAndTakesIt(t *testing.T) {
	t.Parallel()
	c := mustParse(t, churn)
	want := []chain.Local{
		{Use: "code", Path: "."},
		{Use: "requirements", Path: "requirements.txt"},
		{Use: "inputs.raw", Path: "data/raw.csv"},
	}
	if diff := cmp.Diff(want, c.Files()); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	all := func() map[string]chain.Packed {
		return map[string]chain.Packed{
			"code": {Artifact: ref("a"), Tree: true}, "requirements": {Artifact: ref("b")}, "inputs.raw": {Artifact: ref("c")},
		}
	}
	with, err := c.With(all())
	if err != nil {
		t.Fatal(err)
	}
	other := all()
	other["inputs.raw"] = chain.Packed{Artifact: ref("d")}
	changed, err := c.With(other)
	if err != nil {
		t.Fatal(err)
	}
	digests := []string{c.Digest(), with.Digest(), changed.Digest(), mustParse(t, churn+"    cpu: 2\n").Digest()}
	if distinct := slices.Compact(slices.Sorted(slices.Values(digests))); len(distinct) != 4 || len(c.Digest()) != 12 {
		t.Errorf("digests %v: want four different ones of 12 digits", digests)
	}
	if mustParse(t, churn).Digest() != c.Digest() || decoded(t, encoded(t, with)).Digest() != with.Digest() {
		t.Error("the digest of the same chain changes")
	}
	for use, bad := range map[string]chain.Packed{
		"code": {Artifact: ref("a")}, "requirements": {Artifact: ref("b"), Tree: true}, "inputs.raw": {},
	} {
		wrong := all()
		wrong[use] = bad
		if _, err := c.With(wrong); err == nil || !strings.Contains(err.Error(), strings.TrimPrefix(use, "inputs.")) {
			t.Errorf("%s packed as %+v: got %v, want a refusal", use, bad, err)
		}
	}
}

func TestAChainDescribesItselfAsAnAppDoes(t *testing.T) {
	t.Parallel()
	app := mustParse(t, churn).App()
	if app.Name != "churn" || len(app.Pipelines) != 1 || app.Pipelines[0].Name != "churn" {
		t.Fatalf("app %+v: want one pipeline of the app's name", app)
	}
	text, err := json.MarshalIndent(app.Stages, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	wantStages := `[
  {"name":"prepare","declared":{"cpu_milli":0,"memory_bytes":1073741824},"max_attempts":3,
    "command":true},
  {"name":"train","declared":{"cpu_milli":0,"memory_bytes":0},"max_attempts":3,"command":true},
  {"name":"pick","declared":{"cpu_milli":0,"memory_bytes":0},"max_attempts":3,"command":true}]`
	if diff := cmp.Diff(value(t, wantStages), value(t, string(text))); diff != "" {
		t.Errorf("stages (-want +got):\n%s", diff)
	}
	pipeline, err := json.Marshal(app.Pipelines[0])
	if err != nil {
		t.Fatal(err)
	}
	wantPipeline := `{"name":"churn","validates":true,"goal":{"deadline_ns":1800000000000,"confidence":0.95,
	"budget_picodollars":2000000000000,"minimise":"cost"},
	"bindings":[{"pipeline":"churn","subject":"data.new","filter":{"kind":"csv"},"max_runs":1,"goal":{}},
	{"pipeline":"churn","schedule":"@daily","input":{"epochs":10},"goal":{}}],
	"input_schema":{"type":"object","additionalProperties":false,
	"properties":{"epochs":{"type":"integer","default":3},"lr":{"type":"number","default":0.1},
	"inputs":{"type":"object",
	"description":"artifacts that take the place of inputs of the chain","additionalProperties":false,
	"properties":{"raw":{"type":"object","additionalProperties":false,"required":["digest","bytes"],
	"properties":{"digest":{"type":"string"},"bytes":{"type":"integer"}}}}}}}}`
	if diff := cmp.Diff(value(t, wantPipeline), value(t, string(pipeline))); diff != "" {
		t.Errorf("pipeline (-want +got):\n%s", diff)
	}
}

func TestAStageOfAChainIsAProgramThatAHostRuns(t *testing.T) {
	t.Parallel()
	c := mustParse(t, one("cpu: 2", "memory: 1GiB", "gpu: {count: 2, class: h100}", "attempts: 2",
		"cache: {version: \"2\", for: 24h}"))
	stages := c.Stages()
	if len(stages) != 1 || stages[0].Name() != "a" {
		t.Fatalf("stages %v, want a", stages)
	}
	want := wire.Stage{
		Name: "a", Declared: quantity.Size{
			CPU: 2 * quantity.Core, Memory: quantity.GiB, GPU: 2 * quantity.Core, DeviceClass: "h100",
		},
		MaxAttempts: 2, Command: true,
		Cache: true, CacheVersion: "2", CacheFor: 24 * time.Hour,
	}
	if diff := cmp.Diff(want, stages[0].Describe()); diff != "" {
		t.Errorf("description (-want +got):\n%s", diff)
	}
	plain := mustParse(t, one("cache: false")).Stages()[0].Describe()
	want = wire.Stage{Name: "a", MaxAttempts: 3, Command: true, NoCache: true}
	if diff := cmp.Diff(want, plain); diff != "" {
		t.Errorf("without hints (-want +got):\n%s", diff)
	}
	if _, err := stages[0].Call(t.Context(), nil); !errors.Is(err, runs.ErrHostRuns) ||
		!strings.Contains(err.Error(), "stage a") {
		t.Errorf("called: %v, want ErrHostRuns and the stage", err)
	}
	proposed := wire.Proposal{Size: quantity.Size{CPU: 500}}
	if size, err := stages[0].Recommend(t.Context(), nil, proposed); size != proposed.Size || err != nil {
		t.Errorf("recommends %+v, %v; want what is proposed", size, err)
	}
}

func TestAStageOfAChainNeedNotBeListed(t *testing.T) {
	t.Parallel()
	mustParse(t, one()).Stages()
	if err := runs.CheckListed(nil); err != nil {
		t.Errorf("got %v, want that a stage made from data is no declaration", err)
	}
}

func TestTheInputSchemaTakesWhatARunTakes(t *testing.T) {
	t.Parallel()
	c := mustParse(t, top("parameters: {epochs: 3, lr: 0.1, tag: x, fast: true, rates: [1, 2], path: {type: string}}",
		"inputs: {raw: r}"))
	var schema jsonschema.Schema
	if err := json.Unmarshal(c.App().Pipelines[0].Input, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for input, want := range map[string]bool{
		`{"path":"p"}`:                       true,
		`{}`:                                 false, // path has no default
		`{"path":"p","epochs":5,"lr":1}`:     true,
		`{"path":"p","epochs":5.0}`:          true,
		`{"path":"p","epochs":5.5}`:          false,
		`{"path":"p","lr":1e-5}`:             true,
		`{"path":"p","epochs":"5"}`:          false,
		`{"path":"p","epoch":5}`:             false,
		`{"path":"p","fast":false,"tag":""}`: true,
		`{"path":"p","fast":1}`:              false,
		`{"path":"p","rates":[]}`:            true,
		`{"path":"p","rates":[1,"a",true]}`:  true,
		`{"path":"p","rates":[[1]]}`:         false,
		`{"path":"p","rates":[null]}`:        false,
		`{"path":"p","rates":3}`:             false,
		`{"path":null}`:                      false,
		`{"path":"p","inputs":{"raw":{"digest":"` + strings.Repeat("a", 64) + `","bytes":1}}}`: true,
		`{"path":"p","inputs":{"row":{"digest":"` + strings.Repeat("a", 64) + `","bytes":1}}}`: false,
		`{"path":"p","inputs":{}}`: true,
	} {
		if err := resolved.Validate(value(t, input)); (err == nil) != want {
			t.Errorf("the schema on %s: got %v, want it to be taken: %v", input, err, want)
		}
		_, err := start(t, packed(t, c), json.RawMessage(input), echo)
		if (err == nil) != want {
			t.Errorf("a run with %s: got %v, want it to be taken: %v", input, err, want)
		}
	}
}

func TestASingleIsTheSameBuildWhateverItRuns(t *testing.T) {
	t.Parallel()
	first, err := chain.Single("train")
	if err != nil {
		t.Fatal(err)
	}
	if files := first.Files(); len(files) > 0 {
		t.Errorf("files %v: want none, the command comes with the run", files)
	}
	app := first.App()
	if len(app.Stages) != 1 || !app.Stages[0].Command || app.Stages[0].Name != "train" ||
		app.Pipelines[0].Name != "train" {
		t.Errorf("app %+v: want one command stage of the pipeline's name", app)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(app.Pipelines[0].Input, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	input, err := json.Marshal(chain.SingleInput{Command: wire.Command{
		Arguments: []string{"python", "train.py"}, Code: ref("a"), Environment: map[string]string{"A": "b"},
		Files: []wire.CommandFile{{Path: "x", Artifact: ref("b")}}, Outputs: []wire.CommandOutput{{Name: "m", Path: "m"}},
		KeepChanged: true,
	}, MaxAttempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	if err := resolved.Validate(value(t, string(input))); err != nil {
		t.Errorf("the schema refuses %s: %v", input, err)
	}
	if err := resolved.Validate(value(t, `{"arguments":["x"]}`)); err == nil {
		t.Error("the schema takes an input without a command")
	}
	if restored := decoded(t, encoded(t, first)); restored.Digest() != first.Digest() {
		t.Error("the digest changes when it is stored")
	}
	if _, err := chain.Single("No Name"); err == nil {
		t.Error("a name that is none was accepted")
	}
}

// value is a JSON text as Go values.
func value(tb testing.TB, text string) (decoded any) {
	tb.Helper()
	if err := json.Unmarshal([]byte(text), &decoded); err != nil {
		tb.Fatalf("%v in %s", err, text)
	}
	return decoded
}

// What was read in the code of a chain is in the commands of its runs, and whoever runs them permits it; the chain is
// one that a file says.
func TestAChainTellsWhatItsProgramsImport(t *testing.T) {
	t.Parallel()
	var asked []string
	c := packed(t, mustParse(t, permitted)).Reading(func(directory string, arguments []string) (string, []string) {
		asked = append(asked, directory+": "+strings.Join(arguments, " "))
		if directory == "sub" {
			return "python", []string{"numpy", "torch"}
		}
		return "python", []string{}
	})
	want := []string{": sh -e -c python list.py", "sub: python fan.py --n=${n}", `: sh -e -c echo $((${size} + 1)) > sum`}
	if diff := cmp.Diff(want, asked); diff != "" {
		t.Errorf("what was read (-want +got):\n%s", diff)
	}
	c = decoded(t, encoded(t, c))
	if err := c.Validate(chain.Checks{}); err != nil {
		t.Error(err)
	}
	r := &recorder{answer: echo}
	if _, err := start(t, c, nil, r.run); err != nil {
		t.Fatal(err)
	}
	for task, command := range r.commands {
		if err := c.Permits(task[:len(task)-2], command); err != nil {
			t.Errorf("%s, as the run made it: %v", task, err)
		}
		imports := []string{}
		if strings.HasPrefix(task, "fan") {
			imports = []string{"numpy", "torch"}
		}
		if command.Program != "python" || !reflect.DeepEqual(command.Imports, imports) {
			t.Errorf("%s is %s and imports %#v, want python and %#v", task, command.Program, command.Imports, imports)
		}
	}
}
