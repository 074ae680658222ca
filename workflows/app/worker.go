package app

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/stores"
	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/results"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// connectWait is how long the worker waits for the engine's servers before it gives up; the engine starts it again.
const connectWait = 30 * time.Second

// serveWorkflows polls the build's workflow queue until ctx ends.
func serveWorkflows(
	ctx context.Context, options Options, description wire.App, getenv func(string) string, logger *slog.Logger,
) error {
	if err := require(getenv, wire.BuildEnvironment, wire.ArtifactsEnvironment, wire.TemporalEnvironment,
		wire.NATSEnvironment); err != nil {
		return err
	}
	build := getenv(wire.BuildEnvironment)
	window, err := strconv.Atoi(getenv(wire.WindowEnvironment))
	if err != nil && getenv(wire.WindowEnvironment) != "" {
		return fmt.Errorf("%s: %w", wire.WindowEnvironment, err)
	}
	store, err := stores.Open(getenv(wire.ArtifactsEnvironment), getenv)
	if err != nil {
		return err
	}
	public, err := hex.DecodeString(getenv(wire.ResultsKeyEnvironment))
	if err != nil {
		return fmt.Errorf("%s: %w", wire.ResultsKeyEnvironment, err)
	}
	to, err := connect(ctx, getenv, options.Name, build, store, logger)
	if err != nil {
		return err
	}
	defer to.close(ctx)
	ports := runs.Ports{
		App: options.Name, Build: build, Stages: options.Stages, Window: window,
		Tell: to.recorder.Tell, Find: results.New(to.stream, store, results.Signing{Public: public}).Find,
		End: func(ctx context.Context, over runs.Ended) error {
			return to.recorder.End(ctx, over.Started, over.Ended, over.Done)
		},
	}
	polling := runs.WorkerOptions(ports)
	polling.OnFatalError = func(err error) { logger.ErrorContext(ctx, "workflow worker", "error", err) }
	queue := worker.New(to.temporal, wire.WorkflowQueue(description.Name, build), polling)
	runs.Register(queue, ports, options.Pipelines)
	if err := queue.Start(); err != nil {
		return fmt.Errorf("poll %s: %w", wire.WorkflowQueue(description.Name, build), err)
	}
	checks := make(chan error, 1)
	if getenv(wire.ChecksEnvironment) == "1" {
		questions, answers, err := openChecks()
		if err != nil {
			queue.Stop()
			return err
		}
		// It ends with this process: the engine closes its end only when it has no use for the worker any more.
		go func() { checks <- answerChecks(questions, answers, options.Pipelines) }()
	}
	select {
	case <-ctx.Done():
	case err := <-to.refused:
		queue.Stop()
		return err
	case err := <-checks:
		queue.Stop()
		return err
	}
	queue.Stop()
	if errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	return ctx.Err()
}

// servers are those of the engine, as the workflow worker of a build uses them.
type servers struct {
	nats     *nats.Conn
	refused  <-chan error // why NATS takes the worker no more
	stream   jetstream.JetStream
	recorder *loop.Recorder
	temporal client.Client
}

// connect connects a workflow worker to the servers that its environment names. Large values go to store.
func connect(
	ctx context.Context, getenv func(string) string, name, build string, store activities.Store, logger *slog.Logger,
) (*servers, error) {
	connection, refused, err := connectNATS(getenv(wire.NATSEnvironment), name, build)
	if err != nil {
		return nil, err
	}
	stream, err := jetstream.New(connection)
	if err != nil {
		connection.Close()
		return nil, fmt.Errorf("open JetStream: %w", err)
	}
	dialing, cancel := context.WithTimeout(ctx, connectWait)
	defer cancel()
	temporal, err := client.DialContext(dialing, client.Options{
		HostPort:        getenv(wire.TemporalEnvironment),
		Namespace:       getenv(wire.NamespaceEnvironment),
		Logger:          sdklog.NewStructuredLogger(logger),
		ExternalStorage: artifact.Offload(store, artifact.OffloadThreshold),
	})
	if err != nil {
		connection.Close()
		return nil, fmt.Errorf("connect to Temporal at %s: %w", getenv(wire.TemporalEnvironment), err)
	}
	return &servers{
		nats: connection, refused: refused, stream: stream,
		// what a build sends is bounded, and a new goal of a run must not get lost
		recorder: loop.NewRecorder( //nolint:contextcheck // it sends until it is closed
			stream, &loop.RecorderOptions{Acknowledged: true, Logger: logger}),
		temporal: temporal,
	}, nil
}

// close ends the connections, once the recorder has sent its hints or two seconds have passed.
func (s *servers) close(ctx context.Context) {
	s.temporal.Close()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	_ = s.recorder.Close(closing) // hints that cannot be sent any more are corrected by the backlog
	s.nats.Close()
}

// connectNATS connects the workflow worker of a build to the engine's NATS. When the engine refuses it later, as after
// its keys were made anew, that is told on refused: without hints and results a worker is of no use, and the engine
// starts it again.
func connectNATS(address, name, build string) (connection *nats.Conn, refused <-chan error, err error) {
	parsed, err := url.Parse(address)
	if err != nil { // which shows the password
		return nil, nil, errors.New("connect to NATS: " + wire.NATSEnvironment + " holds no address")
	}
	shown := parsed.Redacted()
	closed := make(chan error, 1)
	connection, err = nats.Connect(address, nats.MaxReconnects(-1), nats.Timeout(connectWait), nats.Name(name+"@"+build),
		nats.ClosedHandler(func(ended *nats.Conn) {
			closed <- fmt.Errorf("the connection to NATS at %s is closed: %w", shown,
				cmp.Or(ended.LastError(), nats.ErrConnectionClosed))
		}))
	if errors.Is(err, nats.ErrAuthorization) {
		return nil, nil, fmt.Errorf("connect to NATS at %s: %w; it takes only workflow workers that its own engine starts: "+
			"`spillway dev --app DIR`", shown, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("connect to NATS at %s: %w", shown, err)
	}
	return connection, closed, nil
}
