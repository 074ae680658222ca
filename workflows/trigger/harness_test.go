package trigger

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newJetStream starts a NATS server without a port, for one test.
func newJetStream(tb testing.TB) jetstream.JetStream {
	tb.Helper()
	ns, err := server.NewServer(&server.Options{
		JetStream: true, StoreDir: tb.TempDir(), DontListen: true, NoLog: true,
		NoSigs: true,
	})
	if err != nil {
		tb.Fatalf("make NATS server: %v", err)
	}
	ns.Start()
	if !ns.ReadyForConnections(10 * time.Second) {
		tb.Fatal("NATS server is not ready")
	}
	nc, err := nats.Connect("", nats.InProcessServer(ns))
	if err != nil {
		tb.Fatalf("connect: %v", err)
	}
	tb.Cleanup(func() {
		nc.Close()
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	js, err := jetstream.New(nc)
	if err != nil {
		tb.Fatalf("JetStream: %v", err)
	}
	return js
}

// memory is a Starter and a Scheduler without a server. Like Temporal it refuses a run that exists.
type memory struct {
	mu        sync.Mutex
	runs      map[string]Start
	over      map[string]bool
	most      int // runs that went on at a time
	down      bool
	hold      func(start Start)                    // while a start is under way
	check     func(start Start) error              // nil takes every input
	fault     func(start Start, exists bool) error // after the effect
	schedules map[string]Schedule
}

func newMemory() *memory {
	return &memory{runs: map[string]Start{}, over: map[string]bool{}, schedules: map[string]Schedule{}}
}

var errAway = errors.New("temporal is away")

func (m *memory) Start(_ context.Context, start Start) (bool, error) {
	if m.hold != nil {
		m.hold(start)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return false, errAway
	}
	_, exists := m.runs[start.Run]
	if !exists {
		m.runs[start.Run] = start
		m.most = max(m.most, len(m.runs)-len(m.over))
	}
	if m.fault != nil {
		if err := m.fault(start, exists); err != nil {
			if errors.Is(err, ErrRefused) {
				delete(m.runs, start.Run)
			}
			return false, err
		}
	}
	return !exists, nil
}

func (m *memory) Running(_ context.Context, pipeline, binding string) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var runs []string
	for run, start := range m.runs {
		if !m.over[run] && start.Pipeline == pipeline && start.Binding == binding {
			runs = append(runs, run)
		}
	}
	return runs, nil
}

func (m *memory) Find(_ context.Context, run string) (exists, going bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return false, false, errAway
	}
	_, exists = m.runs[run]
	return exists, exists && !m.over[run], nil
}

// Conflict compares inputs; of a run that was made without one it knows nothing.
func (m *memory) Conflict(_ context.Context, start Start) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return errAway
	}
	if other := m.runs[start.Run]; len(other.Input) > 0 && inputDigest(other.Input) != inputDigest(start.Input) {
		return taken(start)
	}
	return nil
}

func (m *memory) Keys(context.Context) ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.schedules)), nil
}

func (m *memory) Put(_ context.Context, schedule Schedule) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down {
		return errAway
	}
	m.schedules[schedule.Key] = schedule
	return nil
}

func (m *memory) Delete(_ context.Context, key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.schedules, key)
	return nil
}

// names are the IDs of all runs, sorted.
func (m *memory) names() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.runs))
}

func (m *memory) set(change func(m *memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *memory) get(run string) Start {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.runs[run]
}

// stack is a trigger that runs, with what it needs.
type stack struct {
	*Trigger
	t    testing.TB
	js   jetstream.JetStream
	mem  *memory
	stop func() // ends Run and waits for it
	lost chan []string
}

// newStack starts a trigger with these targets.
func newStack(tb testing.TB, targets ...Target) *stack {
	tb.Helper()
	return restart(tb, newJetStream(tb), newMemory(), targets...)
}

// restart starts a trigger on a JetStream and a Starter that may have a past.
func restart(tb testing.TB, js jetstream.JetStream, mem *memory, targets ...Target) *stack {
	tb.Helper()
	s := idle(tb, js, mem)
	if err := s.SetTargets(tb.Context(), targets); err != nil {
		tb.Fatalf("SetTargets: %v", err)
	}
	s.run()
	return s
}

// idle makes a trigger that does not run yet.
func idle(tb testing.TB, js jetstream.JetStream, mem *memory) *stack {
	tb.Helper()
	logger := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		logger = slog.New(slog.NewTextHandler(tb.Output(), nil))
	}
	lost := make(chan []string, 10)
	tr, err := New(Options{
		JetStream: js, Starter: mem, Scheduler: mem, AckWait: time.Second, Hold: time.Millisecond, Logger: logger,
		Lost: func(streams []string) { lost <- streams },
		Check: func(_ context.Context, start Start) error {
			mem.mu.Lock()
			defer mem.mu.Unlock()
			if mem.check == nil {
				return nil
			}
			return mem.check(start)
		},
	})
	if err != nil {
		tb.Fatalf("New: %v", err)
	}
	tr.every = 100 * time.Millisecond
	return &stack{Trigger: tr, t: tb, js: js, mem: mem, lost: lost}
}

