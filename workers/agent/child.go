package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/spawn"
)

const (
	// maxMessage bounds one message of a child; Temporal takes no more than 2 MiB of output.
	maxMessage = 8 << 20
	// sendTimeout bounds a message to a child that does not read.
	sendTimeout = 10 * time.Second
	// exitGrace is how long a process may take to be gone, and its output to be read, after its end was seen.
	exitGrace = time.Second
	// memoryShare is the part of a grant that Go's runtime is told to stay within; the rest is for what it does not count.
	memoryShare = 0.95
)

// build names the program of a child.
type build struct{ app, digest string }

// child is one process of a user's build, which runs one attempt at a time.
type child struct {
	build   build
	process *exec.Cmd
	group   *enforce.Group // it and all that it starts
	in      *os.File       // messages to the child
	out     *os.File       // messages from it
	output  *output
	stage   string // that it ran last
	told    bool   // which GPUs it may see, if only that there are none for it

	sending  sync.Mutex
	messages chan wire.FromChild // closed when no more can come
	broken   error               // why no more can come, when it is the child's fault; read after messages is closed
	dropped  chan struct{}       // closed when nobody reads messages any more
	dropOnce sync.Once
	exited   chan struct{} // closed when the process is gone and all its output was read
	reading  sync.WaitGroup
}

// startChild starts cmd as a child in group and returns at once; its first message says that it is ready.
func startChild(
	ctx context.Context, cmd *exec.Cmd, b build, output *output, group *enforce.Group, start starter,
) (*child, error) {
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a channel to a child: %w", err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make a channel from a child: %w", err), theirIn.Close(), in.Close())
	}
	cmd.ExtraFiles = []*os.File{wire.ChildInput - 3: theirIn, wire.ChildOutput - 3: theirOut}
	cmd.Stdout, cmd.Stderr = &output.out, &output.err
	cmd.WaitDelay = exitGrace
	err = start(cmd, group.Start)
	err = errors.Join(err, theirIn.Close(), theirOut.Close())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", cmd.Path, err), in.Close(), out.Close())
	}
	c := &child{
		build: b, process: cmd, group: group, in: in, out: out, output: output,
		messages: make(chan wire.FromChild), dropped: make(chan struct{}), exited: make(chan struct{}),
	}
	c.reading.Go(c.read)
	go c.wait(context.WithoutCancel(ctx))
	return c, nil
}

// read hands on what the child says until it says no more.
func (c *child) read() {
	defer close(c.messages)
	lines := bufio.NewScanner(c.out)
	lines.Buffer(nil, maxMessage)
	for lines.Scan() {
		var message wire.FromChild
		if err := json.Unmarshal(lines.Bytes(), &message); err != nil {
			c.broken = fmt.Errorf("the stage's process wrote something on file descriptor %d that is no message; leave that "+
				"descriptor alone: %w", wire.ChildOutput, err)
			c.signal(syscall.SIGKILL)
			return
		}
		select {
		case c.messages <- message:
		case <-c.dropped:
			return
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		c.broken = fmt.Errorf("the stage's answer is larger than %s; return an artifact instead", quantity.Bytes(maxMessage))
		c.signal(syscall.SIGKILL)
	}
}

// wait waits for the process, ends what it left running and lets read end.
func (c *child) wait(ctx context.Context) {
	defer close(c.exited)
	spawn.AwaitExit(c.process.Process.Pid)
	endAll(ctx, c.group) // what it left holds the pipes that Wait reads to their ends
	// How the process ended is in ProcessState; an error of Wait adds nothing that an attempt could be told.
	_ = c.process.Wait()
	endAll(ctx, c.group)
	// A process that left the group may hold the channel open; what is in it now is read, what comes later is nobody's.
	_ = c.out.SetReadDeadline(time.Now().Add(exitGrace))
	c.reading.Wait()
	_ = errors.Join(c.in.Close(), c.out.Close())
}

// send writes a message. An error means that the child can no longer be talked to.
func (c *child) send(message wire.ToChild) error {
	line, err := json.Marshal(message)
	if err != nil {
		return fmt.Errorf("encode a message to a child: %w", err)
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	if err := c.in.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil {
		return fmt.Errorf("write to a child: %w", err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write to a child: %w", err)
	}
	return nil
}

// unreadyError is the error of a child that lives and has not said in time that it is ready.
type unreadyError struct{ waited time.Duration }

// Error says what was waited for and what to do. What the child printed is told by whoever has it.
func (e *unreadyError) Error() string {
	return fmt.Sprintf("waited %s for the stage's process to say that it is ready, which it does in app.Main; "+
		"do less before app.Main, and wait for nothing there: what takes long belongs into a stage", e.waited)
}

// ready waits for the child's first message, no longer than patience.
func (c *child) ready(ctx context.Context, patience time.Duration) error {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case message, open := <-c.messages:
		switch {
		case open && message.Ready:
			return nil
		case open:
			return errors.New("the stage's process did not begin with a ready message; build the app with this version " +
				"of spillway")
		case c.broken != nil:
			return c.broken
		}
		<-c.exited
		return fmt.Errorf("the stage's process ended before it could take an attempt: %s", c.process.ProcessState)
	case <-timer.C:
		return &unreadyError{patience}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// starter starts a command by a function that may depend on the thread that calls it.
type starter func(cmd *exec.Cmd, start func(*exec.Cmd) error) error

// killTimeout bounds the wait for processes that were killed; one in an uninterruptible system call may take longer,
// and is swept when the agent starts anew.
const killTimeout = 10 * time.Second

// endAll kills what is left in group, also when ctx has ended.
func endAll(ctx context.Context, group *enforce.Group) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	_ = group.Kill(ctx) // what cannot be killed now is killed by the enforcer's Close or its next Open
}

// removeGroup removes group, in which nothing runs any more, also when ctx has ended.
func removeGroup(ctx context.Context, group *enforce.Group) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	_ = group.Remove(ctx) // as above
}

// signal sends sig to the child and the processes of its process group.
func (c *child) signal(sig syscall.Signal) {
	// It fails when all of them are gone, which is as well.
	_ = syscall.Kill(-c.process.Process.Pid, sig)
}

// alive reports whether the process runs.
func (c *child) alive() bool {
	select {
	case <-c.exited:
		return false
	default:
		return true
	}
}

// kill ends the child, whatever it does, and waits until it is gone.
func (c *child) kill(ctx context.Context) {
	c.dropOnce.Do(func() { close(c.dropped) })
	if c.alive() {
		endAll(ctx, c.group)
	}
	<-c.exited
	removeGroup(ctx, c.group)
}

// environment returns all variables of a child: few of the host's, found with lookup, what the engine says, and extra,
// which wins. The child sets the number of its threads by each grant, so GOMAXPROCS only holds until the first.
func environment(
	lookup func(string) (string, bool), b build, artifacts string, size quantity.Size, enforced bool,
	extra map[string]string, gpus []string,
) []string {
	values := spawn.Inherited(lookup)
	values["GOMAXPROCS"] = strconv.FormatInt(int64(max((size.CPU+quantity.Core-1)/quantity.Core, 1)), 10)
	values["GOMEMLIMIT"] = strconv.FormatInt(int64(float64(size.Memory)*memoryShare), 10)
	maps.Copy(values, extra)
	visibleTo(values, gpus)
	values[wire.RoleEnvironment] = wire.RoleChild
	values[wire.ArtifactsEnvironment] = artifacts
	values[wire.BuildEnvironment] = b.digest
	if enforced {
		values[wire.EnforcedEnvironment] = "1"
	}
	return spawn.Environment(values)
}
