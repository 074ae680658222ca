package cli_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

func TestWrongCommandsAreRefusedAtTheDoor(t *testing.T) {
	t.Parallel()
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte("{\n  \"a\": 1,\n  \"b\": é\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args string
		want string
	}{
		"an unknown verb names the nearest": {"rum", "there is no command \"rum\"\n  hint: did you mean run, runs?"},
		"an unknown verb without near ones": {"kubernetes", "`spillway --help` lists them"},
		"an unknown flag names the nearest": {
			"run digits --deadlin 3s",
			"there is no flag --deadlin\n  hint: did you mean --deadline?",
		},
		"a flag that other tools have": {
			"run digits --no-cache",
			"there is no flag --no-cache\n  hint: leave it out: runs take results of others only with --cache",
		},
		"an unknown short flag": {"run digits -q", "there is no flag -q"},
		"a missing argument": {
			"run",
			"it needs the name of a pipeline, the file of a chain, or a command after --\n  hint: usage: spillway " +
				"run PIPELINE, ",
		},
		"a command without --": {
			"run python train.py *.csv",
			"it does not take the argument \"train.py\"\n  hint: a command stands after --: spillway run -- python train.py " +
				"'*.csv'",
		},
		"a pipeline before --": {"run digits -- python", "\"digits\" stands before --"},
		"nothing after --":     {"run --", "there is no program after --"},
		"a flag of commands for a pipeline": {
			"run digits --memory 1GiB",
			"--memory is not for a pipeline of an app\n  hint: a command stands after --, as in spillway run " +
				"--memory '1 GiB' -- PROGRAM",
		},
		"results in no place": {
			"run c.yaml --out=",
			"--out \"\": it is empty\n  hint: give a path, or leave the flag out",
		},
		"a picture in no place":              {"plan g --devices d --svg=", "--svg \"\": it is empty"},
		"a trained model in no place":        {"train m.py:f --out=", "--out \"\": it is empty"},
		"an input of a command":              {"run --input {} -- x", "--input is not for a command"},
		"an app of a command":                {"run --app . -- x", "--app is not for a command"},
		"a flag of commands for a chain":     {"run x.yaml --cpu 2", "--cpu is not for a chain"},
		"an app of a chain":                  {"run x.yml --app .", "--app is not for a chain"},
		"a chain that is not there":          {"run x.yaml", "read x.yaml: no such file or directory"},
		"a chain to check that is not there": {"check x.yaml", "read x.yaml: no such file or directory"},
		"no chain to check":                  {"check", "it needs the file of a chain"},
		"memory that is none":                {"run --memory lots -- x", "--memory lots: it is not an amount of memory"},
		"cores that are none":                {"run --cpu -1 -- x", "--cpu -1: it is not a number of cores"},
		"artifacts kept for no time": {
			"dev --keep-for 0s",
			"--keep-for 0s: nothing can be kept for it\n  hint: write more than 0 and at most 720h",
		},
		"artifacts kept for less": {"dev --keep-for -1h", "--keep-for -1h: nothing can be kept for it"},
		"artifacts kept for longer than runs": {
			"dev --keep-for 721h",
			"--keep-for 721h: it is longer than histories are kept",
		},
		"artifacts kept in no room": {
			"run x --keep-bytes 0",
			"--keep-bytes 0: it is not an amount of bytes above 0\n  hint: write it with its unit",
		},
		"artifacts kept in less than no room": {
			"dev --keep-bytes -1GiB",
			"--keep-bytes -1GiB: it is not an amount of bytes",
		},
		"a pool larger than the machine": {
			"dev --pool-memory 1024TiB",
			"--pool-memory 1024TiB: this machine has ",
		},
		"a pool larger than the machine, in a word": {
			"run --pool-memory 1024TiB -- x",
			"give less, or leave the flag out for 80% of what is available",
		},
		"a cold start longer than an invoke": {
			"dev --function-cold-start 100h",
			"--function-cold-start 100h: it is too long\n  hint: write at most 15m",
		},
		"attempts that are none": {
			"run --attempts 0 -- x",
			"--attempts 0: it is not a whole number in range",
		},
		"attempts beyond all patience": {"run --attempts 101 -- x", "max_attempts is 101: give 0 to 100"},
		"code that is not there":       {"run --code nowhere -- x", "--code nowhere: no such file or directory"},
		"code that is a file":          {"run --code " + bad + " -- x", "it is no directory"},
		"requirements that are not there": {
			"run --requirements nowhere -- x",
			"--requirements nowhere: no such file or directory",
		},
		"requirements of an image": {
			"run --requirements x --image y -- x",
			"--requirements and --image exclude each other",
		},
		"code in place": {
			"run --in-place --code x -- x",
			"--in-place and --code exclude each other",
		},
		"an image in place": {
			"run --in-place --image x -- x",
			"--in-place and --image exclude each other",
		},
		"a variable that is not set": {"run --env NOWHERE -- x", "--env NOWHERE: it is not set in this shell"},
		"a variable of no name":      {"run --env =1 -- x", "\"\" is not the name of a variable"},
		"a variable of Spillway": {
			"run --env SPILLWAY_RUN=1 -- x",
			"names that begin with SPILLWAY_ are set by Spillway",
		},
		"an output without a path": {"run --output model -- x", "--output model: it is not NAME=PATH"},
		"an output outside":        {"run --output model=../m -- x", "it is not NAME=PATH with a path below"},
		"an output whose name is a path": {
			"run --output ../x=m -- x",
			"--output ../x=m: name \"../x\": use a lower-case letter",
		},
		"an output of the wrong way round": {
			"run --output model.pt=model -- x",
			"hint: the name stands first, as in --output model=model.pt",
		},
		"an output called as what is reported": {
			"run --output result=m -- x",
			"--output result=m: name \"result\" is that of what the program reports",
		},
		"two outputs of one name":  {"run --output m=a --output m=b -- x", "given twice"},
		"a file without a place":   {"run --file a.csv -- x", "--file a.csv: it is not PATH=FILE"},
		"a file outside":           {"run --file /etc/x=y -- x", "it is not PATH=FILE with a path below"},
		"a file that is not there": {"run --file a=nowhere -- x", "--file nowhere: no such file or directory"},
		"a name that is none":      {"run --name Train -- x", "name \"Train\": use a lower-case letter"},
		"a name of something else": {
			"run --name inputs -- x",
			"use another\n  hint: give it another name with --name",
		},
		"one argument too many": {"cancel a b", "does not take the argument \"b\""},
		"a negative deadline": {
			"run digits --deadline -5s",
			"run: --deadline -5s: it is negative\n  hint: write a duration",
		},
		"a deadline of zero":           {"run digits --deadline 0s", "--deadline 0s: it is zero"},
		"a deadline without unit":      {"run digits --deadline 10", "--deadline 10: it is not a duration"},
		"a deadline that is no number": {"trigger digits --deadline NaN", "--deadline NaN: it is not a duration"},
		"an endless deadline":          {"trigger digits --deadline Inf", "--deadline Inf: it is not a duration"},
		"a negative budget": {
			"run digits --budget -1",
			"--budget -1: it is negative\n  hint: write US dollars",
		},
		"a budget that is no number":  {"run digits --budget NaN", "--budget NaN: it is not a finite number"},
		"an endless budget":           {"run digits --budget +Inf", "--budget +Inf: it is not a finite number"},
		"a budget beyond all numbers": {"run digits --budget 1e999", "--budget 1e999: it is not a finite number"},
		"a budget beyond all money":   {"run digits --budget 1e9", "--budget 1e9: it is too large"},
		"a budget of zero":            {"run digits --budget 0", "--budget 0: it is zero"},
		"a budget in words":           {"run digits --budget lots", "--budget lots: it is not a number"},
		"an objective that is none": {
			"run digits --minimise fun",
			"--minimise fun: it is none of cost, latency",
		},
		"a price factor of zero":    {"dev --function-price-factor 0", "--function-price-factor 0: it is zero"},
		"a negative value of time":  {"dev --value-of-time -3", "--value-of-time -3: it is negative"},
		"a port beyond TCP":         {"dev --http-port 70000", "--http-port 70000: it is not a TCP port"},
		"CPU numbers that are none": {"dev --pool-cpus 3-1", "--pool-cpus 3-1: it is not a list of CPU numbers"},
		"CPUs that this machine has not": {
			"dev --pool-cpus 8000",
			"--pool-cpus 8000: this process may not use CPU 8000",
		},
		"a switch that is neither on nor off":    {"dev --no-burst=maybe", "--no-burst maybe: it is neither true nor false"},
		"a predictor that is neither on nor off": {"dev --predictor maybe", "it is none of on, shadow, off"},
		"a state of runs that there is not":      {"runs --status happy", "--status happy"},
		"a limit of zero":                        {"runs --limit 0", "--limit 0: it is not a whole number in range"},
		"an input that is not there": {
			"run digits --input nowhere.json",
			"--input nowhere.json: no such file or directory",
		},
		"an input that is a directory": {"run digits --input " + full, "is a directory"},
		"an input that is not JSON":    {"run digits --input " + bad, "bad.json is not JSON at line 3, column 8"},
		"JSON that is cut":             {`run digits --input {"a":`, "--input is not JSON at line 1"},
		"standard input that is not JSON": {
			"trigger digits --input -",
			"standard input is not JSON at line 1, column 1",
		},
		"an unknown pipeline without a stack": {
			"run digist",
			"there is no pipeline \"digist\"\n  hint: did you mean digits?",
		},
		"an input that nobody would read":   {"bind a digits --input {}", "there is no --schedule"},
		"a filter without value":            {"bind a digits --filter kind", "--filter kind: it is not PATH=VALUE"},
		"a filter given twice":              {"bind a digits --filter k=1 --filter k=2", "given twice"},
		"a replay of nothing in particular": {"dead replay", "either the sequence of a dead letter or --all"},
		"a replay of both":                  {"dead replay 3 --all", "either the sequence of a dead letter or --all"},
		"a replay of no number":             {"dead replay x", "\"x\" is not a sequence"},
		"an unknown verb of dead":           {"dead lst", "did you mean list?"},
		"an app into a full directory":      {"init " + full, "is not empty: it has file"},
		"a module that is none": {
			"init " + filepath.Join(full, "new") + " --module a//b",
			"\"a//b\" is not the path of a module",
		},
		"an app that is not there":           {"dev --app nowhere", "--app nowhere: no such file or directory"},
		"an app of a run that is not there":  {"run x --app nowhere", "--app nowhere: no such file or directory"},
		"an empty state directory":           {"runs --state=", "--state \"\": it is empty"},
		"an empty input":                     {"run digits --input=", "--input \"\": it is empty"},
		"an empty ID":                        {"trigger digits --id=", "--id \"\": it is empty\n  hint: give a value, or"},
		"an empty name of a command":         {"run --name= -- x", "--name \"\": it is empty"},
		"an empty pattern among others":      {"bind a digits --filter k=1 --filter=", "--filter \"\": it is empty"},
		"an empty app":                       {"dev --app=", "--app \"\": it is empty"},
		"an unknown verb that asks for help": {"kubernetes --help", "there is no command \"kubernetes\""},
		"an unknown verb of dead asks for help": {
			"dead lst --help",
			"dead: there is no command \"lst\"\n  hint: did you mean list?",
		},
		"help about nothing": {
			"help exit-code",
			"there is no command or topic \"exit-code\"\n  hint: did you mean exit-codes?",
		},
		"help about nothing below a command": {"help dead lst", "there is no command or topic \"dead lst\""},
		"costs since a time to come":         {"cost --since 2199-01-01", "--since 2199-01-01: it is in the future"},
		"runs since a time to come":          {"runs --since 2199-01-01T00:00:00Z", "it is in the future"},
		"no home":                            {"runs --no-state", "neither XDG_STATE_HOME nor HOME is set"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := strings.Fields(test.args)
			if last := args[len(args)-1]; last == "--no-state" {
				args = args[:len(args)-1]
			} else {
				args = slices.Insert(args, 1, "--state", t.TempDir())
			}
			code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{Stdin: strings.NewReader("@")}, args...)
			if code != cli.ExitUsage || stdout != "" || !strings.HasPrefix(stderr, "spillway: ") {
				t.Errorf("got exit %d, stdout %q, stderr %q; want exit 2 and an error", code, stdout, stderr)
			}
			clitest.Contains(t, "standard error", stderr, test.want)
		})
	}
}

