package chain_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/chain"
)

func TestEveryChainOfAFileIsValid(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		churn,
		one("for_each: {v: {from: 1, to: 3}, w: [a, 1.50, true, 12345678901234567890123]}",
			"environment: {X: '${v}', Y: \"a\\tb\"}"),
		one("cpu: 0.5", "memory: 1.5GiB", "timeout: 1h30m", "grace: 5s", "attempts: 7", "directory: a/b", "image: x:1",
			"cache: {for: 2h, version: 3}"),
		one("cache: true"), one("cache: false"), one("directory: ."),
		one("run: [sh, '-c', '', '# no comment', '<<']") +
			"  b: {run: x, after: a, files: {all/: inputs.i}}\ninputs: {i: x y}\ncode: none\n",
		"name: n\ngoal: {deadline: 1h, budget: 123456.78, minimise: latency}\nparameters: {a: 3, b: 3.0, c: [1, x], d: " +
			"{type: string}, e: {type: number, default: 3}}\n" +
			"on: {subject: a.b, filter: {a.b: [1, {x: null}]}, goal: {budget: 0.3}}\nstages: {s: {run: 'echo ${a} $${b}'}}\n",
	} {
		if strings.Contains(text, "run: [sh") { // the only run of the stage
			text = strings.Replace(text, "    run: x\n", "", 1)
		}
		c := decoded(t, encoded(t, packed(t, mustParse(t, text))))
		if err := c.Validate(chain.Checks{}); err != nil {
			t.Errorf("%v\nof:\n%s", err, text)
		}
	}
	single, err := chain.Single("job")
	if err != nil {
		t.Fatal(err)
	}
	if err := decoded(t, encoded(t, single)).Validate(chain.Checks{}); err != nil {
		t.Error(err)
	}
}

