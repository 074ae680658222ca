package web_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/webtest"
	"github.com/spillway-ml/spillway/predictor"
)

var begin = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

func newEngine(t *testing.T) *webtest.Engine {
	t.Helper()
	engine := webtest.New(web.Stack{
		Version: "v1.2.3", StateDir: t.TempDir(), PoolCPUs: []int{0}, FunctionCPUs: []int{1},
		Apps: []web.App{
			{App: wire.App{Name: "digits", Pipelines: []wire.Pipeline{{Name: "digits"}}}, Build: "0123456789ab", Current: true},
			{App: wire.App{Name: "old", Pipelines: []wire.Pipeline{{Name: "retired"}}}, Build: "ba9876543210"},
		},
	})
	engine.Apply("digits-1", predictor.RunStarted{
		Run: "digits-1", Pipeline: "digits", App: "digits",
		Build: "0123456789ab", At: begin,
	})
	return engine
}

func ask(
	t *testing.T, server *web.Server, method, target, body string, header http.Header,
) (status int, answer string) {
	t.Helper()
	request := accesstest.Arrived(httptest.NewRequestWithContext(t.Context(), method, target, strings.NewReader(body)),
		7474)
	if _, shown := header["Authorization"]; !shown {
		accesstest.Show(request)
	}
	if method == http.MethodPost {
		request.Header.Set("Content-Type", "application/json")
	}
	for name, values := range header {
		if name == "Host" {
			request.Host = values[0]
			continue
		}
		request.Header[name] = values
	}
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, request)
	return recorder.Code, recorder.Body.String()
}

