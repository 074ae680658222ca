package browsertest

import (
	"context"
	"fmt"
	"net"
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
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// patience bounds each test; it decides nothing but how long a hang may last.
const patience = 8 * time.Minute

// needChromium returns the browser's path, or skips the test.
func needChromium(t *testing.T) string {
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

// tab is one tab of a browser, with what went wrong in it.
type tab struct {
	t   *testing.T
	ctx context.Context

	mutex    sync.Mutex
	problems []string // guarded by mutex
	hosts    []string // that were asked; guarded by mutex
}

// openTab returns a tab of a browser that is logged in to the engines of serve.
func openTab(t *testing.T) *tab {
	t.Helper()
	b := newTab(t)
	given := httptest.NewRecorder()
	accesstest.Keys().SetSession(given)
	cookie := given.Result().Cookies()[0]
	logIn := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, network.SetCookie, network.SetCookieParams{
			Name: cookie.Name, Value: cookie.Value, Domain: "127.0.0.1", Path: "/", HTTPOnly: new(true), SameSite: network.CookieSameSiteStrict,
		})
		return err
	})
	if err := chromedp.Do(b.ctx, logIn); err != nil {
		t.Fatal(err)
	}
	return b
}

// newTab returns a tab of a browser that nobody knows.
func newTab(t *testing.T) *tab {
	t.Helper()
	options := append(slices.Clone(chromedp.DefaultExecAllocatorOptions[:]), chromedp.ExecPath(needChromium(t)), chromedp.NoSandbox, chromedp.UserDataDir(t.TempDir()))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // the browser is closed when the test's context has ended
	t.Cleanup(cancel)
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
	b.mutex.Lock()
	defer b.mutex.Unlock()
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
		if asked, err := url.Parse(event.Request.URL); err == nil && !slices.Contains(b.hosts, asked.Host) {
			b.hosts = append(b.hosts, asked.Host)
		}
	}
}

// heardNothingBad fails the test when the page complained, or asked any host but its own.
func (b *tab) heardNothingBad(own string) {
	b.t.Helper()
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if len(b.problems) > 0 {
		b.t.Errorf("the page complains:\n%s", strings.Join(b.problems, "\n"))
	}
	if !slices.Equal(b.hosts, []string{own}) {
		b.t.Errorf("the page asks %v, want only %s", b.hosts, own)
	}
}

func (b *tab) open(address string) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, chromedp.Navigate(address)); err != nil {
		b.t.Fatalf("open %s: %v", address, err)
	}
}

// look sets the width of the window and the colours that the reader prefers.
func (b *tab) look(width int64, scheme string) {
	b.t.Helper()
	prefers := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
		return err
	})
	if err := chromedp.Do(b.ctx, chromedp.EmulateViewport(width, 900), prefers); err != nil {
		b.t.Fatal(err)
	}
	// What is measured when the window changes is drawn one frame later.
	const frames = `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`
	if _, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](frames, chromedp.EvalAwaitPromise)); err != nil {
		b.t.Fatal(err)
	}
}

// until waits until a JavaScript expression is true.
func (b *tab) until(what string) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, 20*time.Second)
	defer cancel()
	if _, err := chromedp.Run(ctx, chromedp.Poll[bool](what)); err != nil {
		text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.body.innerText`))
		b.t.Fatalf("wait until %s: %v; the page reads:\n%s", what, err, text)
	}
}

// press presses the button with this text.
func (b *tab) press(text string) {
	b.t.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll('button')].find((e) => e.textContent === %q && !e.disabled)`, text)
	b.until(find + ` !== undefined`)
	evaluate[bool](b, `(`+find+`.click(), true)`)
}

func evaluate[T any](b *tab, expression string) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("evaluate %s: %v", expression, err)
	}
	return value
}

// keep stores a picture of the whole page in the directory that SPILLWAY_SCREENSHOTS names; without it there is nobody to look at one.
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
	if err := os.MkdirAll(directory, 0o700); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(directory, name+".png"), picture, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// serve serves the page and the API of e on listener until the test ends or the function is called.
func serve(t *testing.T, e engine, listener net.Listener) (stop func()) {
	t.Helper()
	server := web.New(web.Options{Keys: accesstest.Keys(), Engine: e, Feed: &e.Feed, Page: web.NewPage()})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*time.Second)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Logf("close: %v", err) // a browser may hold a connection
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}
