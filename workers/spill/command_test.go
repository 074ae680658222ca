package spill

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

// body runs an invoke in memory.
type body = func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error)

// declares lets every command run.
func declares(o *Options) {
	o.Declared = func(context.Context, slot.Order) error { return nil }
}

// order submits a command.
func (s *stack) order(t *testing.T, c wire.Command, change ...func(*wire.Task)) *slottest.Activity {
	t.Helper()
	task := wire.Task{Version: wire.Version, Run: "r", Stage: stage, ID: "score-1", MaxAttempts: 3, Command: true}
	for _, one := range change {
		one(&task)
	}
	return s.frontend.Submit(t, stage.Queue(), task, c)
}

// TestAnInvokeOfACommandIsWaitedAndPaidForToTheEndOfItsGrace: the program may use it to store its checkpoint.
func TestAnInvokeOfACommandIsWaitedAndPaidForToTheEndOfItsGrace(t *testing.T) {
	t.Parallel()
	slow := fit
	slow.Grace = 30 * time.Second
	for name, c := range map[string]struct {
		command wire.Command
		timeout time.Duration
		least   time.Duration
	}{
		"its own":        {slow, time.Minute, 90*time.Second + initAllowance},
		"the usual":      {fit, time.Minute, 70*time.Second + initAllowance},
		"past any limit": {slow, venue.MaxDuration - time.Second, venue.MaxDuration + initAllowance},
		"of no timeout":  {slow, 0, venue.MaxDuration + initAllowance},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			s := start(t, func(ctx context.Context, _ wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
				end, _ := ctx.Deadline()
				if waits, late := end.Sub(began), time.Until(end); waits < c.least || late > c.least {
					t.Errorf("the invoke is given up after %s to %s, want %s", late, waits, c.least)
				}
				return answer(t, wire.Answer{Output: json.RawMessage("1")}), nil
			}, declares)
			if _, err := s.order(t, c.command, func(task *wire.Task) { task.Timeout = c.timeout }).Wait(t); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestACommandNeedsMoneyForItsGraceToo: it is billed.
func TestACommandNeedsMoneyForItsGraceToo(t *testing.T) {
	t.Parallel()
	bounds := make(chan time.Duration, 2)
	s := start(t, func(_ context.Context, start wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		bounds <- start.Bound
		return answer(t, wire.Answer{Output: json.RawMessage("1")}), nil
	}, declares)
	s.frontend.Answer(func(wire.Reserve) wire.Reserved { return wire.Reserved{Amount: 5, Budget: 5} })
	run := func(paid time.Duration) error {
		_, err := s.order(t, fit, func(task *wire.Task) {
			task.Timeout, task.Budgeted = time.Minute, true
			task.Reserved = venue.Price(512*quantity.MiB, venue.ColdStart+paid)
		}).Wait(t)
		return err
	}
	var failed *temporal.ApplicationError
	if err := run(time.Minute); !errors.As(err, &failed) || failed.Type() != wire.RefusedError || len(bounds) > 0 {
		t.Errorf("with money for its timeout: got %v and %d invokes, want it refused, as nothing is known of it", err,
			len(bounds))
	}
	if err := run(70 * time.Second); err != nil || <-bounds != 0 {
		t.Errorf("with money for its grace, too: got %v, want no bound", err)
	}
}

var fit = wire.Command{Arguments: []string{"sh", "-c", "python3 fit.py"}, Program: "python3", Imports: []string{}}

func TestACommandIsForwardedToTheFunctionsOfItsLanguage(t *testing.T) {
	t.Parallel()
	printed := &output{}
	s := start(t, func(_ context.Context, start wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		a := answer(t, wire.Answer{
			Output: start.Input, Wall: 2 * time.Second, Fetch: time.Second, PeakMemory: 50, Written: 9,
			Printed: []wire.Printed{{Text: []byte("out\n")}, {Error: true, Text: []byte("err\n")}},
		})
		a.Log = "START RequestId: 1\nout\nerr\nREPORT RequestId: 1\n"
		return a, nil
	}, declares, func(o *Options) { o.Output = printed.open })
	if _, err := s.order(t, fit).Wait(t); err != nil {
		t.Fatal(err)
	}
	record := s.only(t)
	if record.Host != "commands-python3-512 MiB" || record.Start < time.Second || record.Usage.PeakMemory != 50 ||
		record.Usage.Output != 9 || record.Usage.Fetch != 0 {
		t.Errorf("Record: got %+v, want that of the program at the functions of Python", record)
	}
	if got := printed.String(); got != "1:out\n2:err\nclosed\n" {
		t.Errorf("printed %q, want each stream's own", got)
	}
}

// output takes what is printed, with the number of the stream before it.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) open(wire.LogSource) activities.Output { return o }
func (o *output) Stdout() io.Writer                     { return numbered{o, 1} }
func (o *output) Stderr() io.Writer                     { return numbered{o, 2} }

func (o *output) Close(context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.WriteString("closed\n")
	return nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

type numbered struct {
	o      *output
	number int
}

func (n numbered) Write(p []byte) (int, error) {
	n.o.mu.Lock()
	defer n.o.mu.Unlock()
	return fmt.Fprintf(&n.o.text, "%d:%s", n.number, p)
}

func TestACommandThatNobodyDeclaredReachesNoFunction(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Options){
		"nobody is asked": func(*Options) {},
		"it is not declared": func(o *Options) {
			o.Declared = func(context.Context, slot.Order) error { return slot.ErrUndeclared }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error) {
				t.Error("the command reached a function")
				return activities.FunctionAnswer{}, nil
			}, change)
			_, err := s.order(t, fit).Wait(t)
			var failed *temporal.ApplicationError
			if !errors.As(err, &failed) || failed.Type() != slot.MalformedError || !failed.NonRetryable() {
				t.Errorf("got %v, want a refusal for good", err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			if len(s.records) > 0 {
				t.Errorf("Records: got %+v, want none of what was forged", s.records)
			}
		})
	}
}

func TestWhatFunctionsCannotDoForACommandGoesToThePool(t *testing.T) {
	t.Parallel()
	answers := func(failure wire.StageFailure) body {
		return func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error) {
			return answer(t, wire.Answer{Error: &failure, Checkpoint: &activities.Ref{Digest: "half"}}), nil
		}
	}
	contained, large := fit, fit
	contained.Image = "python:3.12"
	large.Files = []wire.CommandFile{{
		Path: "a", Artifact: activities.Ref{Digest: "a", Bytes: int64(wire.FunctionDisk) + 1},
	}}
	for name, c := range map[string]struct {
		command wire.Command
		body    body // nil when it must not be asked
		timeout time.Duration
		kind    string
		outcome predictor.Outcome
		cause   predictor.Cause
		says    string
	}{
		"an image": {
			contained, nil, 0, wire.RefusedError, predictor.Refused, predictor.CauseStart, "container image python:3.12",
		},
		"files that are too large": {
			large, nil, 0, wire.RefusedError, predictor.Refused, predictor.CauseDisk, "and a function has 512 MiB",
		},
		"a module that is not there": {
			fit, answers(wire.StageFailure{Message: "no torch", Unfit: predictor.CauseStart}), 0, wire.RefusedError,
			predictor.Refused, predictor.CauseStart, "no torch",
		},
		"the function's own time": {
			fit, answers(wire.StageFailure{Message: "over", TimedOut: true}), 0, wire.RefusedError, predictor.TimedOut,
			predictor.CauseTimeout, "over",
		},
		"the stage's timeout, which the pool has too": {
			fit, answers(wire.StageFailure{Message: "over", TimedOut: true}), time.Minute, wire.TimeoutError,
			predictor.TimedOut, predictor.CauseTimeout, "over",
		},
		"a failure that this host may be without": {
			fit, answers(wire.StageFailure{Message: "exit code 1"}), 0, wire.RefusedError, predictor.Failed,
			predictor.CauseError, "exit code 1",
		},
		"what another venue would not mend": {
			fit, answers(wire.StageFailure{Message: "bad", Permanent: true}), 0, wire.StageError, predictor.Failed,
			predictor.CauseError, "bad",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if c.body == nil {
				c.body = func(context.Context, wire.StartAttempt, quantity.Bytes) (activities.FunctionAnswer, error) {
					t.Error("a function was asked")
					return activities.FunctionAnswer{}, nil
				}
			}
			var invoked atomic.Bool
			s := start(t, func(ctx context.Context, start wire.StartAttempt, memory quantity.Bytes) (activities.FunctionAnswer,
				error,
			) {
				invoked.Store(true)
				return c.body(ctx, start, memory)
			}, declares)
			_, err := s.order(t, c.command, func(task *wire.Task) {
				if task.Timeout = c.timeout; c.timeout > 0 {
					task.MaxAttempts = 1
				}
			}).Wait(t)
			var failed *temporal.ApplicationError
			if !errors.As(err, &failed) || failed.Type() != c.kind || !failed.NonRetryable() {
				t.Errorf("got %v, want a final %s", err, c.kind)
			}
			var detail slot.Failure
			if failed != nil && c.kind == wire.RefusedError && failed.Details(&detail) == nil &&
				invoked.Load() && detail.Checkpoint.Digest != "half" {
				t.Errorf("the pool is told of checkpoint %q, want that of the function", detail.Checkpoint.Digest)
			}
			record := s.only(t)
			if record.Outcome != c.outcome || record.Cause != c.cause || !strings.Contains(record.Error, c.says) {
				t.Errorf("Record: got %s for %s: %q; want %s for %s: %q", record.Outcome, record.Cause, record.Error, c.outcome,
					c.cause, c.says)
			}
		})
	}
}

