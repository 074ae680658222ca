package browsertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/chromiumtest"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/ledger"
	"github.com/spillway-ml/spillway/workflows/digits/digitstest"
)

// stackWait bounds the start of a whole engine, and of each run, on a busy machine.
const stackWait = 3 * time.Minute

// realStack is a `spillway dev` with apps of its own: Temporal, NATS, children and functions are the real ones.
type realStack struct {
	*client.Client
	t       *testing.T
	state   string
	address string // the page's
	command *exec.Cmd
	ended   chan struct{}
}

// buildAll compiles the engine, the sample, and two builds of the tests' app, one of which fails.
func buildAll(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, arguments := range [][]string{
		{"build", "-o", dir + "/", "../../../spillway", "../../../digits"},
		{"build", "-o", filepath.Join(dir, "whole"), "../../engine/testdata/app"},
		{"build", "-ldflags", "-X main.broken=yes", "-o", filepath.Join(dir, "broken"), "../../engine/testdata/app"},
	} {
		if output, err := exec.CommandContext(t.Context(), "go", arguments...).CombinedOutput(); err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(arguments, " "), err, output)
		}
	}
	return dir
}

func startStack(t *testing.T, dir, state string, apps ...string) *realStack {
	t.Helper()
	s := &realStack{t: t, state: state, ended: make(chan struct{})}
	arguments := []string{"dev", "--state", state, "--no-ui"}
	for _, app := range apps {
		arguments = append(arguments, "--app", filepath.Join(dir, app))
	}
	s.command = exec.Command(filepath.Join(dir, "spillway"), arguments...)
	output := filepath.Join(t.TempDir(), "output")
	file, err := os.Create(output)
	if err != nil {
		t.Fatal(err)
	}
	s.command.Stdout, s.command.Stderr = file, file
	if err := s.command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		_ = s.command.Wait()
		_ = file.Close()
	}()
	t.Cleanup(s.stop)
	for deadline := time.Now().Add(stackWait); ; time.Sleep(20 * time.Millisecond) {
		if file, err := web.ReadStackFile(state); err == nil && file.PID == s.command.Process.Pid {
			token, err := access.ReadToken(state)
			if err != nil {
				t.Fatal(err)
			}
			s.Client, s.address = client.New(file.HTTP, token), file.HTTP
			if s.Healthy(t.Context()) == nil {
				return s
			}
		}
		select {
		case <-s.ended:
		default:
			if time.Now().Before(deadline) {
				continue
			}
		}
		text, _ := os.ReadFile(output)
		t.Fatalf("the engine is not ready:\n%s", text)
	}
}

// stop ends the engine as Ctrl-C does.
func (s *realStack) stop() {
	if s.Client != nil {
		s.Close()
	}
	if err := s.command.Process.Signal(os.Interrupt); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Error(err)
	}
	select {
	case <-s.ended:
	case <-time.After(stackWait):
		s.t.Error("the engine did not end")
		_ = s.command.Process.Signal(syscall.SIGKILL)
		<-s.ended
	}
}

func (s *realStack) publish(pipeline string, input any) (run string) {
	s.t.Helper()
	encoded, err := json.Marshal(input)
	if err != nil {
		s.t.Fatal(err)
	}
	published, err := s.Publish(s.t.Context(), web.Event{Pipeline: pipeline, Input: encoded})
	if err != nil {
		s.t.Fatal(err)
	}
	return published.Run
}

// wait waits until a run is as wanted.
func (s *realStack) wait(run, what string, holds func(ledger.RunView) bool) ledger.RunView {
	s.t.Helper()
	for deadline := time.Now().Add(stackWait); ; time.Sleep(50 * time.Millisecond) {
		view, err := s.Run(s.t.Context(), run)
		if err == nil && holds(view) {
			return view
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("run %s: waited for %s: %v\n%+v", run, what, err, view)
		}
	}
}

func (s *realStack) page(run string) string { return s.address + "/runs/" + url.PathEscape(run) }

// atBothWidths keeps a picture at the width of a desk and at that of a phone.
func (b *tab) atBothWidths(name string) {
	b.T.Helper()
	for _, width := range []int64{1440, 390} {
		b.look(width, "light")
		b.Keep(fmt.Sprintf("%s-%d", name, width))
	}
	b.look(1440, "light")
}

// enter writes into the field with this label.
func (b *tab) enter(label, value string) {
	b.T.Helper()
	field := fmt.Sprintf(
		`[...document.querySelectorAll('label')].find((e) => e.textContent.trim().startsWith(%q))?.querySelector('input')`,
		label)
	b.Until(field + ` !== undefined`)
	evaluate[bool](b, fmt.Sprintf(
		`((e) => { e.value = %q; e.dispatchEvent(new Event('input', {bubbles: true})); return true })(%s)`, value, field))
}