func TestRequestsAreAnsweredOrRefused(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		method, target, body string
		header               http.Header
		status               int
		contains             string
	}{
		"health is ok":                {"GET", "/healthz", "", nil, 200, `"ok"`},
		"the stack tells its version": {"GET", "/api/v1/stack", "", nil, 200, `"version":"v1.2.3"`},
		"runs are listed":             {"GET", "/api/v1/runs", "", nil, 200, `"run":"digits-1"`},
		"no runs are an empty list":   {"GET", "/api/v1/runs?state=failed", "", nil, 200, `{"runs":[]}`},
		"an unknown state is refused": {"GET", "/api/v1/runs?state=happy", "", nil, 400, "happy"},
		"a cursor that is none is refused": {
			"GET", "/api/v1/runs?cursor=x", "", nil, 400,
			"next of the page before",
		},
		"all runs are added up": {
			"GET", "/api/v1/runs?state=failed&totals=true", "", nil, 200,
			`{"runs":[],"totals":{"runs":0,"states":{"cancelled":0,"failed":0,"running":0,"succeeded":0},` +
				`"cost_picodollars":0,"missed_deadlines":0,"missed_budgets":0}}`,
		},
		"totals are wanted or not": {
			"GET", "/api/v1/runs?totals=all", "", nil, 400,
			"neither true nor false",
		},
		"a limit of zero is refused":                {"GET", "/api/v1/runs?limit=0", "", nil, 400, "1 to 1000"},
		"a limit that is no number is refused":      {"GET", "/api/v1/decisions?limit=x", "", nil, 400, "1 to 5000"},
		"one run is shown":                          {"GET", "/api/v1/runs/digits-1", "", nil, 200, `"pipeline":"digits"`},
		"an unknown run is not found":               {"GET", "/api/v1/runs/digits-2", "", nil, 404, "digits-2"},
		"decisions of an unknown run are not found": {"GET", "/api/v1/runs/digits-2/decisions", "", nil, 404, "digits-2"},
		"no decisions are an empty list": {
			"GET", "/api/v1/runs/digits-1/decisions", "", nil, 200,
			`{"decisions":[]}`,
		},
		"a history is JSON": {
			"GET", "/api/v1/runs/digits-1/history", "", nil, 200,
			`{"events":[]}`,
		},
		"a run is cancelled": {"POST", "/api/v1/runs/digits-1/cancel", "{}", nil, 200, "{}"},
		"a cancellation of more than nothing": {
			"POST", "/api/v1/runs/digits-1/cancel", "[null]", nil, 400,
			"body is refused",
		},
		"a login with more than nothing": {"POST", "/api/v1/logins", "[null]", nil, 400, "body is refused"},
		"a run that no header can name": {
			"POST", "/api/v1/runs/gr%C3%B6%C3%9Fe/cancel", "{}", nil, 404,
			"ASCII",
		},
		"a run of a name that is too long": {
			"GET", "/api/v1/runs/" + strings.Repeat("x", 1001) + "/history", "",
			nil, 404, "1000",
		},
		"a method that a path does not take":  {"PUT", "/api/v1/stack", "", nil, 405, "it takes GET"},
		"a method that artifacts do not take": {"POST", "/api/v1/runs", "", nil, 405, "it takes GET"},
		"an event starts a run": {
			"POST", "/api/v1/events",
			`{"pipeline":"digits","id":"7","input":{"a":1}}`, nil, 200, `{"event":"7","run":"digits-7"}`,
		},
		"an event on a subject names no run": {
			"POST", "/api/v1/events", `{"subject":"uploads.a"}`, nil, 200,
			`{"event":"event-1"}`,
		},
		"an unknown pipeline names the nearest": {
			"POST", "/api/v1/events", `{"pipeline":"digist"}`, nil, 400,
			"did you mean digits?",
		},
		"a pipeline of an old build is unknown": {
			"POST", "/api/v1/events", `{"pipeline":"retired"}`, nil, 400,
			"there are: digits",
		},
		"an event without target is refused": {
			"POST", "/api/v1/events", `{}`, nil, 400,
			"either a pipeline or a subject",
		},
		"an event with two targets is refused": {
			"POST", "/api/v1/events", `{"pipeline":"digits","subject":"a"}`, nil,
			400, "either a pipeline or a subject",
		},
		"a subject with a wildcard is refused": {"POST", "/api/v1/events", `{"subject":"a.>"}`, nil, 400, "wildcard"},
		"a negative deadline is refused": {
			"POST", "/api/v1/events",
			`{"pipeline":"digits","goal":{"deadline_ns":-5}}`, nil, 400, "negative",
		},
		"an unknown objective is refused": {
			"POST", "/api/v1/events",
			`{"pipeline":"digits","goal":{"minimise":"fun"}}`, nil, 400, "fun",
		},
		"an unknown field is refused": {
			"POST", "/api/v1/events", `{"pipelin":"digits"}`, nil, 400,
			"pipelin",
		},
		"an empty body is refused": {"POST", "/api/v1/events", ``, nil, 400, "it is empty"},
		"a body with two values is refused": {
			"POST", "/api/v1/events", `{"pipeline":"digits"}{}`, nil, 400,
			"more after",
		},
		"a body over 8 MiB is refused": {
			"POST", "/api/v1/events",
			`{"id":"` + strings.Repeat("x", 9<<20) + `"}`, nil, 413, "8 MiB",
		},
		"a binding is made": {
			"POST", "/api/v1/bindings",
			`{"pipeline":"digits","subject":"a.>","goal":{}}`, nil, 200, `"key":"digits-1"`,
		},
		"a binding to nothing is refused": {
			"POST", "/api/v1/bindings", `{"pipeline":"digist","subject":"a"}`,
			nil, 400, "digits",
		},
		"a binding without subject is refused": {
			"POST", "/api/v1/bindings", `{"pipeline":"digits"}`, nil, 400,
			"subject or a schedule",
		},
		"a binding that is not there is not found":     {"DELETE", "/api/v1/bindings?key=x", "", nil, 404, "x"},
		"an unbind without key is refused":             {"DELETE", "/api/v1/bindings", "", nil, 400, "no key"},
		"dead letters are listed":                      {"GET", "/api/v1/dead", "", nil, 200, `{"dead":[]}`},
		"a replay of nothing in particular is refused": {"POST", "/api/v1/dead/replay", `{}`, nil, 400, "either"},
		"a replay of all counts": {
			"POST", "/api/v1/dead/replay", `{"all":true}`, nil, 200,
			`{"replayed":0,"outcomes":[]}`,
		},
		"an app that is not there is not found": {
			"POST", "/api/v1/apps", `{"path":"/nowhere/app"}`, nil, 404,
			"/nowhere/app",
		},
		"an unknown path says so as JSON": {"GET", "/api/v1/nothing", "", nil, 404, `"error"`},
		"shutdown is not offered":         {"POST", "/api/v1/shutdown", `{}`, nil, 404, `"error"`},
		"metrics are answered":            {"GET", "/metrics", "", nil, 200, "spillway_up 1"},
		"localhost is this machine": {
			"GET", "/healthz", "",
			http.Header{"Host": {"localhost:7474"}},
			200,
			"ok",
		},
		"IPv6 loopback is this machine": {
			"GET", "/healthz", "",
			http.Header{"Host": {"[::1]:7474"}},
			200,
			"ok",
		},
		"a name of the world is refused": {
			"GET", "/api/v1/stack", "",
			http.Header{"Host": {"evil.example:7474"}},
			403, "evil.example",
		},
		"an address of the world is refused": {
			"GET", "/api/v1/stack", "",
			http.Header{"Host": {"10.0.0.1:7474"}},
			403, "loopback",
		},
		"a page of elsewhere is refused": {
			"POST", "/api/v1/events", `{"pipeline":"digits"}`,
			http.Header{"Origin": {"https://evil.example"}},
			403, "evil.example",
		},
		"the own page is admitted": {
			"POST", "/api/v1/events", `{"pipeline":"digits"}`,
			http.Header{"Origin": {"http://127.0.0.1:7474"}},
			200, "run",
		},
		"a form is refused": {
			"POST", "/api/v1/events", "pipeline=digits",
			http.Header{"Content-Type": {"application/x-www-form-urlencoded"}},
			415, "application/json",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "spillway_up 1\n")
			})
			server := web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t), Metrics: metrics})
			status, answer := ask(t, server, test.method, test.target, test.body, test.header)
			if status != test.status || !strings.Contains(answer, test.contains) {
				t.Errorf("%s %s: got %d %s, want %d and %q", test.method, test.target, status, answer, test.status, test.contains)
			}
		})
	}
}

