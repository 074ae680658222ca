package config_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"

	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/cmd/internal/config"
)

// values are what flags of tests say.
type values struct {
	color  string
	size   int
	wait   time.Duration
	quick  bool
	port   int
	key    string
	hooks  []string
	places []string
	token  string

	tokenFile string
}

// flags returns flags that are settings, and one that is none.
func flags(t *testing.T) (*pflag.FlagSet, *values, config.Settings) {
	t.Helper()
	v, set := &values{color: "red"}, pflag.NewFlagSet("test", pflag.ContinueOnError)
	set.Var(flag.Choice{Value: &v.color, Of: []string{"red", "blue"}}, "color", "how it looks")
	set.Var(flag.Count{Value: &v.size, Least: 1}, "size", "how large it is")
	set.Var(flag.Span{Value: &v.wait}, "wait-for", "how long it waits")
	set.BoolVar(&v.quick, "quick", false, "whether it hurries")
	set.Var(flag.Count{Value: &v.port, Least: 1}, "http-port", "the port")
	set.StringVar(&v.key, "access-key-file", "", "`FILE` of a key")
	set.StringArrayVar(&v.hooks, "hook", nil, "`URL` of a hook; may be given several times")
	set.StringArrayVar(&v.places, "place", nil, "`URL` of a place; may be given several times")
	set.StringVar(&v.token, "token", "", "that lets in")
	set.StringVar(&v.tokenFile, "token-file", "", "`FILE` of it")
	config.Mark(set)
	config.MarkSecret(set.Lookup("token"))
	config.MarkSecret(set.Lookup("hook"))
	config.MarkVariable(set.Lookup("hook"), "SPILLWAY_HOOKS")
	set.Bool("json", false, "")
	return set, v, config.Gather(map[string]*pflag.FlagSet{"dev": set})
}

func apply(
	t *testing.T, file string, environment map[string]string, args ...string,
) (set *pflag.FlagSet, v *values, told []string) {
	t.Helper()
	var known config.Settings
	set, v, known = flags(t)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	document, mistakes := config.Parse("/etc/s.yaml", []byte(file), known)
	sources := config.Sources{File: document, Environment: func(name string) (string, bool) {
		value, set := environment[name]
		return value, set
	}}
	mistakes = append(mistakes, sources.Apply(set)...)
	config.Sort(mistakes)
	for _, mistake := range mistakes {
		told = append(told, mistake.String())
	}
	return set, v, told
}

func TestTheCommandLineWinsOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	t.Parallel()
	const file = "color: blue\nsize: 2\nwait-for: 2s\nquick: true\nplace: [nats://a, nats://b]\n"
	set, v, mistakes := apply(t, file, map[string]string{
		"SPILLWAY_SIZE": "3", "SPILLWAY_WAIT_FOR": "3s", "SPILLWAY_PLACE": "nats://c  nats://d", "SPILLWAY_COLOR": "",
		"SPILLWAY_JSON": "true",
	}, "--wait-for", "4s")
	if len(mistakes) > 0 {
		t.Fatal(mistakes)
	}
	want := values{
		color: "blue", size: 3, wait: 4 * time.Second, quick: true, places: []string{"nats://c", "nats://d"},
		hooks: []string{},
	}
	if diff := cmp.Diff(want, *v, cmp.AllowUnexported(values{}), cmp.Transformer("list", func(l []string) string {
		return strings.Join(l, " ")
	})); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	origins := map[string]string{}
	set.VisitAll(func(flag *pflag.Flag) { origins[flag.Name] = config.OriginOf(flag).String() })
	if diff := cmp.Diff(map[string]string{
		"color": "/etc/s.yaml:1:8", "size": "SPILLWAY_SIZE", "wait-for": "--wait-for", "quick": "/etc/s.yaml:4:8",
		"place": "SPILLWAY_PLACE", "hook": "default", "access-key-file": "default", "json": "default", "token": "default",
		"token-file": "default", "http-port": "default",
	}, origins); diff != "" {
		t.Errorf("origins (-want +got):\n%s", diff)
	}
}

func TestAListIsReplacedAndNotAddedTo(t *testing.T) {
	t.Parallel()
	_, v, mistakes := apply(t, "place: [nats://a, nats://b]\n", nil, "--place", "nats://c")
	if len(mistakes) > 0 || cmp.Diff([]string{"nats://c"}, v.places) != "" {
		t.Errorf("got %q and %q", v.places, mistakes)
	}
	if _, v, _ = apply(t, "place: nats://a\n", nil); cmp.Diff([]string{"nats://a"}, v.places) != "" {
		t.Errorf("one text is a list of one: got %q", v.places)
	}
}

