package activities

import (
	"bytes"
	"context"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spillway-ml/spillway/predictor"
)

// Attempt is what the running try of a task may use; whoever runs it makes one and puts it in the context.
// Its methods are safe for concurrent use.
type Attempt struct {
	// Run, Stage and Task say what is being tried; Number counts from 1.
	Run, Stage, Task string
	Number           int
	// Traceparent is the trace context below which spans of the stage's own belong, as W3C Trace Context writes it; empty
	// for none.
	Traceparent string
	// Venue is where it runs.
	Venue predictor.Venue
	// Store keeps the artifacts; required.
	Store Store
	// Logger takes the stage's log lines; nil discards them.
	Logger *slog.Logger
	// Progress is told of each finished step, with how many there are, 0 where nobody says, and with its metrics, those
	// that are not finite too; nil ignores it.
	Progress func(step, of int, metrics map[string]float64)
	// Checkpoint is told of each saved checkpoint, and of the artifacts that were stored for it alone; nil ignores it.
	Checkpoint func(saved Ref, parts ...Ref)
	// Resume is the checkpoint of an earlier attempt; the zero Ref when there is none.
	Resume Ref
	// Trained is told how a split training goes; nil ignores it.
	Trained func(predictor.Training)
	// Secrets are those that the stage names, by their names.
	Secrets map[string]string
	// Past is how earlier split trainings of the stage went, newest first.
	Past []predictor.Training
	// TimeToLoss is how long attempts like this one go on in the mean before they are lost with their host; 0 where nobody
	// says.
	TimeToLoss time.Duration
	// Timeout is how long the attempt may take by its stage; 0 is for as long as it wants.
	Timeout time.Duration

	read, written  atomic.Int64
	fetch, publish stopwatch
}

// Read and Written tell how many artifact bytes the attempt has fetched and stored so far.
func (a *Attempt) Read() int64 { return a.read.Load() }

// Written tells how many artifact bytes the attempt has stored so far.
func (a *Attempt) Written() int64 { return a.written.Load() }

// Fetched and Published tell for how long the attempt has waited for artifacts to be fetched and to be stored; what
// overlaps counts once.
func (a *Attempt) Fetched() time.Duration { return a.fetch.elapsed() }

// Published tells for how long the attempt has waited for artifacts to be stored.
func (a *Attempt) Published() time.Duration { return a.publish.elapsed() }

// stopwatch adds up the time in which at least one thing goes on.
type stopwatch struct {
	mu    sync.Mutex
	going int
	since time.Time
	total time.Duration
}

// start begins one thing; call what it returns when that is over.
func (s *stopwatch) start() (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.going == 0 {
		s.since = time.Now()
	}
	s.going++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.going--
		if s.going == 0 {
			s.total += time.Since(s.since)
		}
	}
}

// elapsed includes what goes on.
func (s *stopwatch) elapsed() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.going > 0 {
		return s.total + time.Since(s.since)
	}
	return s.total
}

type attemptKey struct{}

// NewContext returns a context in which stage code finds attempt.
func NewContext(ctx context.Context, attempt *Attempt) context.Context {
	return context.WithValue(ctx, attemptKey{}, attempt)
}

// ErrNoAttempt says that stage code was called outside an attempt.
var ErrNoAttempt = errors.New("no attempt in this context: call it from a stage, with the context that the stage was " +
	"given (tests: spillwaytest.Context)")

// FromContext returns the attempt of ctx, or an error that wraps ErrNoAttempt.
func FromContext(ctx context.Context) (*Attempt, error) {
	if attempt, ok := ctx.Value(attemptKey{}).(*Attempt); ok {
		return attempt, nil
	}
	return nil, ErrNoAttempt
}

// ErrNoSecret says that the stage names no such secret.
var ErrNoSecret = errors.New("the stage names no such secret: add it to Secrets of its Hints")

// Secret returns a secret that the stage of the attempt in ctx names. The error wraps ErrNoAttempt or ErrNoSecret.
func Secret(ctx context.Context, name string) (string, error) {
	attempt, err := FromContext(ctx)
	if err != nil {
		return "", fmt.Errorf("read secret %q: %w", name, err)
	}
	value, named := attempt.Secrets[name]
	if !named {
		return "", fmt.Errorf("read secret %q: %w", name, ErrNoSecret)
	}
	return value, nil
}

// Log returns the logger of the attempt in ctx; outside an attempt it discards.
func Log(ctx context.Context) *slog.Logger {
	attempt, err := FromContext(ctx)
	if err != nil || attempt.Logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return attempt.Logger
}

// Traceparent returns the trace context of the attempt in ctx, as W3C Trace Context writes it: spans of the stage's own
// belong below it. It is empty outside an attempt.
func Traceparent(ctx context.Context) string {
	attempt, err := FromContext(ctx)
	if err != nil {
		return ""
	}
	return attempt.Traceparent
}

// Progress reports that step of a long stage is done, with its metrics (loss, accuracy). Steps count from 1.
// It never fails: of a metric that is not finite it is told that it was not, and outside an attempt the report is
// dropped.
func Progress(ctx context.Context, step int, metrics map[string]float64) {
	ProgressOf(ctx, step, 0, metrics)
}

