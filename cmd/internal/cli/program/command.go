package program

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
	"github.com/spillway-ml/spillway/cmd/internal/cli/fault"
	"github.com/spillway-ml/spillway/cmd/internal/cli/flag"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows/chain"
)

// Flags configure `run -- PROGRAM`; what each is for, its flag says.
type Flags struct {
	Name         string
	Code         string
	InPlace      bool
	NoFetch      bool
	Environment  []string
	Requirements string
	Image        string
	CPU          quantity.Milli
	Memory       quantity.Bytes
	GPU          quantity.GPUs
	Timeout      time.Duration
	Attempts     int
	Outputs      []string
	Files        []string

	Set *pflag.FlagSet // these flags
}

// NoCode is the value of --code that sends nothing.
const NoCode = "none"

// Add adds the flags to a command.
func (f *Flags) Add(flags *pflag.FlagSet) {
	f.Set = pflag.NewFlagSet("command", pflag.ContinueOnError)
	f.Set.StringVar(&f.Name, "name", "", "`NAME` under which what was learnt of the command is kept (default that of "+
		"the script or program)")
	f.Set.StringVar(&f.Code, "code", ".", "`DIR` whose files the program finds where it starts, or none")
	f.Set.BoolVar(&f.InPlace, "in-place", false, "run in this very directory instead of in a copy of it")
	f.Set.BoolVar(&f.NoFetch, "no-fetch", false, "do not bring back the files that the program made or changed")
	f.Set.StringArrayVar(&f.Environment, "env", nil,
		"`NAME[=VALUE]` of an environment variable, without a value that of this shell; it is kept with the run: no secrets")
	f.Set.StringVar(&f.Requirements, "requirements", "", "`FILE` of Python requirements, installed once for each content")
	f.Set.StringVar(&f.Image, "image", "", "container `IMAGE` to run in")
	f.Set.Var(flag.Cores{Value: &f.CPU}, "cpu", "cores that an attempt is given until its use is known, such as 2 or 500m")
	f.Set.Var(flag.Memory{Value: &f.Memory}, "memory",
		"memory that an attempt is given until its use is known, such as 2GiB")
	f.AddGPU()
	f.Set.Var(flag.Span{Value: &f.Timeout}, "timeout", "how long one attempt may take (default no limit)")
	f.Set.Var(flag.Count{Value: &f.Attempts, Least: 1}, "attempts",
		"how often the command may fail (default 1); what runs out of memory is tried again with more besides")
	f.Set.StringArrayVar(&f.Outputs, "output", nil, "`NAME=PATH` of a file or directory that the program must leave")
	f.Set.StringArrayVar(&f.Files, "file", nil, "`PATH=FILE`: a file or directory of this machine, and where the "+
		"program finds it")
	flags.AddFlagSet(f.Set)
}

// AddGPU adds the flags that say which GPUs an attempt gets to Set.
func (f *Flags) AddGPU() {
	f.Set.Var(flag.Count{Value: &f.GPU.Count, Least: 1}, "gpu",
		"whole GPUs that an attempt gets for itself; shares of one are not offered yet")
	f.Set.Var(flag.Memory{Value: &f.GPU.Memory}, "gpu-memory",
		"memory of each GPU that an attempt takes until its use is known, such as 8GiB")
	f.Set.StringVar(&f.GPU.Class, "gpu-class", "", "`MODEL` of the GPUs, such as h100 (default any)")
}

// Prepared is a command before anything of it is packed.
type Prepared struct {
	Name  string
	Input chain.SingleInput
	// directory is where what the program changes belongs: that of the code.
	directory string
	// files are the local files, in the order of input.Command.Files.
	files []string
}

