package runs_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

// terminal is a pseudo-terminal: what a command writes to inside comes out of shown, and press is the keyboard.
type terminal struct {
	inside, outside *os.File
	shown           *clitest.Buffer
	reading         sync.WaitGroup
}

// openTerminal opens a pseudo-terminal of so many columns and rows.
func openTerminal(t *testing.T, columns, rows uint16) *terminal {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		if slices.Contains(strings.Split(os.Getenv("SPILLWAY_TEST_REQUIRE"), ","), "pty") {
			t.Fatalf("no pseudo-terminal, and SPILLWAY_TEST_REQUIRE names it: %v", err)
		}
		t.Skipf("no pseudo-terminal: %v", err)
	}
	number, err := unix.IoctlGetInt(int(outside.Fd()), unix.TIOCGPTN)
	if err := errors.Join(err, unix.IoctlSetPointerInt(int(outside.Fd()), unix.TIOCSPTLCK, 0)); err != nil {
		t.Fatal(err)
	}
	inside, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	p := &terminal{inside: inside, outside: outside, shown: &clitest.Buffer{}}
	p.resize(t, columns, rows)
	p.reading.Go(func() { _, _ = io.Copy(p.shown, outside) }) // ends with EIO once the inside is closed
	t.Cleanup(func() {
		_ = inside.Close()
		p.reading.Wait()
		_ = outside.Close()
	})
	return p
}

func (p *terminal) resize(t *testing.T, columns, rows uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(p.outside.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: rows}); err !=
		nil {
		t.Fatal(err)
	}
}

func (p *terminal) press(t *testing.T, keys string) {
	t.Helper()
	if _, err := p.outside.WriteString(keys); err != nil {
		t.Fatal(err)
	}
}

func (p *terminal) mode(t *testing.T) unix.Termios {
	t.Helper()
	mode, err := unix.IoctlGetTermios(int(p.inside.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *mode
}

// watch runs `top` in the terminal; ended yields its exit code.
func (p *terminal) watch(ctx context.Context, state string, complaints io.Writer) (ended <-chan int) {
	end := make(chan int, 1)
	go func() {
		deps := cli.Deps{Version: "v0.1.0", Stdin: p.inside, Environment: func(string) (string, bool) { return "", false }}
		end <- cli.Execute(ctx, []string{"top", "--state", state}, p.inside, complaints, deps)
	}()
	return end
}

func (p *terminal) eventually(t *testing.T, what string, holds func(shown string) bool) {
	t.Helper()
	for range 1000 {
		if holds(p.shown.String()) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("still not %s after 10 s: %q", what, p.shown.String())
}

func shows(parts ...string) func(string) bool {
	return func(shown string) bool {
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(shown, part) })
	}
}

func TestTopFollowsTheStackAndGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	for name, key := range map[string]string{"q": "q", "Ctrl-C": "\x03", "Ctrl-D": "\x04"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stack, state := steered(t)
			terminal, complaints := openTerminal(t, 100, 30), &clitest.Buffer{}
			before := terminal.mode(t)
			ended := terminal.watch(t.Context(), state, complaints)
			terminal.eventually(t, "the run", shows("\x1b[?1049h", "digits-9"))
			stack.Apply("digits-10", predictor.RunStarted{Run: "digits-10", Pipeline: "digits", App: "digits", At: time.Now()})
			stack.Alert(alerting.Alert{
				ID: "a", Run: "digits-10", Kind: alerting.KindBudgetAtRisk, At: time.Now(),
				Message: "it costs too much",
			})
			terminal.eventually(t, "what was told", shows("digits-10", "it costs too much"))
			terminal.press(t, "x"+key)
			if code := <-ended; code != cli.ExitOK || complaints.String() != "" {
				t.Errorf("got exit %d: %s", code, complaints)
			}
			terminal.eventually(t, "left", func(shown string) bool { return strings.HasSuffix(shown, "\x1b[?25h\x1b[?1049l") })
			if diff := cmp.Diff(before, terminal.mode(t)); diff != "" {
				t.Errorf("the terminal is not as it was (-before +after):\n%s", diff)
			}
		})
	}
}

func TestTopFitsATerminalThatBecomesSmaller(t *testing.T) {
	t.Parallel()
	_, state := steered(t)
	terminal := openTerminal(t, 100, 30)
	ended := terminal.watch(t.Context(), state, io.Discard)
	terminal.eventually(t, "the run", shows("will cost"))
	terminal.resize(t, 40, 4)
	terminal.eventually(t, "4 rows of 40 columns", func(shown string) bool {
		frames := strings.Split(shown, "\x1b[H")
		last := frames[len(frames)-1]
		if !strings.HasSuffix(last, "\x1b[J") || strings.Count(last, "\r\n") != 3 {
			return false
		}
		for line := range strings.SplitSeq(last, "\r\n") {
			if len(plain(line)) >= 40 {
				return false
			}
		}
		return true
	})
	terminal.press(t, "q")
	if code := <-ended; code != cli.ExitOK {
		t.Errorf("got exit %d", code)
	}
}

// plain is a line without its codes.
func plain(line string) string {
	for {
		begin := strings.Index(line, "\x1b[")
		if begin < 0 {
			return line
		}
		end := strings.IndexAny(line[begin:], "mKJH")
		line = line[:begin] + line[begin+end+1:]
	}
}

func TestTopEndsWithItsContextAndSaysWhenTheEngineIsGone(t *testing.T) {
	t.Parallel()
	stack, state := steered(t)
	terminal := openTerminal(t, 100, 30)
	before := terminal.mode(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := terminal.watch(ctx, state, io.Discard)
	terminal.eventually(t, "the run", shows("digits-9"))
	if err := stack.Stop(); err != nil {
		t.Fatal(err)
	}
	terminal.eventually(t, "that the engine is gone", shows("this is how it was: the engine does not answer"))
	cancel()
	if code := <-ended; code != cli.ExitOK {
		t.Errorf("got exit %d", code)
	}
	if diff := cmp.Diff(before, terminal.mode(t)); diff != "" {
		t.Errorf("the terminal is not as it was (-before +after):\n%s", diff)
	}
}