// ProgressOf is Progress of a stage that knows how much there is to do: done of so many steps, rows or bytes are, by
// which the end of the attempt is predicted, also of the first. A total below what is done is none, and one that
// changes counts from then on.
func ProgressOf(ctx context.Context, done, of int, metrics map[string]float64) {
	attempt, err := FromContext(ctx)
	if err != nil || attempt.Progress == nil {
		return
	}
	if of < done {
		of = 0
	}
	attempt.Progress(done, max(0, of), maps.Clone(metrics)) // the stage may change it
}

// Artifact is a typed reference to a stored value: tasks pass it instead of the data. The zero value refers to nothing.
type Artifact[T any] struct {
	Ref
}

// Put stores value and returns a reference to it. A []byte is stored as it is, an encoding.BinaryMarshaler by its own
// encoding, all else as JSON.
func Put[T any](ctx context.Context, value T) (Artifact[T], error) {
	attempt, err := FromContext(ctx)
	if err != nil {
		return Artifact[T]{}, fmt.Errorf("put artifact: %w", err)
	}
	defer attempt.publish.start()()
	encoded, err := encode(value)
	if err != nil {
		return Artifact[T]{}, fmt.Errorf("put artifact: %w", err)
	}
	ref, err := attempt.Store.Put(ctx, bytes.NewReader(encoded))
	if err != nil {
		return Artifact[T]{}, fmt.Errorf("put artifact: %w", err)
	}
	attempt.written.Add(ref.Bytes)
	return Artifact[T]{ref}, nil
}

// PutStream stores all that r yields, which need not fit into memory, and returns its address.
func PutStream(ctx context.Context, r io.Reader) (Ref, error) {
	attempt, err := FromContext(ctx)
	if err != nil {
		return Ref{}, fmt.Errorf("put a stream: %w", err)
	}
	defer attempt.publish.start()()
	ref, err := attempt.Store.Put(ctx, r)
	if err != nil {
		return Ref{}, fmt.Errorf("put a stream: %w", err)
	}
	attempt.written.Add(ref.Bytes)
	return ref, nil
}

// Get fetches and decodes the value. Errors wrap ErrMissing or ErrCorrupt where these are the cause.
func (a Artifact[T]) Get(ctx context.Context) (value T, err error) {
	attempt, err := FromContext(ctx)
	if err != nil {
		return value, fmt.Errorf("get artifact %s: %w", a.Digest, err)
	}
	if a.Digest == "" {
		return value, errors.New("get artifact: the reference is empty: it was never returned by Put")
	}
	defer attempt.fetch.start()()
	encoded, err := ReadAll(ctx, attempt.Store, a.Digest)
	if err != nil {
		return value, fmt.Errorf("get artifact %s: %w", a.Digest, err)
	}
	attempt.read.Add(int64(len(encoded)))
	if err := decode(encoded, &value); err != nil {
		return value, fmt.Errorf("get artifact %s: %w", a.Digest, err)
	}
	return value, nil
}

// ReadAll returns all bytes of digest from store.
func ReadAll(ctx context.Context, store Store, digest string) ([]byte, error) {
	r, err := store.Open(ctx, digest)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	return data, nil
}

// Checkpoint saves and restores the state of a long stage, so that an attempt after a crash goes on where the last one
// was. The zero value is ready to use.
type Checkpoint[T any] struct{}

// Save stores state as the point from which the next attempt of this task starts. The newest replaces all before it:
// once that is known for good, they are removed, and with each the parts that were named beside it. Parts are artifacts
// that were stored for this checkpoint alone; what else state names stays as long as the attempt goes on.
func (Checkpoint[T]) Save(ctx context.Context, state T, parts ...Ref) error {
	attempt, err := FromContext(ctx)
	if err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	saved, err := Put(ctx, state)
	if err != nil {
		return fmt.Errorf("save checkpoint: %w", err)
	}
	if attempt.Checkpoint != nil {
		attempt.Checkpoint(saved.Ref, parts...)
	}
	return nil
}

// Restore returns the state that the last attempt saved; ok is false when there is none.
func (Checkpoint[T]) Restore(ctx context.Context) (state T, ok bool, err error) {
	attempt, err := FromContext(ctx)
	if err != nil {
		return state, false, fmt.Errorf("restore checkpoint: %w", err)
	}
	if attempt.Resume.Digest == "" {
		return state, false, nil
	}
	state, err = Artifact[T]{attempt.Resume}.Get(ctx)
	if err != nil {
		return state, false, fmt.Errorf("restore checkpoint: %w", err)
	}
	return state, true, nil
}

func encode(value any) ([]byte, error) {
	switch v := value.(type) {
	case []byte:
		return v, nil
	case encoding.BinaryMarshaler:
		return v.MarshalBinary()
	default:
		return json.Marshal(value)
	}
}

func decode(data []byte, target any) error {
	switch v := target.(type) {
	case *[]byte:
		*v = data
		return nil
	case encoding.BinaryUnmarshaler:
		return v.UnmarshalBinary(data)
	default:
		return json.Unmarshal(data, target)
	}
}
