package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/spawn"
	"github.com/spillway-ml/spillway/workers/termination"
)

const (
	// lookEvery is how often the files of an attempt are added up.
	lookEvery = time.Second
	// exitGrace is how long what a program left running may hold its output, until it is gone.
	exitGrace = time.Second
	// nearMemory is the share of the function's memory at which a program that was killed is taken to have run out of it:
	// the kernel of a function kills what takes most.
	nearMemory = 0.75
)

// attempt is one command that runs.
type attempt struct {
	options   Options
	start     wire.StartAttempt
	command   wire.Command
	limits    limits
	workspace *command.Workspace
	begun     time.Time
	log       *log
}

// run runs the program and tells how it ended.
func (a *attempt) run(ctx context.Context) wire.Answer {
	program, err := a.workspace.Program(a.launch())
	if err != nil {
		return failed(unprepared(ctx, a.limits, err))
	}
	program.Command.Stdout, program.Command.Stderr = stream{log: a.log}, stream{log: a.log, error: true}
	program.Command.WaitDelay = exitGrace
	began := time.Now()
	if err := program.Start(startOf); err != nil {
		return failed(unprepared(ctx, a.limits, fmt.Errorf("%w: %w", command.ErrProgram, err)))
	}
	reported := make(chan command.Reported, 1)
	storing, stored := context.WithDeadlineCause(context.WithoutCancel(ctx), a.limits.store, errLate)
	defer stored()
	following, hasten := context.WithCancelCause(storing)
	defer hasten(nil)
	go func() {
		reported <- a.workspace.Follow(following, program.Reports, a.listener())
		_ = program.Reports.Close() // it was only read
	}()
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		spawn.AwaitExit(program.Command.Process.Pid)
		endAll(program.Command.Process.Pid) // what it left running holds the pipes that Wait reads to their ends
		_ = program.Command.Wait()          // how it ended is in its ProcessState
		_ = program.Ended()
	}()
	stopped := a.watch(context.WithoutCancel(ctx), program.Command.Process.Pid, exited)
	state := program.Command.ProcessState
	if stopped == nil && state.Success() { // half of the time that is left is for its outputs
		defer time.AfterFunc(time.Until(a.limits.store)/2, func() { hasten(errLate) }).Stop()
	}
	report := <-reported
	answer := wire.Answer{
		BeganAt: began, CPU: state.UserTime() + state.SystemTime(), PeakMemory: peak(state),
		Fetch: began.Sub(a.begun),
	}
	switch code, signal := termination.Status(state); {
	case stopped != nil:
		answer.Error = stopped
	case code == 0 && signal == 0:
		a.collect(storing, report, &answer)
	default:
		answer.Error = a.ended(termination.Evidence{
			Code: code, Signal: signal, Tail: a.log.tail.Text(), Reported: report.OutOfMemory,
			KernelKill: signal == syscall.SIGKILL && float64(answer.PeakMemory) >= nearMemory*float64(a.start.Grant.Memory),
		}, report.Final)
	}
	answer.Read, answer.Written = a.workspace.Read(), a.workspace.Written()
	answer.Wall = time.Since(began)
	note := a.log.last()
	answer.Checkpoint, answer.Progress, answer.Printed = note.Checkpoint, note.Progress, a.log.printed()
	answer.Curve = a.log.curve()
	return answer
}

// launch says as what the program is started: the function's cores and memory are its, but for what this process takes.
func (a *attempt) launch() command.Launch {
	task, grant := a.start.Task, a.start.Grant
	grant.Memory = max(grant.Memory-predictor.FunctionOverhead, 0)
	extra := map[string]string{}
	if value, set := a.options.Lookup(libraries); set && a.options.Interpreter != "" {
		extra[libraries] = value
	}
	return command.Launch{
		Run: task.Run, Stage: task.Stage.Name, Task: task.ID, Attempt: a.start.Attempt, Grant: grant, Extra: extra,
		Secrets:   a.start.Secrets,
		Trainings: a.start.Past, TimeToLoss: a.start.TimeToLoss,
		Traceparent: wire.AttemptTraceparent(task.Run, task.Traceparent, task.ID, a.start.Attempt, task.PoolOnly),
	}
}

