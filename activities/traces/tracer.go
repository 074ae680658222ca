package traces

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// maxQueue is how many spans wait for the collector; those that come when it is full are dropped. A span has about 1
	// KiB.
	maxQueue = 16_384
	maxBatch = 512
	// batchDelay is the longest that a span waits for others to go with.
	batchDelay = 2 * time.Second
	// requestTimeout bounds one request, retryFor how long a batch is tried again while the collector is not there.
	requestTimeout = 10 * time.Second
	retryLeast     = 500 * time.Millisecond
	retryMost      = 5 * time.Second
	retryFor       = 20 * time.Second
	scope          = "github.com/spillway-ml/spillway/activities/traces"
)

// Tracer makes spans of the loop's facts and exports them. Apply has one caller at a time; Close may be called while it
// runs. A nil Tracer does nothing.
type Tracer struct {
	last     uint64 // the newest sequence that was applied
	runs     *runs
	provider *sdktrace.TracerProvider
	tracer   trace.Tracer
}

// New returns a tracer that exports over OTLP/HTTP. It does not wait for the collector. Call Close when no more is
// applied.
//
// What the options leave open (certificates, compression, attributes of the resource) the SDK reads from the standard
// variables itself.
func New(ctx context.Context, options Options) (*Tracer, error) {
	if err := options.Validate(); err != nil {
		return nil, err
	}
	service := options.Service
	if service == "" {
		service = "spillway"
	}
	exporter, err := otlptracehttp.New(ctx,
		otlptracehttp.WithEndpointURL(options.Endpoint), otlptracehttp.WithHeaders(options.Headers),
		otlptracehttp.WithTimeout(requestTimeout),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: retryLeast, MaxInterval: retryMost,
			MaxElapsedTime: retryFor,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("export traces: %w", err)
	}
	described := resource.NewSchemaless(semconv.ServiceName(service))
	if options.Instance != "" {
		described = resource.NewSchemaless(semconv.ServiceName(service), semconv.ServiceInstanceID(options.Instance))
	}
	if described, err = resource.Merge(resource.Environment(), described); err != nil {
		return nil, fmt.Errorf("describe this engine in traces: %w", err)
	}
	logger := options.Logger
	logger = cmp.Or(logger, slog.New(slog.DiscardHandler))
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithIDGenerator(givenIDs{}), sdktrace.WithSampler(sdktrace.AlwaysSample()), sdktrace.WithResource(described),
		sdktrace.WithBatcher(&quietly{SpanExporter: exporter, logger: logger},
			sdktrace.WithMaxQueueSize(maxQueue), sdktrace.WithMaxExportBatchSize(maxBatch),
			sdktrace.WithBatchTimeout(batchDelay)),
	)
	return &Tracer{runs: newRuns(mostRuns, mostTasks, options.Since), provider: provider, tracer: provider.Tracer(scope)},
		nil
}

// Kinds are the messages that a Tracer makes spans of.
func Kinds() []wire.Kind {
	return []wire.Kind{
		wire.KindRunStarted, wire.KindGoalChanged, wire.KindReused, wire.KindRecord, wire.KindRunEnded,
	}
}

// Apply takes one message of the loop's stream, as loop.Follow hands them out. A sequence that is not above the last
// one is ignored, and so is a Record that is there twice. It never waits for the collector.
func (t *Tracer) Apply(sequence uint64, message wire.Message) {
	if t == nil || message.Event == nil || sequence <= t.last {
		return
	}
	t.last = sequence
	for _, s := range t.runs.apply(message.Event) {
		s.record(t.tracer)
	}
}

// Close exports what is left, for as long as ctx lasts. What is applied later is lost.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("export the last traces: %w", err)
	}
	return nil
}

// quietly exports spans, and tells of failures once: a collector that is away is no reason to fill the log.
type quietly struct {
	sdktrace.SpanExporter

	logger *slog.Logger
	away   atomic.Bool
}

// ExportSpans hands a batch to the collector. What it does not take is lost.
func (q *quietly) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if err := q.SpanExporter.ExportSpans(ctx, spans); err != nil {
		if q.away.CompareAndSwap(false, true) {
			q.logger.WarnContext(ctx, "the collector does not take traces; they are dropped until it does", "spans", len(spans),
				"error", err)
		}
		return nil // told above; the SDK would print every one to standard error
	}
	if q.away.CompareAndSwap(true, false) {
		q.logger.InfoContext(ctx, "the collector takes traces again")
	}
	return nil
}
