package function

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
)

// environment is one execution environment: a process, its Runtime API and its temporary directory. It serves one
// invocation at a time.
type environment struct {
	function *function
	config   config // as it was when the environment was made
	code     *code
	edition  int
	patience time.Duration // how long the next bytes of a body may take to come

	output *output
	work   chan *invocation // to the runtime's request for the next invocation
	ready  chan struct{}    // closed when the runtime first asks for one
	failed chan struct{}    // closed when the runtime reports that its init failed
	exited chan struct{}    // closed when the process has exited and been collected

	group *enforce.Group // holds the processes to their size from the launch on; nil where the kernel holds nothing
	limit quantity.Bytes // of the group's memory

	idleSince time.Time // guarded by Host.mu

	mu        sync.Mutex
	pid       int // 0 before the start
	reaped    bool
	exitErr   error
	peak      int64          // the most memory that it was seen to take, in bytes
	counted   quantity.Bytes // the kernel's own peak when all of its account was read last
	read      int64          // peak then
	outOfRoom bool           // killed because it exceeded its memory size
	initError []byte
	current   *invocation
	asked     bool // the runtime has asked for an invocation at least once
}

// invocation is one invocation on its way through an environment.
type invocation struct {
	request
	deadline time.Time
	done     chan struct{} // closed when the runtime asks for the next invocation
	posted   *answer       // guarded by environment.mu
}

// errKilled is how an environment exits that ran out of memory, whatever its first process made of that.
var errKilled = errors.New("signal: killed")

// errEntrypoint marks a bootstrap that cannot be executed: an error of the function, not of the host.
var errEntrypoint = errors.New("invalid entrypoint")

func newEnvironment(f *function, patience time.Duration, logger *slog.Logger) *environment {
	return &environment{
		function: f,
		config:   f.config,
		code:     f.code,
		edition:  f.edition,
		patience: patience,
		output:   newOutput(f.config.Name, logger),
		work:     make(chan *invocation),
		ready:    make(chan struct{}),
		failed:   make(chan struct{}),
		exited:   make(chan struct{}),
	}
}

// launch starts the process of env. After an error nothing of env is left; after success a goroutine of h.work
// watches it and cleans up when it exits.
func (h *Host) launch(env *environment) error {
	tmp, err := h.store.tempDir("env-*")
	if err != nil {
		h.gone(env)
		return err
	}
	if err := h.admit(env.code.dir, tmp); err != nil {
		h.gone(env)
		return errors.Join(err, os.RemoveAll(tmp))
	}
	stop, err := h.launchIn(env, tmp)
	if err != nil {
		h.gone(env)
		return errors.Join(err, os.RemoveAll(tmp))
	}
	if !h.register(env) {
		env.kill()
	}
	h.work.Go(func() {
		stop()
		if err := os.RemoveAll(tmp); err != nil {
			h.log.Warn("temporary directory not removed", "dir", tmp, "error", err)
		}
		h.gone(env)
	})
	return nil
}

// admit lets the user of environments, if that is another than this process's, reach an environment's code and its
// temporary directory.
func (h *Host) admit(code, tmp string) error {
	user := h.opts.User
	return errors.Join(
		user.Admit(0o710, h.store.dir, h.store.temp(), filepath.Dir(code)), user.Admit(0o750, code), user.Give(tmp),
	)
}

// launchIn starts env's Runtime API, output and process, with tmp as its temporary directory. The function it
// returns waits for the process to exit and for the rest to end.
func (h *Host) launchIn(env *environment, tmp string) (wait func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the runtime of %s: %w", env.config.Name, err)
	}
	sink, err := env.output.open()
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	address, secret := listener.Addr().String(), rand.Text()
	cmd, err := h.startProcess(env, address+"/"+secret, tmp, sink)
	closeErr := sink.Close() // the child has its own
	if err != nil {
		env.output.close()
		return nil, errors.Join(err, closeErr, listener.Close(), removeGroup(env.group))
	}
	env.mu.Lock()
	env.pid = cmd.Process.Pid
	env.mu.Unlock()
	h.meter.add(env)

	server := access.NewServer(env.runtimeAPI(address, secret), h.log)
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			h.log.Error("runtime api ended", "function", env.config.Name, "error", err)
			env.kill()
		}
	})
	return func() {
		env.collect(cmd)
		h.meter.remove(env)
		if err := removeGroup(env.group); err != nil {
			h.log.Warn("group not removed", "function", env.config.Name, "error", err)
		}
		env.output.close()
		if err := server.Close(); err != nil {
			h.log.Debug("runtime api not closed", "function", env.config.Name, "error", err)
		}
		serving.Wait()
	}, nil
}

