package torch

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"

	"github.com/spillway-ml/spillway/workers/spawn"
)

// boot is what a Python is started with: it imports the package and forks processes that serve.
//
//go:embed boot.py
var boot string

//go:embed spillway_runner/*.py
var files embed.FS

// texts are the files of the package by path.
var texts = sync.OnceValues(func() (map[string]string, error) {
	paths, err := fs.Glob(files, "spillway_runner/*.py")
	if err != nil {
		return nil, fmt.Errorf("find the files of the runner: %w", err)
	}
	found := make(map[string]string, len(paths))
	for _, path := range paths {
		text, err := files.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read the runner: %w", err)
		}
		found[path] = string(text)
	}
	return found, nil
})

// launching says how a runner is started.
type launching struct {
	python  string
	threads int      // 0 leaves it to PyTorch
	cpus    []int    // nil pins nothing
	shared  *os.File // file descriptor 5 of the process; nil where it has none
	logger  *slog.Logger
}

// kind is what fork servers differ in: libraries count their threads as they are loaded.
func (l launching) kind() forkKind {
	if l.threads == 0 {
		l.threads = len(l.cpus)
	}
	return forkKind{l.python, l.threads}
}

type forkKind struct {
	python  string
	threads int
}

// launch starts a Python whose file descriptor 5 is passing.
func launch(ctx context.Context, path string, how launching, passing *os.File) (*runner, error) {
	spawner, err := spawn.New(spawn.Options{})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		spawner.Close()
		return nil, fmt.Errorf("make a pipe to %s: %w", path, err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		spawner.Close()
		return nil, errors.Join(fmt.Errorf("make a pipe from %s: %w", path, err), theirIn.Close(), in.Close())
	}
	printed := spawn.NewTail(how.logger)
	// -B: nothing is written beside the model.
	cmd := exec.Command(path, "-B", "-u", "-c", boot) //nolint:noctx // its runner ends it
	cmd.Env, cmd.Stdout, cmd.Stderr = environment(cmd.Environ(), how.kind().threads), printed, printed
	cmd.ExtraFiles, cmd.WaitDelay = []*os.File{theirIn, theirOut, passing}, exitGrace
	if err = errors.Join(spawner.Start(cmd), theirIn.Close(), theirOut.Close()); err != nil {
		spawner.Close()
		return nil, errors.Join(fmt.Errorf("start %s: %w", path, err), in.Close(), out.Close())
	}
	return newRunner(ctx, how.python, &spawned{cmd, spawner}, in, out, printed, how.logger), nil
}

// environment is that of a Python whose libraries are to have so many threads; 0 leaves it to them.
func environment(variables []string, threads int) []string {
	// Threads of OpenMP that spin while they wait take the cores of the other processes.
	variables = append(variables, "OMP_WAIT_POLICY=PASSIVE")
	// Each step frees what the next one allocates again. The C library would give it back to the system in between and
	// have it zeroed anew, which takes a tenth of a step.
	// Of each profile torch 2.15 writes three lines, and the memory of every operation is one.
	for name, value := range map[string]int{
		"MALLOC_TRIM_THRESHOLD_": 1 << 30, "MALLOC_MMAP_THRESHOLD_": 32 << 20, "KINETO_LOG_LEVEL": 6,
	} {
		if _, chosen := os.LookupEnv(name); !chosen {
			variables = append(variables, name+"="+strconv.Itoa(value))
		}
	}
	if threads > 0 {
		variables = append(variables, "OMP_NUM_THREADS="+strconv.Itoa(threads))
	}
	return variables
}

// spawned is a process that this one has started.
type spawned struct {
	cmd     *exec.Cmd
	spawner *spawn.Spawner
}

func (p *spawned) number() int { return p.cmd.Process.Pid }
func (p *spawned) kill()       { _ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
func (p *spawned) awaitExit()  { spawn.AwaitExit(p.cmd.Process.Pid) }
func (p *spawned) release()    { p.spawner.Close() }

func (p *spawned) collect() string {
	_ = p.cmd.Wait() // how it ended is in ProcessState
	return p.cmd.ProcessState.String()
}
