package spill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"strings"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
	"github.com/spillway-ml/spillway/workers/slot"
)

const (
	// maxPayload is what a synchronous invoke takes.
	maxPayload = int(predictor.MaxPayload)
	// initAllowance is what an invoke may take on top of the stage's timeout: deployment is done, an environment may have
	// to start.
	initAllowance = 10 * time.Second
	// nearClass is the share of the class at which a killed function is taken to have run out of memory.
	nearClass = 0.9
)

// needed returns how much memory an attempt shall have at a function, at least.
func needed(
	venue predictor.FunctionVenue, row granted, need predictor.Need,
) (memory quantity.Bytes, expected predictor.Prediction) {
	memory = row.size.Memory
	if row.sizing.Stage.Name != "" {
		// A size that the venue does not have must show, so the capacity is one that cuts nothing.
		var wanted quantity.Size
		capacity := quantity.Size{CPU: size.OfClass(venue.MaxMemory).CPU, Memory: quantity.TiB}
		wanted, expected, _ = row.sizing.For(need, capacity)
		memory = max(memory, wanted.Memory+predictor.FunctionOverhead)
	}
	if need.OutOfMemory > 0 {
		memory = max(memory, need.LargestFailed*predictor.GrowAfterOutOfMemory)
		if need.LargestFailed < venue.MaxMemory {
			memory = min(memory, venue.MaxMemory) // one more try with all that there is
		}
	}
	return memory, expected
}

// class returns the smallest memory class that holds what the attempt needs; the largest when none does.
func class(venue predictor.FunctionVenue, row granted, need predictor.Need) quantity.Bytes {
	memory, _ := needed(venue, row, need)
	for _, offered := range venue.Classes {
		if offered >= memory {
			return offered
		}
	}
	return venue.Classes[len(venue.Classes)-1]
}

// refusedBefore decides whether a function can run the attempt at all, from what is known before; the Outcome is empty
// when it can.
func refusedBefore(
	venue predictor.FunctionVenue, row granted, task wire.Task, need predictor.Need,
) (slot.Ending, predictor.Prediction) {
	memory, expected := needed(venue, row, need)
	if row.sizing.Stage.Name != "" {
		expected.Wall = row.sizing.FunctionWall(need, class(venue, row, need))
	}
	if largest := min(venue.MaxMemory, venue.Classes[len(venue.Classes)-1]); memory > largest {
		return refused("it needs %s, and the largest function has %s", memory, largest), expected
	}
	if task.PoolOnly {
		return refused("it is for the pool only"), expected
	}
	if wall := time.Duration(expected.Wall.High * float64(time.Second)); row.sizing.Learned && wall > venue.MaxDuration {
		return refused("it is expected to take up to %s, and a function may take %s", wall.Round(time.Second),
			venue.MaxDuration), expected
	}
	return slot.Ending{}, expected
}

// commandRefused decides whether a function can run a command, from what it says of itself and brings along, and tells
// what mainly runs in it, and for how long that goes on past its timeout; the Outcome is empty when it can.
func commandRefused(
	venue predictor.FunctionVenue, input json.RawMessage, resume activities.Ref,
) (program string, stops time.Duration, ending slot.Ending) {
	var c wire.Command
	if err := json.Unmarshal(input, &c); err != nil {
		return "", 0, refused("it does not decode: %v", err)
	}
	room := c.Room(resume)
	switch why := c.PoolOnly(); {
	case venue.NoCommands != "":
		ending = refused("%s", venue.NoCommands)
	case why != "":
		ending = because(predictor.CauseStart, refused("%s", why))
	case room > wire.FunctionDisk:
		ending = because(predictor.CauseDisk, refused("it needs %s for its code and its files, and a function has %s", room,
			wire.FunctionDisk))
	}
	return c.Runs(), c.Stops(), ending
}