// startProcess executes the bootstrap. It tries again for a moment while the file is busy: a process that some
// other thread forks while the bootstrap is being written holds it open for writing until it executes its own
// program (https://go.dev/issue/22315).
func (h *Host) startProcess(env *environment, api, tmp string, sink *os.File) (*exec.Cmd, error) {
	size := h.holder.within(quantity.Bytes(env.config.MemoryMB) * quantity.MiB)
	group, err := h.holder.group(size)
	if err != nil {
		return nil, fmt.Errorf("start an environment of %s: %w", env.config.Name, err)
	}
	env.group, env.limit = group, size.Memory
	start := (*exec.Cmd).Start
	if group != nil {
		start = group.Start
	}
	for try := 0; ; try++ {
		program, arguments := env.config.entry(env.code.dir)
		cmd := exec.CommandContext(context.Background(), program, arguments...)
		cmd.Dir = env.code.dir
		cmd.Env = processEnv(env.config, env.code.dir, api, tmp)
		cmd.Stdout, cmd.Stderr = sink, sink
		err := h.spawner.StartBy(cmd, start)
		switch {
		case err == nil:
			return cmd, nil
		case errors.Is(err, syscall.ETXTBSY) && try < 20:
			time.Sleep(5 * time.Millisecond)
		case isEntrypointError(err, cmd.Path):
			return nil, fmt.Errorf("%w: %w", errEntrypoint, err)
		default:
			return nil, fmt.Errorf("start an environment of %s: %w", env.config.Name, err)
		}
	}
}

// isEntrypointError reports whether a start failed as the bootstrap is not there or cannot be executed, and not for
// what the host lacks, such as a cgroup that somebody has removed.
func isEntrypointError(err error, bootstrap string) bool {
	if failed, ok := errors.AsType[*os.PathError](err); !ok || failed.Path != bootstrap {
		return false
	}
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) || errors.Is(err, syscall.ENOEXEC)
}

// processEnv returns the whole environment of a function's process: what AWS documents
// (https://docs.aws.amazon.com/lambda/latest/dg/configuration-envvars.html) and the function's own variables, which
// come last and win. Nothing of this process's environment passes through, so no secret of the user does.
func processEnv(c config, codeDir, api, tmp string) []string {
	env := []string{
		"AWS_LAMBDA_RUNTIME_API=" + api,
		"AWS_LAMBDA_FUNCTION_NAME=" + c.Name,
		"AWS_LAMBDA_FUNCTION_VERSION=" + latest,
		"AWS_LAMBDA_FUNCTION_MEMORY_SIZE=" + strconv.Itoa(c.MemoryMB),
		"AWS_LAMBDA_INITIALIZATION_TYPE=on-demand",
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/" + c.Name,
		"AWS_LAMBDA_LOG_STREAM_NAME=local/[" + latest + "]" + newID(),
		"AWS_REGION=" + region,
		"AWS_DEFAULT_REGION=" + region,
		"LAMBDA_TASK_ROOT=" + codeDir,
		"_HANDLER=" + c.Handler,
		"PATH=" + searchPath,
		"LANG=en_US.UTF-8",
		"TZ=:UTC",
		"TMPDIR=" + tmp,
		"GOMEMLIMIT=" + strconv.Itoa(c.MemoryMB*1024*9/10) + "KiB",
	}
	if c.isManaged() {
		env = append(env, "AWS_EXECUTION_ENV=AWS_Lambda_"+c.Runtime, "LAMBDA_RUNTIME_DIR="+runtimeDir)
	}
	for k, v := range c.Variables {
		env = append(env, k+"="+v)
	}
	return env
}

// collect waits until the process exits, kills what is left of its group, and publishes the exit.
func (e *environment) collect(cmd *exec.Cmd) {
	err := await(cmd, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.killLocked()
		e.reaped = true
	})
	e.look()
	e.mu.Lock()
	e.exitErr = err
	e.mu.Unlock()
	e.output.drain()
	close(e.exited)
}