func TestOnlyStoredBuildsAreRegistered(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	stack, err := engine.Stack(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got, answer := ask(t, web.New(web.Options{Keys: accesstest.Keys(), Engine: engine}), "POST", "/api/v1/apps",
		`{"path":"`+t.TempDir()+`"}`, nil); got != 400 {
		t.Errorf("register what is elsewhere before anything was built: got %d %s, want 400", got, answer)
	}
	stored := filepath.Join(stack.StateDir, "builds", "digits@0123456789ab", "digits")
	outside := filepath.Join(t.TempDir(), "digits")
	link := filepath.Join(stack.StateDir, "builds", "link")
	if err := os.MkdirAll(filepath.Dir(stored), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{stored, outside} {
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			t.Fatal(err)
		}
		engine.AddApp(web.App{App: wire.App{Name: "digits"}, Path: path})
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine})
	for path, want := range map[string]int{
		stored: 200, outside: 400, link: 400, stored + "/../../../builds": 400,
		"": 404,
	} {
		if got, _ := ask(t, server, "POST", "/api/v1/apps", `{"path":"`+path+`"}`, nil); got != want {
			t.Errorf("register %q: got %d, want %d", path, got, want)
		}
	}
}

func TestAFailingEngineIsToldAsSuch(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	engine.Fail(errors.New("the database is gone"))
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine})
	for target, want := range map[string]int{"/healthz": 503, "/api/v1/stack": 500, "/api/v1/runs": 500} {
		status, answer := ask(t, server, "GET", target, "", nil)
		if status != want || !strings.Contains(answer, "the database is gone") {
			t.Errorf("GET %s: got %d %s, want %d with the cause", target, status, answer, want)
		}
	}
}

