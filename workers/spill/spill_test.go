package spill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

var stage = predictor.StageID{App: "digits", Build: "b1", Name: "score"}

// stack is a worker that runs against functions in memory.
type stack struct {
	*recorder
	functions *functions
	frontend  *slottest.Frontend
	plans     slottest.Plans
	worker    *Worker
	stop      func() // the worker, and waits until it has ended
}

func start(
	t *testing.T, body func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error),
	change ...func(*Options),
) *stack {
	t.Helper()
	frontend, c := slottest.Start(t)
	s := &stack{recorder: &recorder{}, functions: &functions{body: body}, frontend: frontend, plans: make(slottest.Plans)}
	options := Options{
		Client: c, Functions: s.functions, Recorder: s.recorder, Plans: s.plans, Venue: venue,
		Drain: time.Millisecond,
	}
	for _, one := range change {
		one(&options)
	}
	w, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	s.worker = w
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(s.stop)
	s.plans <- grant(2)
	return s
}

func grant(slots int) predictor.Plan {
	return predictor.Plan{Grants: []predictor.Grant{
		{
			Stage: stage, Venue: predictor.Function, Slots: slots, Size: quantity.Size{Memory: 512 * quantity.MiB},
			PoolOnly: true,
		},
		{Stage: predictor.StageID{App: "digits", Build: "b1", Name: "pooled"}, Venue: predictor.Pool, Slots: 5},
	}}
}

func (s *stack) submit(t *testing.T, input any) *slottest.Activity {
	t.Helper()
	return s.frontend.Submit(t, stage.Queue(), wire.Task{
		Version: wire.Version, Run: "r", Stage: stage, ID: "score-1",
		MaxAttempts: 3,
	}, input)
}

func answer(t *testing.T, a wire.Answer) activities.FunctionAnswer {
	t.Helper()
	payload, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	return activities.FunctionAnswer{
		Payload: payload, Init: 50 * time.Millisecond, Duration: time.Millisecond,
		Billed: 51 * time.Millisecond, PeakMemory: 77,
	}
}

func TestATaskIsForwardedAndItsRecordWritten(t *testing.T) {
	t.Parallel()
	s := start(t, func(_ context.Context, start wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		last := wire.Progress{Step: 3, Metrics: map[string]float64{"loss": 0.25}}
		return answer(t, wire.Answer{
			Output: start.Input, CPU: time.Second, Wall: 2 * time.Second, Progress: &last,
			Curve: &predictor.Curve{Metric: "loss", Steps: []int64{1, 2}, Values: []float64{1, 0.5}},
		}), nil
	})
	result, err := s.submit(t, "in").Wait(t)
	if err != nil || string(result.Output) != `"in"` || result.Venue != predictor.Function {
		t.Fatalf("result: got %+v, %v, want the input back from a function", result, err)
	}
	record := s.only(t)
	want := venue.Price(512*quantity.MiB, 51*time.Millisecond)
	if record.Cost != want || result.Cost != want || !record.Cold || record.Start < 50*time.Millisecond ||
		record.Host != "digits-b1-512 MiB" ||
		record.Init != 50*time.Millisecond || record.Billed != 51*time.Millisecond ||
		record.Usage.CPU != time.Second || record.Usage.PeakMemory != 77 || record.Grant.Memory != 512*quantity.MiB {
		t.Errorf("Record: got %+v, want a cold invoke of %s with its usage", record, want)
	}
	if record.Step != 3 || record.Metrics["loss"] != 0.25 {
		t.Errorf("Record: got step %d and %v, want what the function reported last", record.Step, record.Metrics)
	}
	if diff := cmp.Diff(&predictor.Curve{
		Metric: "loss", Steps: []int64{1, 2, 3}, Values: []float64{1, 0.5, 0.25},
	}, record.Curve); diff != "" {
		t.Errorf("Record: the curve of what the function reported (-want +got):\n%s", diff)
	}
	if started := s.started(); len(started) != 1 || started[0].Venue != predictor.Function {
		t.Errorf("starts told: got %+v, want one at the function venue", started)
	}
	if got := s.worker.Stages(); len(got) != 1 || got[0] != stage {
		t.Errorf("stages polled: got %v, want only the one with function slots", got)
	}
	s.frontend.AwaitPolls(t, stage.PoolQueue(), 0)
}