// Prepare reads the flags and the arguments. Nothing but the environment is looked at.
func (f *Flags) Prepare(
	arguments []string, environment func(string) (string, bool), workingDirectory string,
) (Prepared, error) {
	if f.GPU.Count == 0 && !f.GPU.IsZero() {
		return Prepared{}, &fault.UsageError{
			Problem: "--gpu-memory and --gpu-class say which GPU, and nothing how many", Hint: "add --gpu 1",
		}
	}
	p := Prepared{Name: f.Name, directory: f.Code, Input: chain.SingleInput{
		Command: wire.Command{
			Arguments: arguments, Image: f.Image, KeepChanged: !f.InPlace, Parameters: parameters(arguments),
		},
		CPU: f.CPU, Memory: f.Memory, GPU: f.GPU, Timeout: f.Timeout, MaxAttempts: max(f.Attempts, 1),
	}}
	if p.Name == "" {
		p.Name = nameOf(arguments)
	}
	if f.Code == NoCode {
		p.directory = "."
	}
	command := &p.Input.Command
	switch {
	case f.InPlace && f.Set.Changed("code"):
		return p, &fault.UsageError{
			Problem: "--in-place and --code exclude each other",
			Hint:    "change to the directory and leave --code out",
		}
	case f.InPlace && f.Image != "":
		return p, &fault.UsageError{
			Problem: "--in-place and --image exclude each other",
			Hint:    "leave --in-place out: the image gets a copy of the directory",
		}
	case f.Image != "" && f.Requirements != "":
		return p, &fault.UsageError{
			Problem: "--requirements and --image exclude each other",
			Hint:    "install the requirements in the image",
		}
	case f.InPlace:
		command.InPlace = workingDirectory
	}
	var err error
	if command.Environment, err = f.variables(environment); err != nil {
		return p, err
	}
	if command.Outputs, err = f.commandOutputs(); err != nil {
		return p, err
	}
	for _, text := range f.Files {
		where, file, found := strings.Cut(text, "=")
		if !found || file == "" || !isBelow(where) {
			return p, &fault.UsageError{
				Problem: fmt.Sprintf(
					"--file %s: it is not PATH=FILE with a path below the directory in which the program starts", text),
				Hint: "write --file data/raw.csv=/mnt/raw.csv",
			}
		}
		command.Files = append(command.Files, wire.CommandFile{Path: path.Clean(where)})
		p.files = append(p.files, file)
	}
	if err := p.Input.Validate(); err != nil {
		return p, &fault.UsageError{Problem: err.Error(), Hint: "`spillway run --help` says what the flags take"}
	}
	return p, nil
}

func isBelow(where string) bool {
	return where != "" && path.Clean(where) != "." && filepath.IsLocal(filepath.FromSlash(where))
}

