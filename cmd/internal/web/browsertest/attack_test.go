package browsertest

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/documents"
	"github.com/spillway-ml/spillway/cmd/internal/chromiumtest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

// TestABrowserIsLetInByALink shows what a browser sees that nobody knows, and that a link lets it in once.
func TestABrowserIsLetInByALink(t *testing.T) {
	t.Parallel()
	b := newTab(t)
	listener := listen(t, "127.0.0.1:0")
	serve(t, newEngine(t, time.Now()), listener)
	base := "http://" + listener.Addr().String()
	b.Open(base + "/runs/digits-running")
	b.Until(`document.body.innerText.includes('Open the link that spillway open prints')`)
	if text := evaluate[string](b, `document.body.innerText`); strings.Contains(text, "digits-running") ||
		strings.Contains(text, "does not answer") {
		t.Errorf("a browser that nobody knows reads:\n%s", text)
	}
	b.atBothWidths("refused")

	calls := client.New(base, accesstest.Keys().Token())
	defer calls.Close()
	code, err := calls.NewLogin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Open("about:blank") // the same page with another fragment is not loaded again
	b.Open(base + "/runs/digits-running#login=" + code)
	b.Until(
		`document.querySelector('.connection')?.textContent === 'live' && document.body.innerText.includes('digits-running')`)
	if got := evaluate[string](b, `location.href`); got != base+"/runs/digits-running" {
		t.Errorf("the address is %s, want it without the code", got)
	}
	if cookies := evaluate[string](b, `document.cookie`); cookies != "" {
		t.Errorf("a script reads the cookie %q", cookies)
	}

	for _, useless := range []string{code, "2UF3T7NQZKE"} { // used, and never given
		second := newTab(t)
		second.Open(base + "/#login=" + useless)
		second.Until(`document.body.innerText.includes('Open the link that spillway open prints')`)
		if text := evaluate[string](second, `document.querySelector('[role=alert]').innerText`); !strings.Contains(text,
			"the link has been used") {
			t.Errorf("who opens a link that lets nobody in reads: %s", text)
		}
	}
}

// TestABrowserIsAskedBeforeItBecomesSomebodyElse has a browser that is logged in follow the link of somebody else.
func TestABrowserIsAskedBeforeItBecomesSomebodyElse(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	listener := listen(t, "127.0.0.1:0")
	e, tokens := newEngine(t, time.Now()), accesstest.Tokens(t)
	sessions := access.OpenSessions(documents.Local(), accesstest.Keys(), tokens)
	serveAs(t, web.Options{
		Keys: accesstest.Keys(), Engine: e, Feed: &e.Feed, Page: web.NewPage(), Tokens: tokens,
		Sessions: sessions,
	}, listener)
	base := "http://" + listener.Addr().String()
	token, err := tokens.Make(t.Context(), "eve", "viewer", "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	calls := client.New(base, token)
	defer calls.Close()
	code, err := calls.NewLogin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const asked = `document.body.innerText.includes('this browser is logged in as owner')`
	name := func() string {
		return evaluate[string](b, `(() => { const r = new XMLHttpRequest(); r.open('GET', '/api/v1/session', false);
			r.send(); return JSON.parse(r.responseText).name })()`)
	}
	b.Open(base + "/#login=" + code)
	b.Until(asked)
	b.atBothWidths("link-of-another")
	if got := evaluate[string](b, `location.href`); got != base+"/" || name() != "owner" {
		t.Errorf("at %s the browser is %s before it has said so", got, name())
	}
	b.press("Stay as it is")
	b.Until(`!` + asked)
	b.Open("about:blank")
	b.Open(base + "/#login=" + code)
	b.Until(asked)
	b.press("Log in by the link")
	// The page loads itself again then, and cannot be asked meanwhile.
	for deadline := time.Now().Add(10 * time.Second); len(sessions.Standing(time.Now())) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("nobody was logged in by the link")
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Open("about:blank")
	b.Open(base + "/")
	b.Until(`document.querySelector('.who')?.innerText.includes('eve')`)
	if got := name(); got != "eve" {
		t.Errorf("the browser is %s, want eve", got)
	}
}

// attack is a page that tries what a browser lets pages do to another origin.
//
//go:embed testdata/attack.html
var attack string

// arrivals counts requests by what they were and how they were answered.
type arrivals struct {
	mutex sync.Mutex
	count map[string]int
}

// of answers as handler does, and counts each request once it is answered.
func (a *arrivals) of(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &answered{ResponseWriter: w}
		handler.ServeHTTP(answer, r)
		a.mutex.Lock()
		defer a.mutex.Unlock()
		a.count[fmt.Sprintf("%s %s: %d", r.Method, r.URL.Path, answer.status)]++
	})
}

// all returns how often each request came.
func (a *arrivals) all() map[string]int {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	return maps.Clone(a.count)
}

// answered remembers the status of an answer.
type answered struct {
	http.ResponseWriter

	status int
}

func (a *answered) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap lets streams flush what they tell.
func (a *answered) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// TestAttackByAPageOfAnotherOrigin opens a page of another port, and of another site, in a browser that is logged in:
// all that it sends arrives and is refused.
func TestAttackByAPageOfAnotherOrigin(t *testing.T) {
	t.Parallel()
	e := newEngine(t, time.Now())
	var published atomic.Int64
	e.OnPublish = func(web.Event, string) { published.Add(1) }
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "spillway_up 1\n")
	})
	arrived := arrivals{count: map[string]int{}}
	engine := httptest.NewServer(arrived.of(web.New(web.Options{
		Keys: accesstest.Keys(), Engine: e, Feed: &e.Feed, Page: web.NewPage(), Artifacts: store, Metrics: metrics,
	})))
	defer engine.Close()
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, strings.ReplaceAll(attack, "BASE", engine.URL))
	}))
	defer stranger.Close()
	b := openTab(t)
	b.Open(engine.URL + "/")
	b.Until(`document.querySelector('.connection')?.textContent === 'live'`) // it is logged in
	for _, address := range []string{stranger.URL, strings.Replace(stranger.URL, "127.0.0.1", "localhost", 1)} {
		b.Open(address)
		b.Until(`document.title.startsWith('done')`)
		if told := evaluate[string](b, `document.title`); told != "done" {
			t.Errorf("a page of %s is told %q, want nothing", address, told)
		}
	}
	// Of each page three events without a question before them: a plain one, a beacon, which nobody waits for, and a form.
	refused := map[string]int{
		"POST /api/v1/events: 403": 6, "OPTIONS /api/v1/events: 403": 2, "OPTIONS /api/v1/artifacts: 403": 2,
		"GET /api/v1/stack: 403": 4,
		"GET /metrics: 403":      2, "GET /api/v1/stream: 403": 2, "GET /: 403": 2,
	}
	deadline := time.Now().Add(chromiumtest.Patience / 2)
	for what, want := range refused {
		for arrived.all()[what] < want && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if all := arrived.all(); all[what] != want {
			t.Errorf("%s %d times, want %d; all: %v", what, all[what], want, all)
		}
	}
	if used, err := store.Usage(t.Context()); used != 0 || err != nil {
		t.Errorf("pages of other origins have stored %d bytes, %v", used, err)
	}
	calls := client.New(engine.URL, accesstest.Keys().Token())
	defer calls.Close()
	if _, err := calls.Publish(t.Context(), web.Event{Pipeline: "digits", ID: "own"}); err != nil {
		t.Error(err)
	}
	if n := published.Load(); n != 1 {
		t.Errorf("%d events were published, want the owner's", n)
	}
}
