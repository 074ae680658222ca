package browsertest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
)

// faint finds text whose contrast with its ground is below that of WCAG 2.2 AA (success criterion 1.4.3), and returns
// it. The ratio is (L1+0.05)/(L2+0.05) of the relative luminances that
// https://www.w3.org/TR/WCAG22/#dfn-relative-luminance defines.
const faint = `(() => {
  const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\d.]+/g).map(Number); return { r, g, b, a }; };
  const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ({ r, g, b }) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (e) => {
    for (; e; e = e.parentElement) { const c = parse(getComputedStyle(e).backgroundColor); if (c.a > 0) return c; }
    return { r: 255, g: 255, b: 255 };
  };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || e.closest('option, title, :disabled')) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    const style = getComputedStyle(e);
    const colour = e.ownerSVGElement ? style.fill : style.color;
    const [x, y] = [luminance(parse(colour)), luminance(ground(e))];
    const ratio = (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05);
    if (ratio < 4.5) found.push(ratio.toFixed(2) + ' ' + e.textContent.trim().slice(0, 40));
  }
  return [...new Set(found)];
})()`

// wide finds what is wider than the window; what scrolls by itself may be.
const wide = `[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1 &&
  !e.closest('.scroll, .log, .hidden, thead, pre'))
  .map((e) => e.tagName + '.' + (e.getAttribute('class') ?? '') + ' ' + e.textContent.trim().slice(0, 40))`

func TestEachViewShowsWhatTheEngineKnows(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	e := newEngine(t, now)
	e.history(t, now)
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	done, err := e.Run(t.Context(), "digits-done")
	if err != nil {
		t.Fatal(err)
	}
	views := []struct {
		name, path string
		shows      []string
	}{
		{"runs", "/", []string{
			"digits-running", "digits-done", "digits-failed", "running", "succeeded", "failed", "23.4 s", "20.0 s to 31.0 s",
			done.Totals.Cost.String(),
			"$0.0002000 to $0.0004000", "deadline 1m30s, budget $0.5000, minimise cost", "\u22126%", "2 reused",
			"deadline at risk", "expected after 2m05s",
		}},
		{"run", "/runs/digits-running", []string{
			"running", "train", "step 7", "accuracy 0.9513", "40/360", "190/256 MiB", "predicted 71.0 s (58.0 s to 95.0 s)",
			"rests on its own tasks and 4 earlier runs", "deadline 83% likely to be missed", "epoch 14", "240 tasks wait 24 s",
			"8.0 s (6.0 s to 11.0 s)", "Temporal’s history", "Cancel run", "what could be had", "as it is now: 2 functions",
			"runs at a function", "Unattributed", "Altogether", "Cores",
		}},
		{"run-done", "/runs/digits-done", []string{
			"succeeded", "201 + 119", "61/96 MiB", done.Totals.Cost.String(), "off by",
			`"accuracy": 0.9778`, "nightly-17", "took 23.4 s", "predicted at first", "Retry from here",
		}},
		{"run-failed", "/runs/digits-failed", []string{
			"failed", "loss is NaN <img src=x", "The run scheduled no stage.",
			"Nothing was printed.",
		}},
		{"run-retried", "/runs/digits-retried", []string{
			"failed", "goroutine 1 [running]", "train: failed (panic)", "2 results", "tries digits-done again", "3.0 s after it",
			"loss", "holds more after", "out of memory", hostile,
		}},
		{
			"compare", "/compare?a=digits-done&b=digits-retried",
			[]string{"train only in B", "B against A", "≠\u00a0differs", "≠\u00a0+"},
		},
		{"costs", "/costs?by=stage", []string{
			"last 24 hours", "digits/train", "Wasted", "nobody", "while nothing ran at all",
			"CSV",
		}},
		{"costs-run", "/costs?by=run&since=24h", []string{"digits-retried", "idle"}},
		{"decisions", "/decisions", []string{
			"1 run at risk", "15 decisions", "actual 230 MiB", "240 tasks wait", "pool wait",
			"24.0 s", "$0.004400", "24 MiB", "17.9%",
		}},
		{"capacity", "/capacity", []string{
			"4 hosts: 2 up, 1 drained, 1 lost", "linux/arm64", "digits/train", "Undrain",
			"answers here, v1.2.3", "https://10.0.0.7:7475", "stands by", "leads",
			"workstation", "cgroup v2", "2.5 of 4 cores", "5 GiB of 16 GiB", "0-3, 8, 10-11", "$0.1785/h", "1 of 3", "1.7 GiB",
			"GPU-004ac76c", "61 GiB of 80 GiB", "93%", "688 W", "train of digits-running", "process 990 with 412 MiB",
			"process 4242 with 70 GiB, process 4243", "GPU 2 instance 1", "MIG-c6d4f1ef", "has fallen off the bus",
			"unknown: the driver has not answered yet",
			"$0.1037/h", "15m", "2ddeea7a933f", "1 core, 96 MiB", "learned",
			"host on demand", "aws us-east-1",
		}},
		{"missing", "/runs/nobody", []string{"There is no run nobody."}},
	}
	const asked = `performance.getEntriesByType('resource').filter((e) => e.name.includes('/api/v1/runs/')).length`
	for _, view := range views {
		b.Open("http://" + listener.Addr().String() + view.path)
		for _, text := range view.shows {
			b.Until(fmt.Sprintf("document.body.textContent.includes(%q)", text))
		}
		b.Until(`document.querySelector('.connection')?.textContent === 'live'`)
		if requests := evaluate[int](b, asked); view.name == "missing" && requests != 1 {
			t.Errorf("a run that is not there is asked for %d times", requests)
		}
		for _, width := range []int64{1440, 1280, 420, 390} {
			for _, scheme := range []string{"light", "dark"} {
				b.look(width, scheme)
				b.readable(fmt.Sprintf("%s-%d-%s", view.name, width, scheme))
			}
		}
		if evaluate[int](b, `document.querySelectorAll('img:not(.predicted)').length`) > 0 ||
			strings.Contains(evaluate[string](b, `document.title`), "broken") {
			t.Errorf("%s: what a program printed became part of the page", view.name)
		}
	}
	// That there is no such run is itself a failed request, of the page as of what it asks, and there is no other.
	b.Forgive(func(problem string) bool { return strings.Contains(problem, "/runs/nobody") })
	b.heardNothingBad(listener.Addr().String())
}