// refused is the ending of an attempt that the venue cannot run.
func refused(format string, arguments ...any) slot.Ending {
	return slot.Ending{
		Outcome: predictor.Refused,
		Message: predictor.CannotRun + fmt.Sprintf(format, arguments...),
	}
}

// unreached decides what it means that the function could not be deployed or invoked, and so did not run or not to its
// end. The pool can do what the venue says it cannot; anything else is tried again.
func unreached(ctx context.Context, err error, what string) slot.Ending {
	switch {
	case ctx.Err() != nil:
		outcome, reason := slot.Stopped(ctx)
		return slot.Ending{Outcome: outcome, Message: reason}
	case errors.Is(err, activities.ErrThrottled):
		return because(predictor.CauseThrottled, refused("the venue takes no more invokes now: %s: %v", what, err))
	case errors.Is(err, activities.ErrTooLarge):
		return because(predictor.CausePayload, refused("%s: %v", what, err))
	case what == "deploy":
		return refused("%s: %v", what, err)
	default:
		return slot.Ending{
			Outcome: predictor.Lost, Cause: predictor.CauseVenue,
			Message: fmt.Sprintf("%s the function: %v", what, err),
		}
	}
}

// overBudget is the ending of an attempt that a function may not run because of what it costs: the pool may be cheaper.
func overBudget(format string, arguments ...any) slot.Ending {
	return because(predictor.CauseBudget, refused(format, arguments...))
}

// because gives an ending its cause.
func because(cause predictor.Cause, ending slot.Ending) slot.Ending {
	ending.Cause = cause
	return ending
}

// slower is how much longer than expected of its class an invoke may take.
const slower = 2

// longest is how long an invoke is expected to take at most; as long as it may when nothing is known.
func longest(venue predictor.FunctionVenue, timeout time.Duration, expected predictor.Prediction) time.Duration {
	limit := limitOf(venue, timeout)
	if wall := slower * expected.Wall.High; wall > 0 && wall < limit.Seconds() {
		return time.Duration(wall * float64(time.Second))
	}
	return limit
}

// limitOf is how long an invoke may take if its run's money does not end it before.
func limitOf(venue predictor.FunctionVenue, timeout time.Duration) time.Duration {
	if bounded(venue, timeout) {
		return timeout
	}
	return venue.MaxDuration
}

// needs is the money that an invoke shall have before it begins: for a cold start, and for a bound that leaves its code
// as long as expected. A run that has to be asked, because less is left, is asked for the longest grace at once: code
// of a few milliseconds is late by more than its share when it starts for the first time.
func needs(
	venue predictor.FunctionVenue, class quantity.Bytes, timeout, expected time.Duration, left quantity.Money,
) quantity.Money {
	priced := func(grace time.Duration) quantity.Money {
		return venue.Price(class, venue.ColdStart+min(expected+grace, limitOf(venue, timeout)))
	}
	// A quarter of four thirds is the third: what the grace takes of a short bound is what is added here.
	if enough := priced(min(wire.MaxBoundGrace, expected/3+time.Millisecond)); enough <= left {
		return enough
	}
	return priced(wire.MaxBoundGrace)
}

// bound is how long an invoke may take with what is left of the run's money for it, a cold start set aside; 0 means as
// long as any. It is whole milliseconds, as it is billed, so that the invoke costs no more than is left.
func bound(
	venue predictor.FunctionVenue, class quantity.Bytes, timeout time.Duration, left quantity.Money, isBounded bool,
) time.Duration {
	within := venue.ColdStart + limitOf(venue, timeout)
	if !isBounded || venue.Price(class, within) <= left {
		return 0
	}
	tooLong := sort.Search(int(within/time.Millisecond), func(milliseconds int) bool {
		return venue.Price(class, time.Duration(milliseconds)*time.Millisecond) > left
	})
	return max(time.Duration(tooLong-1)*time.Millisecond-venue.ColdStart, time.Millisecond)
}

