package logs_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
)

func TestAQuerySelectsLines(t *testing.T) {
	t.Parallel()
	js := stream(t)
	w := logs.NewWriter(js, fast)
	for _, from := range []wire.LogSource{
		source("prep", "prep-1", 1), source("train", "train-1", 1), source("train", "train-1", 2),
		source("train", "train-2", 1),
		source("score.a", "score-1", 1), source("score_a", "score-1", 1), // of one subject
		{Run: "run_1", Stage: "prep", Task: "prep-1", Attempt: 1}, // of the same subject as run.1
		{Run: "run.2", Stage: "prep", Task: "prep-1", Attempt: 1},
	} {
		lines := attempt(t, w, from)
		say(lines, "%s %s#%d\n", from.Stage, from.Task, from.Attempt)
		closeLines(t, lines)
	}
	for name, test := range map[string]struct {
		query logs.Query
		want  []string
	}{
		"all of the run": {logs.Query{}, []string{
			"prep prep-1#1", "train train-1#1", "train train-1#2", "train train-2#1",
			"score.a score-1#1", "score_a score-1#1",
		}},
		"a stage":         {logs.Query{Stage: "train"}, []string{"train train-1#1", "train train-1#2", "train train-2#1"}},
		"a stage exactly": {logs.Query{Stage: "score.a"}, []string{"score.a score-1#1"}},
		"a task":          {logs.Query{Task: "train-1"}, []string{"train train-1#1", "train train-1#2"}},
		"an attempt":      {logs.Query{Attempt: 2}, []string{"train train-1#2"}},
		"none":            {logs.Query{Stage: "prep", Attempt: 2}, nil},
		"the last two":    {logs.Query{Tail: 2}, []string{"score.a score-1#1", "score_a score-1#1"}},
		"a tail of more":  {logs.Query{Stage: "prep", Tail: 100}, []string{"prep prep-1#1"}},
		"from a sequence": {logs.Query{From: 4}, []string{"train train-2#1", "score.a score-1#1", "score_a score-1#1"}},
		"from the end":    {logs.Query{From: 9}, nil},
		"of the future":   {logs.Query{Since: time.Now().Add(time.Hour)}, nil},
		"of an hour":      {logs.Query{Since: time.Now().Add(-time.Hour), Stage: "prep"}, []string{"prep prep-1#1"}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, texts(read(t, js, test.query))); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
	if err := logs.Follow(t.Context(), js, logs.Query{}, nil); err == nil ||
		!strings.Contains(err.Error(), "names no run") {
		t.Errorf("a query without a run: %v", err)
	}
}

func TestFollowHandsOutHistoryAndThenWhatIsPrintedUntilItIsTold(t *testing.T) {
	t.Parallel()
	js := stream(t)
	w := logs.NewWriter(js, fast)
	first := attempt(t, w, source("train", "train-1", 1))
	say(first, "a\nb\nc\n")
	closeLines(t, first)
	lines, end := follow(t, js, logs.Query{Tail: 2})
	second := attempt(t, w, source("train", "train-2", 1))
	for _, want := range []string{"b", "c"} {
		if got := natstest.Receive(t, lines, want).Text; got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	say(second, "live\n")
	if got := natstest.Receive(t, lines, "live line").Text; got != "live" {
		t.Fatalf("got %q, want the live line", got)
	}
	say(second, "last\n")
	closeLines(t, second)
	if err := end(); err != nil { // the last line is in the stream, so it is handed out though nobody waited for it
		t.Fatal(err)
	}
	if got := natstest.Receive(t, lines, "last line").Text; got != "last" {
		t.Errorf("got %q, want the last line", got)
	}
	if line, open := <-lines; open {
		t.Errorf("got %q after the end", line.Text)
	}
}

func TestFollowBeforeAnythingIsPrinted(t *testing.T) {
	t.Parallel()
	js := stream(t)
	lines, end := follow(t, js, logs.Query{})
	l := attempt(t, logs.NewWriter(js, fast), source("train", "train-1", 1))
	say(l, "hello\n")
	if got := natstest.Receive(t, lines, "line").Text; got != "hello" {
		t.Errorf("got %q", got)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestLinesOfSeveralAttemptsComeInOrderOfTime(t *testing.T) {
	t.Parallel()
	js := stream(t)
	w := logs.NewWriter(js, logs.WriterOptions{FlushEvery: 100 * time.Millisecond})
	var all []*logs.Lines
	for i := range 4 {
		all = append(all, attempt(t, w, source("train", fmt.Sprint("train-", i), 1)))
	}
	var want []string
	for i := range 200 {
		want = append(want, strconv.Itoa(i))
		say(all[i%4], "%d\n", i)
		time.Sleep(time.Millisecond) // so that the lines differ in time; the order is by it
	}
	for _, lines := range all {
		closeLines(t, lines)
	}
	if diff := cmp.Diff(want, texts(read(t, js, logs.Query{}))); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestAMessageThatCannotBeReadIsANote(t *testing.T) {
	t.Parallel()
	js := stream(t)
	if _, err := js.Publish(t.Context(), wire.LogSubject(source("train", "train-1", 1)), []byte(`{"v":9}`)); err != nil {
		t.Fatal(err)
	}
	got := read(t, js, logs.Query{})
	if len(got) != 1 || got[0].Origin != wire.LogNote || !strings.Contains(got[0].Text, "cannot read") {
		t.Errorf("got %+v, want a note", got)
	}
}

func TestFollowEndsWithItsContextItsFunctionAndWithoutAStream(t *testing.T) {
	t.Parallel()
	js := stream(t)
	lines := attempt(t, logs.NewWriter(js, fast), source("train", "train-1", 1))
	say(lines, "a\nb\n")
	closeLines(t, lines)
	ctx, cancel := context.WithCancel(t.Context())
	query := logs.Query{Run: "run.1", Until: make(chan struct{})}
	if err := logs.Follow(ctx, js, query, func(logs.Line) error {
		cancel()
		return nil
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context: %v", err)
	}
	full := errors.New("disk is full")
	calls := 0
	if err := logs.Follow(t.Context(), js, query, func(logs.Line) error {
		calls++
		return full
	}); !errors.Is(err, full) || calls != 1 {
		t.Errorf("after its function: %v, %d calls", err, calls)
	}
	none := natstest.Start(t).Connect()
	if err := logs.Follow(t.Context(), none, query, nil); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("without a stream: %v", err)
	}
}

func TestAReaderThatIsStoppedWhileTheServerIsAwayStopsAtOnce(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	ensure(t, js)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- logs.Follow(ctx, js, logs.Query{Run: "run.1", Until: make(chan struct{})}, func(logs.Line) error {
			return nil
		})
	}()
	server.Stop()
	eventually(t, "the connection is seen to be gone", func() bool { return !js.Conn().IsConnected() })
	cancel()
	if err := natstest.Receive(t, ended, "the end of Follow"); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	server.Restart() // for the cleanup
}
