// Package command runs one attempt of a command stage: any program, in a directory of its own.
//
// [Prepare] makes the directory: code, files, the checkpoint of an earlier attempt, a Python environment.
// [Workspace.Program] is the program ready to be started by whoever holds it to its size; [Workspace.Follow] reads what
// it reports while it runs; [Workspace.Collect] keeps its outputs; [Workspace.Remove] deletes the rest. [Sweep] deletes
// what a crashed process left.
//
// A workspace is a directory of mode 0700 below [Options].Root:
//
//	work/    the tree in which the program runs, unless it runs in place
//	home/    its HOME, so that it does not find the credentials of whoever runs the engine; in place it keeps the user's
//	tmp/     its TMPDIR
//	resume/  the checkpoint of the earlier attempt
//	report/  the named pipe to which it writes its reports
//	python/  the module spillway, which scripts in Python can import
//
// None of this confines the program: it can read what its user can. Limits and namespaces are the business of who
// starts it.
package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// Options say where workspaces are and what they may take. Root, Cache and Store are required.
type Options struct {
	// Root is the directory of all workspaces of this process, and of its predecessors on this host. It is made where
	// needed.
	Root string
	// Cache keeps unpacked code and Python environments between attempts; processes may share it. It is made where needed.
	Cache string
	// CacheBytes bounds Cache: what was not used for longest is removed; what is in use stays. 0 means DefaultCacheBytes.
	CacheBytes quantity.Bytes
	// Store has the artifacts, and takes outputs and checkpoints.
	Store activities.Store
	// MaxBytes bounds what a workspace may hold; see Workspace.Used. 0 means no bound.
	MaxBytes quantity.Bytes
	// Python is the interpreter of which environments are made: a path, or a name that is looked up in the host's PATH.
	// Empty means "python3".
	Python string
	// Assist runs a program that prepares a workspace, such as pip, and returns when it has ended; it comes from
	// exec.CommandContext. Nil means spawn.Run: it ends with this process and takes what it likes.
	Assist func(*exec.Cmd) error
	// User is as whom whoever starts programs and Assist do so; nil means as this process's user. A workspace is the
	// user's, and the directory that holds it is not, so that this process meets no links there. A user other than this
	// process's runs nothing in place and no container.
	User *spawn.User
	// Own is the path of this process's program. It is started in place of a program of the same name that a command names
	// by a path which this host does not have: `spillway train` names itself where it was started. Empty replaces none.
	Own string
	// Lookup finds the host's environment variables; nil means os.LookupEnv. A program gets few of them.
	Lookup func(name string) (value string, set bool)
}

// DefaultCacheBytes is the size of a cache where Options say nothing: a few environments with PyTorch, of 5 GiB each.
const DefaultCacheBytes = 20 * quantity.GiB

// Kinds of failure that the runner of an attempt tells apart. All other errors are the host's: a disk is full, a store
// is down.
var (
	// ErrInvalid says that a command can never run as it is written.
	ErrInvalid = errors.New("the command is not valid")
	// ErrRequirements says that the Python environment could not be made: a package is not found, or does not build, or
	// the network is down.
	ErrRequirements = errors.New("the Python requirements could not be installed")
	// ErrProgram says that the program cannot be executed on this host.
	ErrProgram = errors.New("the program cannot be started")
	// ErrOutput says that the program ended without an output that it must leave.
	ErrOutput = errors.New("an output is not there")
	// ErrSpace says that a workspace holds more than it may.
	ErrSpace = errors.New("the attempt's files take too much room")
)

// A MissingError says that an artifact that a command needs is not in the store. It wraps the store's error.
type MissingError struct {
	// What the command needs it for: "code", "requirements", "checkpoint" or the path of a file.
	What string
	Ref  activities.Ref
	Err  error
}

// Error names the artifact.
func (e *MissingError) Error() string {
	return fmt.Sprintf("fetch the command's %s, artifact %s: %v; run the stage that makes it again", e.What, e.Ref.Digest,
		e.Err)
}

// Unwrap returns the store's error.
func (e *MissingError) Unwrap() error { return e.Err }

// fetching adds to an error of a fetch what was fetched.
func fetching(what string, ref activities.Ref, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, activities.ErrMissing):
		return &MissingError{What: what, Ref: ref, Err: err}
	case errors.Is(err, tree.ErrFormat) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.EISDIR) ||
		errors.Is(err, syscall.EEXIST):
		return fmt.Errorf("%w: %s: %w", ErrInvalid, what, err)
	}
	return fmt.Errorf("fetch the command's %s: %w", what, err)
}