// readable keeps a picture of the page and fails the test when not all of it can be read.
func (b *tab) readable(name string) {
	b.T.Helper()
	b.Keep(name)
	if found := evaluate[[]string](b, wide); len(found) > 0 {
		b.T.Errorf("%s: wider than the window: %s", name, strings.Join(found, "; "))
	}
	if found := evaluate[[]string](b, faint); len(found) > 0 {
		b.T.Errorf("%s: too little contrast: %s", name, strings.Join(found, "; "))
	}
	if text := evaluate[string](b,
		`document.body.innerText.match(/NaN(?! <img)|undefined|\[object|Infinity/)?.[0] ?? ''`); text != "" {
		b.T.Errorf("%s: the page reads %q", name, text)
	}
}

func TestAttemptsSayWhichGPUsTheyHad(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	listener := listen(t, "127.0.0.1:0")
	serve(t, newEngine(t, time.Now()), listener)
	b.Open("http://" + listener.Addr().String() + "/runs/digits-running")
	b.Until(`document.querySelector('details.listed summary') !== null`)
	evaluate[bool](b, `(document.querySelector('details.listed summary').click(), true)`)
	b.Until(`document.querySelector('.attemptrows') !== null`)
	for _, text := range []string{"2 × h100", "GPU 61/160 GiB", "GPU peak unknown"} {
		b.Until(fmt.Sprintf("document.querySelector('.attemptrows').textContent.includes(%q)", text))
	}
	if found := evaluate[string](b, `document.querySelector('.attemptrows td [title]').title`); !strings.Contains(found,
		"GPU-004ac76c-d9cf-fef3-62e9-d92044ab6e52, GPU-104ac76c") {
		t.Errorf("the GPUs are %q", found)
	}
	for _, width := range []int64{1280, 420} {
		for _, scheme := range []string{"light", "dark"} {
			b.look(width, scheme)
			b.readable(fmt.Sprintf("attempts-%d-%s", width, scheme))
		}
	}
	b.heardNothingBad(listener.Addr().String())
}

func TestTheTableOfStagesFitsAWindowOf1280Pixels(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	e := newEngine(t, now)
	e.history(t, now)
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.Open("http://" + listener.Addr().String() + "/runs/digits-done")
	b.Until(`document.querySelector('table.stages tbody tr') !== null`)
	for _, width := range []int64{1280, 420} {
		b.look(width, "light")
		const over = `(() => {
	  const cell = document.querySelector('table.stages td[data-name="Peak/grant"]');
	  cell.querySelector('span').textContent = 'pool 25/29 MiB,';
	  const more = document.createElement('span');
	  more.textContent = 'function 45/1024 MiB';
	  cell.querySelector('span').after(' ', more);
	  const e = cell.closest('.scroll');
	  return e.scrollWidth - e.clientWidth })()`
		if pixels := evaluate[int](b, over); pixels > 1 { // both are rounded
			t.Errorf("in %d pixels the table is %d wider than its place", width, pixels)
		}
		b.readable(fmt.Sprintf("stages-%d", width))
	}
}

