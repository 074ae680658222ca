package browsertest

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/spillway-ml/spillway/activities/access/accesstest"
	"github.com/spillway-ml/spillway/cmd/internal/chromiumtest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
)

// tab is one tab of a browser, which looks at the page.
type tab struct{ *chromiumtest.Tab }

// openTab returns a tab of a browser that is logged in to the engines of serve.
func openTab(t *testing.T) *tab {
	t.Helper()
	b := newTab(t)
	given := httptest.NewRecorder()
	accesstest.Keys().SetSession(given, false)
	b.LogIn(given.Result().Cookies()[0])
	return b
}

// newTab returns a tab of a browser that nobody knows.
func newTab(t *testing.T) *tab {
	t.Helper()
	return &tab{chromiumtest.NewTab(t)}
}

// heardNothingBad fails the test when the page complained, or asked any host but its own.
func (b *tab) heardNothingBad(own string) {
	b.T.Helper()
	if problems := b.Problems(); len(problems) > 0 {
		b.T.Errorf("the page complains:\n%s", strings.Join(problems, "\n"))
	}
	if hosts := b.Asked(); !slices.Equal(hosts, []string{own}) {
		b.T.Errorf("the page asks %v, want only %s", hosts, own)
	}
}

// look sets the width of the window and the colours that the reader prefers.
func (b *tab) look(width int64, scheme string) {
	b.T.Helper()
	prefers := chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		features := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: features})
		return err
	})
	if err := chromedp.Do(b.Context, chromedp.EmulateViewport(width, 900), prefers); err != nil {
		b.T.Fatal(err)
	}
	// What is measured when the window changes is drawn one frame later.
	const frames = `new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))`
	if _, err := chromedp.Run(b.Context, chromedp.Evaluate[bool](frames, chromedp.EvalAwaitPromise)); err != nil {
		b.T.Fatal(err)
	}
}

// press presses the button with this text.
func (b *tab) press(text string) {
	b.T.Helper()
	find := fmt.Sprintf(`[...document.querySelectorAll('button')].find((e) => e.textContent === %q && !e.disabled)`, text)
	b.Until(find + ` !== undefined`)
	evaluate[bool](b, `(`+find+`.click(), true)`)
}

func evaluate[T any](b *tab, expression string) T {
	b.T.Helper()
	value, err := chromedp.Run(b.Context, chromedp.Evaluate[T](expression))
	if err != nil {
		b.T.Fatalf("evaluate %s: %v", expression, err)
	}
	return value
}

// serve serves the page and the API of e on listener until the test ends or the function is called.
func serve(t *testing.T, e engine, listener net.Listener) (stop func()) {
	t.Helper()
	return serveAs(t, web.Options{Keys: accesstest.Keys(), Engine: e, Feed: &e.Feed, Page: web.NewPage()}, listener)
}

// serveAs does as serve with options.
func serveAs(t *testing.T, options web.Options, listener net.Listener) (stop func()) {
	t.Helper()
	server := web.New(options)
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
