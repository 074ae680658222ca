//go:build linux

package hostscheck_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what must happen. It decides nothing.
const patience = 6 * time.Minute

// look is between two looks at something that is waited for.
const look = 25 * time.Millisecond

// until waits until something holds. After patience the test fails, with what a process said.
func until(tb testing.TB, what string, holds func() bool) (took time.Duration) {
	tb.Helper()
	began := time.Now()
	for ; !holds(); time.Sleep(look) {
		if time.Since(began) > patience {
			tb.Fatalf("not within %s: %s", patience, what)
		}
	}
	return time.Since(began)
}

// program is what a host runs.
type program struct {
	path        string
	arguments   []string
	environment []string            // beside PATH and HOME
	user        *syscall.Credential // nil for that of the test
	input       *os.File            // nil for none
}

func (h *host) command(p program) *exec.Cmd {
	command := exec.Command(p.path, p.arguments...)
	command.Dir = h.dir
	path := h.network.programs() + string(os.PathListSeparator) + os.Getenv("PATH")
	command.Env = append([]string{"PATH=" + path, "HOME=" + h.dir}, p.environment...)
	if p.input != nil {
		command.Stdin = p.input
	}
	command.SysProcAttr = &syscall.SysProcAttr{Credential: p.user, Setpgid: true}
	return command
}

// run runs a program of the host to its end, and returns what it printed and its exit code.
func (h *host) run(p program) (text string, code int) {
	h.t.Helper()
	var output bytes.Buffer
	command := h.command(p)
	command.Stdout, command.Stderr = &output, &output
	if err := h.within(command.Start); err != nil {
		h.t.Fatalf("start %s: %v", p.path, err)
	}
	err := command.Wait()
	if exit, is := errors.AsType[*exec.ExitError](err); is {
		code = exit.ExitCode()
	} else if err != nil {
		h.t.Fatalf("%s %s: %v", filepath.Base(p.path), strings.Join(p.arguments, " "), err)
	}
	return output.String(), code
}

// must runs a program that is to succeed.
func (h *host) must(p program) string {
	h.t.Helper()
	text, code := h.run(p)
	if code != 0 {
		h.t.Fatalf("%s %s on %s: exit code %d: %s", filepath.Base(p.path), strings.Join(p.arguments, " "), h.name, code, text)
	}
	return text
}

// process is a program that goes on.
type process struct {
	host    *host
	command *exec.Cmd
	log     string // the path of what it prints
	began   time.Time
	ended   chan struct{}
	err     error // of its end, once ended is closed
}

// start starts a program. What it prints is kept in the host's directory, and told when the test fails.
func (h *host) start(name string, p program) *process {
	h.t.Helper()
	s := &process{host: h, command: h.command(p), ended: make(chan struct{})}
	for i := 0; s.log == "" || exists(s.log); i++ {
		s.log = filepath.Join(h.dir, fmt.Sprintf("%s-%d.log", name, i))
	}
	output, err := os.OpenFile(s.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		h.t.Fatal(err)
	}
	s.command.Stdout, s.command.Stderr = output, output
	s.began = time.Now()
	err = h.within(s.command.Start)
	if err := errors.Join(err, output.Close()); err != nil {
		h.t.Fatalf("start %s on %s: %v", name, h.name, err)
	}
	go func() {
		s.err = s.command.Wait()
		close(s.ended)
	}()
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("%s on %s printed, at last:\n%s", name, h.name, tail(s.printed(), 12))
		}
	})
	return s
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// printed is what it printed so far.
func (s *process) printed() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		s.host.t.Fatal(err)
	}
	return string(text)
}

// tail is the end of what a process printed, without the ends of long lines, which are stacks of Temporal's.
func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	all = all[max(len(all)-lines, 0):]
	for i, line := range all {
		all[i] = line[:min(len(line), 400)]
	}
	return strings.Join(all, "\n")
}

// says waits until it has printed a text, and fails the test where it ends before.
func (s *process) says(text string) (took time.Duration) {
	s.host.t.Helper()
	until(s.host.t, fmt.Sprintf("%s prints %q:\n%s", filepath.Base(s.log), text, s.printed()), func() bool {
		if strings.Contains(s.printed(), text) {
			return true
		}
		if s.hasEnded() {
			s.host.t.Fatalf("%s ended before it printed %q: %v\n%s", filepath.Base(s.log), text, s.err, s.printed())
		}
		return false
	})
	return time.Since(s.began)
}

func (s *process) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// end sends a signal and waits for the end.
func (s *process) end(signal syscall.Signal) error {
	s.host.t.Helper()
	_ = s.command.Process.Signal(signal) // it may have ended
	select {
	case <-s.ended:
		return s.err
	case <-time.After(patience):
		s.host.t.Fatalf("%s has not ended %s after signal %s\n%s", filepath.Base(s.log), patience, signal, s.printed())
		return nil
	}
}

// answers waits until something listens on the host.
func (s *process) answers(port string) {
	s.host.t.Helper()
	until(s.host.t, filepath.Base(s.log)+" answers at "+port, func() bool {
		if s.hasEnded() {
			s.host.t.Fatalf("%s has ended: %v\n%s", filepath.Base(s.log), s.err, s.printed())
		}
		connection, err := s.host.dial(s.host.t.Context(), "tcp", s.host.address+":"+port)
		if err != nil {
			return false
		}
		return connection.Close() == nil
	})
}