func TestNoArgumentIsEmpty(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"init", ""},
		{"check", ""},
		{"show", ""},
		{"open", ""},
		{"logs", "", "train"},
		{"logs", "digits-1", ""},
		{"run", ""},
		{"diff", "digits-1", ""},
		{"completion", ""},
		{"unbind", ""},
	} {
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append(args, "--state", t.TempDir())...)
		if code != cli.ExitUsage {
			t.Errorf("%q: got exit %d, want %d: %s", args, code, cli.ExitUsage, stderr)
		}
		clitest.Contains(t, strings.Join(args, " "), stderr, "it needs ")
	}
}

// listed is a command in a list of them.
var listed = regexp.MustCompile(`(?m)^  ([a-z-]+) +\S`)

// commands are this one and all below it, as their help lists them; "" is spillway itself.
func commands(t *testing.T, above string) []string {
	t.Helper()
	_, help, _ := clitest.Execute(t, t.Context(), cli.Deps{}, append(strings.Fields(above), "--help")...)
	all := []string{above}
	if !strings.Contains(help, " COMMAND [FLAGS]\n") {
		return all
	}
	_, help, _ = strings.Cut(help, "\n\nExamples:\n")
	_, help, _ = strings.Cut(help, "\n\n")
	help, _, _ = strings.Cut(help, "\nFlags:\n")
	help, _, _ = strings.Cut(help, "\nTopics of ")
	for _, found := range listed.FindAllStringSubmatch(help, -1) {
		all = append(all, commands(t, strings.TrimSpace(above+" "+found[1]))...)
	}
	return all
}

