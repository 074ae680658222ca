package build

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/spawn"
	"github.com/spillway-ml/spillway/workflows/runs"
)

const (
	// experiment makes the Go matrix kernels eight times faster, so every build asks for it.
	experiment = "simd"
	// describeLimit bounds how long a binary may take to describe itself; ours take milliseconds.
	describeLimit = 10 * time.Second
	// killDelay is how long after a kill the output pipes are waited for.
	killDelay = 2 * time.Second
	// outputLimit bounds what is kept of a compiler's or a binary's output.
	outputLimit = 64 << 10
	// descriptionLimit bounds what a binary may say of itself.
	descriptionLimit = 8 << 20
	// progressEvery is how often progress is told.
	progressEvery = time.Second
)

// compile runs `go build` on the package in dir. The build is independent of where the tree lies (-trimpath) and of the
// state of its repository (-buildvcs=false), so that equal code has an equal digest.
func (s *Store) compile(ctx context.Context, dir, target string, settings ...string) error {
	target, err := filepath.Abs(target)
	if err != nil {
		return &Error{Source: dir, Err: err}
	}
	defer s.watch(Compile)()
	output := spawn.NewLastBytes(outputLimit)
	cmd := helper(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-o", target, ".")
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), experimentSetting(ctx, dir)...), settings...)
	cmd.Stdout, cmd.Stderr = output, output
	if err := spawn.Run(cmd); err != nil {
		return compileError(ctx, dir, text(output), err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm()&0o111 == 0 {
		return &Error{
			Source: dir, Problem: "the package is not a program",
			Hint: "give the directory whose package is main and calls app.Main",
		}
	}
	return nil
}

// CompileFor compiles the package in dir for Linux on another processor, as Go names it, without C, and returns the
// file. It is not stored, because nothing on this machine can run it: the caller calls remove. Errors are of type
// *Error.
func (s *Store) CompileFor(ctx context.Context, dir, arch string) (path string, remove func() error, err error) {
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return "", nil, &Error{
			Source: dir, Problem: "make the directory of builds", Err: err,
			Hint: "choose a writable state directory with --state",
		}
	}
	scratch, err := os.MkdirTemp(s.dir, scratchPrefix)
	if err != nil {
		return "", nil, &Error{Source: dir, Problem: "make a scratch directory", Err: err}
	}
	remove = func() error { return os.RemoveAll(scratch) }
	path = filepath.Join(scratch, "app")
	if err := s.compile(ctx, dir, path, "GOOS=linux", "GOARCH="+arch, "CGO_ENABLED=0"); err != nil {
		return "", nil, errors.Join(err, remove())
	}
	return path, remove, nil
}

// compileError turns a failed `go build` into an error whose hint fits what the toolchain said.
func compileError(ctx context.Context, dir, output string, err error) error {
	failure := &Error{Source: dir, Problem: "go build failed", Output: output}
	switch {
	case ctx.Err() != nil:
		failure.Problem, failure.Output, failure.Err = "interrupted", "", ctx.Err()
	case errors.Is(err, exec.ErrNotFound):
		failure.Problem, failure.Output = "there is no go command in PATH", ""
		failure.Hint = "install Go from https://go.dev/dl, or give a binary that was built elsewhere"
	case strings.Contains(output, "go.mod file not found"):
		failure.Hint = "run `go mod init` in " + dir + ", or begin from `spillway init`"
	case strings.Contains(output, "go.sum") || strings.Contains(output, "go mod tidy"):
		failure.Hint = "run `go mod tidy` in " + dir
	case strings.Contains(output, "no Go files") || strings.Contains(output, "matched no packages"):
		failure.Hint = "give the directory whose package is main and calls app.Main"
	case output == "":
		failure.Err = err
	}
	return failure
}

// experimentSetting returns the environment that adds GOEXPERIMENT=simd to what the user has set, or nothing when the
// toolchain in force in dir does not know it or the user has decided either way.
func experimentSetting(ctx context.Context, dir string) []string {
	current := os.Getenv("GOEXPERIMENT")
	names := strings.FieldsFunc(current, func(r rune) bool { return r == ',' || r == ' ' })
	if slices.Contains(names, experiment) || slices.Contains(names, "no"+experiment) {
		return nil
	}
	setting := "GOEXPERIMENT=" + strings.Join(append(names, experiment), ",")
	cmd := helper(ctx, "go", "env", "GOEXPERIMENT")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), setting)
	if spawn.Run(cmd) != nil {
		return nil
	}
	return []string{setting}
}

