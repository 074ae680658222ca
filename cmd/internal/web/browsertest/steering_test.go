package browsertest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// outlookOf answers as if n functions ended a run of 95 s 6 s sooner for $0.0002 each, up to 8 of them.
func outlookOf(run string, goal predictor.Goal) predictor.Outlook {
	const most = 8
	at := func(n int) predictor.Alternative {
		finish, cost := 95-6*float64(n), 0.0011+0.0002*float64(n)
		name := "pool only"
		if n > 0 {
			name = fmt.Sprintf("%d functions for score-with-a-long-name", n)
		}
		return predictor.Alternative{
			Name: name, FinishSeconds: predictor.Interval{Low: finish * 0.93, Mid: finish, High: finish * 1.08},
			CostUSD: predictor.Interval{Low: cost * 0.95, Mid: cost, High: cost * 1.1},
		}
	}
	outlook := predictor.Outlook{
		Run: run, Goal: goal, Elapsed: 40, Spent: 0.0001, Known: true, Present: at(2),
		Chosen: at(most),
	}
	for n := most; n >= 0; n-- {
		outlook.Alternatives = append(outlook.Alternatives, at(n))
	}
	for n := range most + 1 {
		one := at(n)
		inTime := goal.Deadline == 0 || one.FinishSeconds.Mid <= goal.Deadline.Seconds()
		if inTime && (goal.Budget == 0 || one.CostUSD.Mid <= goal.Budget.USD()) {
			outlook.Chosen, outlook.Feasible = one, true
			break
		}
	}
	outlook.Summary = fmt.Sprintf("%s: ends after %.0f s for $%.4f", outlook.Chosen.Name, outlook.Chosen.FinishSeconds.Mid,
		outlook.Chosen.CostUSD.Mid)
	if !outlook.Feasible {
		outlook.Summary = fmt.Sprintf("even with %d functions the run takes %.0f s; give that or more", most,
			outlook.Chosen.FinishSeconds.Mid)
	}
	return outlook
}

// steered opens digits-running of an engine that answers for goals.
func steered(t *testing.T) (*tab, engine, string) {
	t.Helper()
	b := openTab(t)
	e := newEngine(t, time.Now())
	e.OnOutlook = outlookOf
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.look(1440, "light")
	b.Open("http://" + listener.Addr().String() + "/runs/digits-running")
	b.Until(`document.querySelector('.outlook')?.textContent.includes('ends after')`)
	return b, e, listener.Addr().String()
}

func (e engine) goal(t *testing.T, run string) predictor.Goal {
	t.Helper()
	view, err := e.Run(t.Context(), run)
	if err != nil {
		t.Fatal(err)
	}
	return view.Goal
}

const deadlineField = `document.querySelector('.goalform input')`

func (b *tab) keys(keys ...string) {
	b.T.Helper()
	for _, key := range keys {
		if err := chromedp.Do(b.Context, chromedp.KeyEvent(key)); err != nil {
			b.T.Fatal(err)
		}
	}
}

func TestTheGoalIsChangedByTheKeyboardAlone(t *testing.T) {
	t.Parallel()
	b, e, host := steered(t)
	b.tabTo(`document.activeElement.getAttribute('aria-label') === 'Deadline'`)
	b.keys(kb.ArrowLeft, kb.ArrowLeft, kb.PageDown, kb.PageDown)
	b.Until(deadlineField + `.value !== '90'`)
	moved := evaluate[float64](b, deadlineField+`.valueAsNumber`)
	if moved >= 90 || moved < 50 {
		t.Errorf("two small and two large steps down from 90 s lead to %g s", moved)
	}
	wanted := outlookOf("", predictor.Goal{Deadline: time.Duration(moved * 1e9), Budget: quantity.USD / 2})
	b.Until(fmt.Sprintf(`document.querySelector('.outlook').textContent.includes(%q)`, wanted.Summary))
	if got := e.goal(t, "digits-running").Deadline; got != 90*time.Second {
		t.Errorf("asking what a goal would bring changed the goal to %s", got)
	}
	b.tabTo(`document.activeElement.textContent === 'Apply goal'`)
	b.keys(kb.Enter)
	b.Until(`document.body.textContent.includes('The run has the goal')`)
	if got, want := e.goal(t, "digits-running"), time.Duration(moved*1e9); got.Deadline != want ||
		got.Budget != quantity.USD/2 || got.Minimise != predictor.Cost {
		t.Errorf("the run has %+v, want a deadline of %s and the rest as it was", got, want)
	}
	b.Until(fmt.Sprintf(`document.querySelector('.headline').textContent.includes('deadline ' + %q)`,
		shortDuration(moved)))
	b.heardNothingBad(host)
}

// shortDuration writes seconds as the page does.
func shortDuration(seconds float64) string {
	text := time.Duration(seconds * 1e9).String()
	return strings.TrimSuffix(strings.Replace(text, "m0s", "m", 1), "0s")
}

