package web_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/logs"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
)

func printed(stage, task string, attempt int, text string) logs.Line {
	return logs.Line{
		LogSource: wire.LogSource{Run: "digits-1", Stage: stage, Task: task, Attempt: attempt},
		LogLine:   wire.LogLine{At: begin, Origin: wire.LogOut, Text: text},
	}
}

// newPrintingEngine returns an engine whose run digits-1 goes on and has printed three lines.
func newPrintingEngine(t *testing.T) *webtest.Engine {
	t.Helper()
	engine := newEngine(t)
	stage := predictor.StageID{App: "digits", Build: "0123456789ab", Name: "train"}
	engine.Apply("digits-1", predictor.Scheduled{Run: "digits-1", Stage: stage, Tasks: 1, At: begin})
	engine.Print(printed("prep", "prep-1", 1, "a"), printed("train", "train-1", 1, "b"),
		printed("train", "train-1", 2, "c"))
	return engine
}

// told is one message of a stream of lines: its name, and the text of a line or the data.
func told(t *testing.T, stream *bufio.Reader) string {
	t.Helper()
	var name string
	for {
		text, err := stream.ReadString('\n')
		if err != nil {
			return "broken"
		}
		text = strings.TrimSuffix(text, "\n")
		switch kind, data, _ := strings.Cut(text, ": "); {
		case text == "" || kind == "":
		case kind == "event":
			name = data
		case name == web.LogLine:
			var line logs.Line
			if err := json.Unmarshal([]byte(data), &line); err != nil {
				t.Fatalf("%v in %s", err, data)
			}
			return line.Text
		default:
			return name + " " + data
		}
	}
}

func allTold(t *testing.T, stream *bufio.Reader) []string {
	t.Helper()
	for all := []string(nil); ; {
		next := told(t, stream)
		all = append(all, next)
		if next == "broken" || strings.HasPrefix(next, web.LogEnd) || strings.HasPrefix(next, web.LogError) {
			return all
		}
	}
}

func TestALogTellsTheLinesThatAreAskedForAndItsEnd(t *testing.T) {
	t.Parallel()
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: newPrintingEngine(t)})
	for query, want := range map[string][]string{
		"":                                 {"a", "b", "c", "end {}"},
		"?stage=train":                     {"b", "c", "end {}"},
		"?task=train-1&attempt=2":          {"c", "end {}"},
		"?tail=1&follow=false":             {"c", "end {}"},
		"?from=3":                          {"c", "end {}"},
		"?since=2100-01-01T00:00:00Z":      {"end {}"},
		"?stage=train&task=prep-1&follow=": {"end {}"},
	} {
		status, answer := ask(t, server, http.MethodGet, "/api/v1/runs/digits-1/logs"+query, "", nil)
		if got := allTold(t, bufio.NewReader(strings.NewReader(answer))); status != http.StatusOK || !cmp.Equal(want, got) {
			t.Errorf("%s: got %d %q, want %q", query, status, got, want)
		}
	}
}

func TestALogOfWhatIsNotThereIsRefused(t *testing.T) {
	t.Parallel()
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: newPrintingEngine(t)})
	for target, test := range map[string]struct {
		status int
		want   string
	}{
		"digits-2/logs":                   {404, "did you mean digits-1?"},
		"unlike/logs":                     {404, "`spillway runs` lists them"},
		"digits-1/logs?stage=trian":       {404, "did you mean train?"},
		"digits-1/logs?stage=deployment":  {404, "there are: train"},
		"digits-1/logs?tail=0":            {400, "1 to 100000"},
		"digits-1/logs?attempt=first":     {400, "first"},
		"digits-1/logs?from=-1":           {400, "not a number from 0"},
		"digits-1/logs?since=yesterday":   {400, "neither a time nor a duration"},
		"digits-1/logs?follow=eventually": {400, "neither true nor false"},
	} {
		status, answer := ask(t, server, http.MethodGet, "/api/v1/runs/"+target, "", nil)
		if status != test.status || !strings.Contains(answer, test.want) {
			t.Errorf("%s: got %d %s, want %d and %q", target, status, answer, test.status, test.want)
		}
	}
}

// openLog returns the stream of a log over a real connection.
func openLog(t *testing.T, server http.Handler, query string) *bufio.Reader {
	t.Helper()
	listening := httptest.NewServer(server)
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, listening.URL+"/api/v1/runs/digits-1/logs"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	response, err := (&http.Client{Transport: transport}).Do(accesstest.Show(request))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = response.Body.Close()
		transport.CloseIdleConnections()
		listening.Close()
	})
	return bufio.NewReader(response.Body)
}

func TestAFollowedLogEndsWithItsRunAndTellsAllThatIsPrintedByThen(t *testing.T) {
	t.Parallel()
	engine := newPrintingEngine(t)
	stream := openLog(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed}),
		"?follow=true&tail=1")
	if got := told(t, stream); got != "c" {
		t.Fatalf("got %q, want the last line", got)
	}
	engine.Print(printed("train", "train-2", 1, "d"))
	if got := told(t, stream); got != "d" {
		t.Fatalf("got %q, want the new line", got)
	}
	for range 1000 {
		engine.Print(printed("train", "train-2", 1, "e"))
	}
	engine.Apply("digits-1", predictor.RunEnded{
		Run: "digits-1", State: predictor.RunSucceeded,
		At: begin.Add(time.Minute),
	})
	got := allTold(t, stream)
	if len(got) != 1001 || got[1000] != "end {}" {
		t.Errorf("got %d messages, the last %q; want 1000 lines and the end", len(got), got[len(got)-1])
	}
}

func TestALogSaysWhyItEndsEarly(t *testing.T) {
	t.Parallel()
	engine := newPrintingEngine(t)
	stream := openLog(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed}),
		"?follow=true&tail=1")
	if got := told(t, stream); got != "c" {
		t.Fatalf("got %q, want the last line", got)
	}
	engine.Fail(errors.New("the disk is gone"))
	engine.Print(printed("train", "train-2", 1, "d"))
	if got := told(t, stream); !strings.HasPrefix(got, "error ") || !strings.Contains(got, "the disk is gone") {
		t.Errorf("got %q, want the failure", got)
	}
}

func TestALogIsBrokenOffWhenTheServerCloses(t *testing.T) {
	t.Parallel()
	engine := newPrintingEngine(t)
	listening := httptest.NewUnstartedServer(nil)
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
	listener := listening.Listener
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+listener.Addr().String()+"/api/v1/runs/digits-1/logs?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := (&http.Client{Transport: transport}).Do(accesstest.Show(request))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	stream := bufio.NewReader(response.Body)
	for _, want := range []string{"a", "b", "c"} {
		if got := told(t, stream); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	if err := server.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if got := told(t, stream); got != "broken" {
		t.Errorf("got %q, want no end", got)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