// confirm presses a button and then the one that says so in its dialog.
func (b *tab) confirm(text string) {
	b.T.Helper()
	b.press(text)
	b.Until(`document.querySelector('dialog[open] button[value=yes]') !== null`)
	evaluate[bool](b, `(document.querySelector('dialog[open] button[value=yes]').click(), true)`)
}

func TestThePageDrivesTheRealStack(t *testing.T) {
	chromiumtest.Need(t)
	if _, err := exec.LookPath("go"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "go") {
			t.Fatal("the go command is not installed, and SPILLWAY_TEST_REQUIRE names it")
		}
		t.Skip("needs the go command")
	}
	dir, state := buildAll(t), t.TempDir()
	s := startStack(t, dir, state, "digits", "broken")
	b := newTab(t)
	code, err := s.NewLogin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// as `spillway open` does; the browser stays logged in when the engine is started again
	b.Open(s.address + "/#login=" + code)
	b.Until(`document.querySelector('.connection')?.textContent === 'live'`)

	// A run of the sample is watched from its start to its end.
	run := s.publish("digits", map[string]any{"shards": 24, "max_epochs": 6, "dir": digitstest.Images(t, 300)})
	s.wait(run, "its start", func(ledger.RunView) bool { return true })
	b.Open(s.page(run))
	b.Until(`document.body.innerText.includes('running')`)
	b.atBothWidths("live-digits-running")
	s.wait(run, "its end", func(view ledger.RunView) bool { return view.State == predictor.RunSucceeded })
	b.Until(`document.body.innerText.includes('succeeded') && document.body.innerText.includes('nattributed')`)
	b.atBothWidths("live-digits-done")

	// The goal is changed on the page, and the run has it: its workflow took an update.
	long := s.publish("count", map[string]int{"steps": 5000, "milliseconds": 10})
	s.wait(long, "its start", func(view ledger.RunView) bool { return len(view.Stages) > 0 })
	b.Open(s.page(long))
	b.enter("Deadline", "1800")
	b.enter("Budget", "0.25")
	b.press("Apply goal")
	s.wait(long, "the goal", func(view ledger.RunView) bool {
		return view.Goal.Deadline == 30*time.Minute && view.Goal.Budget.USD() == 0.25
	})
	if history, err := s.History(t.Context(), long); err != nil || !strings.Contains(string(history), "spillway.goal") {
		t.Errorf("the run's history has no update of its goal: %v", err)
	}
	b.Until(`document.body.innerText.includes('The run has the goal')`)
	b.enter("Deadline", "0.001")
	b.press("Apply goal")
	b.Until(`document.body.innerText.includes('The run keeps its goal')`)
	b.atBothWidths("live-goal")
	b.confirm("Cancel run")
	s.wait(long, "its cancellation", func(view ledger.RunView) bool { return view.State == predictor.RunCancelled })

	// A stage that failed shows its error, as text.
	failed := s.publish("relay", map[string]int{"shards": 4, "milliseconds": 5})
	s.wait(failed, "its failure", func(view ledger.RunView) bool { return view.State == predictor.RunFailed })
	b.Open(s.page(failed))
	b.Until(`document.body.innerText.includes('this build is broken: <b>yes</b>')`)
	b.atBothWidths("live-failed")

	// After the fix a retry runs only what failed and what follows.
	s.stop()
	s = startStack(t, dir, state, "digits", "whole")
	b.Open(s.page(failed))
	b.confirm("Retry")
	var retried string
	find := func(ctx context.Context) bool {
		runs, err := s.Runs(ctx, web.RunQuery{Limit: 10, Pipeline: "relay"})
		for _, view := range runs {
			if view.RetryOf == failed {
				retried = view.Run
			}
		}
		return err == nil && retried != ""
	}
	for deadline := time.Now().Add(stackWait); !find(t.Context()); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no retry has begun")
		}
	}
	view := s.wait(retried, "its end", func(view ledger.RunView) bool { return view.State != predictor.RunRunning })
	attempts := map[string]int{}
	for _, stage := range view.Stages {
		attempts[stage.Name] = stage.Attempts
	}
	if got := fmt.Sprint(attempts); view.State != predictor.RunSucceeded || got != "map[finish:1 gather:0 mend:1 work:0]" {
		t.Errorf("the retry %s with attempts %s, want only mend and finish to run", view.State, got)
	}
	b.Open(s.page(retried))
	b.Until(`document.body.innerText.includes('succeeded')`)
	b.atBothWidths("live-retried")
	for _, place := range []string{
		"/", "/costs", "/decisions", "/capacity",
		"/compare?" + url.Values{"a": {failed}, "b": {retried}}.Encode(),
	} {
		b.Open(s.address + place)
		b.Until(`document.querySelector('main') !== null && !document.body.innerText.includes('Loading')`)
		b.atBothWidths("live-" + strings.Trim(strings.SplitN(place, "?", 2)[0], "/"))
	}
}
