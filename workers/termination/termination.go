package termination

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// Evidence is what is known of a process that has ended.
type Evidence struct {
	// Code is its exit code; it counts when Signal is 0.
	Code int
	// Signal is the signal that ended it; 0 when it exited.
	Signal syscall.Signal
	// Tail is the last of what it wrote to its standard output and error.
	Tail string
	// Reported is the memory that the process itself said it was refused.
	Reported Memory
	// KernelKill says that the kernel killed a process of its group for want of memory.
	KernelKill bool
	// Stopped says that it was asked to stop, or killed, by us.
	Stopped bool
	// HasDevice says that it was given an accelerator; where words fit both kinds of memory, they mean that of the device
	// then.
	HasDevice bool
	// Container says that Code is that of a container engine, which has codes of its own.
	Container bool
}

// Cause is why a process ended.
type Cause string

// Causes.
const (
	// Succeeded: it exited with code 0.
	Succeeded Cause = "succeeded"
	// Stopped: we ended it.
	Stopped Cause = "stopped"
	// Failed: it exited with another code.
	Failed Cause = "failed"
	// Signalled: a signal ended it that we did not send.
	Signalled Cause = "signalled"
	// HostMemory and DeviceMemory: it was refused memory.
	HostMemory   Cause = "out of host memory"
	DeviceMemory Cause = "out of device memory"
)

// Termination is why and how a process ended.
type Termination struct {
	Cause Cause
	// Message says it in words; empty when it succeeded.
	Message string
	// Stack is the panic or traceback it ended with; empty when there is none.
	Stack string
	// Asked is how much memory was asked for when it was refused; 0 when that is not known.
	Asked quantity.Bytes
}

// Classify says why a process ended. A success stands whatever was said before; a stop of ours counts more than what
// followed from it; then the kernel's word counts more than the process's own, and that more than its output. An exit
// code of 137, or a SIGKILL, is no proof of anything: anybody may send it.
func Classify(e Evidence) Termination {
	if e.Code == 0 && e.Signal == 0 {
		return Termination{Cause: Succeeded}
	}
	status := describe(e)
	if e.Stopped {
		return Termination{Cause: Stopped, Message: "it was stopped: " + status}
	}
	message, stack := FinalMessage(e.Tail)
	kind, detail := Text(e.Tail)
	if kind == Device && detail.EitherMemory && !e.HasDevice {
		kind = Host
	}
	if detail.Line != "" {
		message = detail.Line
	}
	v := Termination{Message: status, Stack: stack, Asked: detail.Asked}
	switch {
	case e.KernelKill && kind != Device:
		v.Cause, v.Message = HostMemory, "the kernel killed a process of it for want of memory: "+status
	case e.Reported == Host || e.Reported == None && kind == Host:
		v.Cause, v.Message = HostMemory, "it was refused memory: "+status
	case e.Reported == Device || kind == Device:
		v.Cause, v.Message = DeviceMemory, "it was refused device memory: "+status
	case e.Signal != 0:
		v.Cause = Signalled
	default:
		v.Cause = Failed
	}
	if message != "" {
		v.Message += ": " + message
	}
	return v
}

// OfCommand says how a command ended. The command line finds its exit code in it.
func (t Termination) OfCommand() string {
	switch t.Cause {
	case Signalled:
		return "the command was " + t.Message
	case HostMemory, DeviceMemory:
		return "the command ended: " + t.Message
	default:
		return "the command ended with " + t.Message
	}
}

// describe says the exit status in words.
func describe(e Evidence) string {
	if e.Signal != 0 {
		return "killed by " + signalName(e.Signal)
	}
	status := "exit code " + strconv.Itoa(e.Code)
	switch {
	case e.Container && e.Code == 125:
		return status + " (the container engine could not start it)"
	case e.Code == 126:
		return status + " (a command was found, but cannot be executed)"
	case e.Code == 127:
		return status + " (command not found)"
	case e.Code > 128 && e.Code < 128+65:
		return fmt.Sprintf("%s, 128+%d: a process of it was killed by %s", status, e.Code-128,
			signalName(syscall.Signal(e.Code-128)))
	}
	return status
}

// signalName returns "SIGSEGV (segmentation fault)" for the signals that programs die of, and words for the others.
func signalName(signal syscall.Signal) string {
	names := map[syscall.Signal]string{
		syscall.SIGHUP: "SIGHUP", syscall.SIGINT: "SIGINT", syscall.SIGQUIT: "SIGQUIT", syscall.SIGILL: "SIGILL",
		syscall.SIGTRAP: "SIGTRAP",
		syscall.SIGABRT: "SIGABRT", syscall.SIGBUS: "SIGBUS", syscall.SIGFPE: "SIGFPE", syscall.SIGKILL: "SIGKILL",
		syscall.SIGSEGV: "SIGSEGV",
		syscall.SIGPIPE: "SIGPIPE", syscall.SIGALRM: "SIGALRM", syscall.SIGTERM: "SIGTERM", syscall.SIGXCPU: "SIGXCPU",
		syscall.SIGXFSZ: "SIGXFSZ",
	}
	if name, known := names[signal]; known {
		return name + " (" + signal.String() + ")"
	}
	return signal.String()
}

// FinalMessage finds in a process's output what ended it: the last Go panic or Python traceback with its first words,
// or else the last line.
func FinalMessage(tail string) (message, stack string) {
	at, mark := -1, ""
	for _, candidate := range []string{"panic: ", "fatal error: ", "Traceback (most recent call last):"} {
		if found := strings.LastIndex("\n"+tail, "\n"+candidate); found > at {
			at, mark = found, candidate
		}
	}
	lines := strings.Split(strings.TrimSpace(tail), "\n")
	if at < 0 {
		return strings.TrimSpace(lines[len(lines)-1]), ""
	}
	stack = tail[at:]
	if mark[0] != 'T' {
		message, _, _ = strings.Cut(stack, "\n")
		return strings.TrimSpace(message), stack
	}
	// the exception is the first line after the frames that is not indented
	for line := range strings.SplitSeq(stack, "\n") {
		if line != "" && line[0] != ' ' && line[0] != '\t' && !strings.HasPrefix(line, mark) {
			return strings.TrimSpace(line), stack
		}
	}
	return strings.TrimSpace(lines[len(lines)-1]), stack
}

// Status splits how a process ended into the Code and Signal of Evidence. The state is that of a process that has
// ended.
func Status(state *os.ProcessState) (code int, signal syscall.Signal) {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 0, status.Signal()
	}
	return state.ExitCode(), 0
}