func TestAnEngineThatIsStartingSaysHowFarItIsAndAnswersNothingHalf(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	yet := web.Starting("catching up: 12,345 of 45,000 messages")
	engine.Fail(yet)
	ready := make(chan struct{})
	asked := make(chan struct{}, 1)
	server := web.New(web.Options{
		Keys: accesstest.Keys(), Engine: engine, Metrics: http.NotFoundHandler(),
		Ready: func(ctx context.Context) error {
			select {
			case asked <- struct{}{}:
			default:
			}
			select {
			case <-ready:
				return nil
			case <-ctx.Done():
				return yet
			}
		},
	})
	answer := httptest.NewRecorder()
	server.ServeHTTP(answer, accesstest.Arrived(accesstest.Show(
		httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/healthz", nil)), 7474))
	const want = `{"status":"starting","error":"catching up: 12,345 of 45,000 messages"}`
	if answer.Code != http.StatusServiceUnavailable || strings.TrimSpace(answer.Body.String()) != want ||
		answer.Header().Get("Retry-After") != "1" {
		t.Errorf("health: got %d %s, want 503 %s and Retry-After", answer.Code, answer.Body, want)
	}

	// A request whose client goes away before the engine is ready is refused; one that stays is answered once it is.
	for _, target := range []string{"/api/v1/runs", "/metrics"} {
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		answer = httptest.NewRecorder()
		server.ServeHTTP(answer, accesstest.Arrived(accesstest.Show(
			httptest.NewRequestWithContext(gone, http.MethodGet, target, nil)), 7474))
		if answer.Code != http.StatusServiceUnavailable || answer.Header().Get("Retry-After") != "1" {
			t.Errorf("GET %s while it starts: got %d %s, want 503 and Retry-After", target, answer.Code, answer.Body)
		}
	}
	<-asked
	engine.Fail(nil)
	go func() {
		<-asked
		close(ready)
	}()
	if status, text := ask(t, server, "GET", "/api/v1/runs", "", nil); status != http.StatusOK ||
		!strings.Contains(text, "runs") {
		t.Errorf("GET /api/v1/runs once it is ready: got %d %s", status, text)
	}
}

func TestTheStackFileIsReadAsWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := web.ReadStackFile(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: got %v, want one that wraps fs.ErrNotExist", err)
	}
	want := web.StackFile{HTTP: "http://127.0.0.1:1", PID: 2, Version: "v3", StartedAt: begin}
	if err := want.Write(dir); err != nil {
		t.Fatal(err)
	}
	got, err := web.ReadStackFile(dir)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for range 2 {
		if err := web.RemoveStackFile(dir); err != nil {
			t.Errorf("remove: %v", err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("the directory has %v, %v; want nothing", left, err)
	}
	for _, damaged := range []string{"", "{", "{}", "null", `{"http":3}`} {
		if err := os.WriteFile(filepath.Join(dir, "stack.json"), []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := web.ReadStackFile(dir); err == nil ||
			!strings.Contains(err.Error(), "stack.json is damaged; stop the engine and start it again") {
			t.Errorf("a file that says %q: got %v, want what to do", damaged, err)
		}
	}
}

func TestCloseEndsStreams(t *testing.T) {
	t.Parallel()
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t)})
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		"http://"+listener.Addr().String()+"/api/v1/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(accesstest.Show(request))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := server.Close(ctx); err != nil {
		t.Errorf("Close: %v", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve: %v", err)
	}
	if _, err := io.ReadAll(response.Body); err != nil {
		t.Errorf("the stream ended with %v, want its end", err)
	}
}
