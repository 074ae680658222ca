package devserver

import (
	"context"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"go.temporal.io/sdk/client"
)

// TestABrowserThatIsLoggedInReadsTheUI opens Temporal's UI as a browser does that nobody knows, and with the cookie that the page's login sets:
// one reads nothing, the other the runs and their histories.
func TestABrowserThatIsLoggedInReadsTheUI(t *testing.T) {
	t.Parallel()
	tab := newTab(t)
	dir := t.TempDir()
	s := start(t, Options{Dir: dir})
	run, err := dialTemporal(t, s.TemporalAddress(), dir).ExecuteWorkflow(t.Context(), client.StartWorkflowOptions{ID: "digits-17", TaskQueue: "nobody"}, "digits")
	if err != nil {
		t.Fatal(err)
	}

	runs := s.UIURL() + "/namespaces/default/workflows"
	tab.open(runs)
	tab.until(`document.body.innerText.includes('spillway open')`)
	if text := tab.text(); strings.Contains(text, "digits-17") {
		t.Errorf("a browser that nobody knows reads:\n%s", text)
	}

	tab.logIn(s)
	tab.open(runs)
	tab.until(`document.querySelector('main a[href*="/digits-17/"]') !== null`)
	tab.keep("temporal-runs")
	tab.open(runs + "/digits-17/" + run.GetRunID() + "/history")
	tab.until(`document.body.innerText.includes('Workflow Execution Started')`)
	tab.keep("temporal-history")

	own, err := url.Parse(s.UIURL())
	if err != nil {
		t.Fatal(err)
	}
	if hosts := tab.asked(); !slices.Equal(hosts, []string{own.Host}) {
		t.Errorf("the UI asks %v, want only %s", hosts, own.Host)
	}
}

// tab is one tab of a browser.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	hosts []string // that were asked; guarded by mu
}

// newTab returns a tab of a browser that nobody knows, or skips the test.
func newTab(t *testing.T) *tab {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "chromium") {
			t.Fatalf("SPILLWAY_TEST_REQUIRE names chromium: %v", err)
		}
		t.Skipf("needs chromium: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Minute) // the browser is closed when the test's context has ended
	t.Cleanup(cancel)
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.WindowSize(1400, 1000), chromedp.UserDataDir(t.TempDir()))
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &tab{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, b.heard); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("close the browser: %v", err)
		}
	})
	return b
}

func (b *tab) heard(event any) {
	sent, is := event.(*network.EventRequestWillBeSent)
	if !is {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if to, err := url.Parse(sent.Request.URL); err == nil && to.Host != "" && !slices.Contains(b.hosts, to.Host) {
		b.hosts = append(b.hosts, to.Host)
	}
}

// asked are the hosts that the pages asked.
func (b *tab) asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.hosts)
}

// logIn gives the browser the cookie that the page's login sets.
func (b *tab) logIn(s *Server) {
	b.t.Helper()
	given := httptest.NewRecorder()
	s.Keys().SetSession(given)
	cookie := given.Result().Cookies()[0]
	set := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.SetCookie, network.SetCookieParams{
			Name: cookie.Name, Value: cookie.Value, Domain: "127.0.0.1", Path: "/", HTTPOnly: new(true), SameSite: network.CookieSameSiteStrict,
		})
		return err
	})
	if err := chromedp.Do(b.ctx, set); err != nil {
		b.t.Fatal(err)
	}
}

func (b *tab) open(address string) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(address)); err != nil {
		b.t.Fatalf("open %s: %v", address, err)
	}
}

// until waits until a JavaScript expression is true.
func (b *tab) until(what string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, time.Minute)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](what)); err != nil {
		b.keep("failed")
		b.t.Fatalf("wait until %s: %v; the page reads:\n%s", what, err, b.text())
	}
}

// text is what the page reads.
func (b *tab) text() string {
	b.t.Helper()
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		b.t.Fatal(err)
	}
	return text
}

// keep stores a picture of the page in the directory that SPILLWAY_SCREENSHOTS names; without it there is nobody to look at one.
func (b *tab) keep(name string) {
	b.t.Helper()
	directory := os.Getenv("SPILLWAY_SCREENSHOTS")
	if directory == "" {
		return
	}
	picture, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, name+".png"), picture, 0o600); err != nil {
		b.t.Fatal(err)
	}
}
