package slot

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// lostDelay is how long a task waits that is put back because its host went away: another has room, and nothing about
// the task is at fault. Temporal's own pause would double with each attempt, whatever ended it.
const lostDelay = 100 * time.Millisecond

// ElsewhereDelay is the same for one whose host had no GPU, or too little memory, for it: each time is told, and that
// another program ends, another host has room or a plan has heard of a lost GPU takes longer.
const ElsewhereDelay = 30 * time.Second

// Limits on what an error carries into a workflow's history.
const (
	maxMessage = 4 << 10
	maxStack   = 16 << 10
)

// Ending is how an attempt ended, as its venue saw it.
type Ending struct {
	Outcome predictor.Outcome
	// Cause says what made it so; empty means the usual one of the Outcome.
	Cause predictor.Cause
	// Message says why; empty on success.
	Message string
	// Stack is that of a panic.
	Stack string
	// Permanent says that a further attempt cannot help.
	Permanent bool
	// Counts says that an attempt that ran out of memory used up one of the stage's attempts, as a failure does: more
	// memory is not known to help.
	Counts bool
	// ToPool says that this venue cannot help but the pool may: the task is refused although the attempt counts as its
	// Outcome says. One that Failed has a try at the pool even when it was the last.
	ToPool bool
	// HostWait is for how long it waited for what its host did not have for it: see [predictor.CauseNoGPU] and
	// [predictor.CauseNoMemory].
	HostWait time.Duration
	// Grant is what the attempt held when it ended.
	Grant quantity.Size
	// Cost is what the attempt cost.
	Cost quantity.Money
}

// elsewhere reports whether the attempt waits for a host that has what this one did not have for it.
func (e Ending) elsewhere() bool {
	return e.Cause == predictor.CauseNoGPU || e.Cause == predictor.CauseNoMemory
}

// because is the Cause, or the usual one of the Outcome.
func (e Ending) because() predictor.Cause {
	if e.Cause != "" {
		return e.Cause
	}
	switch e.Outcome {
	case predictor.Succeeded:
		return ""
	case predictor.OutOfMemory:
		return predictor.CauseMemoryLimit
	case predictor.TimedOut:
		return predictor.CauseTimeout
	case predictor.Cancelled:
		return predictor.CauseCancelled
	case predictor.Lost:
		return predictor.CauseHostLost
	case predictor.Refused:
		return predictor.CauseVenue
	case predictor.Failed:
		if e.Stack != "" {
			return predictor.CausePanic
		}
	}
	return predictor.CauseError
}

// Failure is the detail of every application error about a task.
type Failure struct {
	Stage string `json:"stage"`
	Task  string `json:"task"`
	// Attempt is the try that ended so; Failures counts those that count.
	Attempt  int `json:"attempt"`
	Failures int `json:"failures"`
	// Outcome, Message and Stack say how it ended.
	Outcome predictor.Outcome `json:"outcome"`
	Cause   predictor.Cause   `json:"cause,omitempty"`
	Message string            `json:"message"`
	Stack   string            `json:"stack,omitempty"`
	// Spent is what all attempts of the task cost so far.
	Spent quantity.Money `json:"spent_picodollars"`
	// Checkpoint is the newest one of a task that goes on at the pool, or that has failed, or was cancelled, and may be
	// tried again in another run.
	Checkpoint activities.Ref `json:"checkpoint,omitzero"`
}

// maxHealed bounds how often a task may run out of memory: doubling ten times is a thousandfold.
const maxHealed = 10