func TestTheTableOfRunsFitsAWindowOf1280Pixels(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	e := newEngine(t, now)
	e.history(t, now)
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.Open("http://" + listener.Addr().String() + "/")
	b.Until(`document.querySelectorAll('tbody tr').length > 3`)
	b.look(1280, "light")
	const over = `(() => { const e = document.querySelector('.scroll'); return e.scrollWidth - e.clientWidth })()`
	if pixels := evaluate[int](b, over); pixels > 0 {
		t.Errorf("the table is %d pixels wider than its place", pixels)
	}
}

func TestWhatHappensShowsWithoutAReload(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	e := newEngine(t, time.Now())
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	base := "http://" + listener.Addr().String()
	row := `[...document.querySelectorAll('tbody tr')].find((r) => ` +
		`r.textContent.includes('digits-running'))?.textContent ?? ''`

	b.Open(base + "/")
	b.Until(`document.querySelector('.connection')?.textContent === 'live' && (` + row + `).includes('running')`)
	e.Apply("digits-new", predictor.RunStarted{
		Run: "digits-new", Pipeline: "other", App: app, Build: build,
		At: time.Now(),
	})
	b.Until(`document.querySelector('tbody tr th')?.textContent.includes('digits-new')`)
	e.Apply("digits-running", predictor.RunEnded{Run: "digits-running", State: predictor.RunCancelled, At: time.Now()})
	b.Until(`(` + row + `).includes('cancelled')`)

	b.Open(base + "/runs/digits-new")
	b.Until(
		`document.querySelector('.connection')?.textContent === 'live' && document.body.textContent.includes('Nothing was ` +
			`decided')`)
	e.Print(line("digits-new", "train", time.Now(), "the first line"))
	b.Until(`document.querySelector('.log')?.textContent.includes('the first line')`)
	e.decide(3, time.Now(), change{"train", predictor.Pool, 0, 0, 5})
	b.Until(`document.querySelector('.decisions')?.textContent.includes('5 slots')`)

	b.press("Pause")
	e.Print(line("digits-new", "train", time.Now(), "the second line"))
	b.Until(`document.body.textContent.includes('1 new line')`)
	if evaluate[bool](b, `document.querySelector('.log').textContent.includes('the second line')`) {
		t.Error("the log goes on while it is paused")
	}
	b.press("Continue")
	b.Until(`document.querySelector('.log').textContent.includes('the second line')`)
	e.Apply("digits-new", predictor.RunEnded{Run: "digits-new", State: predictor.RunSucceeded, At: time.Now()})
	b.Until(`document.querySelector('.bar .state')?.textContent === 'succeeded'`)
	b.Until(`document.body.textContent.includes('complete')`)
	b.heardNothingBad(listener.Addr().String())
}

func TestAThousandRunsAreFilteredAndPaged(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	now := time.Now()
	e := newEngine(t, now)
	for i := range 997 {
		run, begin := fmt.Sprintf("many-%03d", i), now.Add(-time.Duration(i+1)*time.Minute)
		state := predictor.RunSucceeded
		if i%100 == 7 {
			state = predictor.RunCancelled
		}
		e.Apply(run, predictor.RunStarted{Run: run, Pipeline: "many", App: app, Build: build, At: begin},
			predictor.RunEnded{Run: run, State: state, At: begin.Add(time.Second)})
	}
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.look(1440, "light")
	b.Open("http://" + listener.Addr().String() + "/")
	b.Until(`document.querySelector('.total')?.textContent === '200 runs, the newest'`)
	b.Until(`document.querySelector('.sums')?.textContent
		.startsWith('1,000 runs: 1 running, 988 succeeded, 1 failed, 10 cancelled; $')`)
	for _, read := range []string{"400", "600", "800"} {
		b.press("Show older runs")
		b.Until(`document.querySelector('.total')?.textContent === '` + read + ` runs, the newest'`)
	}
	b.press("Show older runs")
	b.Until(`document.querySelector('.total')?.textContent.startsWith('1,000 runs')`)
	if rows := evaluate[int](b, `document.querySelectorAll('tbody tr').length`); rows > 100 {
		t.Errorf("%d rows are drawn at a time, want at most 100", rows)
	}
	b.Keep("many-1440-light")
	b.press("First") // what was read last is shown
	b.Until(`document.querySelector('.pager').textContent.includes('1–50 of 1,000 runs')`)
	b.press("Next")
	b.Until(`document.querySelector('.pager').textContent.includes('51–100 of 1,000 runs')`)

	// The keyboard reaches the filter, and the address keeps it.
	if err := chromedp.Do(b.Context, chromedp.Focus(`select`), chromedp.KeyEvent("c")); err != nil {
		t.Fatal(err)
	}
	b.Until(`document.querySelector('.total').textContent.startsWith('10 runs') && location.search === '?state=cancelled'`)
	b.Until(`document.querySelector('.sums').textContent === '10 runs: 10 cancelled; $0'`)
	if others := evaluate[int](b, `document.querySelectorAll('tbody .state:not(.cancelled)').length`); others > 0 {
		t.Errorf("%d rows are of another state", others)
	}
	b.heardNothingBad(listener.Addr().String())
}