func (s *stack) run() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				s.t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			s.t.Error("Run does not end")
		}
	})
	s.t.Cleanup(s.stop)
}

// publish publishes a message as any NATS client would.
func (s *stack) publish(subject, body string, headers ...string) {
	s.t.Helper()
	message := nats.NewMsg(subject)
	message.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		message.Header.Set(headers[i], headers[i+1])
	}
	if _, err := s.js.PublishMsg(s.t.Context(), message); err != nil {
		s.t.Fatalf("publish on %s: %v", subject, err)
	}
}

// finish ends a run as its workflow would: it closes and its completion event is published.
func (s *stack) finish(run string) {
	s.t.Helper()
	s.mem.set(func(m *memory) { m.over[run] = true })
	body, err := json.Marshal(wire.Done{Version: wire.Version, Run: run})
	if err != nil {
		s.t.Fatal(err)
	}
	s.publish(wire.DoneSubject("any"), string(body))
}

// settled waits until every event is dealt with by every binding.
func (s *stack) settled() {
	s.t.Helper()
	s.await("every event is dealt with", func() (bool, string) {
		stream, err := s.js.Stream(s.t.Context(), wire.EventStream)
		if err != nil {
			return false, err.Error()
		}
		lister := stream.ListConsumers(s.t.Context())
		var open strings.Builder
		for info := range lister.Info() {
			// The server's count of what is pending trails the stream, so the last message that the consumer reads must have
			// been delivered too.
			for _, filter := range filters(info.Config) {
				last, err := stream.GetLastMsgForSubject(s.t.Context(), filter)
				if err == nil && last.Sequence > info.Delivered.Stream && last.Sequence >= info.Config.OptStartSeq {
					fmt.Fprintf(&open, " %s: at %d, not yet at %d", info.Name, info.Delivered.Stream, last.Sequence)
				}
			}
			if info.NumPending > 0 || info.NumAckPending > 0 {
				fmt.Fprintf(&open, " %s: %d pending, %d in hand", info.Name, info.NumPending, info.NumAckPending)
			}
		}
		return open.Len() == 0 && lister.Err() == nil, open.String()
	})
}

// filters are the subjects that a consumer reads.
func filters(config jetstream.ConsumerConfig) []string {
	switch {
	case len(config.FilterSubjects) > 0:
		return config.FilterSubjects
	case config.FilterSubject != "":
		return []string{config.FilterSubject}
	default:
		return []string{">"}
	}
}

// patience is how long a test waits for what must happen; it decides nothing.
const patience = 5 * time.Minute

// await waits until what holds.
func (s *stack) await(what string, holds func() (bool, string)) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for {
		ok, state := holds()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain until %s: %s", what, state)
		}
		time.Sleep(3 * time.Millisecond)
	}
}

// reasons are the reasons of all dead letters, the newest first.
func (s *stack) reasons() []string {
	s.t.Helper()
	dead, err := s.DeadLetters(s.t.Context(), 100)
	if err != nil {
		s.t.Fatalf("DeadLetters: %v", err)
	}
	var reasons []string
	for _, d := range dead {
		reasons = append(reasons, d.Reason)
	}
	return reasons
}

// digits is a pipeline whose input is {"epochs": integer, "name": string}.
func digits(bindings ...wire.Binding) Target {
	return Target{App: "demo", Build: "b1", Pipeline: wire.Pipeline{
		Name: "digits", Bindings: bindings,
		Input: json.RawMessage(`{"type":"object","additionalProperties":false,"properties":{"epochs":{"type":"integer"},` +
			`"name":{"type":"string"},` +
			`"parts":{"type":"array","items":{"type":"object","properties":{"k":{"type":"string"}}}}}}`),
	}}
}

// open is a pipeline that takes every input.
func open(name string, bindings ...wire.Binding) Target {
	return Target{App: "demo", Build: "b1", Pipeline: wire.Pipeline{Name: name, Bindings: bindings}}
}
