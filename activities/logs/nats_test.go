package logs_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

func TestMain(m *testing.M) {
	// The server's own goroutines may outlive its shutdown by a moment; goleak waits for them.
	goleak.VerifyTestMain(m)
}

// stream returns a JetStream context with the stream.
func stream(t *testing.T) jetstream.JetStream {
	t.Helper()
	js := natstest.Start(t).Connect()
	ensure(t, js)
	return js
}

func ensure(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	if err := logs.EnsureStream(t.Context(), js, logs.StreamOptions{}); err != nil {
		t.Fatal(err)
	}
}

var fast = logs.WriterOptions{FlushEvery: 5 * time.Millisecond}

func source(stage, task string, attempt int) wire.LogSource {
	return wire.LogSource{Run: "run.1", Stage: stage, Task: task, Attempt: attempt, Venue: predictor.Pool, Host: "host-1"}
}

// attempt returns Lines that are closed when the test ends, if not before.
func attempt(t *testing.T, w *logs.Writer, from wire.LogSource) *logs.Lines {
	t.Helper()
	lines := w.Attempt(from)
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = lines.Close(ended)
	})
	return lines
}

func say(lines *logs.Lines, format string, args ...any) {
	_, _ = fmt.Fprintf(lines.Stdout(), format, args...)
}

func closeLines(t *testing.T, lines *logs.Lines) {
	t.Helper()
	if err := lines.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// read returns the lines that there are.
func read(t *testing.T, js jetstream.JetStream, query logs.Query) []logs.Line {
	t.Helper()
	var all []logs.Line
	query.Run = "run.1"
	ctx, cancel := context.WithTimeout(t.Context(), natstest.Patience)
	defer cancel()
	err := logs.Follow(ctx, js, query, func(line logs.Line) error {
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// texts returns the texts of lines, those of the engine in parentheses.
func texts(lines []logs.Line) []string {
	var all []string
	for _, line := range lines {
		text := line.Text
		if line.Origin == wire.LogNote {
			text = "(" + text + ")"
		}
		all = append(all, text)
	}
	return all
}

// follow collects what Follow hands out until the returned function is called, which closes the query's Until and
// returns Follow's error.
func follow(t *testing.T, js jetstream.JetStream, query logs.Query) (lines <-chan logs.Line, end func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), natstest.Patience)
	until, handed, ended := make(chan struct{}), make(chan logs.Line, 10_000), make(chan error, 1)
	query.Run, query.Until = "run.1", until
	go func() {
		ended <- logs.Follow(ctx, js, query, func(line logs.Line) error { handed <- line; return nil })
		close(ended)
		close(handed)
	}()
	t.Cleanup(func() {
		cancel()
		for range ended {
			continue
		}
	})
	return handed, func() error {
		close(until)
		return <-ended
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("still not after 20 s: %s", what)
}