func TestAttackAChainThatNoFileCouldSayIsInvalid(t *testing.T) {
	t.Parallel()
	stages := func(list string) string { return `{"name":"c","stages":[` + list + `]}` }
	more := func(fields string) string { return `{"name":"c","stages":[{"name":"a","script":"x"}],` + fields + `}` }
	for name, test := range map[string]struct{ text, want string }{
		"nothing":               {`{}`, `name: name of the chain`},
		"a name that is a path": {`{"name":"../x","stages":[{"name":"a","script":"x"}]}`, "name: name of the chain"},
		"no stages":             {stages(""), "stages: stages is empty"},
		"a stage twice": {
			stages(`{"name":"a","script":"x"},{"name":"a","script":"x"}`),
			"stages.a: it is there twice",
		},
		"no run":   {stages(`{"name":"a"}`), "stage a has no run"},
		"two runs": {stages(`{"name":"a","script":"x","arguments":["x"]}`), "no file says this"},
		"a cycle": {
			stages(`{"name":"a","script":"x","after":["b"]},{"name":"b","script":"x","after":["a"]}`),
			"wait for each other: ",
		},
		"itself": {stages(`{"name":"a","script":"x","after":["a"]}`), "wait for each other: a -> a"},
		"an unknown stage": {
			stages(`{"name":"a","script":"x","after":["b"]}`),
			`stages.a.after[0]: no stage is named "b"`,
		},
		"an unknown output": {
			stages(
				`{"name":"a","script":"x"},{"name":"b","script":"x","files":[{"path":"f","from":"a.out"}]}`),
			`stages.b.files.f: stage a has no output "out"`,
		},
		"an unknown value":  {stages(`{"name":"a","script":"x ${v}"}`), "stages.a.run: ${v} is no parameter"},
		"an unknown result": {stages(`{"name":"a","arguments":["x","${b.result.k}"]}`), `no stage is named "b"`},
		"a path that leaves": {
			stages(`{"name":"a","script":"x","outputs":[{"name":"o","path":"../x"}]}`),
			"leaves its directory",
		},
		"a path that is absolute": {
			stages(`{"name":"a","script":"x","files":[{"path":"/etc/passwd","from":"inputs.i"}]}`),
			"is absolute",
		},
		"a path not cleaned": {stages(`{"name":"a","script":"x","directory":"x/../y"}`), "no file says this"},
		"a name of a variable": {
			stages(`{"name":"a","script":"x","environment":{"LD PRELOAD":"x"}}`),
			"environment variable",
		},
		"a variable of ours": {
			stages(`{"name":"a","script":"x","environment":{"SPILLWAY_REPORT":"x"}}`),
			"are set by Spillway",
		},
		"a negative size":          {stages(`{"name":"a","script":"x","memory_bytes":-1}`), "stages.a.memory: memory is"},
		"too large a size":         {stages(`{"name":"a","script":"x","cpu_milli":9000000000}`), "stages.a.cpu: cpu is"},
		"a negative count of GPUs": {stages(`{"name":"a","script":"x","gpu":{"count":-1}}`), "stages.a.gpu: gpu is -1"},
		"too many GPUs": {
			stages(`{"name":"a","script":"x","gpu":{"count":9000000000000000000}}`), "stages.a.gpu: gpu is 9000000000000000000",
		},
		"negative memory of GPUs": {
			stages(`{"name":"a","script":"x","gpu":{"count":1,"memory_bytes":-1}}`), "stages.a.gpu.memory: memory is",
		},
		"a GPU without a count": {
			stages(`{"name":"a","script":"x","gpu":{"class":"h100"}}`), "no file says this",
		},
		"a negative timeout": {stages(`{"name":"a","script":"x","timeout_ns":-1}`), "stages.a.timeout: timeout is"},
		"negative attempts":  {stages(`{"name":"a","script":"x","max_attempts":-1}`), "stages.a.attempts: attempts is"},
		"no values":          {stages(`{"name":"a","script":"x","for_each":[{"name":"v"}]}`), "has no values"},
		"a value that is none": {
			stages(`{"name":"a","script":"x","for_each":[{"name":"v","values":[{}]}]}`),
			"give a number",
		},
		"too many tasks": {stages(`{"name":"a","script":"x","for_each":[` + manyValues("v") + `,` + manyValues("w") +
			`]}`), "more than 10000 combinations"},
		"a type that is none":  {more(`"parameters":[{"name":"p","type":"fun"}]`), `unknown type "fun"`},
		"a default of another": {more(`"parameters":[{"name":"p","type":"integer","default":"x"}]`), "is no integer"},
		"not in order": {
			more(`"parameters":[{"name":"q","type":"string"},{"name":"p","type":"string"}]`),
			"no file says this",
		},
		"a negative budget": {more(`"goal":{"budget_picodollars":-1}`), "goal: budget"},
		"a goal of a binding": {
			more(`"bindings":[{"pipeline":"c","subject":"a.b","goal":{"minimise":"fun"}}]`),
			`on[0].goal: objective "fun"`,
		},
		"another's binding":    {more(`"bindings":[{"pipeline":"d","subject":"a.b"}]`), "no file says this"},
		"a binding to nothing": {more(`"bindings":[{"pipeline":"c"}]`), "give a subject or a schedule"},
		"a wrong binding":      {more(`"bindings":[{"pipeline":"c","subject":"refused"}]`), "on[0]: refused"},
		"not packed":           {more(`"code":{"path":"."}`), "code: chain c: code at . is not packed"},
		"no digest": {
			more(`"code":{"path":".","tree":true,"artifact":{"digest":"../../x"}}`),
			"code: its artifact has no digest",
		},
		"packed from nowhere": {
			more(`"code":{"tree":true,"artifact":{"digest":"` + strings.Repeat("ab", 32) + `"}}`),
			"no file says this",
		},
		"deep": {more(`"bindings":[{"pipeline":"c","schedule":"@daily","input":` +
			strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}]`), "nested more than"},
		"a single that has more": {
			`{"name":"c","single":true,"stages":[{"name":"c","script":"x"}]}`,
			"nothing but its name",
		},
		"a single of two": {
			`{"name":"c","single":true,"stages":[{"name":"c"},{"name":"d"}]}`,
			"nothing but its name",
		},
		"a single of no name": {`{"name":"inputs","single":true,"stages":[{"name":"inputs"}]}`, "use another"},
	} {
		err := decoded(t, []byte(test.text)).Validate(chain.Checks{Binding: func(b wire.Binding) error {
			if b.Subject == "refused" {
				return errors.New("refused")
			}
			return nil
		}})
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
		if _, ok := errors.AsType[*chain.Error](err); !ok {
			t.Errorf("%s: got an error of type %T, want *chain.Error", name, err)
		}
	}
}

// manyValues is a variable of 200 values.
func manyValues(name string) string {
	return `{"name":"` + name + `","values":[` + strings.TrimSuffix(strings.Repeat("1,", 200), ",") + `]}`
}

// FuzzValidate finds chains that crash it, or that it takes and that cannot be described.
func FuzzValidate(f *testing.F) {
	f.Add(encoded(f, packed(f, mustParse(f, churn))))
	f.Add([]byte(
		`{"name":"c","stages":[{"name":"a","script":"x","for_each":[{"name":"i","values":[1]}]}],"parameters":[{"name":"p",` +
			`"type":"integer","default":3}]}`))
	f.Add([]byte(
		`{"name":"c","stages":[{"name":"a","arguments":["${p}"]}],"parameters":[{"name":"p","type":"fun","default":{}}],` +
			`"bindings":[{"subject":"a.>"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var c chain.Chain
		if json.Unmarshal(text, &c) != nil || c.Validate(chain.Checks{}) != nil {
			return
		}
		if app := c.App(); len(app.Stages) == 0 || app.Name == "" {
			t.Fatalf("accepted without stages or name: %+v", app)
		}
	})
}
