package runs

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"go.temporal.io/api/common/v1"
	enums "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/failure/v1"
	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// TestATaskThatWasAskedToStopAndLostIsCancelled: its host went away before it could say that it had stopped, and came
// back to say that it was lost, or did not.
func TestATaskThatWasAskedToStopAndLostIsCancelled(t *testing.T) {
	t.Parallel()
	beat := wire.Heartbeat{Spent: 3, Running: 4}
	failed := temporal.NewApplicationError("an earlier attempt", wire.StageError, spending{Spent: 3})
	converter := temporal.GetDefaultFailureConverter()
	silent := func(cause error, details ...any) error { // as it comes from a server
		return converter.FailureToError(converter.ErrorToFailure(
			temporal.NewTimeoutError(enums.TIMEOUT_TYPE_HEARTBEAT, cause, details...)))
	}
	for name, c := range map[string]struct {
		version int
		err     error
		state   predictor.RunState
		spent   quantity.Money
	}{
		"lost": {
			1, temporal.NewApplicationError("it ended", wire.LostError, spending{Spent: 7}),
			predictor.RunCancelled, 7,
		},
		"failed": {
			1, temporal.NewApplicationError("it ended", wire.StageError, spending{Spent: 7}),
			predictor.RunFailed, 7,
		},
		"silent":                           {2, silent(nil, beat), predictor.RunCancelled, 7},
		"silent after a failure":           {2, silent(failed, beat), predictor.RunCancelled, 7},
		"silent before its first word":     {2, silent(nil), predictor.RunCancelled, 0},
		"silent without a word, after one": {2, silent(failed), predictor.RunCancelled, 3},
		"silent in a run of version 1":     {1, silent(nil, beat), predictor.RunFailed, 0},
		"lost in a run of version 0": {
			0, temporal.NewApplicationError("it ended", wire.LostError, spending{Spent: 7}),
			predictor.RunFailed, 7,
		},
	} {
		r := &run{version: c.version}
		cost := r.costOf(c.err)
		err := r.lostIsCancelled(c.err, cost)
		if over := Conclude(predictor.RunStarted{}, nil, err, time.Time{}); over.Ended.State != c.state ||
			cost.Spent != c.spent {
			t.Errorf("%s: the run ended as %s, for %d, want %s and %d", name, over.Ended.State, cost.Spent, c.state, c.spent)
		}
		if told, _ := spendingOf(err); c.state == predictor.RunCancelled && told.Spent != c.spent {
			t.Errorf("%s: the error says that %d is spent, want %d", name, told.Spent, c.spent)
		}
	}
}

func TestACancelledRunSaysSoInWords(t *testing.T) {
	t.Parallel()
	failures := temporal.GetDefaultFailureConverter()
	task := func(details ...any) error { // as it comes from a server
		return failures.FailureToError(&failure.Failure{
			Message: "activity error",
			FailureInfo: &failure.Failure_ActivityFailureInfo{
				ActivityFailureInfo: &failure.ActivityFailureInfo{Identity: "1@host"},
			},
			Cause: failures.ErrorToFailure(temporal.NewCanceledError(details...)),
		})
	}
	chunk := failures.FailureToError(&failure.Failure{
		Message: "child workflow execution error",
		FailureInfo: &failure.Failure_ChildWorkflowExecutionFailureInfo{
			ChildWorkflowExecutionFailureInfo: &failure.ChildWorkflowExecutionFailureInfo{
				WorkflowType: &common.WorkflowType{Name: "m"}, WorkflowExecution: &common.WorkflowExecution{WorkflowId: "w"},
			},
		},
		Cause: failures.ErrorToFailure(temporal.NewCanceledError("the chunk was cancelled", spending{})),
	})
	for _, c := range []struct {
		want string
		err  error
	}{
		{"the run was cancelled", temporal.NewCanceledError()},
		{"the run was cancelled: it waited", temporal.NewCanceledError("it waited")},
		{"wait for the weather: canceled", fmt.Errorf("wait for the weather: %w", temporal.NewCanceledError())},
		{"the run was cancelled", temporal.NewCanceledError("Await context canceled")},
		{"the run was cancelled", task(wire.StoppedWithRun)},
		{"the run was cancelled", task()},
		{"the run was cancelled", task(spending{Spent: 7})},
		{"the weather: canceled", fmt.Errorf("the weather: %w", task())},
		{"the weather: canceled", fmt.Errorf("the weather: %w", chunk)},
	} {
		want, err := c.want, c.err
		over := Conclude(predictor.RunStarted{}, nil, err, time.Time{})
		if over.Ended.State != predictor.RunCancelled || over.Ended.Error != want || over.Done.Error != want {
			t.Errorf("%v: the run ended as %s, with %q and %q, want %q", err, over.Ended.State, over.Ended.Error,
				over.Done.Error, want)
		}
	}
}

// TestAChunkAlwaysSaysWhatItHasSpent: also where it ends with an error that is about no task.
func TestAChunkAlwaysSaysWhatItHasSpent(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"a failure":      temporal.NewApplicationError("it fails", wire.StageError),
		"a cancellation": temporal.NewCanceledError(),
		"a silent host":  temporal.NewHeartbeatTimeoutError(wire.Heartbeat{Running: 4}),
		"anything":       errors.New("anything"),
	} {
		told, ok := spendingOf(withSpending(err, "s", 3, spending{Spent: 7}))
		if !ok || told.Spent != 7 {
			t.Errorf("%s: the error says that %+v is spent, want 7", name, told)
		}
	}
	if err := withSpending(nil, "s", 0, spending{Spent: 7}); err != nil {
		t.Errorf("without an error: got %v", err)
	}
}
