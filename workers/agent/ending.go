package agent

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/termination"
)

// finish is what was seen of an attempt when it was over. The zero value is a child that went away without a word.
type finish struct {
	// answer is what the child said last; nil when it did not.
	answer *wire.Answer
	// stopped is why the agent stopped the attempt: TimedOut, Cancelled, Lost or, for too much written, Failed; empty when
	// it did not. Reason says it for people.
	stopped predictor.Outcome
	reason  string
	// cause is why, where the outcome does not tell.
	cause predictor.Cause
	// diskFull says that the host's disk had no room for it.
	diskFull bool
	// gpuWait is for how long the attempt waited for a GPU that it did not get.
	gpuWait time.Duration
	// failed says that the child could not be started, or broke the protocol.
	failed error
	// exit is how the process ended; nil while it lives.
	exit *status
	// kills is how many of the attempt's processes the kernel killed for memory; hostKills says that it killed some
	// process of the host's meanwhile.
	kills     int64
	hostKills bool
	// refusals tells of the processes and threads that the kernel did not start for it.
	refusals refusals
	// enforced says that the kernel held the attempt to its grant.
	enforced bool
	// grant is what the attempt held in the end, peak the most memory that it took.
	grant quantity.Size
	peak  quantity.Bytes
	// tail is the end of the child's output.
	tail string
	// command says that the attempt was a program of its own, and refused which memory that said it was refused.
	command bool
	refused termination.Memory
	// final says that the program told that another attempt would fail as this one does.
	final bool
	// container says that the exit code is that of a container engine.
	container bool
}

// status is how a process ended.
type status struct {
	code   int            // its exit code, when signal is 0
	signal syscall.Signal // what killed it
	words  string         // "exit status 2", "signal: killed"
}

// statusOf reads how a process ended.
func statusOf(state *os.ProcessState) *status {
	code, signal := termination.Status(state)
	return &status{code: code, signal: signal, words: state.String()}
}

// ended decides how an attempt ended and whether its child can take another.
//
// An answer counts more than a stop that came at the same time: the work is done. Only a child that ended its attempt
// by itself, without a panic, is in a known state and is used again.
func ended(f finish) (ending slot.Ending, reusable bool) {
	ending, reusable = classified(f)
	return crowded(refusedElsewhere(ending, f), f), reusable
}

// crowded tells an attempt that has failed that it was refused processes: what it says itself of that ("resource
// temporarily unavailable", "can't start new thread") does not tell why.
func crowded(ending slot.Ending, f finish) slot.Ending {
	if f.refusals.forks > 0 && ending.Outcome != predictor.Succeeded {
		ending.Message += "; " + f.refusals.String()
	}
	return ending
}

// refusals tells how many processes and threads the kernel did not start for an attempt, as too many were there. The
// zero value is none.
type refusals struct {
	forks int64
	// most is how many processes and threads an attempt may have at once, peak the most that its group had; 0 where the
	// kernel does not tell.
	most, peak int
}

// String says how often a process or thread was not started, and whose limit that was, as far as it is known: the
// kernel may count what a cgroup around the attempt's refused as if that had been full.
func (r refusals) String() string {
	refused := fmt.Sprintf("the kernel refused %s to start a process or thread for it", words.Count(int(r.forks), "time"))
	switch {
	case r.peak >= r.most:
		return fmt.Sprintf("%s, as it had the %d that an attempt may have at once: let it start fewer workers or threads",
			refused, r.most)
	case r.peak > 0:
		return fmt.Sprintf("%s, though it had no more than %d of the %d that an attempt may have at once: the container or "+
			"service in which the engine runs has a limit of its own; raise that, or let it start fewer workers or threads",
			refused, r.peak, r.most)
	}
	return fmt.Sprintf("%s, as it had the %d that an attempt may have at once, or the container or service in which the "+
		"engine runs all that it may have: let it start fewer workers or threads", refused, r.most)
}

// unused is how many times what it took an attempt was granted whose grant is not what it lacked. A Java that takes its
// heap from its limit is refused memory at a quarter of it.
const unused = 8

// refusedElsewhere makes it count when memory was refused to an attempt that had taken little of its own: where the
// kernel holds a limit it refuses nothing, it kills. A bare MemoryError of Python, as of an array of a petabyte, was
// tried eleven times, with 8 MiB at first and 8 GiB at last, of which it took 7 (TestAnAttemptEndsAsWhatWasSeenSays). A
// program that sizes itself by its grant may still do with more, so it is tried again as often as it may fail.
func refusedElsewhere(ending slot.Ending, f finish) slot.Ending {
	if ending.Cause != predictor.CauseMemoryRefused || !f.enforced || f.peak <= 0 || f.peak > f.grant.Memory/unused {
		return ending
	}
	ending.Counts = true
	ending.Message += fmt.Sprintf("; it had taken %s of its %s, so something else than its memory limit refused it: a "+
		"limit that it sets itself, or a request for more than any machine has", f.peak, f.grant.Memory)
	return ending
}

