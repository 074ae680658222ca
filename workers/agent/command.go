package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/enforce"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/spawn"
)

// mostAssists is how many programs that prepare attempts run at a time on a host: each may take half of it, beside what
// attempts hold.
const mostAssists = 1

// launched is a command that is about to run, or runs.
type launched struct {
	workspace *command.Workspace
	program   *command.Program
	group     *enforce.Group
	output    *output
	lines     activities.Output
	pipes     *pipes // of what it prints, where it runs as another user
	grace     time.Duration
	began     time.Time
	exited    chan struct{} // closed when the program is gone, with all that it started
	reported  chan command.Reported
}

// asCommand runs the attempt as a program of its own, in a workspace of its own. Preparing is the part of ctx in which
// it is worth to prepare it.
func (r *running) asCommand(
	ctx, preparing context.Context, task wire.Task, input json.RawMessage, account *account,
) (f finish) {
	a := r.agent
	account.cold = true
	begun := a.now()
	var c wire.Command
	if err := json.Unmarshal(input, &c); err != nil {
		return finish{answer: refusal(fmt.Errorf("the command does not decode: %w", err), true)}
	}
	commands := a.commands
	commands.Assist = a.assist(preparing, r.held())
	workspace, err := command.Prepare(preparing, commands, c, r.try.State().Checkpoint)
	if err != nil {
		return r.unprepared(preparing, err)
	}
	defer func() {
		if err := workspace.Remove(context.WithoutCancel(ctx)); err != nil {
			a.logger.WarnContext(ctx, "a workspace is left until the agent starts again", "task", task.ID, "error", err)
		}
	}()
	// An engine's container is in no group of ours, so that nobody could lower its limit.
	r.borrows = r.borrows && c.Image == ""
	r.borrow() // not for the time in which it was prepared, when nobody could have called it in
	l, err := r.launch(ctx, task, c, workspace)
	if err != nil {
		return r.unprepared(preparing, err)
	}
	// Before the start: a program may be killed for memory at once.
	a.begin(r, target{group: l.group, owns: workspace.Owns})
	defer a.end(r)
	kills := memoryKills()
	l.began = a.now()
	err = l.program.Start(func(cmd *exec.Cmd) error { return a.children.start(cmd, l.group.Start) })
	l.pipes.started()
	if err != nil {
		l.pipes.close()
		r.detach()
		removeGroup(ctx, l.group)
		return r.unprepared(preparing, fmt.Errorf("%w: %w", command.ErrProgram, err))
	}
	account.start, account.began = a.now().Sub(begun), l.began
	l.follow(ctx, r)
	f = r.watch(ctx, task, l)
	now := a.now()
	account.usage = r.usage(&f, l.program.Command, now.Sub(l.began), now, task.Input)
	f.hostKills = memoryKills() > kills
	f.grant, f.peak = r.held(), account.usage.PeakMemory
	r.detach()
	removeGroup(ctx, l.group)
	reported := <-l.reported
	l.output.flush() //nolint:contextcheck // Outputs do not wait
	f.tail, f.refused, f.command, f.container = l.output.text(), reported.OutOfMemory, true, c.Image != ""
	f.final = reported.Final
	if f.container && f.stopped == "" && (f.exit.code != 0 || f.exit.signal != 0) {
		killed, err := workspace.OutOfMemory(ctx)
		if err != nil {
			a.logger.WarnContext(ctx, "whether a container ran out of memory is not known", "task", task.ID, "error", err)
		}
		if killed {
			f.kills++
		}
	}
	if f.stopped == "" && f.exit.code == 0 && f.exit.signal == 0 {
		ended := a.now()
		f.collected(workspace.Collect(ctx, reported.Values))
		if f.answer != nil {
			f.answer.Read, f.answer.Written = workspace.Read(), workspace.Written()
		}
		account.usage.Output = workspace.Written()
		account.usage.Publish = a.now().Sub(ended)
		account.usage.Wall += account.usage.Publish
	}
	if err := closeOutput(ctx, l.lines); err != nil {
		a.logger.WarnContext(ctx, "the end of an attempt's output is lost", "task", task.ID, "error", err)
	}
	return f
}