func TestAPathOfAFileStartsAtItsDirectory(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]string{
		"access-key-file: keys/a": "/etc/keys/a", "access-key-file: /keys/a": "/keys/a", "access-key-file: ../a": "/a",
	} {
		if _, v, mistakes := apply(t, file, nil); len(mistakes) > 0 || v.key != want {
			t.Errorf("%s: got %q and %q, want %q", file, v.key, mistakes, want)
		}
	}
	if _, v, _ := apply(t, "", map[string]string{"SPILLWAY_ACCESS_KEY_FILE": "keys/a"}); v.key != "keys/a" {
		t.Errorf("of a variable it starts where the command does: got %q", v.key)
	}
}

func TestEveryMistakeIsNamedWithItsPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		file        string
		environment map[string]string
		want        []string
	}{
		"nothing":                {"", nil, nil},
		"comments only":          {"# nothing\n", nil, nil},
		"an anchor that is used": {"wait-for: &w 3s\n", nil, nil},
		"a key that there is not": {
			"size: 1\nwiat-for: 3s\n", nil, []string{`2:1: there is no setting "wiat-for"; did you mean wait-for?`},
		},
		"a key with its dashes": {"--size: 1\n", nil, []string{`1:1: there is no setting "--size"; did you mean size?`}},
		"a key with underscores": {
			"wait_for: 1s\n", nil, []string{`1:1: there is no setting "wait_for"; did you mean wait-for?`},
		},
		"a flag that is none": {"json: true\n", nil, []string{
			`1:1: there is no setting "json"; ` + "`spillway config schema` lists the settings",
		}},
		"a key said twice": {"size: 1\ncolor: red\nsize: 2\n", nil, []string{
			"3:1: size is said twice, first in line 1; leave one of them out",
		}},
		"values that are wrong, all of them": {"size: 0\ncolor: green\nwait-for: 10\n", nil, []string{
			"1:7: size 0: it is not a whole number in range; write a number of at least 1",
			"2:8: color green: it is none of red, blue; write red or blue",
			"3:11: wait-for 10: it is not a duration; write a duration with its unit, such as 90s, 10m or 1h30m",
		}},
		"a switch that is a text": {
			"quick: \"true\"\n", nil, []string{
				`1:8: quick is "true": it is neither true nor false; write true or false, without quotes`,
			},
		},
		"a list for one": {"size: [1, 2]\n", nil, []string{"1:7: size is a list; give one value"}},
		"a mapping":      {"size:\n  much: 3\n", nil, []string{"2:3: size is a mapping; give one value"}},
		"a mapping in a list": {
			"place:\n  - nats://a\n  - b: c\n", nil, []string{"3:5: place is a mapping; give a text, or a list of them"},
		},
		"no value": {"size:\n", nil, []string{"1:6: size has no value; give one, or leave the key out"}},
		"an empty value": {
			"color: \"\"\n", nil, []string{"1:8: color has no value; give one, or leave the key out"},
		},
		"a list": {
			"- size\n", nil, []string{"1:1: the file is a list; write settings, such as http-port: 7474"},
		},
		"a second document": {
			"size: 1\n---\nsize: 2\n", nil, []string{"2:1: a second document begins here; write all settings into one"},
		},
		"a text that is no YAML": {
			"size: 1\n  color: red\n", nil, []string{"2:1: not YAML: mapping values are not allowed"},
		},
		"a variable that is wrong": {
			"", map[string]string{"SPILLWAY_SIZE": "x"}, []string{
				"SPILLWAY_SIZE: x: it is not a whole number in range; write a number of at least 1",
			},
		},
		"a variable of Kubernetes, for a Service named spillway-http": {
			"", map[string]string{"SPILLWAY_HTTP_PORT": "tcp://10.0.0.1:7474"}, []string{
				"SPILLWAY_HTTP_PORT: tcp://10.0.0.1:7474: it is not a whole number in range; Kubernetes sets it for a Service",
			},
		},
		"a switch of the environment": {
			"", map[string]string{"SPILLWAY_QUICK": "maybe"}, []string{"SPILLWAY_QUICK: maybe: it is neither true nor false"},
		},
		"a file that is overridden": {"size: 0\n", map[string]string{"SPILLWAY_SIZE": "3"}, []string{
			"1:7: size 0: it is not a whole number in range; write a number of at least 1",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, mistakes := apply(t, test.file, test.environment)
			if len(mistakes) != len(test.want) {
				t.Fatalf("got %q, want %q", mistakes, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(strings.TrimPrefix(mistakes[i], "/etc/s.yaml:"), want) {
					t.Errorf("got  %s\nwant %s", mistakes[i], want)
				}
			}
		})
	}
}