func TestEveryCommandHasHelpWithUsageAndExamples(t *testing.T) {
	t.Parallel()
	for _, verb := range commands(t, "") {
		args := append(strings.Fields(verb), "--help")
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...)
		if code != cli.ExitOK || stderr != "" {
			t.Errorf("%v: got exit %d, stderr %q", args, code, stderr)
		}
		clitest.Contains(t, verb, stdout, "Usage:\n  spillway", "Examples:\n  spillway")
		for line := range strings.Lines(stdout) {
			if len([]rune(line)) > 101 { // with its end
				t.Errorf("%v: a line has %d columns: %s", args, len([]rune(line)), line)
			}
		}
	}
}

func TestHelpOfEveryCommandIsAsItWas(t *testing.T) {
	t.Parallel()
	var told strings.Builder
	topics := []string{"help exit-codes", "help goals", "help money", "help settings", "help sizes"}
	for _, what := range append(commands(t, ""), topics...) {
		args := strings.Fields(what)
		if len(args) == 0 || args[0] != "help" {
			args = append(args, "--help")
		}
		code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, args...)
		if code != cli.ExitOK || stderr != "" {
			t.Errorf("%v: got exit %d, stderr %q", args, code, stderr)
		}
		told.WriteString("$ spillway " + strings.Join(args, " ") + "\n" + stdout + "\n")
	}
	const file = "testdata/help.golden"
	if os.Getenv("SPILLWAY_UPDATE") == "1" {
		if err := os.WriteFile(file, []byte(told.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; SPILLWAY_UPDATE=1 go test writes it", err)
	}
	if diff := cmp.Diff(string(golden), told.String()); diff != "" {
		t.Errorf("the help is other than in %s; SPILLWAY_UPDATE=1 go test writes it anew (-want +got):\n%s", file, diff)
	}
}

func TestTheSchemaOfSettingsIsAsHelpTellsThem(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "config", "schema")
	if code != cli.ExitOK || stderr != "" {
		t.Fatalf("got exit %d, stderr %q", code, stderr)
	}
	const file = "../../../deploy/config.schema.json"
	if os.Getenv("SPILLWAY_UPDATE") == "1" {
		if err := os.WriteFile(file, []byte(stdout), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v; SPILLWAY_UPDATE=1 go test writes it", err)
	}
	if diff := cmp.Diff(string(golden), stdout); diff != "" {
		t.Errorf("the schema is other than %s; SPILLWAY_UPDATE=1 go test writes it anew (-want +got):\n%s", file, diff)
	}
}

func TestCommandsThatNeedAStackSayHowToStartOne(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{
		"trigger digits", "runs", "show x", "cancel x", "bind a digits", "unbind x", "bindings", "dead list", "dead replay 3",
		"cost", "goal x", "retry x", "diff x y", "top", "show x --why", "logs x", "open", "gc --dry-run", "outputs x",
	} {
		state := t.TempDir()
		// A file that an engine left behind when it was killed is no stack.
		if err := (web.StackFile{HTTP: "http://127.0.0.1:1", PID: 1}).Write(state); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append(strings.Fields(verb), "--state", state)...)
		if code != cli.ExitFailure {
			t.Errorf("%s: got exit %d, want 1", verb, code)
		}
		clitest.Contains(t, verb, stderr, "no stack runs on the state directory "+state,
			"hint: start one with `spillway dev`")
	}
}

func TestTheStateDirectoryFollowsXDG(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for name, test := range map[string]struct {
		environment map[string]string
		want        string
	}{
		"XDG_STATE_HOME is used where it is set": {
			map[string]string{"XDG_STATE_HOME": home, "HOME": "/h"},
			home + "/spillway",
		},
		"one that is relative is not": {
			map[string]string{"XDG_STATE_HOME": "x", "HOME": home},
			home + "/.local/state/spillway",
		},
		"HOME is used otherwise": {map[string]string{"HOME": home}, home + "/.local/state/spillway"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			deps := cli.Deps{Environment: func(name string) (string, bool) {
				value, set := test.environment[name]
				return value, set
			}}
			_, _, stderr := clitest.Execute(t, t.Context(), deps, "runs")
			clitest.Contains(t, "standard error", stderr, "state directory "+test.want+"\n")
		})
	}
}
