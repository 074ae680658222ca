// Spillway-runner runs commands as AWS Lambda functions: the engine finds it beside its own program, puts it into a
// zip, and the function starts it. It serves no person.
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

	"github.com/spillway-ml/spillway/activities/artifact/stores"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/secrecy"
	"github.com/spillway-ml/spillway/workers/runner"
)

// runtimeAPI is the variable with the address at which invokes are taken and answered; on this machine that has a
// password.
const runtimeAPI = "AWS_LAMBDA_RUNTIME_API"

func main() {
	// Before anything is read from there.
	if err := secrecy.Conceal(wire.ArtifactsEnvironment, wire.ServerEnvironment, runtimeAPI); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "spillway-runner: warning: commands may read this function's secrets:", err)
	}
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
	if os.Getenv(runtimeAPI) == "" {
		return errors.New("it runs commands as AWS Lambda functions, where the engine puts it: leave it beside spillway, " +
			"and start that")
	}
	store, err := stores.Open(os.Getenv(wire.ArtifactsEnvironment), os.Getenv)
	if err != nil {
		return err
	}
	if err := secrecy.Forget(wire.ArtifactsEnvironment, wire.ServerEnvironment); err != nil {
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
