package spill

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
)

// lines keep what is printed.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

// Write implements io.Writer.
func (l *lines) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

func (l *lines) Stdout() io.Writer           { return l }
func (l *lines) Stderr() io.Writer           { return l }
func (l *lines) Close(context.Context) error { return nil }

func TestAFunctionIsGivenItsSecretsWithTheCallAndWhatItSaysIsToldWithoutThem(t *testing.T) {
	t.Parallel()
	const hush = "sk-4711-very-much-hush"
	printed, given := &lines{}, make(chan map[string]string, 4)
	s := start(t, func(_ context.Context, start wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		given <- start.Secrets
		a := answer(t, wire.Answer{
			Error:   &wire.StageFailure{Message: "no login with " + hush, Permanent: true},
			Printed: []wire.Printed{{Text: []byte("key " + hush + "\n")}},
		})
		a.Log = "log " + hush
		return a, nil
	}, func(o *Options) {
		o.Output = func(wire.LogSource) activities.Output { return printed }
		o.Secrets = func(context.Context, wire.Task, int) (map[string]string, error) {
			return map[string]string{"open-key": hush}, nil
		}
	})
	_, err := s.frontend.Submit(t, stage.Queue(), wire.Task{
		Version: wire.Version, Run: "r", Stage: stage, ID: "score-1", MaxAttempts: 1, Secrets: true,
	}, "in").Wait(t)
	record := s.only(t)
	if got := <-given; got["open-key"] != hush {
		t.Errorf("the function was given %q", got)
	}
	if err == nil || !strings.Contains(record.Error, "no login with "+wire.Masked) {
		t.Errorf("it failed with %v, and its Record says %q", err, record.Error)
	}
	for where, text := range map[string]string{
		"the error": err.Error(), "the Record": fmt.Sprintf("%+v", record), "what it printed": printed.text.String(),
	} {
		if strings.Contains(text, hush) {
			t.Errorf("%s has the secret: %s", where, text)
		}
	}
	if !strings.Contains(printed.text.String(), "key "+wire.Masked) {
		t.Errorf("it printed %q", printed.text.String())
	}
}

func TestAStageWithoutTheSecretThatItNamesIsNotCalled(t *testing.T) {
	t.Parallel()
	s := start(t, func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error) {
		t.Error("the function was called")
		return activities.FunctionAnswer{}, nil
	}, func(o *Options) {
		o.Secrets = func(context.Context, wire.Task, int) (map[string]string, error) {
			return nil, fmt.Errorf("%w: open-key is not there", slot.ErrNoSecret)
		}
	})
	_, err := s.frontend.Submit(t, stage.Queue(), wire.Task{
		Version: wire.Version, Run: "r", Stage: stage, ID: "score-1", MaxAttempts: 3, Secrets: true,
	}, "in").Wait(t)
	if err == nil || !strings.Contains(err.Error(), "open-key is not there") ||
		!strings.Contains(s.only(t).Error, "open-key is not there") {
		t.Errorf("it failed with %v, want the name of the secret, after one attempt", err)
	}
}
