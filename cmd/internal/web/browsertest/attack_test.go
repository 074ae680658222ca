package browsertest

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
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
	b.open(base + "/runs/digits-running")
	b.until(`document.body.innerText.includes('Open the link that spillway open prints')`)
	if text := evaluate[string](b, `document.body.innerText`); strings.Contains(text, "digits-running") || strings.Contains(text, "does not answer") {
		t.Errorf("a browser that nobody knows reads:\n%s", text)
	}
	b.atBothWidths("refused")

	calls := client.New(base, accesstest.Keys().Token())
	defer calls.Close()
	code, err := calls.NewLogin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.open("about:blank") // the same page with another fragment is not loaded again
	b.open(base + "/runs/digits-running#login=" + code)
	b.until(`document.querySelector('.connection')?.textContent === 'live' && document.body.innerText.includes('digits-running')`)
	if got := evaluate[string](b, `location.href`); got != base+"/runs/digits-running" {
		t.Errorf("the address is %s, want it without the code", got)
	}
	if cookies := evaluate[string](b, `document.cookie`); cookies != "" {
		t.Errorf("a script reads the cookie %q", cookies)
	}

	second := newTab(t)
	second.open(base + "/#login=" + code)
	second.until(`document.body.innerText.includes('Open the link that spillway open prints')`)
}

// attack is a page that tries what a browser lets pages do to another origin.
const attack = `<!doctype html><title>at it</title><body><iframe name=inner></iframe><script>
const base = %q, told = [];
const event = JSON.stringify({pipeline: 'digits', id: 'attack'});
const tries = {
  plain: () => fetch(base + '/api/v1/events', {method: 'POST', mode: 'no-cors', credentials: 'include', headers: {'content-type': 'text/plain'}, body: event}),
  json: () => fetch(base + '/api/v1/events', {method: 'POST', credentials: 'include', headers: {'content-type': 'application/json'}, body: event}),
  put: () => fetch(base + '/api/v1/artifacts', {method: 'PUT', credentials: 'include', headers: {'content-type': 'application/octet-stream'}, body: 'x'}),
  beacon: async () => navigator.sendBeacon(base + '/api/v1/events', event),
  read: async () => told.push('read ' + await (await fetch(base + '/api/v1/stack', {credentials: 'include'})).text()),
  metrics: async () => told.push('metrics ' + await (await fetch(base + '/metrics', {credentials: 'include'})).text()),
  stream: () => new Promise((done) => { const s = new EventSource(base + '/api/v1/stream', {withCredentials: true}); s.onmessage = s.onopen = () => { told.push('stream'); done(); }; s.onerror = () => { s.close(); done(); }; }),
  script: () => new Promise((done) => { const s = document.createElement('script'); s.src = base + '/api/v1/stack'; s.onload = () => { told.push('script'); done(); }; s.onerror = done; document.body.append(s); }),
  form: () => new Promise((done) => { const f = document.createElement('form'); f.method = 'post'; f.action = base + '/api/v1/events'; f.enctype = 'text/plain'; f.target = 'inner'; document.body.append(f); f.submit(); setTimeout(done, 500); }),
  frame: () => new Promise((done) => { const f = document.createElement('iframe'); f.src = base + '/'; f.onload = () => { try { told.push('frame ' + f.contentDocument.body.innerText) } catch { } done(); }; document.body.append(f); }),
};
(async () => {
  for (const attempt of Object.values(tries)) await attempt().catch(() => undefined);
  document.title = 'done ' + told.join(' | ');
})();
</script>`

// TestAttackByAPageOfAnotherOrigin opens a page of another port, and of another site, in a browser that is logged in.
func TestAttackByAPageOfAnotherOrigin(t *testing.T) {
	t.Parallel()
	listener := listen(t, "127.0.0.1:0")
	e := newEngine(t, time.Now())
	var published atomic.Int64
	e.OnPublish = func(web.Event, string) { published.Add(1) }
	serve(t, e, listener)
	base := "http://" + listener.Addr().String()
	stranger := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprintf(w, attack, base)
	}))
	defer stranger.Close()
	_, port, err := net.SplitHostPort(stranger.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b := openTab(t)
	b.open(base + "/")
	b.until(`document.querySelector('.connection')?.textContent === 'live'`) // it is logged in
	for _, address := range []string{"http://127.0.0.1:" + port, "http://localhost:" + port} {
		b.open(address)
		b.until(`document.title.startsWith('done')`)
		if told := evaluate[string](b, `document.title`); told != "done" {
			t.Errorf("a page of %s is told %q, want nothing", address, told)
		}
	}
	if n := published.Load(); n != 0 {
		t.Errorf("pages of other origins have published %d events", n)
	}
}
