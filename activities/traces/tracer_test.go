package traces_test

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/spillway-ml/spillway/activities/traces"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

const publisher = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

var (
	noon  = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	stage = predictor.StageID{App: "digits", Build: "b1", Name: "train"}
)

func at(seconds float64) time.Time { return noon.Add(time.Duration(seconds * float64(time.Second))) }

// attempt is a Record of one attempt that was scheduled and ended at the given seconds, ran for 2 s and waited for the
// rest but 0.1 s.
func attempt(
	task string, number int, venue predictor.Venue, outcome predictor.Outcome, from, to float64,
) predictor.Record {
	wall := 2 * time.Second
	return predictor.Record{
		Run: "run-1", Pipeline: "train", Stage: stage, Task: task, Attempt: number, Venue: venue, Host: "host-1",
		Outcome:     outcome,
		ScheduledAt: at(from), At: at(to), Start: 100 * time.Millisecond,
		Queue: at(to).Sub(at(from)) - wall - 100*time.Millisecond,
		Usage: quantity.Usage{
			Wall: wall, Fetch: 500 * time.Millisecond, Publish: 250 * time.Millisecond,
			PeakMemory: 64 * quantity.MiB,
		},
		Grant: quantity.Size{CPU: 500, Memory: 128 * quantity.MiB}, Cost: quantity.USD / 1000,
	}
}

// story is a run that an event started: one task runs out of memory and succeeds in its second attempt, one runs in a
// function, and one is refused by functions and then runs in the pool.
func story() []predictor.Event {
	small := attempt("train-1", 1, predictor.Pool, predictor.OutOfMemory, 1, 4)
	small.Cause, small.Error = predictor.CauseMemoryLimit, "killed at 128 MiB"
	large := attempt("train-1", 2, predictor.Pool, predictor.Succeeded, 5, 8)
	function := attempt("train-2", 1, predictor.Function, predictor.Succeeded, 1, 5)
	function.Host, function.Cold = "digits-train-512", true
	refused := attempt("train-3", 1, predictor.Function, predictor.Refused, 1, 1.5)
	refused.Usage, refused.Start, refused.Queue, refused.Cost = quantity.Usage{}, 0, 500*time.Millisecond, 0
	pool := attempt("train-3", 1, predictor.Pool, predictor.Succeeded, 1.6, 6)
	pool.PoolOnly = true
	return []predictor.Event{
		predictor.RunStarted{
			Run: "run-1", Pipeline: "train", App: "digits", Build: "b1", Goal: predictor.Goal{Deadline: time.Minute},
			Event: "event-7", EventAt: at(0), Traceparent: publisher, At: at(0.5),
		},
		refused, small,
		predictor.GoalChanged{Run: "run-1", Goal: predictor.Goal{Budget: quantity.USD}, At: at(4.5)},
		function, pool, large, small, // the last for the second time
		predictor.RunEnded{Run: "run-1", State: predictor.RunSucceeded, At: at(9)},
	}
}