func (f *Flags) commandOutputs() ([]wire.CommandOutput, error) {
	var outputs []wire.CommandOutput
	for _, text := range f.Outputs {
		name, where, found := strings.Cut(text, "=")
		if !found || name == "" || !isBelow(where) {
			return nil, &fault.UsageError{
				Problem: fmt.Sprintf(
					"--output %s: it is not NAME=PATH with a path below the directory in which the program starts", text),
				Hint: "write --output model=model.pt",
			}
		}
		if err := chain.CheckOutput(name); err != nil {
			return nil, &fault.UsageError{
				Problem: fmt.Sprintf("--output %s: %v", text, err),
				Hint:    "the name stands first, as in --output model=model.pt",
			}
		}
		if slices.ContainsFunc(outputs, func(o wire.CommandOutput) bool {
			return o.Name == name || o.Path == path.Clean(where)
		}) {
			return nil, &fault.UsageError{
				Problem: fmt.Sprintf("--output %s: its name or path is given twice", text),
				Hint:    "keep one of them",
			}
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

// variables returns what is set for the program: the caller's PATH, so that the shell's `python` is the one that runs,
// and its Python environment, unless the command brings its own; and what --env says.
func (f *Flags) variables(environment func(string) (string, bool)) (map[string]string, error) {
	set := map[string]string{}
	if f.Image == "" && f.Requirements == "" {
		search, _ := environment("PATH")
		if venv, active := environment("VIRTUAL_ENV"); active && venv != "" {
			set["VIRTUAL_ENV"] = venv
			search = strings.TrimSuffix(filepath.Join(venv, "bin")+string(os.PathListSeparator)+search,
				string(os.PathListSeparator))
		}
		if search != "" {
			set["PATH"] = search
		}
	}
	for _, text := range f.Environment {
		name, value, given := strings.Cut(text, "=")
		switch {
		case !variableName.MatchString(name):
			return nil, &fault.UsageError{
				Problem: fmt.Sprintf("--env %s: %q is not the name of a variable", text, name),
				Hint:    "write NAME=VALUE, or NAME for the value of this shell",
			}
		case strings.HasPrefix(name, reservedVariables):
			return nil, &fault.UsageError{Problem: fmt.Sprintf("--env %s: names that begin with %s are set by Spillway", name,
				reservedVariables), Hint: "use another name"}
		case strings.ContainsRune(value, 0):
			return nil, &fault.UsageError{Problem: "--env " + name + ": the value has a NUL character", Hint: "leave it out"}
		}
		if !given {
			var isSet bool
			if value, isSet = environment(name); !isSet {
				return nil, &fault.UsageError{
					Problem: "--env " + name + ": it is not set in this shell",
					Hint:    "give the value: --env " + name + "=VALUE",
				}
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
var interpreters = regexp.MustCompile(
	`^(python[0-9.]*|pypy[0-9.]*|node|deno|bun|ruby|perl|php|lua|julia|Rscript|sh|bash|zsh|fish|torchrun)$`)

// nameOf makes a name of a command: that of the script which an interpreter runs, else that of the program.
func nameOf(arguments []string) string {
	program := path.Base(filepath.ToSlash(arguments[0]))
	if !interpreters.MatchString(program) {
		return flag.ValidName(program)
	}
	for rest := arguments[1:]; len(rest) > 0; rest = rest[1:] {
		switch argument := rest[0]; {
		case argument == "-m" && len(rest) > 1:
			return flag.ValidName(rest[1][strings.LastIndexByte(rest[1], '.')+1:])
		case argument == "-c" || argument == "-e" || argument == "-":
			return flag.ValidName(program)
		case (argument == "-W" || argument == "-X") && len(rest) > 1: // of Python, with a value
			rest = rest[1:]
		case strings.HasPrefix(argument, "-") || argument == "run":
		default:
			script := path.Base(filepath.ToSlash(argument))
			return flag.ValidName(strings.TrimSuffix(script, path.Ext(script)))
		}
	}
	return flag.ValidName(program)
}

var keyValue = regexp.MustCompile(`^(-{0,2})([A-Za-z_][A-Za-z0-9_.-]*)=(.+)$`)

// parameters finds what the size of a command may depend on: the values of its flags by the flags' names without
// dashes, in the forms "--epochs 3", "--lr=0.1", "-b 64" and "epochs=3". Texts are categories ("--model large"), and a
// flag that no value follows counts as 1.
func parameters(arguments []string) map[string]float64 {
	found := map[string]float64{}
	add := func(name, text string) { addParameter(found, name, text) }
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
		if name == argument || name == "" || len(argument)-len(name) > 2 || isNumber(name) {
			continue
		}
		if next := i + 1; next < len(arguments) && (!strings.HasPrefix(arguments[next], "-") || isNumber(arguments[next])) {
			add(name, arguments[next])
			continue
		}
		add(name, "1")
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// addParameter adds the value of a flag, as a number or as a category; programs take the last of one that is given
// twice.
func addParameter(found map[string]float64, name, text string) {
	value, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		wire.AddCategories(found, name, text)
	case value >= 0 && !math.IsInf(value, 0):
		found[name] = value
	}
}

func isNumber(text string) bool {
	_, err := strconv.ParseFloat(text, 64)
	return err == nil
}
