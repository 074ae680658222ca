package chaos

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/cmd/internal/web"
	"github.com/spillway-ml/spillway/cmd/internal/web/client"
)

// mostTries is how often in a row the engine may end before it is ready.
const mostTries = 30

// poll is how often the program looks again at what it waits for.
const poll = 20 * time.Millisecond

// engine is a `spillway dev` in a process of its own, started again whenever it ends.
type engine struct {
	config Config
	state  string
	logs   string // where the log of each life is put
	ports  [3]int
	client *client.Client // set when the first life is ready

	mu      sync.Mutex
	command *exec.Cmd     // guarded by mu
	ended   chan struct{} // guarded by mu: closed when the process is gone
	killed  bool          // guarded by mu: somebody ended it on purpose
	lives   []life        // guarded by mu
	ownEnds int           // guarded by mu: lives that ended by themselves
	served  bool          // guarded by mu: the app has been stored, later lives serve it from there
}

// life is one process of the engine.
type life struct {
	began, ended time.Time
	log          string
}

// newEngine prepares an engine on this state directory; it starts nothing.
func newEngine(config Config, state, logs string) (*engine, error) {
	e := &engine{config: config, state: state, logs: logs}
	for i := range e.ports {
		listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed at once
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer func() { _ = listener.Close() }() // all three are held until each has been chosen
		e.ports[i] = listener.Addr().(*net.TCPAddr).Port
	}
	return e, errors.Join(os.MkdirAll(filepath.Join(logs, "tmp"), 0o700), os.WriteFile(e.clocks(), nil, 0o600),
		os.Symlink(e.log(), filepath.Join(state, "spillway.log")))
}

// log is where the log of the life that goes on is: on another disk than the state directory, so that it has every line
// when that is full.
func (e *engine) log() string { return filepath.Join(e.logs, "spillway.log") }

// clocks is the file that says what is added to the clocks of the engine and of its host.
func (e *engine) clocks() string { return filepath.Join(e.logs, "clocks") }

// start starts the process.
func (e *engine) start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	arguments := []string{
		"dev", "--state", e.state, "--no-ui", "--log-level", "debug", "--value-of-time", "1000", "--temporal-port",
		strconv.Itoa(e.ports[0]),
		"--nats-port", strconv.Itoa(e.ports[1]), "--http-port", strconv.Itoa(e.ports[2]),
	}
	if !e.served {
		arguments = append(arguments, "--app", e.config.App)
	}
	command := exec.Command(e.config.Engine, arguments...) //nolint:noctx // it is killed by its own rules
	command.Env = append(os.Environ(), "TMPDIR="+filepath.Join(e.logs, "tmp"), "SPILLWAY_TEST_CLOCKS="+e.clocks())
	command.Env = append(command.Env, e.config.Environment...)
	output, err := os.OpenFile(filepath.Join(e.logs, "output"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open what the engine prints to: %w", err)
	}
	defer func() { _ = output.Close() }() // the engine has it
	command.Stdout, command.Stderr = output, output
	if err := command.Start(); err != nil {
		return fmt.Errorf("start the engine: %w", err)
	}
	ended := make(chan struct{})
	e.command, e.ended, e.killed = command, ended, false
	e.lives = append(e.lives, life{began: time.Now(), log: filepath.Join(e.logs, fmt.Sprintf("%03d.log", len(e.lives)))})
	log := e.lives[len(e.lives)-1].log
	go func() {
		_ = command.Wait()
		e.mu.Lock()
		defer e.mu.Unlock()
		e.lives[len(e.lives)-1].ended = time.Now()
		if err := os.Rename(e.log(), log); err != nil && !errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintln(e.config.Output, "put the log aside:", err)
		}
		if !e.killed {
			e.ownEnds++
		}
		close(ended)
	}()
	return nil
}

// ready waits until a run could be started. It starts the engine again when it ends by itself, as a supervisor would.
func (e *engine) ready(ctx context.Context) error {
	tries := 0
	for began := time.Now(); ; {
		if e.healthy(ctx) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.served = true
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.gone():
			if tries++; tries > mostTries {
				return fmt.Errorf("the engine ended by itself %d times in a row; see %s", tries, filepath.Join(e.logs, "output"))
			}
			if err := e.start(); err != nil {
				return err
			}
			time.Sleep(10 * poll) // one that cannot start must not take the whole processor
		case <-time.After(poll):
		}
		if time.Since(began) > e.config.Patience {
			return fmt.Errorf("the engine is not ready after %s; see %s", e.config.Patience, e.logs)
		}
	}
}

// healthy reports whether the life that goes on says that a run could be started.
func (e *engine) healthy(ctx context.Context) bool {
	file, err := web.ReadStackFile(e.state)
	if err != nil || file.PID != e.pid() {
		return false
	}
	if e.client == nil {
		token, err := access.ReadToken(e.state)
		if err != nil {
			return false
		}
		e.client = client.New(file.HTTP, token)
	}
	return e.client.Healthy(ctx) == nil
}

func (e *engine) pid() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.command.Process.Pid
}

func (e *engine) gone() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.ended
}

// end sends a signal and waits until the process is gone; after patience it is killed, which is an error.
func (e *engine) end(signal os.Signal) error {
	e.mu.Lock()
	e.killed = true
	process, ended := e.command.Process, e.ended
	e.mu.Unlock()
	_ = process.Signal(signal) // it may have ended by itself
	select {
	case <-ended:
		return nil
	case <-time.After(e.config.Patience):
		_ = process.Kill()
		<-ended
		return fmt.Errorf("the engine did not end within %s of %s", e.config.Patience, signal)
	}
}

// kill ends the engine as kill -9 does.
func (e *engine) kill() error { return e.end(syscall.SIGKILL) }

// stop ends the engine as Ctrl-C does.
func (e *engine) stop() error { return e.end(syscall.SIGINT) }

// history returns the lives there were, and how many ended by themselves.
func (e *engine) history() (lives []life, ownEnds int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append(lives, e.lives...), e.ownEnds
}
