package web_test

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/cmd/internal/join"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestAttackWithoutACredential asks every route of the document without a credential, with a wrong one and with that of
// Prometheus: nothing is told and nothing is done.
func TestAttackWithoutACredential(t *testing.T) {
	t.Parallel()
	server, engine, document, text := served(t)
	tried := 0
	for path, operations := range document.Paths {
		for method, operation := range operations {
			kind, body := "application/json", "{}"
			for accepted, content := range operation.RequestBody.Content {
				if kind = accepted; len(content.Example) > 0 {
					body = string(content.Example)
				}
			}
			target := strings.NewReplacer("{run}", "digits-1", "{digest}", strings.Repeat("0", 64)).Replace(path)
			for who, shown := range map[string][]string{
				"nobody": {}, "a stranger": {"Bearer x"},
				"Prometheus": {"Bearer " + accesstest.Keys().MetricsToken()},
			} {
				tried++
				status, answer := ask(t, server, strings.ToUpper(method), target, body,
					http.Header{"Authorization": shown, "Content-Type": {kind}})
				want := http.StatusUnauthorized
				switch {
				case path == "/healthz", path == "/api/v1/session" && method == "get",
					path == "/api/v1/session" && method == "delete" && who == "nobody":
					want = http.StatusOK // who asks is nobody, and nobody is signed out
				case strings.HasPrefix(path, "/api/v1/session/"):
					want = http.StatusNotFound // nobody signs in here
				case path == "/metrics" && who == "Prometheus":
					want = http.StatusNotFound // the handler of this test
				case who == "Prometheus" && path != "/api/v1/session" && path != join.Path && path != join.ServerPath:
					want = http.StatusForbidden
				}
				if status != want {
					t.Errorf("%s %s by %s: got %d %s, want %d", method, path, who, status, answer, want)
				}
			}
		}
	}
	if want := 3 * strings.Count(text, `"operationId"`); tried != want || want == 0 {
		t.Errorf("%d requests were made, want %d: three to each operation of the document", tried, want)
	}
	bindings, err := engine.Bindings(t.Context())
	runs, err2 := engine.Runs(t.Context(), web.RunQuery{Limit: 100})
	if err != nil || err2 != nil || len(bindings) != 0 || len(runs.Runs) != 2 {
		t.Errorf("the engine has the bindings %v and %d runs (%v, %v), want none and the 2 that it had", bindings,
			len(runs.Runs), err, err2)
	}
}

// TestAttackOnWhatNoRouteDeclares asks for what is mounted beside the table, whose owner has not said who may ask, and
// for what is nowhere.
func TestAttackOnWhatNoRouteDeclares(t *testing.T) {
	t.Parallel()
	server := web.New(web.Options{
		Keys: accesstest.Keys(), Engine: newEngine(t), Page: web.NewPage(),
		Metrics: http.NotFoundHandler(),
	})
	done := 0
	for _, pattern := range []string{"GET /debug/x", "PUT /debug/x", "/api/v1/beside"} {
		server.Handle(pattern, func(http.ResponseWriter, *http.Request) { done++ })
	}
	for _, request := range []string{
		"GET /debug/x", "HEAD /debug/x", "PUT /debug/x", "POST /api/v1/beside", "GET /debug/x/../x", "CONNECT /debug/x",
		"CONNECT /healthz",
		"GET /nowhere", "GET /assets/index-old.js", "POST /", "DELETE /metrics", "POST /healthz", "PUT /api/v1/session",
		"GET /api/nowhere", "GET /api/v2/stack",
	} {
		method, target, _ := strings.Cut(request, " ")
		for who, shown := range map[string]http.Header{
			"nobody": {"Authorization": {}}, "a stranger": {"Authorization": {"Bearer x"}},
			"Prometheus": {"Authorization": {"Bearer " + accesstest.Keys().MetricsToken()}},
		} {
			want := http.StatusUnauthorized
			if who == "Prometheus" {
				want = http.StatusForbidden
			}
			if status, answer := ask(t, server, method, target, "", shown); status != want {
				t.Errorf("%s by %s: got %d %s, want %d", request, who, status, answer, want)
			}
		}
	}
	if done > 0 {
		t.Errorf("%d requests of strangers were handled", done)
	}
	if status, _ := ask(t, server, http.MethodGet, "/debug/x", "", nil); status != http.StatusOK || done != 1 {
		t.Errorf("the owner: got %d, handled %d times, want once", status, done)
	}
	large := accesstest.Arrived(accesstest.Show(httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/debug/x",
		strings.NewReader("x"))), 7474)
	large.ContentLength = 8<<20 + 1
	recorder := httptest.NewRecorder()
	if server.ServeHTTP(recorder, large); recorder.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("the owner puts more than 8 MiB where no route has said how much: got %d %s, want 413", recorder.Code,
			recorder.Body)
	}
}