// most is what an invoke can cost that goes on without us: as long as it may take, with a cold start where its money
// bounds it.
func most(venue predictor.FunctionVenue, class quantity.Bytes, timeout, within time.Duration) quantity.Money {
	limit := limitOf(venue, timeout)
	if within > 0 {
		limit = min(limit, within+venue.ColdStart)
	}
	return venue.Price(class, limit)
}

// functionError is how a function describes that it failed.
// Source: https://docs.aws.amazon.com/lambda/latest/dg/invocation-retries.html
type functionError struct {
	Type    string `json:"errorType"`
	Message string `json:"errorMessage"`
}

// noAnswer is the ending of an attempt whose function returned something else.
func noAnswer(err error) slot.Ending {
	return slot.Ending{
		Outcome: predictor.Failed,
		Message: "the function returned something that is no answer; build the app with this version of spillway: " +
			err.Error(),
	}
}

// answered decides how an attempt ended whose function answered. Errors of user code are part of the Answer: an error
// of the function means that its environment died.
func answered(venue predictor.FunctionVenue, task wire.Task, answer wire.Answer) slot.Ending {
	failure := answer.Error
	switch {
	case failure == nil:
		return slot.Ending{Outcome: predictor.Succeeded}
	case failure.Unfit != "":
		return because(failure.Unfit, refused("%s", failure.Message))
	case failure.TimedOut:
		return slot.Ending{
			Outcome: predictor.TimedOut, ToPool: !bounded(venue, task.Timeout), Message: failure.Message,
		}
	case failure.Bounded:
		return overBudget("it used up what the run's budget has for this task: %s", failure.Message)
	case failure.Crowded:
		return slot.Ending{
			Outcome: predictor.Lost, Message: failure.Message + "; it is tried again with an invoke for itself",
		}
	case failure.OutOfMemory:
		return slot.Ending{
			Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryRefused, Message: failure.Message,
			Stack: failure.Stack, Permanent: failure.Permanent,
		}
	default:
		// A command may want something of this host that nobody can see before, so the pool has the next try, also after
		// the last.
		return slot.Ending{
			Outcome: predictor.Failed, Message: failure.Message, Stack: failure.Stack,
			Permanent: failure.Permanent, ToPool: task.Command && !failure.Permanent,
		}
	}
}

// saidBy is what a function whose environment died says of it.
func saidBy(a activities.FunctionAnswer) functionError {
	said := functionError{Message: string(a.Payload)}
	if err := json.Unmarshal(a.Payload, &said); err != nil {
		said = functionError{Message: strings.TrimSpace(string(a.Payload))}
	}
	return said
}

// limitPassed is what a function says that ran into its own time limit.
const limitPassed = "Task timed out"

// ranOut reports whether a function's environment died because the invoke took as long as it may: not because of what a
// task's own timeout or its run's money ended, which are named first.
func ranOut(a activities.FunctionAnswer) bool {
	said := saidBy(a).Message
	return strings.Contains(said, limitPassed) && !strings.Contains(said, wire.BoundPassed) &&
		!strings.Contains(said, wire.TimeoutPassed)
}

