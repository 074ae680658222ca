package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/aws/aws-lambda-go/lambda"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
)

// Options say where commands run. Store and Dir are required.
type Options struct {
	// Store has the artifacts, and takes outputs and checkpoints.
	Store activities.Store
	// Dir is an absolute path of a directory that only this process uses, on the function's own disk.
	Dir string
	// Disk is what the function has for files; 0 means wire.FunctionDisk.
	Disk quantity.Bytes
	// Interpreter is the path of the language that the function's runtime has; empty when it has none. Programs find it
	// first.
	Interpreter string
	// Output takes what programs print, which is the function's log; nil means os.Stdout.
	Output io.Writer
	// Lookup finds the function's variables; nil means os.LookupEnv.
	Lookup func(name string) (value string, set bool)
	// Logger takes what goes wrong beside an attempt; nil discards it.
	Logger *slog.Logger
}

// codeShare is the part of the disk in which unpacked code stays between attempts.
const codeShare = 4

// withDefaults returns o with its zero fields set.
func (o Options) withDefaults() Options {
	if o.Disk <= 0 {
		o.Disk = wire.FunctionDisk
	}
	if o.Output == nil {
		o.Output = os.Stdout
	}
	if o.Lookup == nil {
		o.Lookup = os.LookupEnv
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Serve runs commands as a Lambda function until the environment is stopped. It does not return.
func Serve(ctx context.Context, options Options) {
	lambda.StartWithOptions(Handler(ctx, options), lambda.WithContext(ctx))
}

// Handler deletes what a process before this one left of its attempts, as the disk of a function outlives its process,
// and returns the handler of an invoke. Whatever becomes of the command is in the Answer: an error means that the
// invoke was none of this version.
func Handler(ctx context.Context, options Options) func(context.Context, wire.Invoke) (wire.Answer, error) {
	options = options.withDefaults()
	if _, err := command.Sweep(ctx, options.attempts()); err != nil {
		options.Logger.WarnContext(ctx, "the files of attempts that were killed are left", "error", err)
	}
	return func(ctx context.Context, invoke wire.Invoke) (wire.Answer, error) {
		if invoke.Version != wire.Version {
			return wire.Answer{}, fmt.Errorf("invoke: %w: %d, this runner reads %d", wire.ErrVersion, invoke.Version,
				wire.Version)
		}
		return options.run(ctx, invoke.Start), nil
	}
}

// attempts is the directory of the files of attempts.
func (o Options) attempts() string { return filepath.Join(o.Dir, "attempts") }

// variables finds what programs may know of the function: a language that the runtime has comes before all others.
func (o Options) variables(name string) (value string, set bool) {
	value, set = o.Lookup(name)
	if name == "PATH" && o.Interpreter != "" {
		value = strings.TrimSuffix(filepath.Dir(o.Interpreter)+string(os.PathListSeparator)+value,
			string(os.PathListSeparator))
		set = true
	}
	return value, set
}

// searched is what a command sets, with the directories of the function before those that it names: it is sent with the
// PATH of the shell that sent it, which knows nothing of the languages here.
func (o Options) searched(given map[string]string) map[string]string {
	theirs, set := given["PATH"]
	own, has := o.variables("PATH")
	if !set || !has {
		return given
	}
	given = maps.Clone(given)
	given["PATH"] = strings.TrimSuffix(own+string(os.PathListSeparator)+theirs, string(os.PathListSeparator))
	return given
}

// libraries is where the interpreters of managed runtimes find their own libraries: programs that start them need it.
const libraries = "LD_LIBRARY_PATH"

// run runs one attempt to its end.
func (o Options) run(ctx context.Context, start wire.StartAttempt) wire.Answer {
	begun := time.Now()
	var c wire.Command
	if err := json.Unmarshal(start.Input, &c); err != nil {
		return failed(wire.StageFailure{Message: "the command does not decode: " + err.Error(), Permanent: true})
	}
	c.Environment = o.searched(c.Environment)
	limits := limitsOf(ctx, start, c.Stops(), begun)
	ctx, cancel := context.WithDeadlineCause(ctx, limits.kill, errLate)
	defer cancel()
	if room := c.Room(start.Resume); room > o.Disk {
		return failed(wire.StageFailure{Unfit: predictor.CauseDisk, Message: fmt.Sprintf("it needs %s for its code and "+
			"files, and a function has %s", room, o.Disk)})
	}
	workspace, err := command.Prepare(ctx, command.Options{
		Root: o.attempts(), Cache: filepath.Join(o.Dir, "code"), CacheBytes: o.Disk / codeShare,
		Store: o.Store, MaxBytes: o.Disk - min(o.Disk/2, quantity.Bytes(max(c.Code.Bytes, 0))), Lookup: o.variables,
	}, c, start.Resume)
	if err != nil {
		return failed(unprepared(ctx, limits, err))
	}
	a := &attempt{
		options: o, start: start, command: c, limits: limits, workspace: workspace, begun: begun,
		log: newLog(o.Output),
	}
	answer := a.run(ctx)
	if err := workspace.Remove(context.WithoutCancel(ctx)); err != nil {
		o.Logger.WarnContext(ctx, "the files of an attempt are left", "task", start.Task.ID, "error", err)
	}
	return answer
}

// failed is the answer of an attempt that has not begun.
func failed(failure wire.StageFailure) wire.Answer { return wire.Answer{Error: &failure} }

// errLate is why what an attempt waits for ends with its time.
var errLate = errors.New("the attempt has no more time")

// unprepared tells what it means that a command could not be started. What is wrong with the command itself, no further
// try can fix, at no venue; what the function lacks, the pool may have.
func unprepared(ctx context.Context, limits limits, err error) wire.StageFailure {
	failure := wire.StageFailure{Message: err.Error()}
	var missing *command.MissingError
	switch {
	case errors.Is(context.Cause(ctx), errLate):
		failure = limits.late("its files were not there by then")
	case errors.Is(err, command.ErrInvalid), errors.As(err, &missing):
		failure.Permanent = true
	case errors.Is(err, command.ErrProgram), errors.Is(err, command.ErrRequirements):
		failure.Unfit = predictor.CauseStart
	case isDiskFull(err):
		failure.Unfit = predictor.CauseDisk
	}
	return failure
}

// isDiskFull reports whether the function has no more room for files.
func isDiskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, command.ErrSpace)
}
