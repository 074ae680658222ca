package cli

import (
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// commandFlags configure `run -- PROGRAM`.
type commandFlags struct {
	name         string
	code         string
	inPlace      bool
	noFetch      bool
	environment  []string
	requirements string
	image        string
	cpu          quantity.Milli
	memory       quantity.Bytes
	timeout      time.Duration
	attempts     int
	outputs      []string
	files        []string

	set *pflag.FlagSet // these flags
}

// noCode is the value of --code that sends nothing.
const noCode = "none"

func (f *commandFlags) add(flags *pflag.FlagSet) {
	f.set = pflag.NewFlagSet("command", pflag.ContinueOnError)
	f.set.StringVar(&f.name, "name", "", "`NAME` under which what was learnt of the command is kept (default that of the script or program)")
	f.set.StringVar(&f.code, "code", ".", "`DIR` whose files the program finds where it starts, or none")
	f.set.BoolVar(&f.inPlace, "in-place", false, "run in this very directory instead of in a copy of it")
	f.set.BoolVar(&f.noFetch, "no-fetch", false, "do not bring back the files that the program made or changed")
	f.set.StringArrayVar(&f.environment, "env", nil, "`NAME[=VALUE]` of an environment variable, without a value that of this shell; it is kept with the run: no secrets")
	f.set.StringVar(&f.requirements, "requirements", "", "`FILE` of Python requirements, installed once for each content")
	f.set.StringVar(&f.image, "image", "", "container `IMAGE` to run in")
	f.set.Var(cores{&f.cpu}, "cpu", "cores that an attempt is given until its use is known, such as 2 or 500m")
	f.set.Var(memory{&f.memory}, "memory", "memory that an attempt is given until its use is known, such as 2GiB")
	f.set.Var(span{value: &f.timeout}, "timeout", "how long one attempt may take (default no limit)")
	f.set.Var(count{&f.attempts, 1}, "attempts", "how often the command may fail (default 1); what runs out of memory is tried again with more besides")
	f.set.StringArrayVar(&f.outputs, "output", nil, "`NAME=PATH` of a file or directory that the program must leave")
	f.set.StringArrayVar(&f.files, "file", nil, "`PATH=FILE`: a file or directory of this machine, and where the program finds it")
	flags.AddFlagSet(f.set)
}

// changed returns the flags that were given.
func changed(set *pflag.FlagSet) []string {
	var names []string
	set.VisitAll(func(flag *pflag.Flag) {
		if flag.Changed {
			names = append(names, "--"+flag.Name)
		}
	})
	return names
}

// prepared is a command before anything of it is packed.
type prepared struct {
	name  string
	input chain.SingleInput
	// directory is where what the program changes belongs: that of the code.
	directory string
	// files are the local files, in the order of input.Command.Files.
	files []string
}

// prepare reads the flags and the arguments. Nothing but the environment is looked at.
func (f *commandFlags) prepare(arguments []string, environment func(string) (string, bool), workingDirectory string) (prepared, error) {
	p := prepared{name: f.name, directory: f.code, input: chain.SingleInput{
		Command: wire.Command{Arguments: arguments, Image: f.image, KeepChanged: !f.inPlace, Parameters: numbers(arguments)},
		CPU:     f.cpu, Memory: f.memory, Timeout: f.timeout, MaxAttempts: max(f.attempts, 1),
	}}
	if p.name == "" {
		p.name = nameOf(arguments)
	}
	if f.code == noCode {
		p.directory = "."
	}
	command := &p.input.Command
	switch {
	case f.inPlace && f.set.Changed("code"):
		return p, &usage{problem: "--in-place and --code exclude each other", hint: "change to the directory and leave --code out"}
	case f.inPlace && f.image != "":
		return p, &usage{problem: "--in-place and --image exclude each other", hint: "leave --in-place out: the image gets a copy of the directory"}
	case f.image != "" && f.requirements != "":
		return p, &usage{problem: "--requirements and --image exclude each other", hint: "install the requirements in the image"}
	case f.inPlace:
		command.InPlace = workingDirectory
	}
	var err error
	if command.Environment, err = f.variables(environment); err != nil {
		return p, err
	}
	if command.Outputs, err = f.commandOutputs(); err != nil {
		return p, err
	}
	for _, text := range f.files {
		where, file, found := strings.Cut(text, "=")
		if !found || file == "" || !isBelow(where) {
			return p, &usage{problem: fmt.Sprintf("--file %s: it is not PATH=FILE with a path below the directory in which the program starts", text), hint: "write --file data/raw.csv=/mnt/raw.csv"}
		}
		command.Files = append(command.Files, wire.CommandFile{Path: path.Clean(where)})
		p.files = append(p.files, file)
	}
	if err := p.input.Validate(); err != nil {
		return p, &usage{problem: err.Error(), hint: "`spillway run --help` says what the flags take"}
	}
	return p, nil
}

func isBelow(where string) bool {
	return where != "" && path.Clean(where) != "." && filepath.IsLocal(filepath.FromSlash(where))
}

func (f *commandFlags) commandOutputs() ([]wire.CommandOutput, error) {
	var outputs []wire.CommandOutput
	for _, text := range f.outputs {
		name, where, found := strings.Cut(text, "=")
		if !found || name == "" || !isBelow(where) {
			return nil, &usage{problem: fmt.Sprintf("--output %s: it is not NAME=PATH with a path below the directory in which the program starts", text), hint: "write --output model=model.pt"}
		}
		if slices.ContainsFunc(outputs, func(o wire.CommandOutput) bool { return o.Name == name || o.Path == path.Clean(where) }) {
			return nil, &usage{problem: fmt.Sprintf("--output %s: its name or path is given twice", text), hint: "keep one of them"}
		}
		outputs = append(outputs, wire.CommandOutput{Name: name, Path: path.Clean(where)})
	}
	return outputs, nil
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	// reservedVariables begins the names of what every command is told.
	reservedVariables = "SPILLWAY_"
)

// variables returns what is set for the program: the caller's PATH, so that the shell's `python` is the one that runs, and its Python
// environment, unless the command brings its own; and what --env says.
func (f *commandFlags) variables(environment func(string) (string, bool)) (map[string]string, error) {
	set := map[string]string{}
	if f.image == "" && f.requirements == "" {
		search, _ := environment("PATH")
		if venv, active := environment("VIRTUAL_ENV"); active && venv != "" {
			set["VIRTUAL_ENV"] = venv
			search = strings.TrimSuffix(filepath.Join(venv, "bin")+string(os.PathListSeparator)+search, string(os.PathListSeparator))
		}
		if search != "" {
			set["PATH"] = search
		}
	}
	for _, text := range f.environment {
		name, value, given := strings.Cut(text, "=")
		switch {
		case !variableName.MatchString(name):
			return nil, &usage{problem: fmt.Sprintf("--env %s: %q is not the name of a variable", text, name), hint: "write NAME=VALUE, or NAME for the value of this shell"}
		case strings.HasPrefix(name, reservedVariables):
			return nil, &usage{problem: fmt.Sprintf("--env %s: names that begin with %s are set by Spillway", name, reservedVariables), hint: "use another name"}
		case strings.ContainsRune(value, 0):
			return nil, &usage{problem: "--env " + name + ": the value has a NUL character", hint: "leave it out"}
		}
		if !given {
			var isSet bool
			if value, isSet = environment(name); !isSet {
				return nil, &usage{problem: "--env " + name + ": it is not set in this shell", hint: "give the value: --env " + name + "=VALUE"}
			}
		}
		set[name] = value
	}
	if len(set) == 0 {
		return nil, nil
	}
	return set, nil
}

// interpreters run a script that says more of the command than they do.
var interpreters = regexp.MustCompile(`^(python[0-9.]*|pypy[0-9.]*|node|deno|bun|ruby|perl|php|lua|julia|Rscript|sh|bash|zsh|fish|torchrun)$`)

// nameOf makes a name of a command: that of the script which an interpreter runs, else that of the program.
func nameOf(arguments []string) string {
	program := path.Base(filepath.ToSlash(arguments[0]))
	if !interpreters.MatchString(program) {
		return validName(program)
	}
	for rest := arguments[1:]; len(rest) > 0; rest = rest[1:] {
		switch argument := rest[0]; {
		case argument == "-m" && len(rest) > 1:
			return validName(rest[1][strings.LastIndexByte(rest[1], '.')+1:])
		case argument == "-c" || argument == "-e" || argument == "-":
			return validName(program)
		case (argument == "-W" || argument == "-X") && len(rest) > 1: // of Python, with a value
			rest = rest[1:]
		case strings.HasPrefix(argument, "-") || argument == "run":
		default:
			script := path.Base(filepath.ToSlash(argument))
			return validName(strings.TrimSuffix(script, path.Ext(script)))
		}
	}
	return validName(program)
}

// validName makes a name of a stage from any text.
func validName(text string) string {
	name := strings.Trim(notOfNames.ReplaceAllString(strings.ToLower(text), "-"), "-_")
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		name = strings.TrimSuffix("run-"+name, "-")
	}
	return strings.TrimRight(name[:min(len(name), nameLimit)], "-_")
}