func TestABrowserLogsInOnceWithACode(t *testing.T) {
	t.Parallel()
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t)})
	status, answer := ask(t, server, http.MethodPost, "/api/v1/logins", "{}", nil)
	var login web.Login
	if err := json.Unmarshal([]byte(answer), &login); err != nil || status != http.StatusOK || login.Code == "" {
		t.Fatalf("a code: got %d %s, %v", status, answer, err)
	}
	logIn := func(body string) *httptest.ResponseRecorder {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/session", strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, accesstest.Arrived(request, 7474))
		return recorder
	}
	if wrong := logIn(`{"code":"x"}`); wrong.Code != http.StatusUnauthorized || len(wrong.Result().Cookies()) != 0 {
		t.Errorf("with a wrong code: got %d, cookies %v", wrong.Code, wrong.Result().Cookies())
	}
	if large := logIn(`{"code":"` + strings.Repeat("x", 4<<10) + `"}`); large.Code != http.StatusRequestEntityTooLarge ||
		!strings.Contains(large.Body.String(), "4 KiB") {
		t.Errorf("with more than a code: got %d %s, want to be refused as too large", large.Code, large.Body)
	}
	right := logIn(answer)
	cookies := right.Result().Cookies()
	if right.Code != http.StatusOK || len(cookies) != 1 {
		t.Fatalf("with the code: got %d %s, cookies %v", right.Code, right.Body, cookies)
	}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/stack", nil)
	request.AddCookie(cookies[0])
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, accesstest.Arrived(request, 7474))
	if recorder.Code != http.StatusOK {
		t.Errorf("with the cookie: got %d %s", recorder.Code, recorder.Body)
	}
	if again := logIn(answer); again.Code != http.StatusUnauthorized ||
		!strings.Contains(again.Body.String(), "spillway open") {
		t.Errorf("with the code again: got %d %s, want a refusal that says what to do", again.Code, again.Body)
	}
}

