package client

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	begin = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	stage = predictor.StageID{App: "digits", Build: "0123456789ab", Name: "score"}
)

func start(t *testing.T, middle func(http.Handler) http.Handler) (*Client, *webtest.Engine) {
	t.Helper()
	engine := webtest.New(web.Stack{
		Version: "v1", StateDir: t.TempDir(),
		Apps: []web.App{{
			App: wire.App{Name: "digits", Pipelines: []wire.Pipeline{{Name: "digits"}}}, Build: stage.Build,
			Path: "x", Current: true,
		}},
	})
	engine.Apply("digits-1", predictor.RunStarted{
		Run: "digits-1", Pipeline: "digits", App: stage.App, Build: stage.Build,
		At: begin,
	})
	var handler http.Handler = web.New(web.Options{Keys: accesstest.Keys(), Engine: engine, Feed: &engine.Feed})
	if middle != nil {
		handler = middle(handler)
	}
	server := httptest.NewServer(handler)
	client := New(server.URL, accesstest.Keys().Token())
	client.follow = pace{
		silence: time.Second, patience: 2 * time.Second, first: time.Millisecond,
		most: 10 * time.Millisecond,
	}
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, engine
}

func TestEveryCallReachesItsHandler(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	engine.AddDead(web.DeadLetter{Sequence: 4, Event: "e"})
	ctx := t.Context()
	if err := client.Healthy(ctx); err != nil {
		t.Errorf("Healthy: %v", err)
	}
	if stack, err := client.Stack(ctx); err != nil || !cmp.Equal(stack.Pipelines(), []string{"digits"}) {
		t.Errorf("Stack = %+v, %v", stack, err)
	}
	if runs, err := client.Runs(ctx, web.RunQuery{Limit: 5, State: predictor.RunRunning, Pipeline: "digits"}); err !=
		nil || len(runs) != 1 {
		t.Errorf("Runs = %v, %v", runs, err)
	}
	if totals, err := client.RunTotals(ctx, web.RunQuery{Limit: 5, Pipeline: "digits"}); err != nil || totals.Runs != 1 ||
		totals.States[predictor.RunRunning] != 1 {
		t.Errorf("RunTotals = %+v, %v", totals, err)
	}
	if view, err := client.Run(ctx, "digits-1"); err != nil || view.Pipeline != "digits" {
		t.Errorf("Run = %+v, %v", view, err)
	}
	if decisions, err := client.Decisions(ctx, "digits-1"); err != nil || len(decisions) != 0 {
		t.Errorf("Decisions = %v, %v", decisions, err)
	}
	if history, err := client.History(ctx, "digits-1"); err != nil || string(history) != `{"events":[]}` {
		t.Errorf("History = %s, %v", history, err)
	}
	if err := client.Cancel(ctx, "digits-1"); err != nil {
		t.Errorf("Cancel: %v", err)
	}
	if published, err := client.Publish(ctx, web.Event{Pipeline: "digits", ID: "9"}); err != nil ||
		published != (web.Published{Event: "9", Run: "digits-9"}) {
		t.Errorf("Publish = %+v, %v", published, err)
	}
	made, err := client.Bind(ctx, wire.Binding{Pipeline: "digits", Subject: "a.>"})
	if err != nil {
		t.Errorf("Bind: %v", err)
	}
	if bindings, err := client.Bindings(ctx); err != nil || len(bindings) != 1 || bindings[0].Key != made.Key {
		t.Errorf("Bindings = %v, %v", bindings, err)
	}
	if err := client.Unbind(ctx, made.Key); err != nil {
		t.Errorf("Unbind: %v", err)
	}
	if dead, err := client.Dead(ctx, 10); err != nil || len(dead) != 1 || dead[0].Sequence != 4 {
		t.Errorf("Dead = %v, %v", dead, err)
	}
	if replayed, err := client.Replay(ctx, 4); err != nil || replayed.Replayed != 1 {
		t.Errorf("Replay = %+v, %v", replayed, err)
	}
}

func TestARefusalComesBackWithItsStatusAndHint(t *testing.T) {
	t.Parallel()
	client, _ := start(t, nil)
	_, err := client.Publish(t.Context(), web.Event{Pipeline: "digist"})
	var refused *web.Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a web.Error", err)
	}
	want := &web.Error{Status: 400, Message: `there is no pipeline "digist"`, Hint: "did you mean digits?"}
	if diff := cmp.Diff(want, refused); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestWhatAnEngineOfAnotherVersionDoesNotHaveIsNotMissing asks this one, those of other versions, and something else.
func TestWhatAnEngineOfAnotherVersionDoesNotHaveIsNotMissing(t *testing.T) {
	t.Parallel()
	known, _ := start(t, nil)
	if _, err := known.Run(t.Context(), "nobody"); !isStatus(err, 404) || isNoRoute(err) {
		t.Errorf("a run that is not there: %v", err)
	}
	for _, address := range []string{"/api/v1/nowhere", "/api/v2/runs", "/nowhere"} {
		if err := known.call(t.Context(), http.MethodGet, address, nil, nil); !isStatus(err, 404) || !isNoRoute(err) {
			t.Errorf("%s: %v, want that the engine does not have it", address, err)
		}
	}
	for name, answer := range map[string]string{
		"an API without it":        `{"error":{"message":"the API has no GET /api/v1/runs/x","hint":"the API is at ..."}}`,
		"another version":          `{"error":{"message":"the API is at /api/v1: this engine does not have version 2 yet"}}`,
		"what is no engine":        "there is no such page; / shows the runs\n",
		"what says nothing at all": "",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(answer))
		}))
		t.Cleanup(server.Close)
		_, err := New(server.URL, "token").Run(t.Context(), "x")
		if !isStatus(err, 404) || !isNoRoute(err) {
			t.Errorf("%s: %v, want that the engine does not have it", name, err)
		}
	}
}

