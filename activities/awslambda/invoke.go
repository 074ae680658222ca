package awslambda

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/lambda"
	"github.com/aws/aws-sdk-go-v2/service/lambda/types"
)

// An Answer is what an invocation that ran came to.
type Answer struct {
	// Payload is the function's answer in JSON; with a FunctionError it describes the error, with the fields
	// errorType and errorMessage.
	Payload []byte
	// FunctionError is empty when the function succeeded, otherwise "Handled" or "Unhandled".
	FunctionError string
	// Report is what Lambda measured and bills.
	Report Report
	// LogTail is the end of the invocation's log, at most 4 KB.
	LogTail string
	// RequestID identifies the invocation in the logs of the venue.
	RequestID string
}

// A Report is the REPORT line of an invocation's log. Its zero value means that there was none.
type Report struct {
	// Duration is how long the invocation ran.
	Duration time.Duration
	// BilledDuration is what is paid for, init included, rounded up to 1 ms.
	BilledDuration time.Duration
	// InitDuration is how long the environment took to start. Zero means that the invocation was warm.
	InitDuration time.Duration
	// MemorySizeMB is the memory that the function has and that is paid for.
	MemorySizeMB int
	// MaxMemoryMB is the most memory that the environment has used since it started.
	MaxMemoryMB int
	// Status is empty, "timeout" or "error", when the environment was lost.
	Status string
	// ErrorType is the cause of an error, such as "Runtime.OutOfMemory".
	ErrorType string
}

// Invoke runs a function once and waits for its answer. It never tries again: a retry is the decision of the
// caller, who also pays for it. A function that fails is an Answer with a FunctionError and no error; an error
// means that the function did not run ([ErrThrottled], [ErrTooLarge], [ErrNotFound]) or that its answer did not
// arrive. When ctx ends the function runs on, and is billed, to its end.
func (iv *Invoker) Invoke(ctx context.Context, functionName string, payload []byte) (Answer, error) {
	if len(payload) > MaxPayloadBytes {
		return Answer{}, fmt.Errorf("invoke %s with %d bytes: %w: at most %d; pass a reference to an artifact", functionName,
			len(payload), ErrTooLarge, MaxPayloadBytes)
	}
	out, err := iv.client.Invoke(ctx, &lambda.InvokeInput{
		FunctionName: &functionName,
		Payload:      payload,
		LogType:      types.LogTypeTail,
	}, func(o *lambda.Options) { o.Retryer = aws.NopRetryer{} })
	if err = classify(err); errors.Is(err, ErrNotFound) {
		iv.deployments.forget(functionName) // someone deleted it: let Ensure deploy it again
	}
	if err != nil {
		return Answer{}, fmt.Errorf("invoke %s: %w", functionName, err)
	}
	a := Answer{Payload: out.Payload, FunctionError: aws.ToString(out.FunctionError)}
	a.RequestID, _ = awsmiddleware.GetRequestIDMetadata(out.ResultMetadata)
	if tail, err := base64.StdEncoding.DecodeString(aws.ToString(out.LogResult)); err == nil {
		a.LogTail = string(tail)
		a.Report = parseReport(a.LogTail)
	}
	return a, nil
}

// classify adds the error that callers test for, if there is one, to an error of the SDK.
func classify(err error) error {
	response, ok := errors.AsType[*awshttp.ResponseError](err)
	if !ok {
		return err
	}
	switch response.HTTPStatusCode() {
	case http.StatusTooManyRequests:
		return fmt.Errorf("%w: %w", ErrThrottled, err)
	case http.StatusRequestEntityTooLarge:
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case http.StatusNotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	default:
		return err
	}
}

// parseReport returns what the last REPORT line of a log says. Fields that it does not know, or cannot read, it
// leaves out: AWS adds new ones from time to time.
func parseReport(log string) Report {
	var r Report
	i := strings.LastIndex(log, "REPORT RequestId: ")
	if i < 0 {
		return r
	}
	line, _, _ := strings.Cut(log[i:], "\n")
	for field := range strings.SplitSeq(line, "\t") {
		name, value, _ := strings.Cut(strings.TrimSpace(field), ": ")
		switch name {
		case "Duration":
			r.Duration = milliseconds(value)
		case "Billed Duration":
			r.BilledDuration = milliseconds(value)
		case "Init Duration":
			r.InitDuration = milliseconds(value)
		case "Memory Size":
			r.MemorySizeMB = megabytes(value)
		case "Max Memory Used":
			r.MaxMemoryMB = megabytes(value)
		case "Status":
			r.Status = value
		case "Error Type":
			r.ErrorType = value
		}
	}
	return r
}

func milliseconds(s string) time.Duration {
	d, err := time.ParseDuration(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		return 0
	}
	return d
}

func megabytes(s string) int {
	n, err := strconv.Atoi(strings.TrimSuffix(s, " MB"))
	if err != nil {
		return 0
	}
	return n
}

// Classes returns the memory classes, in MB and ascending, that functions are deployed with: 1,769 MB is one vCPU
// (https://docs.aws.amazon.com/lambda/latest/dg/configuration-memory.html) and its multiples are whole ones; 512 and
// 1,024 are for small stages, and 10,240 is the most there is. A few classes, instead of the exact size of each task,
// keep environments warm.
func Classes() []int { return []int{512, 1024, 1769, 3538, 5307, 7076, 8845, 10_240} }
