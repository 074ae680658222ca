// Package app is the main function of users' binaries: one binary is workflow worker, slot process, Lambda function and
// its own description.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spillway-ml/spillway/activities/artifact/relay"
	"github.com/spillway-ml/spillway/activities/artifact/stores"
	"github.com/spillway-ml/spillway/activities/exchange"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/child"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// Pipeline is a pipeline of any input and output: what workflows.NewPipeline returns.
type Pipeline = runs.AnyPipeline

// Stage is a stage of any input and output: what workflows.NewStage and workflows.NewCommand return.
type Stage = runs.AnyStage

// Options is what an app consists of.
type Options struct {
	// Name is the app's name: lower-case letters, digits, '-' and '_'. Required.
	Name string
	// Pipelines and Stages list everything that the app declares. A stage that is declared and not listed is an error at
	// start.
	Pipelines []Pipeline
	Stages    []Stage
}

// Main runs the app in the role that the engine gave it, and does not return. Started by a person, it says how to run
// it.
//
// Exit codes: 0 when the engine asked it to stop, 1 for a failure, 2 when the options or the arguments are wrong.
func Main(options Options) {
	if os.Getenv(wire.RoleEnvironment) == wire.RoleWorkflows {
		if err := conceal(); err != nil { // before it reads or is told anything
			_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", options.Name, err)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, options, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(
	ctx context.Context, options Options, args []string, getenv func(string) string, stdout, stderr io.Writer,
) int {
	description, err := describe(options)
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", options.Name, err)
		return 2
	}
	logger := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	switch {
	case getenv("AWS_LAMBDA_RUNTIME_API") != "":
		err = serveFunction(ctx, options, getenv, logger)
	case getenv(wire.RoleEnvironment) == wire.RoleChild:
		err = serveSlot(ctx, options, getenv, logger)
	case getenv(wire.RoleEnvironment) == wire.RoleWorkflows:
		err = serveWorkflows(ctx, options, description, getenv, logger)
	case len(args) > 0 && args[0] == "describe":
		encoder := json.NewEncoder(stdout)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(description)
	default:
		_, _ = fmt.Fprint(stdout, usage(description))
		if len(args) > 0 && args[0] != "help" && args[0] != "--help" && args[0] != "-h" {
			_, _ = fmt.Fprintf(stderr, "%s: unknown argument %q\n", options.Name, args[0])
			return 2
		}
	}
	if err != nil {
		_, _ = fmt.Fprintf(stderr, "%s: %v\n", options.Name, err)
		return 1
	}
	return 0
}

// describe checks the options and returns what the engine needs to know of the app.
func describe(options Options) (wire.App, error) {
	if options.Name == "" || len(options.Pipelines) == 0 {
		return wire.App{}, errors.New("app.Main needs a Name and at least one pipeline: app.Main(app.Options{Name: ..., " +
			"Pipelines: ..., Stages: ...})")
	}
	if strings.Trim(options.Name, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" || len(options.Name) > 40 {
		return wire.App{}, fmt.Errorf("app name %q: use lower-case letters, digits, '-' and '_', at most 40", options.Name)
	}
	if err := runs.CheckListed(options.Stages); err != nil {
		return wire.App{}, err
	}
	description := wire.App{
		Version: wire.Version, Name: options.Name, SIMD: builtWithSIMD(),
		WorkflowVersion: wire.WorkflowVersion,
	}
	seen := map[string]bool{}
	for _, pipeline := range options.Pipelines {
		described, err := pipeline.Describe()
		if err != nil {
			return wire.App{}, err
		}
		if seen[described.Name] {
			return wire.App{}, fmt.Errorf("pipeline %q is listed twice in app.Main: give one of them another name",
				described.Name)
		}
		seen[described.Name] = true
		description.Pipelines = append(description.Pipelines, described)
	}
	for _, stage := range options.Stages {
		description.Stages = append(description.Stages, stage.Describe())
	}
	return description, nil
}

// builtWithSIMD reports whether this binary was built with GOEXPERIMENT=simd.
func builtWithSIMD() bool {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return false
	}
	for _, setting := range info.Settings {
		if setting.Key == "GOEXPERIMENT" && strings.Contains(setting.Value, "simd") {
			return true
		}
	}
	return false
}

func usage(app wire.App) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%s is a Spillway app: the engine runs it.\n\n", app.Name)
	for _, pipeline := range app.Pipelines {
		fmt.Fprintf(&text, "  spillway run %s --app %s\n", pipeline.Name, os.Args[0])
	}
	fmt.Fprintf(&text, "  spillway dev --app %s\n  %s describe --json\n", os.Args[0], os.Args[0])
	return text.String()
}

// require returns an error that names the first of these environment variables that is not set.
func require(getenv func(string) string, names ...string) error {
	for _, name := range names {
		if getenv(name) == "" {
			return fmt.Errorf("%s is not set: the engine starts an app in this role, and sets it; start the app with "+
				"`spillway run` or `spillway dev`", name)
		}
	}
	return nil
}

func serveSlot(ctx context.Context, options Options, getenv func(string) string, logger *slog.Logger) error {
	if err := require(getenv, wire.ArtifactsEnvironment); err != nil {
		return err
	}
	store, err := stores.Open(getenv(wire.ArtifactsEnvironment), getenv)
	if err != nil {
		return err
	}
	if !isPipe(wire.ChildInput) || !isPipe(wire.ChildOutput) {
		return fmt.Errorf("file descriptors %d and %d are no pipes: a slot process is started by the engine only",
			wire.ChildInput, wire.ChildOutput)
	}
	// The supervisor closes the pipe when it wants the child to end; an interrupt meant for the terminal's whole process
	// group is not for it.
	signal.Ignore(os.Interrupt)
	in, out := os.NewFile(wire.ChildInput, "supervisor-in"), os.NewFile(wire.ChildOutput, "supervisor-out")
	// What the stage starts must not hold the channel open: its end is how the supervisor learns of a crash.
	syscall.CloseOnExec(wire.ChildInput)
	syscall.CloseOnExec(wire.ChildOutput)
	channels := child.Channels{
		In: in, Out: out, Printed: []io.Writer{os.Stdout, os.Stderr},
		Enforced: getenv(wire.EnforcedEnvironment) == "1", Server: withServer,
	}
	return child.Serve(ctx, child.NewStages(options.Stages), store, logger, channels)
}

// isPipe reports whether descriptor is open and a pipe: without a supervisor the number may be closed, or the Go
// runtime's own.
func isPipe(descriptor int) bool {
	var status syscall.Stat_t
	return syscall.Fstat(descriptor, &status) == nil && status.Mode&syscall.S_IFMT == syscall.S_IFIFO
}

func serveFunction(ctx context.Context, options Options, getenv func(string) string, logger *slog.Logger) error {
	if err := require(getenv, wire.ArtifactsEnvironment); err != nil {
		return err
	}
	store, err := stores.Open(getenv(wire.ArtifactsEnvironment), getenv)
	if err != nil {
		return err
	}
	if location := getenv(wire.ServerEnvironment); location != "" {
		if ctx, err = withServer(ctx, location); err != nil {
			return err
		}
	}
	child.ServeFunction(ctx, child.NewStages(options.Stages), store, logger)
	return nil
}

// withServer gives stages the parameter server of the engine.
func withServer(ctx context.Context, location string) (context.Context, error) {
	client, err := relay.Dial(location)
	if err != nil {
		return nil, fmt.Errorf("parameter server: %w", err)
	}
	return exchange.WithServer(ctx, client.Server()), nil
}