func isNoRoute(err error) bool {
	refused, ok := errors.AsType[*web.Error](err)
	return ok && refused.NoRoute && strings.Contains(refused.Hint, "another version")
}

func TestAFailingEngineSaysWhy(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	engine.Fail(errors.New("the database is gone"))
	if err := client.Healthy(t.Context()); err == nil || err.Error() != "the database is gone" {
		t.Errorf("Healthy = %v, want the cause", err)
	}
}

func TestAnEngineThatIsStartingIsWaitedFor(t *testing.T) {
	t.Parallel()
	client, engine := start(t, nil)
	engine.Fail(web.Starting("catching up: 12,345 of 45,000 messages"))
	var told []string
	err := client.Ready(t.Context(), func(progress string) {
		told = append(told, progress)
		if len(told) == 2 {
			engine.Fail(nil)
		}
	})
	if want := []string{"catching up: 12,345 of 45,000 messages", "catching up: 12,345 of 45,000 messages"}; err != nil ||
		!cmp.Equal(want, told) {
		t.Errorf("got %v, told %q: want nil once it is ready, and its progress before", err, told)
	}
	engine.Fail(errors.New("the database is gone"))
	if err := client.Ready(t.Context(), func(string) { t.Error("an engine that fails is waited for") }); err != nil {
		t.Errorf("an engine in which something fails: got %v, want nil", err)
	}
}

func TestNobodyThereIsUnreachable(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	client := New(server.URL, accesstest.Keys().Token())
	if err := client.Healthy(t.Context()); !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want one that wraps ErrUnreachable", err)
	}
}

func TestFollowGoesOnAfterABrokenConnectionAndTellsNoDecisionTwice(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	var resumed atomic.Value
	again := make(chan struct{})
	client, engine := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if opened.Add(1) == 1 {
				ctx, cancel := context.WithTimeout(r.Context(), 50*time.Millisecond)
				defer cancel()
				r = r.WithContext(ctx) // the first stream breaks soon
			} else {
				resumed.Store(r.FormValue("after"))
				close(again)
			}
			next.ServeHTTP(w, r)
		})
	})
	go func() {
		<-again
		engine.Apply("digits-1", predictor.RunEnded{
			Run: "digits-1", State: predictor.RunSucceeded,
			At: begin.Add(time.Minute),
		})
	}()
	engine.Decide(predictor.Plan{
		Term: 1, Tick: 1,
		Decisions: []predictor.Decision{{ID: "first", Stage: stage, At: begin.Add(time.Second)}},
	})
	told := map[string]int{}
	err := client.Follow(t.Context(), "digits-1", func(message Message) error {
		if message.Decision != nil {
			told[message.Decision.ID]++
		}
		if message.Run != nil && message.Run.State == predictor.RunSucceeded {
			return ErrStop
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]int{"first": 1}, told); diff != "" {
		t.Errorf("decisions told (-want +got):\n%s", diff)
	}
	if resumed.Load() == "" {
		t.Error("the second stream began anew, want it to go on after the last message")
	}
}

func TestFollowReturnsTheErrorOfItsFunction(t *testing.T) {
	t.Parallel()
	client, _ := start(t, nil)
	want := errors.New("enough")
	if err := client.Follow(t.Context(), "digits-1", func(Message) error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestFollowGivesUpOnAnEngineThatIsGone(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	client := New(server.URL, accesstest.Keys().Token())
	client.follow = pace{
		silence: time.Second, patience: 20 * time.Millisecond, first: time.Millisecond,
		most: time.Millisecond,
	}
	var told []Message
	err := client.Follow(t.Context(), "", func(message Message) error {
		told = append(told, message)
		return nil
	})
	if !errors.Is(err, ErrUnreachable) {
		t.Errorf("got %v, want one that wraps ErrUnreachable", err)
	}
	if diff := cmp.Diff([]Message{{Away: true}}, told); diff != "" {
		t.Errorf("told while it is gone (-want +got):\n%s", diff)
	}
}

func TestFollowFindsAnEngineThatWasStartedAnewElsewhere(t *testing.T) {
	t.Parallel()
	known, _ := start(t, nil)
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	asked := 0
	client := Relocating(Place{Base: gone.URL, Token: "old"}, func() (Place, error) {
		switch asked++; asked {
		case 1:
			return Place{Base: gone.URL, Token: "old"}, nil
		case 2:
			return Place{}, errors.New("no stack runs")
		}
		return *known.at.Load(), nil
	})
	defer client.Close()
	client.follow = known.follow
	away := 0
	if err := client.Follow(t.Context(), "digits-1", func(message Message) error {
		if message.Away {
			away++
			return nil
		}
		return ErrStop
	}); err != nil || away != 1 {
		t.Errorf("got %v after it was away %d times, want none after once", err, away)
	}
	if _, err := client.Run(t.Context(), "digits-1"); err != nil {
		t.Errorf("the call after the stream: %v", err)
	}
}

func TestFollowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	client, _ := start(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	err := client.Follow(ctx, "", func(Message) error {
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}

func TestASilentStreamIsOpenedAgain(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	client, _ := start(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if opened.Add(1) == 1 {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	client.follow.silence = 50 * time.Millisecond
	if err := client.Follow(t.Context(), "digits-1", func(message Message) error {
		if message.Away {
			return nil
		}
		return ErrStop
	}); err != nil || opened.Load() != 2 {
		t.Errorf("got %v after %d streams, want none after 2", err, opened.Load())
	}
}
