package function

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
)

// unhandled is the value of the header X-Amz-Function-Error. Custom runtimes know no other.
const unhandled = "Unhandled"

// Limits of the Invoke API: https://docs.aws.amazon.com/lambda/latest/dg/gettingstarted-limits.html.
const (
	maxSyncBytes   = 6 << 20
	maxAnswerBytes = maxSyncBytes + 100 // what AWS grants and names in its error
	maxTailBytes   = 4 << 10
)

// answer is what an invocation returns: a payload, which describes an error when failed.
type answer struct {
	payload   []byte
	failed    bool
	errorType string // with failed: for the report
}

// ending is how an invocation on an environment came to its end.
type ending int

const (
	undelivered ending = iota // the environment exited before it took the invocation
	finished                  // the runtime asked for the next invocation
	exited                    // the process exited first
	timedOut                  // the time was over first
)

// judge returns the answer of an invocation from how it ended, what the runtime had posted by then (nil: nothing)
// and how the process exited. A posted error stands when the process exits after it, as a panic does; a posted
// payload does not, because the invocation was not complete.
func judge(end ending, posted *answer, id string, timeout time.Duration, exitErr error) answer {
	switch {
	case end == finished && posted != nil:
		return *posted
	case end == exited && posted != nil && posted.failed:
		return *posted
	case end == timedOut:
		return failure(id, "Sandbox.Timedout", fmt.Sprintf("Task timed out after %.2f seconds", timeout.Seconds()))
	default:
		return failure(id, "Runtime.ExitError", exitMessage(exitErr))
	}
}

// failure returns the answer that AWS gives for an error of the environment rather than of the function's code.
func failure(id, errorType, message string) answer {
	return answer{
		failed: true, errorType: errorType,
		payload: errorPayload(errorType, "RequestId: "+id+" Error: "+message),
	}
}

// errorPayload returns the JSON of a function error.
func errorPayload(errorType, message string) []byte {
	b, err := json.Marshal(struct {
		ErrorType    string `json:"errorType"`
		ErrorMessage string `json:"errorMessage"`
	}{errorType, message})
	if err != nil {
		panic(fmt.Sprintf("marshal error %q %q: %v", errorType, message, err)) // strings always marshal
	}
	return b
}

// postedErrorType returns the type that a posted error names in its JSON, or a general one.
func postedErrorType(payload []byte) string {
	var e struct {
		ErrorType string `json:"errorType"`
	}
	if err := json.Unmarshal(payload, &e); err != nil || e.ErrorType == "" {
		return "Runtime.Unknown"
	}
	return e.ErrorType
}

// exitMessage describes the exit of a process as AWS words it.
func exitMessage(err error) string {
	if err == nil {
		return "Runtime exited without providing a reason"
	}
	return "Runtime exited with error: " + err.Error()
}

// report is what the REPORT line says about one invocation.
type report struct {
	id          string
	duration    time.Duration
	initialized time.Duration // zero for a warm invocation
	memoryMB    int
	maxMemoryMB int
	status      string // "", "timeout" or "error"
	errorType   string // with status "error"
}

// billed returns the billed duration: init and duration, each started millisecond counted whole. Init is billed
// since August 2025: https://aws.amazon.com/blogs/compute/aws-lambda-standardizes-billing-for-init-phase/.
func (r report) billed() int64 {
	return int64(math.Ceil(float64(r.initialized+r.duration) / float64(time.Millisecond)))
}

// String returns the line as AWS writes it, fields separated by tabs.
func (r report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "REPORT RequestId: %s\tDuration: %s\tBilled Duration: %d ms\tMemory Size: %d MB\tMax Memory "+
		"Used: %d MB\t",
		r.id, milliseconds(r.duration), r.billed(), r.memoryMB, r.maxMemoryMB)
	if r.initialized > 0 {
		fmt.Fprintf(&b, "Init Duration: %s\t", milliseconds(r.initialized))
	}
	if r.status != "" {
		fmt.Fprintf(&b, "Status: %s\t", r.status)
	}
	if r.errorType != "" {
		fmt.Fprintf(&b, "Error Type: %s\t", r.errorType)
	}
	return b.String()
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