func newTracer(t *testing.T, options traces.Options) *traces.Tracer {
	t.Helper()
	tracer, err := traces.New(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// export applies events and waits until all spans are there.
func export(t *testing.T, to *receiver, options traces.Options, events []predictor.Event) map[string][]*otlp.Span {
	t.Helper()
	options.Endpoint = to.URL + "/v1/traces"
	tracer := newTracer(t, options)
	for i, event := range events {
		tracer.Apply(uint64(i+1), wire.Message{Event: event})
	}
	if err := tracer.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return to.taken()
}

// tree draws the spans below parent, in the order of their beginnings.
func tree(spans map[string][]*otlp.Span, parent []byte, indent string) string {
	var below []*otlp.Span
	for _, named := range spans {
		for _, span := range named {
			if bytes.Equal(span.GetParentSpanId(), parent) {
				below = append(below, span)
			}
		}
	}
	order := func(a, b *otlp.Span) int {
		if a.GetStartTimeUnixNano() != b.GetStartTimeUnixNano() {
			return int(int64(a.GetStartTimeUnixNano()) - int64(b.GetStartTimeUnixNano()))
		}
		return int(int64(a.GetEndTimeUnixNano()) - int64(b.GetEndTimeUnixNano()))
	}
	slices.SortFunc(below, order)
	var text strings.Builder
	for _, span := range below {
		from := time.Duration(span.GetStartTimeUnixNano() - nanos(noon)).Seconds()
		to := time.Duration(span.GetEndTimeUnixNano() - nanos(noon)).Seconds()
		fmt.Fprintf(&text, "%s%s %g-%g", indent, span.GetName(), from, to)
		if span.GetStatus().GetCode() == otlp.Status_STATUS_CODE_ERROR {
			fmt.Fprintf(&text, " ERROR %q", span.GetStatus().GetMessage())
		}
		text.WriteByte('\n')
		text.WriteString(tree(spans, span.GetSpanId(), indent+"  "))
	}
	return text.String()
}

func TestARunIsOneTraceOfWhatItsAttemptsDid(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	spans := export(t, to, traces.Options{Headers: map[string]string{"Authorization": "Bearer 1"}, Instance: "engine-1"},
		story())
	publishedBy, err := hex.DecodeString(publisher[36:52])
	if err != nil {
		t.Fatal(err)
	}
	const want = `receive train 0-0.5
  run train 0.5-9
    task train 1-5
      attempt train 1-5
        queue 1-2.9
        start 2.9-3
        fetch 3-3.5
        compute 3.5-4.75
        publish 4.75-5
    task train 1-6
      attempt train 1-1.5
        queue 1-1.5
      attempt train 1.6-6
        queue 1.6-3.9
        start 3.9-4
        fetch 4-4.5
        compute 4.5-5.75
        publish 5.75-6
    task train 1-8
      attempt train 1-4 ERROR "killed at 128 MiB"
        queue 1-1.9
        start 1.9-2
        fetch 2-2.5
        compute 2.5-3.75
        publish 3.75-4
      attempt train 5-8
        queue 5-5.9
        start 5.9-6
        fetch 6-6.5
        compute 6.5-7.75
        publish 7.75-8
`
	if diff := cmp.Diff(want, tree(spans, publishedBy, "")); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	to.mu.Lock()
	defer to.mu.Unlock()
	if to.headers.Get("Authorization") != "Bearer 1" || to.service["service.name"] != "spillway" ||
		to.service["service.instance.id"] != "engine-1" {
		t.Errorf("headers %v, resource %v", to.headers, to.service)
	}
}

func TestSpansSayWhatTheyAreOf(t *testing.T) {
	t.Parallel()
	spans := export(t, newReceiver(t), traces.Options{}, story())
	has := func(span *otlp.Span, want map[string]string) {
		t.Helper()
		all, got := attributes(span.GetAttributes()), map[string]string{}
		for name := range want {
			got[name] = all[name]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", span.GetName(), diff)
		}
	}
	has(spans["receive train"][0], map[string]string{
		"messaging.system": "nats", "messaging.operation.type": "receive",
		"messaging.message.id": "event-7",
	})
	run := spans["run train"][0]
	has(run, map[string]string{
		"spillway.run": "run-1", "spillway.state": "succeeded", "spillway.attempts": "int_value:5",
		"spillway.attempts.failed": "int_value:1",
	})
	if events := run.GetEvents(); len(events) != 1 || events[0].GetName() != "goal changed" ||
		events[0].GetTimeUnixNano() != nanos(at(4.5)) {
		t.Errorf("events of the run: %v", events)
	}
	for _, span := range spans["attempt train"] {
		all := attributes(span.GetAttributes())
		switch id := [8]byte(span.GetSpanId()); {
		case id == wire.AttemptSpanID("run-1", "train-2", 1, false):
			has(span, map[string]string{
				"faas.invoked_name": "digits-train-512", "faas.coldstart": "bool_value:true", "host.name": "",
				"spillway.venue":  "function",
				"faas.max_memory": "int_value:134217728",
			})
			if span.GetKind() != otlp.Span_SPAN_KIND_CLIENT {
				t.Errorf("a function's attempt has kind %v", span.GetKind())
			}
		case id == wire.AttemptSpanID("run-1", "train-1", 1, false):
			has(span, map[string]string{
				"host.name": "host-1", "error.type": "memory_limit", "spillway.outcome": "out_of_memory",
				"spillway.cause":              "memory_limit",
				"spillway.grant.memory_bytes": "int_value:134217728", "spillway.peak.memory_bytes": "int_value:67108864",
				"faas.invoked_name": "",
			})
		case all["spillway.task"] == "":
			t.Errorf("an attempt of no task: %v", all)
		}
	}
}

func TestTheSameFactsMakeTheSameSpans(t *testing.T) {
	t.Parallel()
	first, second := newReceiver(t), newReceiver(t)
	export(t, first, traces.Options{}, story())
	export(t, second, traces.Options{}, story())
	for i, span := range first.spans {
		if other := second.spans[i]; !bytes.Equal(span.GetSpanId(), other.GetSpanId()) ||
			!bytes.Equal(span.GetTraceId(), other.GetTraceId()) ||
			span.GetStartTimeUnixNano() != other.GetStartTimeUnixNano() {
			t.Errorf("span %d is %v and %v", i, span, other)
		}
	}
}

func TestARunWithoutATraceHasOneOfItsOwn(t *testing.T) {
	t.Parallel()
	events := story()
	started := events[0].(predictor.RunStarted)
	started.EventAt, started.Traceparent = time.Time{}, ""
	events[0] = started
	spans := export(t, newReceiver(t), traces.Options{}, events)
	want := wire.TraceID("run-1")
	run := spans["run train"][0]
	if !bytes.Equal(run.GetTraceId(), want[:]) || len(run.GetParentSpanId()) != 0 || len(spans["receive train"]) != 0 {
		t.Errorf("got %v, want a root of trace %x", run, want)
	}
}

func TestARunWhosePublisherKeepsNoTraceIsNotExported(t *testing.T) {
	t.Parallel()
	events := story()
	started := events[0].(predictor.RunStarted)
	started.Traceparent = publisher[:53] + "00"
	events[0] = started
	if spans := export(t, newReceiver(t), traces.Options{}, events); len(spans) != 0 {
		t.Errorf("exported %v", spans)
	}
}

func TestWhatTheProcessBeforeExportedIsNotExportedAgain(t *testing.T) {
	t.Parallel()
	spans := export(t, newReceiver(t), traces.Options{Since: at(5.5)}, story())
	counts := map[string]int{}
	for name, all := range spans {
		counts[name] = len(all)
	}
	// Tasks 1 and 3 and the run ended later; the attempts and the task that ended before, and the event, are left out.
	want := map[string]int{
		"run train": 1, "task train": 2, "attempt train": 2, "queue": 2, "start": 2, "fetch": 2,
		"compute": 2, "publish": 2,
	}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("spans by name (-want +got):\n%s", diff)
	}
	if spans := export(t, newReceiver(t), traces.Options{Since: at(60)}, story()); len(spans) != 0 {
		t.Errorf("a run that ended before is exported: %v", spans)
	}
}

func TestACollectorThatHangsNeverBlocks(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	to.hang = make(chan struct{})
	tracer := newTracer(t, traces.Options{Endpoint: to.URL + "/v1/traces"})
	const attempts = 10_000 // six spans each: several times what waits for the collector
	for i := range attempts {
		record := attempt("train-1", 1, predictor.Pool, predictor.Failed, 1, 4)
		record.Attempt = i + 1
		tracer.Apply(uint64(i+1), wire.Message{Event: record}) // returns while the collector hangs
	}
	close(to.hang)
	if err := tracer.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if got := len(to.taken()["attempt train"]); got == 0 || got == attempts {
		t.Errorf("%d of %d attempts reached a collector that hung, want what had room to wait", got, attempts)
	}
}

func TestACollectorThatRefusesIsToldOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	to := newReceiver(t)
	to.refuse = true
	tracer := newTracer(t, traces.Options{
		Endpoint: to.URL + "/v1/traces",
		Logger:   slog.New(slog.NewTextHandler(&log, nil)),
	})
	for i := range 1000 { // several batches
		record := attempt("train-1", 1, predictor.Pool, predictor.Failed, 1, 4)
		record.Attempt = i + 1
		tracer.Apply(uint64(i+1), wire.Message{Event: record})
	}
	if err := tracer.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if told := strings.Count(log.String(), "does not take traces"); told != 1 {
		t.Errorf("the log tells %d times that the collector is away, want once:\n%s", told, log.String())
	}
}

func TestCloseGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	to := newReceiver(t)
	to.hang = make(chan struct{})
	defer close(to.hang)
	tracer := newTracer(t, traces.Options{Endpoint: to.URL + "/v1/traces"})
	tracer.Apply(1, wire.Message{Event: attempt("train-1", 1, predictor.Pool, predictor.Succeeded, 1, 4)})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tracer.Close(over); err == nil {
		t.Error("a tracer that could not export says that it did")
	}
}

func TestATracerThatIsNotThereDoesNothing(t *testing.T) {
	t.Parallel()
	var none *traces.Tracer
	none.Apply(1, wire.Message{Event: predictor.RunStarted{Run: "run-1"}})
	if err := none.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func BenchmarkApplyRecord(b *testing.B) {
	options := traces.Options{Endpoint: "http://127.0.0.1:1/v1/traces"} // nobody is there: what does not fit is dropped
	for name, since := range map[string]time.Time{"new": {}, "read again": at(1e6)} {
		b.Run(name, func(b *testing.B) {
			options.Since = since
			tracer, err := traces.New(b.Context(), options)
			if err != nil {
				b.Fatal(err)
			}
			record := attempt("train-1", 1, predictor.Pool, predictor.Succeeded, 1, 4)
			var sequence uint64
			b.ReportAllocs()
			for b.Loop() {
				sequence++
				record.Attempt = int(sequence)
				tracer.Apply(sequence, wire.Message{Event: record})
			}
			over, cancel := context.WithCancel(b.Context())
			cancel()
			_ = tracer.Close(over)
		})
	}
}