// died decides how an attempt ended whose environment died.
func died(venue predictor.FunctionVenue, task wire.Task, a activities.FunctionAnswer) slot.Ending {
	said := saidBy(a)
	message := strings.TrimSpace(said.Type + " " + said.Message)
	switch {
	case strings.Contains(said.Message, wire.BoundPassed):
		return overBudget("%s", said.Message)
	case strings.Contains(said.Message, wire.TimeoutPassed):
		return slot.Ending{Outcome: predictor.TimedOut, Message: said.Message}
	case ranOut(a):
		return slot.Ending{
			Outcome: predictor.TimedOut, ToPool: !bounded(venue, task.Timeout),
			Message: "the function ran into its time limit: " + message,
		}
	case a.ErrorType == "Runtime.OutOfMemory", said.Type == "Runtime.OutOfMemory",
		strings.Contains(said.Message, "signal: killed") && float64(a.PeakMemory) >= nearClass*float64(a.Memory):
		return slot.Ending{
			Outcome: predictor.OutOfMemory,
			Message: fmt.Sprintf("the function was killed with %s of its %s used: %s", a.PeakMemory, a.Memory, message),
		}
	case said.Type == "Function.ResponseSizeTooLarge":
		return because(predictor.CausePayload, refused("its answer is too large: %s", said.Message))
	default:
		cause := predictor.CauseExit
		if strings.Contains(said.Message, "signal: killed") {
			cause = predictor.CauseSignal
		}
		return slot.Ending{
			Outcome: predictor.Failed, Cause: cause,
			Message: "the function's process ended: " + message, Stack: panicked(a.Log),
		}
	}
}

// panicked returns the panic at the end of a function's log; empty when there is none.
func panicked(log string) string {
	if at := strings.LastIndex(log, "panic: "); at >= 0 {
		return log[at:]
	}
	return ""
}

// bounded reports whether the stage's own timeout ends an attempt before the venue's limit does.
func bounded(venue predictor.FunctionVenue, timeout time.Duration) bool {
	return timeout > 0 && timeout < venue.MaxDuration
}

// cost is what an invoke cost: what was billed, where the venue said so. An invoke that was abandoned goes on without
// us and is counted as if it ran into its limit, or into the bound that its run's money sets it, because spending must
// never be understated. One that broke, or ends with this process, is counted for the time until it did or does, and
// one that the venue did not take costs nothing.
func cost(venue predictor.FunctionVenue, c call) quantity.Money {
	switch {
	case c.invoked.IsZero(), errors.Is(c.err, activities.ErrThrottled), errors.Is(c.err, activities.ErrTooLarge):
		return 0
	case c.err == nil:
		return venue.Price(c.class, c.answer.Billed)
	case c.abandoned:
		return c.highest
	default:
		return min(venue.Price(c.class, c.ended.Sub(c.invoked)+c.outlives), c.highest)
	}
}

// started is how long it took until user code ran: the wait for the venue and, when cold, the start of an environment.
func started(c call) time.Duration {
	if c.invoked.IsZero() || c.err != nil {
		return 0
	}
	return max(c.ended.Sub(c.begun)-c.part.waited-c.answer.Duration, c.answer.Init)
}

// usageOf is what the attempt took, from the venue's report where user code measured nothing. What a command took is
// known of its program alone: the venue tells the peak of its environment, in which others have run before.
func usageOf(c call, answer wire.Answer, task wire.Task) quantity.Usage {
	usage := quantity.Usage{
		CPU: answer.CPU, Wall: answer.Wall, Fetch: answer.Fetch, Publish: answer.Publish,
		PeakMemory: max(c.answer.PeakMemory, answer.PeakMemory),
		Input:      task.Input, Output: quantity.Bytes(len(answer.Output)) + answer.Written,
	}
	if task.Command && answer.PeakMemory > 0 {
		usage.PeakMemory, usage.Output = answer.PeakMemory, answer.Written
	}
	if task.Command {
		usage.Fetch = 0 // it was before the program ran: see the Record's Start
	}
	if usage.Wall <= 0 {
		usage.Wall = c.part.ran
	}
	return usage
}

// printed is a function's log without the lines that the venue adds around an invoke.
// Source: https://docs.aws.amazon.com/lambda/latest/dg/monitoring-logs.html
func printed(log string) string {
	var kept strings.Builder
	for line := range strings.Lines(log) {
		if !strings.HasPrefix(line, "START RequestId:") && !strings.HasPrefix(line, "END RequestId:") &&
			!strings.HasPrefix(line, "REPORT RequestId:") {
			kept.WriteString(line)
		}
	}
	return kept.String()
}