func TestAnAttemptThatRanOutOfMemoryGetsALargerClassAndItsCheckpoint(t *testing.T) {
	t.Parallel()
	s := start(t, func(_ context.Context, start wire.StartAttempt, memory quantity.Bytes) (activities.FunctionAnswer,
		error,
	) {
		if memory < 1024*quantity.MiB {
			return answer(t, wire.Answer{
				Error:      &wire.StageFailure{Message: "full", OutOfMemory: true},
				Checkpoint: &activities.Ref{Digest: "half"},
			}), nil
		}
		return answer(t, wire.Answer{Output: json.RawMessage(fmt.Sprintf("%q", start.Resume.Digest))}), nil
	})
	result, err := s.submit(t, nil).Wait(t)
	if err != nil || string(result.Output) != `"half"` {
		t.Errorf("got %s, %v, want the checkpoint of the first attempt", result.Output, err)
	}
}

func TestWhatAFunctionCannotRunGoesToThePool(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		input   any
		body    func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error)
		outcome predictor.Outcome
	}{
		{"a payload that is too large", strings.Repeat("x", maxPayload), nil, predictor.Refused},
		{
			"an invoke that the venue finds too large", 1,
			func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error) {
				return activities.FunctionAnswer{}, activities.ErrTooLarge
			}, predictor.Refused,
		},
		{"the venue's time limit", 1, func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer,
			error,
		) {
			return activities.FunctionAnswer{
				Error:   "Unhandled",
				Payload: []byte(`{"errorMessage":"Task timed out after 900.00 seconds"}`),
			}, nil
		}, predictor.TimedOut},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, tt.body)
			_, err := s.submit(t, tt.input).Wait(t)
			var failed *temporal.ApplicationError
			if !errors.As(err, &failed) || failed.Type() != wire.RefusedError || !failed.NonRetryable() {
				t.Errorf("got %v, want a final %s", err, wire.RefusedError)
			}
			if got := s.only(t).Outcome; got != tt.outcome {
				t.Errorf("outcome: got %s, want %s", got, tt.outcome)
			}
		})
	}
}

func TestAThrottledInvokeIsTriedAgain(t *testing.T) {
	t.Parallel()
	tries := 0
	s := start(t, func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error) {
		if tries++; tries == 1 {
			return activities.FunctionAnswer{}, activities.ErrThrottled
		}
		return answer(t, wire.Answer{Output: json.RawMessage("1")}), nil
	})
	if _, err := s.submit(t, nil).Wait(t); err != nil || tries != 2 {
		t.Errorf("got %v after %d tries, want success after 2", err, tries)
	}
}

func TestACancelledInvokeIsAbandonedAndBilledToItsLimit(t *testing.T) {
	t.Parallel()
	invoked := make(chan struct{})
	s := start(t, func(ctx context.Context, _ wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		close(invoked)
		<-ctx.Done()
		return activities.FunctionAnswer{}, ctx.Err()
	})
	a := s.submit(t, nil)
	<-invoked
	a.Cancel()
	_, err := a.Wait(t)
	if _, cancelled := errors.AsType[*temporal.CanceledError](err); !cancelled {
		t.Errorf("got %v, want a cancellation", err)
	}
	record := s.only(t)
	if want := venue.Price(512*quantity.MiB, venue.MaxDuration); record.Outcome != predictor.Cancelled ||
		record.Cost != want {
		t.Errorf("Record: got %s for %s, want cancelled for %s", record.Outcome, record.Cost, want)
	}
}