// kill ends the process and its group. It may be called at any time, more than once.
func (e *environment) kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.killLocked()
}

func (e *environment) killLocked() {
	if e.pid == 0 || e.reaped {
		return
	}
	// The only error is that no process of the group is left.
	_ = syscall.Kill(-e.pid, syscall.SIGKILL)
}

// observe notes a sample of the group's resident bytes and kills the environment if it exceeds its memory size.
func (e *environment) observe(resident int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.peak = max(e.peak, resident)
	if resident > int64(e.config.MemoryMB)<<20 && !e.outOfRoom && !e.reaped {
		e.outOfRoom = true
		e.killLocked()
	}
}

// look asks the kernel for the memory that the environment took: of its group, or else of its first process, which
// complements the samples. It returns whether the environment ran out of memory.
func (e *environment) look() (outOfRoom bool) {
	if e.group == nil {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.pid != 0 && !e.reaped {
			e.peak = max(e.peak, peakResident(e.pid))
		}
		return e.outOfRoom
	}
	if e.glance() {
		return false
	}
	usage, err := e.group.Usage()
	e.mu.Lock()
	defer e.mu.Unlock()
	if err != nil {
		return e.outOfRoom // the group is removed, and was looked at before
	}
	e.peak = max(e.peak, int64(usage.PeakWorkingSet))
	e.counted, e.read = usage.Peak, e.peak
	if usage.OutOfMemory > 0 {
		// The kernel's counter passes its limit by what each CPU charges in advance.
		e.peak, e.outOfRoom = min(max(e.peak, int64(usage.Peak)), int64(e.config.MemoryMB)<<20), true
	}
	return e.outOfRoom
}

// glanceGrowth is by how much the kernel's own peak may have grown since its whole account was read last, which takes
// ten files: an environment grows by pages with each invoke at first, and its report is in whole MB.
const glanceGrowth = quantity.MiB

// glance reports whether the kernel's own peak is enough to say that the environment has not run out of memory. What it
// has grown by counts as taken, also where it is a cache, so that the peak is told too high, by less than glanceGrowth;
// what takes the place of a cache is seen at the next full look.
func (e *environment) glance() bool {
	counted := e.group.Peak()
	e.mu.Lock()
	defer e.mu.Unlock()
	grown := counted - e.counted
	if e.counted == 0 || counted <= 0 || grown < 0 || grown >= glanceGrowth || counted >= e.limit-e.limit/16 {
		return false
	}
	e.peak = max(e.peak, e.read+int64(grown))
	return true
}

// memory returns the most memory that the environment was seen to take, in MB rounded up, and whether it ran out of it.
func (e *environment) memory() (maxMB int, outOfRoom bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return int((e.peak + 1<<20 - 1) >> 20), e.outOfRoom
}

// awaitReady waits until the runtime asks for its first invocation, which the ending finished says. With another
// ending the answer is that of the invocation id, which waits for the environment.
func (e *environment) awaitReady(id string, limit time.Duration) (answer, ending) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-e.ready:
		return answer{}, finished
	case <-e.failed:
	case <-e.exited:
	case <-timer.C:
		return failure(id, "Sandbox.Timedout", fmt.Sprintf("Init timed out after %.2f seconds", limit.Seconds())), timedOut
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.initError != nil {
		return answer{payload: e.initError, failed: true, errorType: postedErrorType(e.initError)}, exited
	}
	return failure(id, "Runtime.ExitError", exitMessage(e.exitErr)), exited
}

// invoke gives inv to the runtime and waits for its end. An environment that did not finish is killed.
func (e *environment) invoke(inv *invocation, timeout time.Duration) (answer, ending) {
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	end := undelivered
	select {
	case e.work <- inv:
		select {
		case <-inv.done:
			end = finished
		case <-e.exited:
			end = exited
		case <-timer.C:
			end = timedOut
		}
	case <-e.exited:
	case <-timer.C:
		end = timedOut
	}
	if end == finished && e.look() {
		end = exited // the kernel has killed a process of it: what the runtime makes of that is no answer
	}
	if end != finished {
		e.kill()
		<-e.exited
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.outOfRoom && end == exited {
		return failure(inv.id, "Runtime.ExitError", exitMessage(errKilled)), end
	}
	return judge(end, inv.posted, inv.id, timeout, e.exitErr), end
}