// Conclude decides what an attempt leaves for the next one and what Temporal is told: nil on success, a cancellation,
// or an application error that is final when the task's attempts are used up or a retry cannot help. Failed and
// TimedOut count as failures. So does OutOfMemory where the next attempt cannot have more; elsewhere it is the engine's
// to heal, and uses up none of the stage's attempts.
func Conclude(task wire.Task, attempt int, before wire.Heartbeat, ending Ending) (after wire.Heartbeat, err error) {
	after = before
	after.Spent, after.Running = after.Spent+ending.Cost, 0
	after.HostWait = 0
	if ending.elsewhere() {
		after.HostWait = before.HostWait + ending.HostWait
	}
	var kind string
	final := false
	switch ending.Outcome {
	case predictor.Succeeded:
		return after, nil
	case predictor.Cancelled:
		return after, temporal.NewCanceledError(clip(ending.Message, maxMessage), Failure{
			Stage: task.Stage.Name, Task: task.ID, Attempt: attempt, Failures: after.Failures, Outcome: ending.Outcome,
			Cause: ending.because(),
			Spent: after.Spent, Checkpoint: after.Checkpoint,
		})
	case predictor.Lost:
		kind = wire.LostError
	case predictor.Refused:
		kind, final = wire.RefusedError, true
	case predictor.OutOfMemory:
		kind = wire.MemoryError
		after.OutOfMemory++
		if ending.Cause == predictor.CauseDeviceMemory {
			after.LargestFailedGPU = max(after.LargestFailedGPU, ending.Grant.GPUMemory)
		} else {
			after.LargestFailed = max(after.LargestFailed, ending.Grant.Memory)
		}
		if ending.Counts || ending.Cause == predictor.CauseDeviceMemory && ending.Grant.GPUMemory == 0 {
			after.Failures++ // nothing that is granted was too little
		}
	case predictor.TimedOut:
		kind = wire.TimeoutError
		after.Failures++
	case predictor.Failed:
		kind = wire.StageError
		after.Failures++
	default:
		panic(fmt.Sprintf("conclude attempt %d of %s: unknown outcome %q", attempt, task.ID, ending.Outcome))
	}
	allowed := max(task.MaxAttempts, 1)
	exhausted := after.Failures > before.Failures && after.Failures >= allowed
	// What failed may be what the venue lacks, of which the pool has yet to be asked; time passed is passed everywhere.
	elsewhere := ending.ToPool && (!exhausted || ending.Outcome == predictor.Failed)
	switch {
	case elsewhere && !ending.Permanent && after.OutOfMemory <= maxHealed:
		kind, final, exhausted = wire.RefusedError, true, false
	case exhausted || ending.Permanent || after.OutOfMemory > maxHealed:
		final = ending.Outcome != predictor.Lost
	}
	if ending.Cause == predictor.CauseBudget && ending.Outcome == predictor.Failed {
		kind = wire.BudgetError
	}
	detail := Failure{
		Stage: task.Stage.Name, Task: task.ID, Attempt: attempt, Failures: after.Failures, Outcome: ending.Outcome,
		Cause:   ending.because(),
		Message: clip(ending.Message, maxMessage), Stack: clip(ending.Stack, maxStack), Spent: after.Spent,
	}
	if final { // else the next attempt finds it in the heartbeat
		detail.Checkpoint = after.Checkpoint
	}
	text := fmt.Sprintf("stage %s, task %s, attempt %d: %s", detail.Stage, detail.Task, attempt, detail.Message)
	switch {
	case exhausted && (allowed > 1 || attempt > after.Failures):
		text += fmt.Sprintf(" (%d of %s failed%s)", after.Failures, words.Count(allowed, "attempt"),
			uncounted(attempt, after))
	case kind == wire.StageError && ending.Permanent && after.Failures < allowed:
		text += fmt.Sprintf(" (not tried again, although %d of %d attempts are left: the next one would fail in the same "+
			"way)", allowed-after.Failures, allowed)
	}
	options := temporal.ApplicationErrorOptions{NonRetryable: final, Details: []any{detail}}
	switch {
	case ending.Outcome != predictor.Lost:
	case detail.Cause == predictor.CauseHostLost:
		options.NextRetryDelay = lostDelay
	case ending.elsewhere():
		options.NextRetryDelay = ElsewhereDelay
	}
	return after, temporal.NewApplicationErrorWithOptions(text, kind, options)
}

// next is what becomes of the task, by what Temporal is told.
func next(task wire.Task, attempt int, before wire.Heartbeat, ending Ending) predictor.Next {
	if ending.Outcome == "" {
		return "" // it has not ended
	}
	_, err := Conclude(task, attempt, before, ending)
	var told *temporal.ApplicationError
	switch {
	case err == nil:
		return ""
	case !errors.As(err, &told): // cancelled
		return predictor.NextNothing
	case told.Type() == wire.RefusedError:
		return predictor.NextPool
	case told.NonRetryable():
		return predictor.NextNothing
	}
	return ""
}

// uncounted tells which of so many attempts are none of those that failed, so that the number of the attempt and what
// is allowed of them go together; empty where all of them failed.
func uncounted(attempt int, after wire.Heartbeat) string {
	others := attempt - after.Failures
	memory := min(after.OutOfMemory, others)
	lost := others - memory
	switch {
	case others <= 0:
		return ""
	case lost == 0:
		return fmt.Sprintf("; %d more ran out of memory, which counts for nothing", memory)
	case memory == 0:
		return fmt.Sprintf("; %d more got lost, which counts for nothing", lost)
	}
	return fmt.Sprintf("; %d more ran out of memory and %d got lost, which counts for nothing", memory, lost)
}

// clip cuts text to at most limit bytes, at the end of a rune, and says that it did.
func clip(text string, limit int) string {
	const mark = " … (cut)"
	if len(text) <= limit {
		return text
	}
	end := limit - len(mark)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}