// Check refuses a command that cannot run on any host, with an error that wraps ErrInvalid and says where it is wrong.
// It looks at nothing but the command.
func Check(c wire.Command) error {
	for _, err := range []error{
		checkArguments(c.Arguments), checkPlaces(c), checkEnvironment(c.Environment),
		checkFiles(c.Files), checkOutputs(c.Outputs),
	} {
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}

// permit refuses what programs of another user cannot do.
func (o Options) permit(c wire.Command) error {
	switch {
	case o.User == nil:
		return nil
	case c.InPlace != "":
		return fmt.Errorf("%w: stages run as %s here, who has no right to run in place in %s; let its directory "+
			"be sent along", ErrInvalid, o.User.Name, c.InPlace)
	case c.Image != "":
		return fmt.Errorf("%w: stages run as %s here, for whom no container is started; run the command without an image, "+
			"or start spillway as the user who may use containers, without --stage-user", ErrInvalid, o.User.Name)
	}
	return nil
}

func checkArguments(arguments []string) error {
	if len(arguments) == 0 || arguments[0] == "" {
		return errors.New("it names no program; the first argument is the program")
	}
	for i, argument := range arguments {
		if strings.ContainsRune(argument, 0) {
			return fmt.Errorf("argument %d has a NUL byte, which no program can be given", i)
		}
	}
	return nil
}

// checkPlaces refuses places that exclude each other.
func checkPlaces(c wire.Command) error {
	switch {
	case c.Directory != "" && checkPath(c.Directory) != nil:
		return fmt.Errorf("directory: %w", checkPath(c.Directory))
	case c.InPlace != "" && !filepath.IsAbs(c.InPlace):
		return fmt.Errorf("in place: %q is not an absolute path", c.InPlace)
	case strings.ContainsRune(c.InPlace, 0):
		return errors.New("in place: the path has a NUL byte")
	case c.InPlace != "" && c.Code.Digest != "":
		return errors.New("it has code and runs in place, where the code would overwrite yours; choose one")
	case c.Image != "" && c.Requirements.Digest != "":
		return errors.New("it has Python requirements and an image; install the requirements in the image")
	case strings.HasPrefix(c.Image, "-") || strings.ContainsAny(c.Image, " \t\n\x00"):
		return fmt.Errorf("%q is not the name of an image", c.Image)
	case c.Hosts < 0 || c.LeastHosts < 0 || c.LeastHosts > max(c.Hosts, 1):
		return fmt.Errorf("it runs on %d to %d hosts; the least is from 0 to the most", c.LeastHosts, c.Hosts)
	case c.Hosts > 1 && c.Image != "":
		return errors.New("it runs in a container on several hosts, which see no network of theirs; run it without an image")
	case c.Hosts > 1 && c.InPlace != "":
		return errors.New("it runs in place on several hosts, of which one has the directory; let its files be sent along")
	case c.Grace < 0:
		return fmt.Errorf("the grace %s is negative", c.Grace)
	}
	return nil
}

// reserved are the variables that the engine sets.
var reserved = []string{
	wire.ReportEnvironment, wire.ResumeEnvironment, wire.RunEnvironment, wire.StageEnvironment, wire.TaskEnvironment,
	wire.AttemptEnvironment,
	wire.CPUEnvironment, wire.MemoryEnvironment, wire.GangEnvironment,
}

func checkEnvironment(environment map[string]string) error {
	for name, value := range environment {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return fmt.Errorf("environment: %q is not the name of a variable", name)
		case strings.ContainsRune(value, 0):
			return fmt.Errorf("environment: the value of %s has a NUL byte", name)
		case slices.Contains(reserved, name):
			return fmt.Errorf("environment: %s is set by the engine; choose another name", name)
		}
	}
	return nil
}

func checkFiles(files []wire.CommandFile) error {
	trees := make(map[string]bool, len(files)) // by path; false for a file
	for i, file := range files {
		if err := checkPath(file.Path); err != nil {
			return fmt.Errorf("file %d: %w", i, err)
		}
		if file.Artifact.Digest == "" {
			return fmt.Errorf("file %s: its artifact has no digest", file.Path)
		}
		clean := path.Clean(file.Path)
		if clean == "." && !file.Tree {
			return fmt.Errorf("file %d: %q is a directory; only a tree can be put there", i, file.Path)
		}
		if _, twice := trees[clean]; twice {
			return fmt.Errorf("file %s is there twice", file.Path)
		}
		trees[clean] = file.Tree
	}
	for _, file := range files {
		for parent := path.Dir(path.Clean(file.Path)); parent != "."; parent = path.Dir(parent) {
			if isTree, found := trees[parent]; found && !isTree {
				return fmt.Errorf("file %s is below %s, which is a file", file.Path, parent)
			}
		}
	}
	return nil
}

func checkOutputs(outputs []wire.CommandOutput) error {
	var names, paths []string
	for _, output := range outputs {
		if output.Name == "" {
			return fmt.Errorf("the output at %q has no name", output.Path)
		}
		if err := checkPath(output.Path); err != nil {
			return fmt.Errorf("output %s: %w", output.Name, err)
		}
		clean := path.Clean(output.Path)
		if slices.Contains(names, output.Name) {
			return fmt.Errorf("output %s is there twice", output.Name)
		}
		if slices.Contains(paths, clean) {
			return fmt.Errorf("output %s: %s is another output already", output.Name, output.Path)
		}
		names, paths = append(names, output.Name), append(paths, clean)
	}
	return nil
}

// checkPath refuses a path that leads out of the working directory.
func checkPath(name string) error {
	if strings.ContainsRune(name, 0) || !filepath.IsLocal(filepath.FromSlash(name)) {
		return fmt.Errorf("the path %q is not below the working directory", name)
	}
	return nil
}

// lookup returns how to find the host's variables for the user of programs.
func (o Options) lookup() func(string) (string, bool) {
	if o.Lookup == nil {
		return o.User.Lookup(os.LookupEnv)
	}
	return o.User.Lookup(o.Lookup)
}

// check refuses options that cannot work.
func (o Options) check() error {
	switch {
	case !filepath.IsAbs(o.Root) || !filepath.IsAbs(o.Cache):
		return fmt.Errorf("the directories of workspaces (%q) and of the cache (%q) must be absolute paths", o.Root, o.Cache)
	case o.Store == nil:
		return errors.New("there is no artifact store")
	case o.User != nil && o.Assist == nil:
		return errors.New("nothing is there that runs programs as " + o.User.Name)
	case o.MaxBytes < 0 || o.CacheBytes < 0:
		return errors.New("a number of bytes is negative")
	}
	return nil
}