func TestTheGoalIsChangedByDraggingAndByTyping(t *testing.T) {
	t.Parallel()
	b, e, host := steered(t)
	if err := chromedp.Do(b.Context, chromedp.ScrollIntoView(`.plane`)); err != nil {
		t.Fatal(err)
	}
	type box struct{ X, Y, Width, Height float64 }
	where := func(selector string) box {
		return evaluate[box](b, fmt.Sprintf(
			`(() => { const r = document.querySelector(%q).getBoundingClientRect(); return { X: r.x, Y: r.y, Width: r.width, `+
				`Height: r.height }; })()`, selector))
	}
	plane, grip := where(".plane svg"), where(".handle.across .grip")
	x, y := grip.X+grip.Width/2, grip.Y+grip.Height/2
	// 20 s to the left, by the picture: 90 s lie between the axis and the line.
	left := plane.X + 76
	to := left + (x-left)*70/90
	mouse := func(kind input.DispatchMouseEventType, at float64) {
		t.Helper()
		if err := chromedp.Do(b.Context, chromedp.MouseEvent(kind, at, y, chromedp.ButtonType(input.MouseButtonLeft))); err !=
			nil {
			t.Fatal(err)
		}
	}
	mouse(input.DispatchMouseEventTypeMousePressed, x)
	for i := range 10 {
		mouse(input.DispatchMouseEventTypeMouseMoved, x+(to-x)*float64(i+1)/10)
	}
	mouse(input.DispatchMouseEventTypeMouseReleased, to)
	moved := evaluate[float64](b, deadlineField+`.valueAsNumber`)
	if math.Abs(moved-70) > 1 {
		t.Errorf("dragged from 90 s to 70 s the deadline is %g s", moved)
	}
	b.Until(fmt.Sprintf(`document.querySelector('.outlook').textContent.includes(%q)`,
		outlookOf("", predictor.Goal{Deadline: time.Duration(moved * 1e9)}).Summary))
	b.Keep("run-dragged-1440-light")

	// The budget, which comes after the deadline and its confidence, is typed.
	if err := chromedp.Do(b.Context, chromedp.Focus(`.goalform label:nth-of-type(3) input`)); err != nil {
		t.Fatal(err)
	}
	evaluate[bool](b, `(document.activeElement.select(), true)`)
	b.keys("0", ".", "0", "2")
	b.press("Apply goal")
	b.Until(`document.body.textContent.includes('The run has the goal')`)
	if got := e.goal(t, "digits-running"); got.Deadline != time.Duration(moved*1e9) || got.Budget != quantity.USD/50 {
		t.Errorf("the run has %+v, want a deadline of %g s and a budget of $0.02", got, moved)
	}
	b.heardNothingBad(host)
}

func TestAGoalThatCannotBeMetIsRefusedWithAdvice(t *testing.T) {
	t.Parallel()
	b, e, _ := steered(t)
	if err := chromedp.Do(b.Context, chromedp.Focus(`.goalform input`)); err != nil {
		t.Fatal(err)
	}
	evaluate[bool](b, `(document.activeElement.select(), true)`)
	b.keys("4", "5")
	b.Until(`document.querySelector('.outlook').textContent.includes('Cannot be met')`)
	b.press("Apply goal")
	b.Until(
		`document.querySelector('.error')?.textContent.includes('The run keeps its goal: even with 8 functions') && ` +
			`document.body.textContent.includes('choose one of the alternatives')`)
	b.Keep("run-refused-1440-light")
	if got := e.goal(t, "digits-running").Deadline; got != 90*time.Second {
		t.Errorf("the goal that was refused is in force: %s", got)
	}
	b.press("Reset")
	b.Until(deadlineField + `.value === '90' && !document.querySelector('.error')`)
}

func TestARunIsCancelledAndStartedAgainOnlyWhenConfirmed(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	e := newEngine(t, time.Now())
	cancelled := make(chan string, 1)
	e.OnCancel = func(run string) { cancelled <- run }
	retried := make(chan web.Retry, 1)
	e.OnRetry = func(run string, request web.Retry) (web.Retried, error) {
		retried <- request
		return web.Retried{Run: run + "-again", Event: "again", Stages: []string{"load"}, Tasks: 1}, nil
	}
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	base := "http://" + listener.Addr().String()

	b.Open(base + "/runs/digits-running")
	b.press("Cancel run")
	b.Until(`document.querySelector('dialog[open]')?.textContent.includes('Cancel this run?')`)
	b.Keep("run-cancel-dialog")
	b.keys(kb.Escape)
	b.Until(`!document.querySelector('dialog[open]')`)
	b.press("Cancel run")
	b.keys(kb.Tab, kb.Enter) // from the answer that keeps it to the one that does not
	b.Until(`document.body.textContent.includes('Asked that the run ends.')`)
	if got := b.received(cancelled); got != "digits-running" {
		t.Errorf("cancelled %q", got)
	}

	b.Open(base + "/runs/digits-done")
	again := `[...document.querySelectorAll('tr')].find((r) => ` +
		`r.textContent.includes('score-with-a-long-name'))?.querySelector('button')`
	b.Until(again + ` !== undefined`)
	evaluate[bool](b, `(`+again+`.click(), true)`)
	b.Until(`document.querySelector('dialog[open]')?.textContent.includes('again from score-with-a-long-name')`)
	evaluate[bool](b, `(document.querySelector('dialog[open] .act').click(), true)`)
	b.Until(`document.querySelector('.did')?.textContent.includes('digits-done-again starts and reuses 1 result of load')`)
	select {
	case got := <-retried:
		if got.From != "score-with-a-long-name" {
			t.Errorf("started again from %q", got.From)
		}
	case <-b.Context.Done():
		t.Fatal("the engine was not asked")
	}
	b.heardNothingBad(listener.Addr().String())
}