// mostNumbers is how many numbers of a command its size may depend on, besides the bytes of its files.
const mostNumbers = 7

var keyValue = regexp.MustCompile(`^(-{0,2})([A-Za-z_][A-Za-z0-9_.-]*)=(.+)$`)

// numbers finds what the size of a command may depend on: the values of its flags that are numbers, by the flags' names without dashes, in
// the forms "--epochs 3", "--lr=0.1", "-b 64" and "epochs=3"; the first of many.
func numbers(arguments []string) map[string]float64 {
	found := map[string]float64{}
	add := func(name, text string) {
		value, err := strconv.ParseFloat(text, 64)
		_, again := found[name]
		if err == nil && value >= 0 && !math.IsInf(value, 0) && (again || len(found) < mostNumbers) {
			found[name] = value // programs take the last of a flag that is given twice
		}
	}
	for i, argument := range arguments {
		if i == 0 {
			continue
		}
		if argument == "--" {
			break
		}
		if match := keyValue.FindStringSubmatch(argument); match != nil {
			add(match[2], match[3])
			continue
		}
		name := strings.TrimLeft(argument, "-")
		if name != argument && name != "" && len(argument)-len(name) <= 2 && i+1 < len(arguments) && !isNumber(name) {
			add(name, arguments[i+1])
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}