// listener notes what the program reports.
func (a *attempt) listener() command.Listener {
	return command.Listener{
		Progress: func(step, of int, metrics map[string]float64) {
			a.log.progress(wire.NewProgress(step, of, metrics))
		},
		Checkpoint: func(ref activities.Ref) { a.log.checkpoint(ref) },
		Warn:       func(text string) { _, _ = fmt.Fprintf(stream{log: a.log, error: true}, "spillway: %s\n", text) },
	}
}

// watch follows the program to its end, and ends it where it must: then it says why.
func (a *attempt) watch(
	ctx context.Context, pid int, exited <-chan struct{},
) (stopped *wire.StageFailure) {
	looks := time.NewTicker(lookEvery)
	defer looks.Stop()
	ask, kill := time.NewTimer(time.Until(a.limits.ask)), time.NewTimer(time.Until(a.limits.kill))
	defer ask.Stop()
	defer kill.Stop()
	for {
		select {
		case <-exited:
			return stopped
		case <-looks.C:
			_, err := a.workspace.Used(ctx)
			if errors.Is(err, command.ErrSpace) && stopped == nil {
				stopped = &wire.StageFailure{Unfit: predictor.CauseDisk, Message: err.Error()}
				endAll(pid)
			}
		case <-ask.C:
			if stopped == nil {
				late := a.limits.late("")
				stopped = &late
			}
			signalAll(pid, syscall.SIGTERM)
		case <-kill.C:
			if stopped == nil {
				late := a.limits.late("")
				stopped = &late
			}
			stopped.Message += "; it did not end when it was asked to, and was killed"
			endAll(pid)
		}
	}
}

// collect keeps what a program that ended well has left.
func (a *attempt) collect(ctx context.Context, report command.Reported, answer *wire.Answer) {
	ended := time.Now()
	result, err := a.workspace.Collect(ctx, report.Values)
	answer.Publish = time.Since(ended)
	switch {
	case errors.Is(context.Cause(ctx), errLate) && err != nil:
		late := a.limits.late("its outputs were not stored by then")
		answer.Error = &late
		return
	case err != nil && isDiskFull(err):
		answer.Error = &wire.StageFailure{Unfit: predictor.CauseDisk, Message: err.Error()}
		return
	case err != nil:
		answer.Error = &wire.StageFailure{Message: err.Error()}
		return
	}
	if answer.Output, err = json.Marshal(result); err != nil {
		answer.Error = &wire.StageFailure{Message: "encode the command's result: " + err.Error(), Permanent: true}
	}
}

// ended tells how a program ended that did not end well.
func (a *attempt) ended(evidence termination.Evidence, final bool) *wire.StageFailure {
	ended := termination.Classify(evidence)
	failure := &wire.StageFailure{Message: ended.OfCommand(), Stack: ended.Stack}
	switch {
	case ended.Cause == termination.HostMemory, ended.Cause == termination.DeviceMemory:
		failure.OutOfMemory = true
	case final:
		failure.Permanent = true
		failure.Message += `; it reported {"retry": false}`
	case lacks(evidence):
		failure.Unfit = predictor.CauseStart
	}
	return failure
}

// Exit codes of shells for a program that there is not, or that cannot be executed here:
// https://pubs.opengroup.org/onlinepubs/9799919799/utilities/V3_chap02.html#tag_19_08_02
const notExecutable, notFound = 126, 127

// lacks reports whether a program failed for what a function has not: a program that it starts, a module of Python, a
// library or a file of the host. The pool may have it; where it does not either, it fails there, and says so.
func lacks(e termination.Evidence) bool {
	if e.Signal == 0 && (e.Code == notFound || e.Code == notExecutable) {
		return true
	}
	message, _ := termination.FinalMessage(e.Tail)
	return strings.HasPrefix(message, "ModuleNotFoundError: ") ||
		strings.HasPrefix(message, "FileNotFoundError: ") && strings.Contains(message, ": '/") ||
		strings.Contains(message, "error while loading shared libraries") ||
		strings.Contains(message, "cannot open shared object file")
}
