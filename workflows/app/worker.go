package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows"
)

// connectWait is how long the worker waits for the engine's servers before it gives up; the engine starts it again.
const connectWait = 30 * time.Second

// serveWorkflows polls the build's workflow queue until ctx ends.
func serveWorkflows(ctx context.Context, options Options, description wire.App, getenv func(string) string, logger *slog.Logger) error {
	if err := require(getenv, wire.BuildEnvironment, wire.ArtifactsEnvironment, wire.TemporalEnvironment, wire.NATSEnvironment); err != nil {
		return err
	}
	build := getenv(wire.BuildEnvironment)
	window, err := strconv.Atoi(getenv(wire.WindowEnvironment))
	if err != nil && getenv(wire.WindowEnvironment) != "" {
		return fmt.Errorf("%s: %w", wire.WindowEnvironment, err)
	}
	store, err := artifact.FromURL(getenv(wire.ArtifactsEnvironment))
	if err != nil {
		return err
	}
	connection, err := nats.Connect(getenv(wire.NATSEnvironment), nats.MaxReconnects(-1), nats.Timeout(connectWait), nats.Name(options.Name+"@"+build))
	if err != nil {
		return fmt.Errorf("connect to NATS at %s: %w", getenv(wire.NATSEnvironment), err)
	}
	defer connection.Close()
	stream, err := jetstream.New(connection)
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	recorder := loop.NewRecorder(stream, &loop.RecorderOptions{Logger: logger})
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = recorder.Close(closing) // hints that cannot be sent any more are corrected by the backlog
	}()

	dialing, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	temporal, err := client.DialContext(dialing, client.Options{
		HostPort:        getenv(wire.TemporalEnvironment),
		Logger:          sdklog.NewStructuredLogger(logger),
		ExternalStorage: artifact.Offload(store, artifact.OffloadThreshold),
	})
	if err != nil {
		return fmt.Errorf("connect to Temporal at %s: %w", getenv(wire.TemporalEnvironment), err)
	}
	defer temporal.Close()

	host := workflows.Host{
		App: options.Name, Build: build, Stages: options.Stages, Window: window,
		Tell: recorder.Tell, Find: results.New(stream, store).Find,
		End: func(ctx context.Context, over workflows.Ended) error {
			return recorder.End(ctx, over.Started, over.Ended, over.Done)
		},
	}
	polling := workflows.WorkerOptions(host)
	polling.OnFatalError = func(err error) { logger.ErrorContext(ctx, "workflow worker", "error", err) }
	queue := worker.New(temporal, wire.WorkflowQueue(description.Name, build), polling)
	workflows.Register(queue, host, options.Pipelines)
	if err := queue.Start(); err != nil {
		return fmt.Errorf("poll %s: %w", wire.WorkflowQueue(description.Name, build), err)
	}
	<-ctx.Done()
	queue.Stop()
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return ctx.Err()
}