// classified is ended by what was seen alone.
func classified(f finish) (ending slot.Ending, reusable bool) {
	switch {
	case f.answer != nil && f.answer.Error == nil:
		return slot.Ending{Outcome: predictor.Succeeded}, f.stopped == "" && f.exit == nil && f.kills == 0
	case f.stopped != "":
		refused := f.stopped == predictor.Failed && f.cause == predictor.CauseBudget
		return slot.Ending{
			Outcome: f.stopped, Cause: f.cause, Message: f.reason, Permanent: refused, HostWait: f.gpuWait,
		}, false
	case f.kills > 0: // also when the stage lived on and says that a program which it ran was killed
		return slot.Ending{Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryLimit, Message: killed(f)}, false
	case f.answer != nil:
		return answered(f), f.answer.Error.Stack == "" && f.exit == nil
	case f.hostKills && f.exit != nil && f.exit.signal == syscall.SIGKILL:
		return hostKilled(f), false
	}
	return crashed(f), false
}

// answered tells how an attempt ended whose code returned an error.
func answered(f finish) slot.Ending {
	failure := f.answer.Error
	ending := slot.Ending{
		Outcome: predictor.Failed, Cause: predictor.CauseError, Message: failure.Message, Stack: failure.Stack,
		Permanent: failure.Permanent,
	}
	if f.cause != "" {
		ending.Cause = f.cause
	}
	if failure.Stack != "" {
		ending.Cause = predictor.CausePanic
	}
	if failure.OutOfMemory {
		ending.Outcome, ending.Cause = predictor.OutOfMemory, predictor.CauseMemoryRefused
		if kind, detail := termination.Text(failure.Message); kind == termination.Device && !detail.EitherMemory {
			ending.Cause = predictor.CauseDeviceMemory
		}
	}
	return ending
}

// killed says that the kernel killed an attempt at its limit.
func killed(f finish) string {
	if f.container { // what it took, its engine counted
		return fmt.Sprintf("the kernel killed its container at the memory limit of %s", f.grant.Memory)
	}
	return fmt.Sprintf("the kernel killed it at its memory limit of %s, of which it had taken %s", f.grant.Memory,
		min(f.peak, f.grant.Memory))
}

// hostKilled tells of an attempt that was killed while the host as a whole ran out of memory. Where grants are held, it
// was within its own and is done again as it was; where nothing holds them, it may have been the one that took too
// much.
func hostKilled(f finish) slot.Ending {
	ending := slot.Ending{
		Outcome: predictor.OutOfMemory, Cause: predictor.CauseHostMemory,
		Message: "the kernel killed the stage's process because the host ran out of memory",
	}
	if f.enforced {
		ending.Outcome = predictor.Lost
		ending.Message += fmt.Sprintf(", though it had taken only %s of its %s", f.peak, f.grant.Memory)
	}
	return ending
}

// crashed tells what became of a child that went away by itself.
func crashed(f finish) slot.Ending {
	if f.exit == nil {
		message, stack := termination.FinalMessage(f.tail)
		ending := slot.Ending{
			Outcome: predictor.Failed, Cause: predictor.CauseStart, Stack: stack,
			Message: "the stage's process closed its channel to the agent",
		}
		if f.failed != nil {
			ending.Message = f.failed.Error()
		}
		_, unready := errors.AsType[*unreadyError](f.failed)
		switch {
		case unready && message == "":
			ending.Message += "; it printed nothing"
		case unready:
			ending.Message += "; it printed last: " + message
		case message != "":
			ending.Message += ": " + message
		}
		return ending
	}
	ended := termination.Classify(termination.Evidence{
		Code: f.exit.code, Signal: f.exit.signal, Tail: f.tail,
		Reported: f.refused, HasDevice: f.grant.GPU > 0, Container: f.container,
	})
	ending := slot.Ending{
		Outcome: predictor.Failed, Message: "the stage's process ended: " + f.exit.words,
		Stack: ended.Stack,
	}
	switch ended.Cause {
	case termination.HostMemory:
		ending.Outcome, ending.Cause = predictor.OutOfMemory, predictor.CauseMemoryRefused
	case termination.DeviceMemory:
		ending.Outcome, ending.Cause = predictor.OutOfMemory, predictor.CauseDeviceMemory
	case termination.Signalled:
		ending.Cause = predictor.CauseSignal
	default:
		ending.Cause = predictor.CauseExit
	}
	if f.command {
		ending.Message = ended.OfCommand()
		if ending.Permanent = f.final && ending.Outcome == predictor.Failed; ending.Permanent {
			ending.Message += `; it reported {"retry": false}`
		}
		return ending
	}
	if f.failed != nil {
		ending.Message = f.failed.Error()
	}
	if message, _ := termination.FinalMessage(f.tail); message != "" {
		ending.Message += ": " + message
	}
	return ending
}

// pastTimeout is the reason of an attempt that was stopped at its timeout.
func pastTimeout(timeout time.Duration) string {
	return fmt.Sprintf("the attempt ran past the stage's timeout of %s", timeout)
}
