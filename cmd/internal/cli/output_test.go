package cli_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/cmd/internal/engine"
	"github.com/spillway-ml/spillway/predictor"
)

// TestAPipeThatNobodyReadsEndsNoProgram: an engine that dies of SIGPIPE leaves its children and cgroups behind.
func TestAPipeThatNobodyReadsEndsNoProgram(t *testing.T) {
	t.Parallel()
	const told, survived = "SPILLWAY_TEST_PIPE", 42
	if os.Getenv(told) != "" { // this is the program
		cli.Catch(make(chan os.Signal, 1))
		_, err := io.WriteString(os.Stdout, "nobody reads this\n")
		if errors.Is(err, syscall.EPIPE) {
			os.Exit(survived)
		}
		os.Exit(1)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	program := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	program.Env, program.Stdout = append(os.Environ(), told+"=1"), writer
	if err := errors.Join(reader.Close(), program.Start(), writer.Close()); err != nil {
		t.Fatal(err)
	}
	err = program.Wait()
	if ended, ok := errors.AsType[*exec.ExitError](err); !ok || ended.ExitCode() != survived {
		t.Errorf("the program ended with %v, want exit code %d", err, survived)
	}
}

// closing is a pipe whose reader goes away after so many writes.
type closing struct {
	mutex  sync.Mutex
	writes int
	text   strings.Builder
	closed chan struct{}
	once   sync.Once
}

// Write takes what is read, and is refused the rest.
func (c *closing) Write(text []byte) (int, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if c.writes--; c.writes >= 0 {
		return c.text.Write(text)
	}
	c.once.Do(func() { close(c.closed) })
	return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE}
}

func TestDevGoesOnWithoutAReaderAndEndsInOrder(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	start, _ := clitest.Starter(t, nil)
	var stack cli.RunningEngine
	deps := cli.Deps{StartEngine: func(ctx context.Context, config engine.Config) (started cli.RunningEngine, err error) {
		stack, err = start(ctx, config)
		return stack, err
	}}
	out := &closing{writes: 3, closed: make(chan struct{})}
	go func() {
		<-out.closed
		select {
		case <-stack.Done():
			t.Error("the engine ended when nobody read any more")
		default:
		}
		interrupt()
	}()
	var complaints clitest.Buffer
	args := []string{"dev", "--state", t.TempDir(), "--app", clitest.Script(t, "tiny")}
	if code := cli.Execute(ctx, args, out, &complaints, deps); code != cli.ExitOK || complaints.String() != "" {
		t.Errorf("got exit %d, %s", code, complaints.String())
	}
	<-stack.Done()
}

func TestWhatOnlyShowsEndsWithItsReader(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	stack := clitest.StartStack(t, state, clitest.ServedDigits)
	stack.Apply("digits-1", predictor.RunStarted{Run: "digits-1", Pipeline: "digits", App: "digits", At: clitest.Begin})
	for _, text := range []string{"one", "two"} {
		stack.Print(clitest.Said("digits-1", "train", wire.LogOut, text))
	}
	for _, args := range [][]string{
		{"logs", "digits-1"}, {"logs", "digits-1", "--json"}, {"show", "digits-1", "--follow"}, {"runs"}, {"runs", "--json"},
	} {
		var complaints clitest.Buffer
		out := &closing{closed: make(chan struct{})}
		code := cli.Execute(t.Context(), append(args, "--state", state), out, &complaints, cli.Deps{Version: "v0.1.0"})
		if code != cli.ExitOK || complaints.String() != "" {
			t.Errorf("%v: got exit %d, %s", args, code, complaints.String())
		}
		<-out.closed
	}
}
