package child_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/exchange"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/child"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errPlain = errors.New("it never works")

// seen is what a stage sees of its attempt.
type seen struct {
	Run    string          `json:"run"`
	Stage  string          `json:"stage"`
	Task   string          `json:"task"`
	Number int             `json:"number"`
	Venue  predictor.Venue `json:"venue"`

	Timeout time.Duration `json:"timeout"`
}

// stages are those of the binary under test. Each does one thing that an attempt may do.
func stages() child.Stages {
	return child.NewStages([]runs.AnyStage{
		workflows.NewStage("double", func(_ context.Context, in int) (int, error) { return 2 * in, nil }),
		workflows.NewStage("look", func(ctx context.Context, _ int) (seen, error) {
			attempt, err := activities.FromContext(ctx)
			if err != nil {
				return seen{}, err
			}
			activities.Log(ctx).InfoContext(ctx, "looked")
			return seen{attempt.Run, attempt.Stage, attempt.Task, attempt.Number, attempt.Venue, attempt.Timeout}, nil
		}),
		workflows.NewStage("confide", workflows.Secret).With(workflows.Hints{Secrets: []string{"open-key"}}),
		workflows.NewStage("fail", func(_ context.Context, kind string) (int, error) {
			switch kind {
			case "permanent":
				return 0, fmt.Errorf("the file is gone: %w", workflows.ErrPermanent)
			case "no room":
				return 0, fmt.Errorf("train: %w", exchange.ErrNoFit)
			case "memory":
				return 0, fmt.Errorf("device: %w", workflows.ErrOutOfMemory)
			default:
				return 0, errPlain
			}
		}),
		workflows.NewStage("panic", func(_ context.Context, reason string) (int, error) { panic(reason) }),
		workflows.NewStage("goexit", func(context.Context, int) (int, error) {
			runtime.Goexit()
			return 0, nil
		}),
		workflows.NewStage("count", countTo),
		workflows.NewStage("train", train),
		workflows.NewStage("serve", func(ctx context.Context, _ int) (int, error) {
			worker := workflows.Worker{Count: 1, Group: "group"}
			return 0, worker.Train(ctx, workflows.Rounds{Count: 1, Pattern: workflows.ParameterServer}, nil)
		}),
		workflows.NewStage("wait", func(ctx context.Context, _ int) (int, error) {
			<-ctx.Done()
			return runtime.GOMAXPROCS(0), nil
		}),
	})
}

// countTo saves a checkpoint and reports progress at every step, and returns at which step it began.
func countTo(ctx context.Context, last int) (int, error) {
	var saved activities.Checkpoint[int]
	began, _, err := saved.Restore(ctx)
	if err != nil {
		return 0, err
	}
	for step := began + 1; step <= last; step++ {
		if err := saved.Save(ctx, step); err != nil {
			return 0, err
		}
		activities.Progress(ctx, step, map[string]float64{"done": float64(step) / float64(last)})
	}
	return began, nil
}

// train tells how three steps of a training go, with one report that no training can be, and returns how long the steps
// of the trainings before were.
func train(ctx context.Context, _ int) (before []float64, err error) {
	for _, past := range activities.PastTrainings(ctx) {
		before = append(before, past.StepSeconds)
	}
	for step := range int64(3) {
		activities.Trained(ctx, predictor.Training{Executor: "gomlx", Steps: step + 1, TotalSteps: 3})
	}
	activities.Trained(ctx, predictor.Training{StepSeconds: math.NaN()})
	return before, nil
}

// attempt is the first attempt of a task of stage.
func attempt(stage, input string) wire.StartAttempt {
	return wire.StartAttempt{
		Task: wire.Task{
			Version: wire.Version, Run: "run-1", Pipeline: "pipeline", ID: stage + "-7", MaxAttempts: 3,
			Stage: predictor.StageID{App: "app", Build: "build", Name: stage},
		},
		Attempt: 1, Input: json.RawMessage(input),
	}
}

func openStore(t *testing.T) activities.Store {
	t.Helper()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// supervisor talks to one slot over pipes, as the host's supervisor does to a process.
type supervisor struct {
	t        *testing.T
	in       *io.PipeWriter
	out      *io.PipeReader
	messages *json.Decoder
	printed  bytes.Buffer // to be read between two attempts
	ended    chan error   // the result of Serve
}

// serve starts a slot and waits until it is ready. The slot is ended, and waited for, when the test ends.
func serve(t *testing.T, logger *slog.Logger) *supervisor {
	t.Helper()
	fromUs, in := io.Pipe()
	out, toUs := io.Pipe()
	s := &supervisor{t: t, in: in, out: out, messages: json.NewDecoder(out), ended: make(chan error, 1)}
	store := openStore(t)
	go func() {
		s.ended <- child.Serve(context.WithoutCancel(t.Context()), stages(), store, logger,
			child.Channels{In: fromUs, Out: toUs, Printed: []io.Writer{&s.printed}})
	}()
	if first := s.next(); !first.Ready {
		t.Fatalf("first message: got %+v, want ready", first)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = out.Close()
		if s.ended == nil {
			return
		}
		if err := <-s.ended; err != nil {
			t.Errorf("end of Serve: %v", err)
		}
	})
	return s
}

func (s *supervisor) send(message wire.ToChild) {
	s.t.Helper()
	if err := json.NewEncoder(s.in).Encode(message); err != nil {
		s.t.Fatal(err)
	}
}

func (s *supervisor) start(start wire.StartAttempt) {
	s.t.Helper()
	s.send(wire.ToChild{Start: &start})
}

func (s *supervisor) next() (message wire.FromChild) {
	s.t.Helper()
	if err := s.messages.Decode(&message); err != nil {
		s.t.Fatal(err)
	}
	return message
}

// done returns the next message, which must be the end of the attempt.
func (s *supervisor) done() wire.Answer {
	s.t.Helper()
	message := s.next()
	if message.Done == nil {
		s.t.Fatalf("got %+v, want the end of the attempt", message)
	}
	return *message.Done
}

// hangUp closes the channel to the slot and returns what Serve returned.
func (s *supervisor) hangUp() error {
	s.t.Helper()
	if err := s.in.Close(); err != nil {
		s.t.Fatal(err)
	}
	err := <-s.ended
	s.ended = nil
	return err
}