func TestASecretInClearIsToldAndNotRepeated(t *testing.T) {
	t.Parallel()
	jwt := "eyJhbGciOiJIUzI1NiJ9.s3cret.s3cret"
	for name, test := range map[string]struct {
		file        string
		environment map[string]string
		want        string // empty: it may stand there
	}{
		"a token for a file": {"access-key-file: " + jwt, nil, "access-key-file is a token or a seed in clear"},
		"a key for a file": {
			"access-key-file: |\n  -----BEGIN PRIVATE KEY-----\n  s3cret\n", nil,
			"access-key-file is a key or a certificate in clear",
		},
		"a URL for a file": {
			"access-key-file: postgres://u:s3cret@h/d", nil, "access-key-file is a URL where a file is wanted",
		},
		"a password of a URL": {"place: nats://u:s3cret@h", nil, "place has a credential in clear"},
		"a token of a URL":    {"place: [nats://h, nats://s3cret@h]", nil, "place has a credential in clear"},
		"a variable for a file": {
			"", map[string]string{"SPILLWAY_ACCESS_KEY_FILE": jwt}, "is a token or a seed in clear",
		},
		"a URL of a variable":            {"", map[string]string{"SPILLWAY_PLACE": "nats://u:s3cret@h"}, ""},
		"a hook, which is known":         {"hook: https://h/s3cret", nil, ""},
		"a secret that may be in a file": {"token: s3cret", nil, "token is a secret in clear"},
		"a wrong word":                   {"place: {s3cret: x}", nil, "place is a mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			set, _, mistakes := apply(t, test.file, test.environment)
			lines := mistakes
			set.VisitAll(func(flag *pflag.Flag) {
				values := []string{flag.Value.String()}
				if many, ok := flag.Value.(pflag.SliceValue); ok {
					values = many.GetSlice()
				}
				for _, value := range values {
					lines = append(lines, config.Shown(flag, value))
				}
			})
			told := strings.Join(lines, "\n")
			if strings.Contains(told, "s3cret") {
				t.Errorf("the secret is told: %s", told)
			}
			if (test.want == "") != (len(mistakes) == 0) || !strings.Contains(told, test.want) {
				t.Errorf("got %q, want %q", mistakes, test.want)
			}
		})
	}
}

func TestWhatTheSchemaAllowsTheFlagsTake(t *testing.T) {
	t.Parallel()
	_, _, known := flags(t)
	text, err := known.Schema()
	if err != nil {
		t.Fatal(err)
	}
	var schema jsonschema.Schema
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	resolved, err := schema.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{
		"size: 1", "size: 0", "size: -1", "size: big", "size: [1]", "color: red", "color: green",
		"quick: true", "quick: \"true\"", "quick: maybe", "wait-for: 3s", "wait-for: 1h30m", "wait-for: 10",
		"wait-for: soon", "place: nats://a",
		"place: [nats://a, nats://b]", "place: [[a]]", "place: {a: b}", "access-key-file: a/b", "access-key-file: [a]",
		"szie: 1", "json: true", "color:", "color: \"\"", "wait-for: 1.5h", "place: \"\"",
	} {
		_, _, mistakes := apply(t, file, nil)
		var instance any
		if err := yaml.Unmarshal([]byte(file), &instance); err != nil {
			t.Fatal(err)
		}
		err := resolved.Validate(instance)
		// The least of a number is the flag's own: the schema tells of numbers from 0 on.
		if refused := err != nil; refused != (len(mistakes) > 0) && file != "size: 0" {
			t.Errorf("%s: the schema says %v, the flags %q", file, err, mistakes)
		}
	}
}

func TestASettingIsDescribedWithWhatItTakes(t *testing.T) {
	t.Parallel()
	_, _, known := flags(t)
	text, err := known.Schema()
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties map[string]map[string]any
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]any{
		"type": "string", "enum": []any{"red", "blue"}, "default": "red", "description": "How it looks.", "minLength": 1.0,
		"x-commands": []any{"dev"}, "x-environment": "SPILLWAY_COLOR",
	}, schema.Properties["color"]); diff != "" {
		t.Errorf("color (-want +got):\n%s", diff)
	}
	if unit := schema.Properties["wait-for"]["x-unit"]; unit != "a duration with its unit" {
		t.Errorf("the unit of wait-for is %v", unit)
	}
	if variable := schema.Properties["hook"]["x-environment"]; variable != "SPILLWAY_HOOKS" {
		t.Errorf("the variable of hook is %v", variable)
	}
}