func TestALostEngineIsToldAndFoundAgain(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	e := newEngine(t, time.Now())
	listener := listen(t, "127.0.0.1:0")
	stop := serve(t, e, listener)
	b.look(390, "light")
	b.Open("http://" + listener.Addr().String() + "/")
	b.Until(`document.querySelector('.connection')?.textContent === 'live'`)
	b.Until(`document.body.textContent.includes('digits-done')`)
	stop()
	b.Until(`document.querySelector('.disconnected')?.textContent.includes('does not answer')`)
	if !evaluate[bool](b, `document.body.textContent.includes('digits-done')`) {
		t.Error("what was known is gone")
	}
	b.Keep("lost-390-light")
	e.Apply("digits-meanwhile", predictor.RunStarted{
		Run: "digits-meanwhile", Pipeline: "digits", App: app, Build: build,
		At: time.Now(),
	})
	serve(t, e, listen(t, listener.Addr().String()))
	b.Until(`document.querySelector('.connection')?.textContent === 'live' && !document.querySelector('.disconnected')`)
	b.Until(`document.body.textContent.includes('digits-meanwhile')`)
}

func TestAFailingEngineIsToldWithItsAdvice(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	e := newEngine(t, time.Now())
	e.Fail(&web.Error{Status: 503, Message: "the ledger is being read", Hint: "try again in a moment"})
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.look(1440, "light")
	b.Open("http://" + listener.Addr().String() + "/")
	b.Until(
		`document.querySelector('[role=alert]')?.textContent.includes('the ledger is being read') && ` +
			`document.body.textContent.includes('try again in a moment')`)
	b.Keep("failing-1440-light")
	e.Fail(nil)
	// by itself, without the button
	b.Until(`document.body.textContent.includes('digits-done') && !document.querySelector('[role=alert]')`)
}

func TestTheKeyboardReachesEveryRunAndItsLog(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	e := newEngine(t, time.Now())
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.Open("http://" + listener.Addr().String() + "/")
	b.Until(`document.body.textContent.includes('digits-done')`)
	b.tabTo(`document.activeElement.textContent === 'digits-running'`)
	if outline := evaluate[string](b, `getComputedStyle(document.activeElement).outlineStyle`); outline == "none" {
		t.Error("what has the focus does not show it")
	}
	if err := chromedp.Do(b.Context, chromedp.KeyEvent(kb.Enter)); err != nil {
		t.Fatal(err)
	}
	b.Until(
		`location.pathname === '/runs/digits-running' && document.querySelector('.log')?.textContent.includes('epoch 14')`)
	b.tabTo(`document.activeElement.className === 'log'`)
	if err := chromedp.Do(b.Context, chromedp.KeyEvent(kb.Home)); err != nil {
		t.Fatal(err)
	}
	b.Until(`document.querySelector('.log').scrollTop === 0 && !document.querySelector('[type=checkbox]').checked`)
}

// tabTo presses the tab key until a JavaScript expression is true.
func (b *tab) tabTo(what string) {
	b.T.Helper()
	const most = 60
	for range most {
		if evaluate[bool](b, what) {
			return
		}
		if err := chromedp.Do(b.Context, chromedp.KeyEvent(kb.Tab)); err != nil {
			b.T.Fatal(err)
		}
	}
	b.T.Fatalf("%d times the tab key did not lead to %s", most, what)
}