// describe runs the binary with `describe --json` and nothing of this process's environment but what every program
// needs.
func (s *Store) describe(ctx context.Context, source, binary string) (wire.App, error) {
	defer s.watch(Describe)()
	limited, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	stdout, stderr := spawn.NewLastBytes(descriptionLimit), spawn.NewLastBytes(outputLimit)
	err := runFresh(func() *exec.Cmd {
		cmd := helper(limited, binary, "describe", "--json")
		cmd.Env = spawn.Environment(spawn.Inherited(os.LookupEnv))
		cmd.Dir = filepath.Dir(binary)
		cmd.Stdout, cmd.Stderr = stdout, stderr
		return cmd
	})
	failure := &Error{
		Source: source, Problem: "the program does not describe itself", Output: text(stderr), Err: err,
		Hint: "its main function must call app.Main of github.com/spillway-ml/spillway/workflows/app and do " +
			"nothing before it",
	}
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			failure.Err = fmt.Errorf("no answer to `describe --json` within %s", describeLimit)
		}
		return wire.App{}, failure
	}
	var descriptor wire.App
	if err := json.Unmarshal(stdout.Bytes(), &descriptor); err != nil {
		failure.Err = fmt.Errorf("its answer to `describe --json` is not a description: %w", err)
		return wire.App{}, failure
	}
	if err := check(descriptor); err != nil {
		failure.Problem, failure.Hint, failure.Err = "the program's description is refused", err.hint, err
		return wire.App{}, failure
	}
	return descriptor, nil
}

// refusal is an error with what to do about it.
type refusal struct{ problem, hint string }

func (r *refusal) Error() string { return r.problem }

// check refuses descriptions that the engine could not serve.
func check(descriptor wire.App) *refusal {
	switch {
	case descriptor.Version != wire.Version:
		return &refusal{
			problem: fmt.Sprintf("it speaks version %d of the engine's messages, this engine version %d", descriptor.Version,
				wire.Version),
			hint: "build the app and the engine from the same version of github.com/spillway-ml/spillway",
		}
	case !validName.MatchString(descriptor.Name):
		return &refusal{
			problem: fmt.Sprintf("its name %q is not letters, digits, dots, dashes and underscores (at most 64)",
				descriptor.Name),
			hint: "change Name in the options of app.Main",
		}
	case len(descriptor.Pipelines) == 0:
		return &refusal{problem: "it has no pipeline", hint: "list at least one in the options of app.Main"}
	}
	for _, pipeline := range descriptor.Pipelines {
		if err := runs.CheckName(pipeline.Name); err != nil {
			return &refusal{problem: "a pipeline has the " + err.Error(), hint: "rename the pipeline"}
		}
	}
	for _, stage := range descriptor.Stages {
		if err := runs.CheckName(stage.Name); err != nil {
			return &refusal{problem: "a stage has the " + err.Error(), hint: "rename the stage"}
		}
		if err := checkDeclared(stage.Declared); err != nil {
			return &refusal{problem: fmt.Sprintf("the hints of stage %s: %v", stage.Name, err), hint: "change its hints"}
		}
	}
	return nil
}

// checkDeclared returns what is wrong with the size that a stage declares. An app that was built with an earlier SDK,
// or says of itself what it likes, may declare what no hint says.
func checkDeclared(size quantity.Size) error {
	switch {
	case size.CPU < 0 || size.Memory < 0:
		return fmt.Errorf("it asks for %s cores and %s of memory; give 0 where it is to be found out", size.CPU, size.Memory)
	case size.GPU%quantity.Core != 0:
		return fmt.Errorf("it asks for %s GPU; GPUs are given whole", size.GPU)
	}
	count := int(size.GPU / quantity.Core)
	return quantity.GPUs{
		Count: count, Class: size.DeviceClass, Memory: size.GPUMemory / quantity.Bytes(max(count, 1)),
	}.Check()
}

// helper is a command for spawn.Run, which ends with ctx and with this process.
func helper(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = killDelay
	return cmd
}

// runFresh runs a binary that was written a moment ago. Another goroutine that forked meanwhile may still hold the
// writing descriptor for an instant, and then Linux answers ETXTBSY (https://go.dev/issue/22315): try again shortly.
func runFresh(newCommand func() *exec.Cmd) error {
	for wait := time.Millisecond; ; wait *= 2 {
		err := spawn.Run(newCommand())
		if !errors.Is(err, syscall.ETXTBSY) || wait > time.Second {
			return err
		}
		time.Sleep(wait)
	}
}

// watch tells progress how old phase is until the returned function is called.
func (s *Store) watch(phase Phase) (stop func()) {
	if s.progress == nil {
		return func() {}
	}
	start := time.Now()
	done := make(chan struct{})
	var ticking sync.WaitGroup
	ticking.Go(func() {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				s.progress(phase, time.Since(start))
			}
		}
	})
	return func() {
		close(done)
		ticking.Wait()
	}
}

// text is the end of what a program printed, without the line end.
func text(output *spawn.LastBytes) string { return strings.TrimRight(output.Text(), "\n") }
