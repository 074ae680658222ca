package client

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
)

func printLines(engine *webtest.Engine, from, to int) {
	for i := from; i < to; i++ {
		engine.Print(logs.Line{
			LogSource: wire.LogSource{Run: "digits-1", Stage: "score", Task: "score-1", Attempt: 1},
			LogLine:   wire.LogLine{At: begin, Origin: wire.LogErr, Text: strconv.Itoa(i)},
		})
	}
}

func TestLogsGoOnAfterABrokenConnectionAndTellNoLineTwice(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	client, engine := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if opened.Add(1) < 3 {
				ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
				defer cancel()
				r = r.WithContext(ctx) // the first streams break soon
			}
			next.ServeHTTP(w, r)
		})
	})
	printLines(engine, 0, 10)
	var got []string
	err := client.Logs(t.Context(), logs.Query{Run: "digits-1", Tail: 4}, true, func(line logs.Line) error {
		got = append(got, line.Text)
		switch line.Text {
		case "9":
			printLines(engine, 10, 15)
		case "14":
			for opened.Load() < 3 {
				time.Sleep(time.Millisecond)
			}
			printLines(engine, 15, 20)
			engine.Apply("digits-1", predictor.RunEnded{
				Run: "digits-1", State: predictor.RunSucceeded,
				At: begin.Add(time.Minute),
			})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for i := 6; i < 20; i++ {
		want = append(want, strconv.Itoa(i))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestLogsAskForWhatTheQuerySays(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	engine.Apply("digits-1", predictor.Scheduled{Run: "digits-1", Stage: stage, Tasks: 1, At: begin})
	printLines(engine, 0, 3)
	for name, test := range map[string]struct {
		query logs.Query
		want  int
	}{
		"all":              {logs.Query{}, 3},
		"the stage":        {logs.Query{Stage: "score", Task: "score-1", Attempt: 1, Since: begin}, 3},
		"another task":     {logs.Query{Task: "score-2"}, 0},
		"another attempt":  {logs.Query{Attempt: 2}, 0},
		"a later time":     {logs.Query{Since: begin.Add(time.Nanosecond)}, 0},
		"the last":         {logs.Query{Tail: 2}, 2},
		"from a sequence":  {logs.Query{From: 3}, 1},
		"from none so far": {logs.Query{From: 9}, 0},
	} {
		test.query.Run = "digits-1"
		got := 0
		if err := client.Logs(t.Context(), test.query, false, func(logs.Line) error {
			got++
			return nil
		}); err != nil || got != test.want {
			t.Errorf("%s: %d lines and %v, want %d", name, got, err, test.want)
		}
	}
}

func TestLogsReturnWhyTheyEnd(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	printLines(engine, 0, 3)
	query := logs.Query{Run: "digits-1"}
	full := errors.New("disk is full")
	if err := client.Logs(t.Context(), query, true, func(logs.Line) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	if err := client.Logs(t.Context(), query, true, func(logs.Line) error { return ErrStop }); err != nil {
		t.Errorf("got %v, want none", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := client.Logs(ctx, query, true, func(logs.Line) error {
		cancel()
		return nil
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	err := client.Logs(t.Context(), logs.Query{Run: "digits-2"}, true, nil)
	if refused, ok := errors.AsType[*web.Error](err); !ok || refused.Status != http.StatusNotFound {
		t.Errorf("got %v, want that there is no such run", err)
	}
	client.follow.patience = 20 * time.Millisecond
	engine.Fail(errors.New("the disk is gone"))
	if err := client.Logs(t.Context(), query, false, nil); err == nil ||
		err.Error() != "follow the engine: the disk is gone" {
		t.Errorf("got %v, want the engine's failure", err)
	}
}
