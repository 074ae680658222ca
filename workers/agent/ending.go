package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/slot"
)

// finish is what was seen of an attempt when it was over. The zero value is a child that went away without a word.
type finish struct {
	// answer is what the child said last; nil when it did not.
	answer *wire.Answer
	// stopped is why the agent stopped the attempt: TimedOut, Cancelled or Lost; empty when it did not. Reason says it for people.
	stopped predictor.Outcome
	reason  string
	// failed says that the child could not be started, or broke the protocol.
	failed error
	// exit is how the process ended: "exit status 2", "signal: killed"; empty while it lives.
	exit string
	// killed says that exit is SIGKILL; memoryKills that the kernel killed processes for memory while the attempt ran.
	killed, memoryKills bool
	// tail is the end of the child's output.
	tail string
}

// ended decides how an attempt ended and whether its child can take another.
//
// An answer counts more than a stop that came at the same time: the work is done. Only a child that ended its attempt by itself, without
// a panic, is in a known state and is used again.
func ended(f finish) (ending slot.Ending, reusable bool) {
	switch {
	case f.answer != nil && f.answer.Error == nil:
		return slot.Ending{Outcome: predictor.Succeeded}, f.stopped == "" && f.exit == ""
	case f.stopped != "":
		return slot.Ending{Outcome: f.stopped, Message: f.reason}, false
	case f.answer != nil:
		failure := f.answer.Error
		ending = slot.Ending{Outcome: predictor.Failed, Message: failure.Message, Stack: failure.Stack, Permanent: failure.Permanent}
		if failure.OutOfMemory {
			ending.Outcome = predictor.OutOfMemory
		}
		return ending, failure.Stack == "" && f.exit == ""
	case f.killed && f.memoryKills:
		return slot.Ending{Outcome: predictor.OutOfMemory, Message: "the kernel killed the stage's process because the host ran out of memory"}, false
	}
	return crashed(f), false
}

// crashed tells what became of a child that went away by itself.
func crashed(f finish) slot.Ending {
	message, stack := firstWords(f.tail)
	ending := slot.Ending{Outcome: predictor.Failed, Stack: stack}
	if refusedMemory(f.tail) {
		ending.Outcome = predictor.OutOfMemory
	}
	switch {
	case f.failed != nil:
		ending.Message = f.failed.Error()
	case f.exit != "":
		ending.Message = "the stage's process ended: " + f.exit
	default:
		ending.Message = "the stage's process closed its channel to the agent"
	}
	if message != "" {
		ending.Message += ": " + message
	}
	return ending
}

// firstWords finds in a child's output what it died of: a panic and its stack, or else the last line.
func firstWords(tail string) (message, stack string) {
	for _, mark := range []string{"panic: ", "fatal error: "} {
		at := strings.LastIndex("\n"+tail, "\n"+mark)
		if at >= 0 {
			stack = tail[at:]
			message, _, _ = strings.Cut(stack, "\n")
			return message, stack
		}
	}
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	return lines[len(lines)-1], ""
}

// refusedMemory reports whether the output of a dead process says that the system gave it no memory: how Go's runtime and the C
// library say it.
func refusedMemory(tail string) bool {
	for _, words := range []string{"fatal error: runtime: out of memory", "fatal error: runtime: cannot allocate memory", "fatal error: out of memory", "std::bad_alloc", "MemoryError"} {
		if strings.Contains(tail, words) {
			return true
		}
	}
	return false
}

// pastTimeout is the reason of an attempt that was stopped at its timeout.
func pastTimeout(timeout time.Duration) string {
	return fmt.Sprintf("the attempt ran past the stage's timeout of %s", timeout)
}