// TestAttackWithTheLinkOfSomebodyElse has a browser that is logged in follow a link which logs in as another.
func TestAttackWithTheLinkOfSomebodyElse(t *testing.T) {
	t.Parallel()
	tokens := accesstest.Tokens(t)
	server := web.New(web.Options{
		Keys: accesstest.Keys(), Engine: newEngine(t), Tokens: tokens,
		Sessions: access.OpenSessions(documents.Local(), accesstest.Keys(), tokens),
	})
	ask := func(method, path, body, bearer string, cookie *http.Cookie) *httptest.ResponseRecorder {
		request := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		request.Header.Set("Content-Type", "application/json")
		if bearer != "" {
			request.Header.Set("Authorization", "Bearer "+bearer)
		}
		if cookie != nil {
			request.AddCookie(cookie)
		}
		recorder := httptest.NewRecorder()
		server.ServeHTTP(recorder, accesstest.Arrived(request, 7474))
		return recorder
	}
	made := func(name string) (token string) {
		token, err := tokens.Make(t.Context(), name, "viewer", "", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	code := func(bearer string) string {
		var login web.Login
		answer := ask(http.MethodPost, "/api/v1/logins", "{}", bearer, nil)
		if err := json.Unmarshal(answer.Body.Bytes(), &login); err != nil || login.Code == "" {
			t.Fatalf("a code: %d %s, %v", answer.Code, answer.Body, err)
		}
		return login.Code
	}
	ada, eve := made("ada"), made("eve")
	victim := ask(http.MethodPost, "/api/v1/session", `{"token":"`+ada+`"}`, "", nil).Result().Cookies()
	if len(victim) != 1 {
		t.Fatal("a token logs nobody in")
	}
	theirs := code(eve)
	refused := ask(http.MethodPost, "/api/v1/session", `{"code":"`+theirs+`"}`, "", victim[0])
	if refused.Code != http.StatusConflict || len(refused.Result().Cookies()) != 0 ||
		!strings.Contains(refused.Body.String(), "logged in as ada") {
		t.Errorf("the link of somebody else: got %d %s, cookies %v", refused.Code, refused.Body, refused.Result().Cookies())
	}
	for what, body := range map[string]string{
		"a link of one's own": `{"code":"` + code(ada) + `"}`,
		"one that is wanted":  `{"code":"` + theirs + `","replace":true}`,
	} {
		if got := ask(http.MethodPost, "/api/v1/session", body, "", victim[0]); got.Code != http.StatusOK ||
			len(got.Result().Cookies()) != 1 {
			t.Errorf("%s: got %d %s", what, got.Code, got.Body)
		}
	}
	if got := ask(http.MethodPost, "/api/v1/session", `{"code":"`+code(eve)+`"}`, "", nil); got.Code != http.StatusOK {
		t.Errorf("of a browser that nobody knows: got %d %s", got.Code, got.Body)
	}
}

// TestAttackOnTheSignInOfOthers has one address ask without an end: what is left for others is enough.
func TestAttackOnTheSignInOfOthers(t *testing.T) {
	t.Parallel()
	allow, now := web.AllowSignIns(), time.Now()
	granted := 0
	for range 10_000 {
		if allow("192.0.2.1:5000", now) {
			granted++
		}
	}
	if granted < 20 || granted > 100 {
		t.Errorf("one address is granted %d sign-ins at once, want so many as an office needs", granted)
	}
	for i := range 100 {
		if !allow("198.51.100."+strconv.Itoa(i)+":5000", now) {
			t.Fatalf("the %d. of the others is refused", i+1)
		}
	}
}

func TestWhatIsNoTokenOfTheIssuerIsKnownWithoutAskingAnybody(t *testing.T) {
	t.Parallel()
	token := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for name, c := range map[string]struct {
		text, issuer string
		want         bool
	}{
		"one":                          {token(`{"iss":"https://x.org"}`), "https://x.org", true},
		"one without the scheme":       {token(`{"iss":"accounts.google.com"}`), "https://accounts.google.com", true},
		"of another":                   {token(`{"iss":"https://y.org"}`), "https://x.org", false},
		"of a path":                    {token(`{"iss":"https://x.org/a"}`), "https://x.org", false},
		"of nobody":                    {token(`{}`), "https://x.org", false},
		"of a number":                  {token(`{"iss":1}`), "https://x.org", false},
		"no JSON":                      {token(`x`), "https://x.org", false},
		"no base64":                    {"e30.*.c2ln", "https://x.org", false},
		"two parts":                    {"e30.e30", "https://x.org", false},
		"nothing":                      {"", "https://x.org", false},
		"a session of our own, rather": {"spillway_session_AAAA", "https://x.org", false},
	} {
		if got := web.IsOfIssuer(c.text, c.issuer); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}

func TestASignInLeadsToAPageOfThisServer(t *testing.T) {
	t.Parallel()
	for to, want := range map[string]string{
		"/": "/", "/runs/digits-1?a=b": "/runs/digits-1?a=b", "": "/", "https://x.org": "/", "//x.org": "/", "runs": "/",
		`/\x.org`: "/", "/#login=2UF3T7NQZKE": "/", "/runs#x": "/", "/sign-in": "/", "/a\nb": "/",
	} {
		if got := web.LocalPath(to); got != want {
			t.Errorf("%q leads to %q, want %q", to, got, want)
		}
	}
}

func TestAttackWithLargeArtifacts(t *testing.T) {
	t.Parallel()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: newEngine(t), Artifacts: store})
	request := accesstest.Arrived(accesstest.Show(
		httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/api/v1/artifacts", strings.NewReader("x"))), 7474)
	request.Header.Set("Content-Type", "application/octet-stream")
	request.ContentLength = 5<<30 + 1
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusRequestEntityTooLarge ||
		!strings.Contains(recorder.Body.String(), "the body is larger than 5 GiB") {
		t.Errorf("more than 5 GiB: got %d %s, want 413", recorder.Code, recorder.Body)
	}
}

// TestAttackWithMoreThanThereIsRoomFor fills the store up to its bound: what is refused takes no room.
func TestAttackWithMoreThanThereIsRoomFor(t *testing.T) {
	t.Parallel()
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), strings.NewReader(strings.Repeat("a", 50))); err != nil { // of a stage
		t.Fatal(err)
	}
	server := web.New(web.Options{
		Keys: accesstest.Keys(), Engine: newEngine(t), Artifacts: store, ArtifactsMax: 100,
		ArtifactsUsage: func() (quantity.Bytes, error) {
			used, err := store.Usage(t.Context())
			return quantity.Bytes(used), err
		},
	})
	for i, test := range []struct{ bytes, status int }{{40, 200}, {20, 507}, {200, 507}, {10, 200}, {1, 507}} {
		body := strings.Repeat(string(rune('b'+i)), test.bytes)
		status, answer := ask(t, server, http.MethodPut, "/api/v1/artifacts", body,
			http.Header{"Content-Type": {"application/octet-stream"}})
		if status != test.status || status == http.StatusInsufficientStorage && !strings.Contains(answer, "--artifacts-max") {
			t.Errorf("%d. %d bytes: got %d %s, want %d", i, test.bytes, status, answer, test.status)
		}
	}
	if used, err := store.Usage(t.Context()); used != 100 || err != nil {
		t.Errorf("the store takes %d bytes, %v; want 100", used, err)
	}
}

// TestAttackOnHealth asks an engine that fails: whoever shows nothing is not told why.
func TestAttackOnHealth(t *testing.T) {
	t.Parallel()
	engine := newEngine(t)
	engine.Fail(&access.Refusal{Message: "the disk of /home/secret is full"})
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: engine})
	if status, answer := ask(t, server, http.MethodGet, "/healthz", "", http.Header{"Authorization": {}}); status !=
		http.StatusServiceUnavailable || strings.Contains(answer, "secret") {
		t.Errorf("nobody asks: got %d %s, want 503 without the cause", status, answer)
	}
	if status, answer := ask(t, server, http.MethodGet, "/healthz", "", nil); status != http.StatusServiceUnavailable ||
		!strings.Contains(answer, "secret") {
		t.Errorf("the owner asks: got %d %s, want 503 with the cause", status, answer)
	}
}
