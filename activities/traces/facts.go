package traces

import (
	"cmp"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.41.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// maxMessage is how many bytes of an error's text a span keeps.
const maxMessage = 1024

// part is one of what an attempt does in turn.
type part struct {
	name       string
	start, end time.Time
}

// layout lays an attempt out in time, from when it was scheduled to its end, without gaps: what is left between the end
// of the user's code and that of the attempt, to give its grant back, is no part. A clock that puts the schedule after
// the end is set right from the end.
func layout(record predictor.Record) (start time.Time, parts []part) {
	positive := func(d time.Duration) time.Duration { return max(d, 0) }
	queue, starting, wall := positive(record.Queue), positive(record.Start), positive(record.Usage.Wall)
	fetch := min(positive(record.Usage.Fetch), wall)
	publish := min(positive(record.Usage.Publish), wall-fetch)
	end := record.At
	start = record.ScheduledAt
	if start.IsZero() || start.After(end) {
		start = end.Add(-queue - starting - wall)
	}
	at := start
	for _, one := range []struct {
		name string
		took time.Duration
	}{{"queue", queue}, {"start", starting}, {"fetch", fetch}, {"compute", wall - fetch - publish}, {"publish", publish}} {
		next := at.Add(one.took)
		if next.After(end) {
			next = end
		}
		if next.After(at) {
			parts = append(parts, part{one.name, at, next})
		}
		at = next
	}
	return start, parts
}

// failure says whether an outcome is an error. A refusal is none: the task goes to the pool.
func failure(outcome predictor.Outcome) bool {
	return outcome != predictor.Succeeded && outcome != predictor.Refused
}

func eventSpanID(run string) [8]byte { return wire.SpanID(wire.RunSpanID(run), "event") }

// eventSpan is the time from an event's publication to the start of its run.
func eventSpan(of *run) span {
	place, brought := wire.ParseTraceparent(of.begun.Traceparent)
	s := span{
		trace: of.trace, id: eventSpanID(of.id), parent: place.Span, remote: brought,
		name: "receive " + of.pipeline, kind: trace.SpanKindConsumer, start: of.begun.EventAt,
		end: later(of.begun.EventAt, of.begun.At),
		attributes: []attribute.KeyValue{
			semconv.MessagingSystemKey.String("nats"), semconv.MessagingOperationTypeReceive,
			semconv.MessagingOperationName("receive"),
			attribute.String("spillway.run", of.id), attribute.String("spillway.pipeline", of.pipeline),
		},
	}
	if of.begun.Event != "" {
		s.attributes = append(s.attributes, semconv.MessagingMessageID(of.begun.Event))
	}
	return s
}

// runSpan is a run from its start to its end; cut says that it goes on and has to be forgotten.
func runSpan(of *run, state predictor.RunState, message string, cut bool) span {
	s := span{
		trace: of.trace, id: wire.RunSpanID(of.id), parent: of.parent, remote: of.remote,
		name: "run " + of.pipeline, kind: trace.SpanKindInternal, start: of.start, end: later(of.start, of.last),
		notes: of.notes,
		attributes: []attribute.KeyValue{
			attribute.String("spillway.run", of.id), attribute.String("spillway.pipeline", of.pipeline),
			attribute.String("spillway.state", string(state)),
			attribute.Int("spillway.attempts", of.attempts), attribute.Int("spillway.attempts.failed", of.failed),
			attribute.Float64("spillway.cost.dollars", of.cost.USD()),
		},
		failed: state == predictor.RunFailed || state == predictor.RunCancelled,
	}
	s.attributes = append(s.attributes, texts(
		"spillway.app", of.begun.App, "spillway.build", of.begun.Build, "spillway.retry_of", of.begun.RetryOf,
	)...)
	s.attributes = append(s.attributes, goalAttributes(of.goal)...)
	if cut {
		s.attributes = append(s.attributes, attribute.Bool("spillway.unfinished", true))
	}
	if s.failed {
		s.failure = short(message)
		s.attributes = append(s.attributes, semconv.ErrorTypeKey.String(string(state)))
	}
	return s
}

// taskSpan is a task from when it was first scheduled to the end of its last attempt.
func taskSpan(of *run, t *task) span {
	s := span{
		trace: of.trace, id: wire.TaskSpanID(of.id, t.name), parent: wire.RunSpanID(of.id),
		name: "task " + t.stage, kind: trace.SpanKindInternal, start: t.start, end: later(t.start, t.end),
		attributes: []attribute.KeyValue{
			attribute.String("spillway.run", of.id), attribute.String("spillway.stage", t.stage),
			attribute.String("spillway.task", t.name),
			attribute.Int("spillway.attempts", t.attempts), attribute.String("spillway.outcome", string(t.last.outcome)),
			attribute.Float64("spillway.cost.dollars", t.cost.USD()),
		},
		failed: failure(t.last.outcome),
	}
	s.failAs(t.last)
	return s
}

// attemptSpans are an attempt and its parts.
func attemptSpans(of *run, record predictor.Record, start time.Time, parts []part) []span {
	id := wire.AttemptSpanID(of.id, record.Task, record.Attempt, record.PoolOnly)
	whole := span{
		trace: of.trace, id: id, parent: wire.TaskSpanID(of.id, record.Task),
		name: "attempt " + record.Stage.Name, kind: trace.SpanKindInternal, start: start, end: record.At,
		attributes: attemptAttributes(of.id, record), failed: failure(record.Outcome),
	}
	if record.Venue == predictor.Function {
		whole.kind = trace.SpanKindClient
	}
	whole.failAs(endingOf(record))
	spans := append(make([]span, 0, len(parts)+1), whole)
	for _, p := range parts {
		spans = append(spans, span{
			trace: of.trace, id: wire.SpanID(id, p.name), parent: id, name: p.name, kind: trace.SpanKindInternal, start: p.start,
			end:        p.end,
			attributes: []attribute.KeyValue{attribute.String("spillway.stage", record.Stage.Name)},
		})
	}
	return spans
}

func attemptAttributes(id string, record predictor.Record) []attribute.KeyValue {
	list := []attribute.KeyValue{
		attribute.String("spillway.run", id), attribute.String("spillway.pipeline", record.Pipeline),
		attribute.String("spillway.app", record.Stage.App), attribute.String("spillway.build", record.Stage.Build),
		attribute.String("spillway.stage", record.Stage.Name), attribute.String("spillway.task", record.Task),
		attribute.Int("spillway.attempt", record.Attempt), attribute.String("spillway.venue", string(record.Venue)),
		attribute.String("spillway.outcome", string(record.Outcome)),
		attribute.Float64("spillway.cost.dollars", record.Cost.USD()),
		attribute.Bool("spillway.cold", record.Cold), attribute.Bool("spillway.pool_only", record.PoolOnly),
	}
	list = append(list, texts("spillway.cause", string(record.Cause), "spillway.prediction.source",
		record.Predicted.Source)...)
	list = append(list, sizeAttributes("spillway.grant.", record.Grant)...)
	list = count(list, "spillway.peak.memory_bytes", int64(record.Usage.PeakMemory))
	list = count(list, "spillway.peak.gpu_memory_bytes", int64(record.Usage.GPUPeakMemory))
	list = count(list, "spillway.input_bytes", int64(record.Usage.Input))
	list = count(list, "spillway.output_bytes", int64(record.Usage.Output))
	list = count(list, "spillway.predicted.memory_bytes", int64(record.Predicted.Memory.Mid))
	if record.Usage.CPU > 0 {
		list = append(list, attribute.Float64("spillway.cpu_seconds", record.Usage.CPU.Seconds()))
	}
	if record.Predicted.Wall.Mid > 0 {
		list = append(list, attribute.Float64("spillway.predicted.wall_seconds", record.Predicted.Wall.Mid))
	}
	switch record.Venue {
	case predictor.Function: // the host of a function is its name
		list = append(list, semconv.FaaSColdstart(record.Cold), semconv.FaaSMaxMemory(int(record.Grant.Memory)))
		if record.Host != "" {
			list = append(list, semconv.FaaSInvokedName(record.Host))
		}
	default:
		if record.Host != "" {
			list = append(list, semconv.HostName(record.Host))
		}
	}
	return list
}

func endingOf(record predictor.Record) ending {
	return ending{outcome: record.Outcome, cause: record.Cause, message: short(record.Error)}
}

// failAs says why the span failed, if it did.
func (s *span) failAs(how ending) {
	if !s.failed {
		return
	}
	s.failure = cmp.Or(how.message, string(how.outcome))
	s.attributes = append(s.attributes, semconv.ErrorTypeKey.String(cmp.Or(string(how.cause), string(how.outcome))))
}

func goalNote(event predictor.GoalChanged) note {
	return note{at: event.At, name: "goal changed", attributes: goalAttributes(event.Goal)}
}

func reusedNote(event predictor.Reused) note {
	return note{at: event.At, name: "results reused", attributes: append(
		count(nil, "spillway.tasks", int64(event.Tasks)),
		attribute.String("spillway.stage", event.Stage.Name), attribute.String("spillway.reused_from", event.From),
		attribute.Float64("spillway.saved.dollars", event.Saved.USD()),
	)}
}

func goalAttributes(goal predictor.Goal) []attribute.KeyValue {
	list := texts("spillway.goal.minimise", string(goal.Minimise))
	if goal.Deadline > 0 {
		list = append(list, attribute.Float64("spillway.goal.deadline_seconds", goal.Deadline.Seconds()))
	}
	if goal.Confidence > 0 {
		list = append(list, attribute.Float64("spillway.goal.confidence", goal.Confidence))
	}
	if goal.Budget > 0 {
		list = append(list, attribute.Float64("spillway.goal.budget_dollars", goal.Budget.USD()))
	}
	return list
}

func sizeAttributes(prefix string, size quantity.Size) []attribute.KeyValue {
	list := []attribute.KeyValue{
		attribute.Float64(prefix+"cpu_cores", size.CPU.Cores()),
		attribute.Int64(prefix+"memory_bytes", int64(size.Memory)),
	}
	if size.GPU > 0 {
		list = append(list, attribute.Float64(prefix+"gpus", size.GPU.Cores()))
	}
	list = count(list, prefix+"gpu_memory_bytes", int64(size.GPUMemory))
	return append(list, texts(prefix+"device_class", size.DeviceClass)...)
}

// texts are the attributes, given as names and values in turn, that are not empty.
func texts(pairs ...string) []attribute.KeyValue {
	var list []attribute.KeyValue
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			list = append(list, attribute.String(pairs[i], pairs[i+1]))
		}
	}
	return list
}

// count appends an attribute to a list when it is above 0.
func count(list []attribute.KeyValue, name string, value int64) []attribute.KeyValue {
	if value <= 0 {
		return list
	}
	return append(list, attribute.Int64(name, value))
}

// later is the later of two times.
func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// short is the text cut to maxMessage bytes, between two characters.
func short(text string) string {
	if len(text) <= maxMessage {
		return text
	}
	cut := maxMessage
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return text[:cut]
}