// TestACheckpointOutlivesTheFunctionThatWasKilled has the log of a function that was killed tell of its checkpoint.
func TestACheckpointOutlivesTheFunctionThatWasKilled(t *testing.T) {
	t.Parallel()
	note := wire.FunctionNote{
		Checkpoint: &activities.Ref{Digest: "half", Bytes: 3}, Progress: &wire.Progress{Step: 5, Of: 9},
	}
	printed := &output{}
	s := start(t, func(_ context.Context, start wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		if start.Attempt == 1 {
			return activities.FunctionAnswer{
				Error: "Unhandled", Payload: []byte(`{"errorType":"Runtime.ExitError","errorMessage":"RequestId: 1 Error: ` +
					`Runtime exited with error: signal: killed"}`),
				Memory: 512 * quantity.MiB, PeakMemory: 9 * quantity.MiB,
				Log: "START RequestId: 1\nhalf done\n" + note.Line() + "END RequestId: 1\nREPORT RequestId: 1\n",
			}, nil
		}
		return answer(t, wire.Answer{Output: json.RawMessage(fmt.Sprintf("%q", start.Resume.Digest))}), nil
	}, declares, func(o *Options) { o.Output = printed.open })
	result, err := s.order(t, fit).Wait(t)
	if err != nil || string(result.Output) != `"half"` {
		t.Errorf("got %s, %v, want the checkpoint of the function that was killed", result.Output, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.records) != 2 || s.records[0].Cause != predictor.CauseSignal || s.records[0].Step != 5 ||
		s.records[0].Of != 9 || s.records[1].Outcome != predictor.Succeeded {
		t.Errorf("Records: got %+v, want one that was killed at step 5 of 9 and one that went on", s.records)
	}
	if got := printed.String(); !strings.HasPrefix(got, "2:half done\nclosed\n") {
		t.Errorf("printed %q, want the end of the log without the note", got)
	}
}

// TestATaskGoesOnFromTheCheckpointOfAnotherVenue has a task that another venue gave up.
func TestATaskGoesOnFromTheCheckpointOfAnotherVenue(t *testing.T) {
	t.Parallel()
	s := start(t, func(_ context.Context, start wire.StartAttempt, _ quantity.Bytes) (activities.FunctionAnswer, error) {
		return answer(t, wire.Answer{Output: json.RawMessage(fmt.Sprintf("%q", start.Resume.Digest))}), nil
	}, declares)
	result, err := s.order(t, fit, func(task *wire.Task) {
		task.Resume = activities.Ref{Digest: "there", Bytes: 1}
	}).Wait(t)
	if err != nil || string(result.Output) != `"there"` {
		t.Errorf("got %s, %v, want that it went on from there", result.Output, err)
	}
}
