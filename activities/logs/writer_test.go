package logs_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestWhatAnAttemptPrintsIsThereWhenItsLinesAreClosed(t *testing.T) {
	t.Parallel()
	js := stream(t)
	before := time.Now().Add(-time.Millisecond)
	w := logs.NewWriter(js, logs.WriterOptions{})
	lines := attempt(t, w, source("train", "train-1", 2))
	say(lines, "epoch 1\nepoch 2\n")
	_, _ = fmt.Fprint(lines.Stderr(), "warning: grüße\r\nno end")
	closeLines(t, lines)
	got := read(t, js, logs.Query{})
	want := []logs.Line{
		{LogLine: wire.LogLine{Origin: wire.LogOut, Text: "epoch 1"}, Index: 0, Resume: 1},
		{LogLine: wire.LogLine{Origin: wire.LogOut, Text: "epoch 2"}, Index: 1, Resume: 1},
		{LogLine: wire.LogLine{Origin: wire.LogErr, Text: "warning: grüße"}, Index: 2, Resume: 1},
		{LogLine: wire.LogLine{Origin: wire.LogErr, Text: "no end"}, Index: 3, Resume: 2},
	}
	for i := range want {
		want[i].LogSource, want[i].Sequence = source("train", "train-1", 2), 1
		if i < len(got) {
			if at := got[i].At; at.Before(before) || at.After(time.Now()) {
				t.Errorf("line %d is of %s", i, at)
			}
			got[i].At = time.Time{}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if n, err := lines.Stdout().Write([]byte("late\n")); n != 5 || err != nil {
		t.Errorf("a write after Close: %d, %v", n, err)
	}
	if err := lines.Close(t.Context()); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if w.Dropped() != 0 || w.Failed() != 0 {
		t.Errorf("%d lines were dropped and %d tries failed", w.Dropped(), w.Failed())
	}
}

func TestARestartOfTheServerLosesNothing(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	ensure(t, js)
	reader := server.Connect()
	lines, end := follow(t, reader, logs.Query{})
	l := attempt(t, logs.NewWriter(js, fast), source("train", "train-1", 1))
	var want []string
	tell := func(text string) {
		want = append(want, text)
		say(l, "%s\n", text)
	}
	tell("before")
	if got := natstest.Receive(t, lines, "line before").Text; got != "before" {
		t.Fatalf("got %q", got)
	}
	server.Stop()
	tell("while it is down")
	server.Restart()
	tell("after")
	for _, text := range []string{"while it is down", "after"} {
		if got := natstest.Receive(t, lines, text).Text; got != text {
			t.Fatalf("got %q, want %q", got, text)
		}
	}
	closeLines(t, l)
	if err := end(); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(want, texts(read(t, reader, logs.Query{}))); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestPrintingNeverWaitsAndMemoryIsBoundedWhileTheServerIsAway(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	ensure(t, js)
	w := logs.NewWriter(js, logs.WriterOptions{
		FlushEvery: 5 * time.Millisecond, Rate: quantity.GiB,
		Burst: 256 * quantity.KiB, Memory: 384 * quantity.KiB, PerAttempt: quantity.GiB,
	})
	first, second := attempt(t, w, source("train", "train-1", 1)), attempt(t, w, source("train", "train-2", 1))
	server.Stop()
	eventually(t, "the connection is seen to be gone", func() bool { return !js.Conn().IsConnected() })
	line := strings.Repeat("x", 960) // 1 KiB each
	for i := range 10_000 {
		say(first, "%s\n", line)
		say(second, "%d %s\n", i, line)
	}
	if dropped := w.Dropped(); dropped < 20_000-384 || dropped > 20_000-256 {
		t.Errorf("%d of 20,000 lines of 1 KiB were dropped with room for 384", dropped)
	}
	server.Restart()
	say(first, "done\n")
	eventually(t, "the failed tries are counted", func() bool { return w.Failed() > 0 })
	closeLines(t, first)
	closeLines(t, second)
	got := texts(read(t, js, logs.Query{Task: "train-1"}))
	kept := len(slices.DeleteFunc(slices.Clone(got), func(text string) bool { return text != line }))
	if kept < 100 || kept > 300 {
		t.Errorf("%d lines were kept", kept)
	}
	if !slices.ContainsFunc(got, func(text string) bool {
		return strings.HasPrefix(text, "(") && strings.Contains(text, "left out: the log's stream was slow or away")
	}) {
		t.Errorf("no line says that lines are missing: %q", got[max(0, len(got)-3):])
	}
}

func TestCloseTellsHowMuchIsLost(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	ensure(t, js)
	w := logs.NewWriter(js, fast)
	lines := attempt(t, w, source("train", "train-1", 1))
	server.Stop()
	say(lines, "a\nb\nc")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := lines.Close(ctx)
	if err == nil || !strings.Contains(err.Error(), "task train-1, attempt 1: ") ||
		!strings.Contains(err.Error(), "lost") {
		t.Errorf("Close = %v, want how many lines are lost", err)
	}
	if w.Dropped() != 3 {
		t.Errorf("%d lines were dropped, want 3", w.Dropped())
	}
	server.Restart() // for the cleanup
}

func TestAnAttemptThatPrintsTooMuchIsTold(t *testing.T) {
	t.Parallel()
	js := stream(t)
	w := logs.NewWriter(js, logs.WriterOptions{FlushEvery: 5 * time.Millisecond, PerAttempt: 10 * quantity.KiB})
	lines := attempt(t, w, source("train", "train-1", 1))
	for range 100 {
		say(lines, "%s\n", strings.Repeat("x", 960))
	}
	closeLines(t, lines)
	got := texts(read(t, js, logs.Query{}))
	if want := "(the attempt has printed 10 KiB; nothing that follows is kept)"; len(got) != 11 || got[10] != want {
		t.Errorf("got %d lines, the last %q; want ten and %q", len(got), got[len(got)-1], want)
	}
	if w.Dropped() != 90 {
		t.Errorf("%d lines were dropped, want 90", w.Dropped())
	}
}

func TestAFloodIsCutAndANoteSaysSoEvenWhenTheProgramIsSilentAfterwards(t *testing.T) {
	t.Parallel()
	js := stream(t)
	live, end := follow(t, js, logs.Query{})
	w := logs.NewWriter(js, logs.WriterOptions{FlushEvery: 5 * time.Millisecond, Rate: 1, Burst: 64 * quantity.KiB})
	lines := attempt(t, w, source("train", "train-1", 1))
	for range 1000 {
		say(lines, "%s\n", strings.Repeat("x", 960))
	}
	kept, missing := 0, 0
	for kept+missing < 1000 { // the lines come in several notes where the program paused
		line := natstest.Receive(t, live, "note")
		if line.Origin != wire.LogNote {
			kept++
			continue
		}
		said, after, _ := strings.Cut(line.Text, " ")
		number, err := strconv.Atoi(said)
		if err != nil || !strings.HasSuffix(after, " left out: printed faster than 1 B a second") {
			t.Fatalf("got the note %q", line.Text)
		}
		missing += number
	}
	if kept != 64 || missing != 936 || w.Dropped() != 936 {
		t.Errorf("%d lines were kept, %d said to be missing, %d dropped; want 64 and 936", kept, missing, w.Dropped())
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

func TestManyGoroutinesMayPrint(t *testing.T) {
	t.Parallel()
	js := stream(t)
	w := logs.NewWriter(js, fast)
	var printing sync.WaitGroup
	for task := range 4 {
		printing.Go(func() {
			lines := attempt(t, w, source("train", fmt.Sprint("train-", task), 1))
			var both sync.WaitGroup
			for _, out := range []interface{ Write([]byte) (int, error) }{lines.Stdout(), lines.Stderr()} {
				both.Go(func() {
					for i := range 500 {
						_, _ = fmt.Fprintf(out, "%d\n", i)
					}
				})
			}
			both.Wait()
			if err := lines.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	printing.Wait()
	next := map[string]int{}
	for _, line := range read(t, js, logs.Query{}) {
		from := line.Task + string(line.Origin)
		if want := strconv.Itoa(next[from]); line.Text != want {
			t.Fatalf("%s: got %q, want %q", from, line.Text, want)
		}
		next[from]++
	}
	for from, lines := range next {
		if lines != 500 {
			t.Errorf("%s has %d lines", from, lines)
		}
	}
	if len(next) != 8 {
		t.Errorf("got lines of %d streams, want 8", len(next))
	}
}

func TestTheStreamIsBroughtToItsBoundsWhateverItWas(t *testing.T) {
	t.Parallel()
	js := stream(t)
	ensure(t, js)
	small := logs.StreamOptions{MaxAge: time.Minute, MaxBytes: 1 << 20, MaxMessages: 7}
	usual := logs.StreamOptions{MaxAge: 7 * 24 * time.Hour, MaxBytes: 1 << 30, MaxMessages: 200_000}
	for given, want := range map[logs.StreamOptions]logs.StreamOptions{{}: usual, small: small} {
		if err := logs.EnsureStream(t.Context(), js, given); err != nil {
			t.Fatal(err)
		}
		info, err := js.Stream(t.Context(), wire.LogStream)
		if err != nil {
			t.Fatal(err)
		}
		config := info.CachedInfo().Config
		if got := (logs.StreamOptions{MaxAge: config.MaxAge, MaxBytes: config.MaxBytes, MaxMessages: config.MaxMsgs}); got !=
			want || config.Discard != jetstream.DiscardOld {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}
