// Spillway-runner runs commands as AWS Lambda functions: the engine finds it beside its own program, puts it into a zip,
// and the function starts it. It serves no person.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workers/runner"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "spillway-runner: %v\n", err)
		os.Exit(1)
	}
}

// run serves invokes. A managed runtime names its interpreter as the first argument.
func run(ctx context.Context, arguments []string) error {
	if os.Getenv("AWS_LAMBDA_RUNTIME_API") == "" {
		return errors.New("it runs commands as AWS Lambda functions, where the engine puts it: leave it beside spillway, " +
			"and start that")
	}
	location := os.Getenv(wire.ArtifactsEnvironment)
	store, err := artifact.FromURL(location)
	if err != nil {
		return err
	}
	options := runner.Options{
		Store: store, Dir: filepath.Join(os.TempDir(), "spillway"),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
	if len(arguments) > 0 && filepath.IsAbs(arguments[0]) {
		options.Interpreter = arguments[0]
	}
	runner.Serve(ctx, options)
	return nil
}