// TestAFunctionThatEndsWithItsEngineIsNotBilledToItsLimit interrupts an invoke, as an engine does that ends, and looks
// at what the attempt is taken to cost if the engine is killed meanwhile.
func TestAFunctionThatEndsWithItsEngineIsNotBilledToItsLimit(t *testing.T) {
	t.Parallel()
	invoked := make(chan struct{})
	began := time.Now()
	s := start(t, func(ctx context.Context, _ wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		close(invoked)
		<-ctx.Done()
		return activities.FunctionAnswer{}, ctx.Err()
	}, func(o *Options) { o.Local = true })
	s.obeys(grant(1)) // a poll beside the task might bring it to the worker that stops once more
	a := s.submit(t, nil)
	<-invoked
	const beat = 2 * time.Second
	price := func(d time.Duration) quantity.Money { return venue.Price(512*quantity.MiB, d) }
	var killed quantity.Money
	a.AwaitDetails(t, "what it costs so far", func(left wire.Heartbeat) bool { killed = left.Running; return killed > 0 })
	if longest := price(time.Since(began) + beat); killed > longest {
		t.Errorf("killed now, it is billed %s, want at most the %s of its time and a heartbeat", killed, longest)
	}
	s.stop()
	record := s.only(t)
	if longest := price(time.Since(began) + beat); record.Outcome != predictor.Lost || record.Cost <= 0 ||
		record.Cost > longest {
		t.Errorf("Record: got %s for %s, want lost for at most %s", record.Outcome, record.Cost, longest)
	}
}

func TestOptionsThatCannotWorkAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := New(Options{}); err == nil {
		t.Error("no options: got no error, want one")
	}
	_, c := slottest.Start(t)
	if _, err := New(Options{
		Client: c, Functions: &functions{}, Recorder: &recorder{},
		Plans: slottest.Plans(nil),
	}); err == nil {
		t.Error("a venue without classes: got no error, want one")
	}
}

// functions runs invokes in memory: every class of every build is a function.
type functions struct {
	body func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error)
	// whole takes whole invokes; nil where body does.
	whole func(context.Context, wire.Invoke) (activities.FunctionAnswer, error)

	mu       sync.Mutex
	deployed map[string]quantity.Bytes
}

func (f *functions) Ensure(_ context.Context, app, build string, memory quantity.Bytes) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deployed == nil {
		f.deployed = make(map[string]quantity.Bytes)
	}
	name := fmt.Sprintf("%s-%s-%s", app, build, memory)
	f.deployed[name] = memory
	return name, nil
}

func (f *functions) EnsureCommands(ctx context.Context, program string, memory quantity.Bytes) (string, error) {
	return f.Ensure(ctx, "commands", program, memory)
}

func (f *functions) Invoke(ctx context.Context, name string, payload []byte) (activities.FunctionAnswer, error) {
	f.mu.Lock()
	memory := f.deployed[name]
	f.mu.Unlock()
	var invoke wire.Invoke
	if err := json.Unmarshal(payload, &invoke); err != nil {
		return activities.FunctionAnswer{}, err
	}
	if f.whole != nil {
		return f.whole(ctx, invoke)
	}
	if len(invoke.More) > 0 {
		return activities.FunctionAnswer{}, errors.New("several tasks with one invoke")
	}
	return f.body(ctx, invoke.Start, memory)
}

type recorder struct {
	mu      sync.Mutex
	records []predictor.Record
	events  []predictor.Event
}

func (r *recorder) Record(_ context.Context, record predictor.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.records = append(r.records, record)
	return nil
}

func (r *recorder) Tell(event predictor.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, event)
}

// only returns the one Record that there is.
func (r *recorder) only(t *testing.T) predictor.Record {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.records) != 1 {
		t.Fatalf("Records: got %d, want 1", len(r.records))
	}
	return r.records[0]
}

func (r *recorder) started() []predictor.AttemptStarted {
	r.mu.Lock()
	defer r.mu.Unlock()
	var found []predictor.AttemptStarted
	for _, event := range r.events {
		if started, ok := event.(predictor.AttemptStarted); ok {
			found = append(found, started)
		}
	}
	return found
}