func (b *tab) received(from <-chan string) string {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(b.Context, 5*time.Minute)
	defer cancel()
	select {
	case value := <-from:
		return value
	case <-ctx.Done():
		b.T.Fatal("nothing was received")
		return ""
	}
}

func TestTwoRunsArePickedAndCompared(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	e := newEngine(t, time.Now())
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.look(1440, "light")
	b.Open("http://" + listener.Addr().String() + "/")
	for _, run := range []string{"digits-done", "digits-running"} {
		box := fmt.Sprintf(`document.querySelector('[aria-label="compare %s"]')`, run)
		b.Until(`!!` + box)
		evaluate[bool](b, `(`+box+`.click(), true)`)
	}
	b.press("Compare 2 of 2")
	b.Until(`location.pathname === '/compare' && location.search === '?a=digits-done&b=digits-running'`)
	b.Until(
		`document.querySelector('.compare')?.textContent.includes('only in B') && document.querySelectorAll('.compare ` +
			`.differs').length > 5`)
	if marked := evaluate[int](b,
		`[...document.querySelectorAll('.compare .differs')].filter((r) => !r.textContent.includes('≠')).length`); marked >
		0 {
		t.Errorf("%d differences are marked by colour alone", marked)
	}
	b.press("Exchange")
	b.Until(
		`location.search === '?a=digits-running&b=digits-done' && ` +
			`document.querySelector('.compare').textContent.includes('only in A')`)
	b.heardNothingBad(listener.Addr().String())
}

func TestAnAlertIsToldWhereverTheReaderIsAndGoesWithTheRun(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	e := newEngine(t, time.Now())
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.look(390, "light")
	b.Open("http://" + listener.Addr().String() + "/capacity")
	b.Until(`document.querySelector('.connection')?.textContent === 'live' && !document.querySelector('.banner')`)
	e.Alert(atRisk(time.Now()))
	b.Until(`document.querySelector('[role=status] .banner')?.textContent.includes('expected after 2m05s')`)
	b.Keep("alert-390-light")
	e.Apply("digits-running", predictor.RunEnded{Run: "digits-running", State: predictor.RunSucceeded, At: time.Now()})
	b.Until(`!document.querySelector('.banner')`)
	if evaluate[int](b, `document.images.length`) > 0 {
		t.Error("the message of an alert became part of the page")
	}
	b.heardNothingBad(listener.Addr().String())
}

// TestAnAlertOfTheEngineIsNamedInWords shows alerts that are about no run, all kinds that there are.
func TestAnAlertOfTheEngineIsNamedInWords(t *testing.T) {
	t.Parallel()
	b := openTab(t)
	e, now := newEngine(t, time.Now()), time.Now()
	listener := listen(t, "127.0.0.1:0")
	serve(t, e, listener)
	b.look(1440, "light")
	b.Open("http://" + listener.Addr().String() + "/decisions")
	b.Until(`document.querySelector('.connection')?.textContent === 'live'`)
	e.Alert(alerting.StreamsLost([]string{"EVENTS"}, now))
	e.Alert(alerting.LedgerFailing(errors.New("no space left on device"), now))
	e.Alert(alerting.Alert{ID: "disk/1", Kind: alerting.KindDiskScarce, At: now, Message: "1.0 GiB is free"})
	for name, message := range map[string]string{
		"streams lost": "EVENTS", "ledger failing": "no space left on device", "disk nearly full": "1.0 GiB is free",
	} {
		b.Until(`[...document.querySelectorAll('.alerts li')].some((row) => row.querySelector('.alert').textContent === '` +
			name + `' && row.textContent.includes('` + message + `'))`)
	}
	b.heardNothingBad(listener.Addr().String())
}

func atRisk(at time.Time) alerting.Alert {
	return alerting.Alert{
		ID: "digits-running/deadline/1", Run: "digits-running", Pipeline: "digits",
		Kind: alerting.KindDeadlineAtRisk, At: at,
		Goal:          predictor.Goal{Deadline: 90 * time.Second},
		FinishSeconds: predictor.Interval{Low: 110, Mid: 125, High: 140},
		Message:       "the end is expected after 2m05s, 35 s past the deadline " + hostile,
	}
}