// assist runs programs that prepare an attempt of a size, such as pip, each in a group of its own that ends with it,
// with ctx, and with the next agent if not with this one. It may take half of the host, or the size where that is more:
// to install takes more than many programs that use what was installed. That is not in the books, so no more than
// mostAssists run at a time, and the others wait.
func (a *Agent) assist(ctx context.Context, size quantity.Size) func(*exec.Cmd) error {
	size.CPU, size.Memory = max(size.CPU, a.base.CPU/2), max(size.Memory, a.base.Memory/2)
	return func(cmd *exec.Cmd) error {
		select {
		case a.assists <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		defer func() { <-a.assists }()
		group, err := a.children.group(ctx, size)
		if err != nil {
			return err
		}
		defer removeGroup(ctx, group)
		cmd.Cancel = func() error { endAll(ctx, group); return nil }
		if err := a.children.start(cmd, group.Start); err != nil {
			return err
		}
		spawn.AwaitExit(cmd.Process.Pid)
		endAll(ctx, group) // what it left running holds the pipes that Wait reads to their ends
		err = cmd.Wait()
		if usage, look := group.Usage(); err != nil && look == nil && usage.OutOfMemory > 0 {
			return fmt.Errorf("it took more than the %s of memory that it may: %w", size.Memory, err)
		}
		return err
	}
}

// launch prepares the program and a group that holds it to the attempt's grant.
func (r *running) launch(
	ctx context.Context, task wire.Task, c wire.Command, workspace *command.Workspace,
) (*launched, error) {
	a := r.agent
	var told []byte
	if r.gang != nil {
		told = r.gang.told
	}
	program, err := workspace.Program(command.Launch{
		Run: task.Run, Stage: task.Stage.Name, Task: task.ID, Attempt: r.try.Number, Grant: r.held(),
		Devices: a.gpus.visible(r.gpus), Grows: r.borrows, Extra: a.children.extra, Secrets: r.secrets,
		Trainings: a.past(task.Stage), TimeToLoss: a.timeToLoss(r.held().DeviceClass),
		Traceparent: wire.AttemptTraceparent(task.Run, task.Traceparent, task.ID, r.try.Number, r.try.PoolOnly),
		Gang:        told,
	})
	if err != nil {
		return nil, err
	}
	group, err := a.children.group(ctx, r.limits())
	if err != nil {
		return nil, errors.Join(err, program.Discard())
	}
	l := &launched{
		workspace: workspace, program: program, group: group, lines: a.output(r.source()), grace: c.Stops(),
		output: newOutput(a.logger.With("task", task.ID)),
		exited: make(chan struct{}), reported: make(chan command.Reported, 1),
	}
	r.lines = l.lines
	l.output.attach(l.lines, r.mask) //nolint:contextcheck // Outputs do not wait
	program.Command.Stdout, program.Command.Stderr = &l.output.out, &l.output.err
	program.Command.WaitDelay = exitGrace
	if a.children.user == nil {
		return l, nil
	}
	if l.pipes, err = newPipes(program.Command, a.children.user); err != nil {
		removeGroup(ctx, group)
		return nil, errors.Join(err, program.Discard())
	}
	return l, nil
}

// follow waits for the program and reads what it reports.
func (l *launched) follow(ctx context.Context, r *running) {
	go func() {
		defer close(l.exited)
		// What the program left running is ended first: it holds the pipes that Wait reads to their ends.
		spawn.AwaitExit(l.program.Command.Process.Pid)
		endAll(ctx, l.group)
		_ = l.program.Command.Wait() // how it ended is in its ProcessState
		endAll(ctx, l.group)
		l.pipes.close()
		// reports that cannot be bounded in time end when the last of its processes does, and all are gone
		_ = l.program.Ended()
	}()
	go func() {
		l.reported <- l.workspace.Follow(context.WithoutCancel(ctx), l.program.Reports, command.Listener{
			Progress: func(step, of int, metrics map[string]float64) {
				r.try.Progress(wire.NewProgress(step, of, metrics))
			},
			Checkpoint: func(ref activities.Ref) { r.try.Checkpoint(ref) },
			Training:   r.try.Trained,
			Warn: func(text string) {
				_, _ = fmt.Fprintf(l.lines.Stderr(), "spillway: %s\n", text) // it never fails
			},
		})
		_ = l.program.Reports.Close() // it was only read
	}()
}

// watch follows the program to its end, and ends it where it must.
func (r *running) watch(ctx context.Context, task wire.Task, l *launched) (f finish) {
	samples := time.NewTicker(r.agent.sampleEvery)
	defer samples.Stop()
	looks := newLooks(r)
	defer looks.stop()
	var timeout, kill <-chan time.Time
	if task.Timeout > 0 {
		timer := time.NewTimer(task.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	done := ctx.Done()
	together := r.gang.watched()
	for {
		select {
		case <-l.exited:
			f.exit = statusOf(l.program.Command.ProcessState)
			together.ended(&f)
			return f
		case g := <-together.broken:
			if together.breaks(&f, g) {
				endAll(ctx, l.group)
			}
		case <-together.over:
			if together.breaks(&f, together.gone) {
				endAll(ctx, l.group)
			}
		case <-samples.C:
			r.sample()
			looks.again()
			if f.stopped == "" && !r.affords(ctx) {
				r.unaffordable(&f)
				endAll(ctx, l.group)
			}
			if _, err := l.workspace.Used(ctx); errors.Is(err, command.ErrSpace) && f.stopped == "" {
				f.stopped, f.cause, f.reason = predictor.Failed, predictor.CauseDisk, err.Error()
				endAll(ctx, l.group)
			}
		case <-looks.next():
			looks.look()
		case <-r.recalled:
			looks.look()
		case <-timeout:
			timeout = nil
			f.stopped, f.reason = predictor.TimedOut, pastTimeout(task.Timeout)
			kill = l.terminate(l.grace)
		case <-done:
			done = nil
			if f.stopped == "" {
				f.stopped, f.reason = slot.Stopped(ctx)
			}
			if f.stopped == predictor.Cancelled {
				kill = l.terminate(l.grace)
			} else {
				endAll(ctx, l.group)
			}
		case <-kill:
			kill = nil
			f.reason += fmt.Sprintf("; it did not end within %s of SIGTERM and was killed", l.grace)
			endAll(ctx, l.group)
		}
	}
}

// terminate asks the program and its process group to end, and returns what fires when its time is over.
func (l *launched) terminate(grace time.Duration) <-chan time.Time {
	// it fails when all of them are gone, which is as well
	_ = syscall.Kill(-l.program.Command.Process.Pid, syscall.SIGTERM)
	return time.After(grace)
}

// collected takes what the program has left. An output that is missing is an error of the program's; that there is no
// room for it on the host's disk is not.
func (f *finish) collected(result wire.CommandResult, err error) {
	if isDiskFull(err) {
		f.noRoom(predictor.CauseVenue, err)
		return
	}
	if err != nil {
		f.answer = refusal(err, false)
		return
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		f.answer = refusal(fmt.Errorf("encode the command's result: %w", err), true)
		return
	}
	f.answer = &wire.Answer{Output: encoded}
}

func refusal(err error, permanent bool) *wire.Answer {
	return &wire.Answer{Error: &wire.StageFailure{Message: err.Error(), Permanent: permanent}}
}

// unprepared tells what it means that a command could not be started. What is wrong with the command itself, no further
// try can fix.
func (r *running) unprepared(ctx context.Context, err error) (f finish) {
	var missing *command.MissingError
	switch {
	case ctx.Err() != nil:
		r.interrupt(ctx, &f)
	case errors.Is(err, command.ErrInvalid), errors.Is(err, command.ErrProgram), errors.As(err, &missing):
		f.answer, f.cause = refusal(err, true), predictor.CauseStart
	case isDiskFull(err):
		f.noRoom(predictor.CauseStart, err)
	default:
		f.answer, f.cause = refusal(err, false), predictor.CauseStart
	}
	return f
}

// workspaceShare is the part of the free disk that one workspace may take when nobody says.
const workspaceShare = 0.5
