// Package chromiumtest opens pages in a real browser for tests.
package chromiumtest

import (
	"context"
	"fmt"
	"net/http"
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
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// Patience bounds each test, and waitLimit each wait; they decide nothing but how long a hang may last.
const (
	Patience  = 8 * time.Minute
	waitLimit = time.Minute
)

// Need returns the browser's path, or skips the test; where SPILLWAY_TEST_REQUIRE names chromium, it fails the test.
func Need(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chromium-headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "chromium") {
		t.Fatal("chromium is not installed, and SPILLWAY_TEST_REQUIRE names it")
	}
	t.Skip("needs chromium")
	return ""
}

// Tab is one tab of a browser, with what went wrong in it.
type Tab struct {
	// T is the test that the tab is for.
	T *testing.T
	// Context is that of the tab, for chromedp.
	Context context.Context

	mu       sync.Mutex
	problems []string // guarded by mu
	hosts    []string // that were asked; guarded by mu
}

// NewTab returns a tab of a browser that nobody knows, or skips the test. The browser is closed when the test ends.
func NewTab(t *testing.T, options ...chromedp.ExecAllocatorOption) *Tab {
	t.Helper()
	options = slices.Concat(chromedp.DefaultExecAllocatorOptions[:],
		[]chromedp.ExecAllocatorOption{chromedp.ExecPath(Need(t)), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir())},
		options)
	// the test's own ends before its cleanup
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Patience)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	b := &Tab{T: t, Context: ctx}
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

func (b *Tab) heard(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch event := event.(type) {
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, "exception: "+event.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if event.Type == runtime.ConsoleAPICalledTypeError || event.Type == runtime.ConsoleAPICalledTypeWarning {
			b.problems = append(b.problems, fmt.Sprintf("console %s: %v", event.Type, event.Args))
		}
	case *cdplog.EventEntryAdded:
		if event.Entry.Level == cdplog.EntryLevelError || event.Entry.Level == cdplog.EntryLevelWarning {
			b.problems = append(b.problems, fmt.Sprintf("log: %s %s", event.Entry.Text, event.Entry.URL))
		}
	case *network.EventRequestWillBeSent:
		asked, err := url.Parse(event.Request.URL)
		if err == nil && asked.Host != "" && !slices.Contains(b.hosts, asked.Host) {
			b.hosts = append(b.hosts, asked.Host)
		}
	}
}

// Problems are the errors and warnings of the pages so far.
func (b *Tab) Problems() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.problems)
}

// Forgive forgets the problems that are expected.
func (b *Tab) Forgive(expected func(problem string) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problems = slices.DeleteFunc(b.problems, expected)
}

// Asked are the hosts that the pages asked.
func (b *Tab) Asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.hosts)
}

// LogIn gives the browser the cookie that the page's login sets.
func (b *Tab) LogIn(cookie *http.Cookie) {
	b.T.Helper()
	set := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.SetCookie, network.SetCookieParams{
			Name: cookie.Name, Value: cookie.Value, Domain: "127.0.0.1", Path: "/", HTTPOnly: new(true),
			SameSite: network.CookieSameSiteStrict,
		})
		return err
	})
	if err := chromedp.Do(b.Context, set); err != nil {
		b.T.Fatal(err)
	}
}

// Open opens an address.
func (b *Tab) Open(address string) {
	b.T.Helper()
	if err := chromedp.Do(b.Context, chromedp.Navigate(address)); err != nil {
		b.T.Fatalf("open %s: %v", address, err)
	}
}

// Until waits until a JavaScript expression is true.
func (b *Tab) Until(what string) {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(b.Context, waitLimit)
	defer cancel()
	_, err := chromedp.Run(ctx, chromedp.Poll[bool](what))
	for err != nil && ctx.Err() == nil && strings.Contains(err.Error(), "Cannot find context") { // the page has moved on
		_, err = chromedp.Run(ctx, chromedp.Poll[bool](what))
	}
	if err != nil {
		b.Keep("failed")
		b.T.Fatalf("wait until %s: %v; the page reads:\n%s", what, err, b.Text())
	}
}

// Text is what the page reads.
func (b *Tab) Text() string {
	b.T.Helper()
	text, err := chromedp.Run(b.Context, chromedp.Evaluate[string](`document.body.innerText`))
	if err != nil {
		b.T.Fatal(err)
	}
	return text
}

// Keep stores a picture of the whole page in the directory that SPILLWAY_SCREENSHOTS names; without it there is nobody
// to look at one.
func (b *Tab) Keep(name string) {
	b.T.Helper()
	directory := os.Getenv("SPILLWAY_SCREENSHOTS")
	if directory == "" {
		return
	}
	picture, err := chromedp.Run(b.Context, chromedp.FullScreenshot(100))
	if err != nil {
		b.T.Fatal(err)
	}
	if err := os.MkdirAll(directory, 0o700); err != nil {
		b.T.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, name+".png"), picture, 0o600); err != nil {
		b.T.Fatal(err)
	}
}
