package spill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/usage"
	"github.com/spillway-ml/spillway/workers/slot"
)

var venue = predictor.FunctionVenue{
	Enabled: true, Concurrency: 10, MaxMemory: 10240 * quantity.MiB, MaxDuration: 15 * time.Minute,
	Classes:      []quantity.Bytes{512 * quantity.MiB, 1024 * quantity.MiB, 1769 * quantity.MiB, 10240 * quantity.MiB},
	PerGiBSecond: 16_666_667, PerRequest: 200_000,
}

func TestTheClassIsTheSmallestThatHoldsTheNeed(t *testing.T) {
	t.Parallel()
	sizing := predictor.Sizing{
		Stage: predictor.StageID{Name: "s"}, Base: quantity.Size{Memory: 600 * quantity.MiB},
		Term: usage.Term{Feature: usage.InputBytes, Power: 1, PerUnit: 2},
		Wall: predictor.Interval{High: 60}, Learned: true,
	}
	slow := sizing
	slow.Wall.High = 1000
	for _, tt := range []struct {
		name    string
		row     granted
		need    predictor.Need
		task    wire.Task
		class   quantity.Bytes
		refused string
	}{
		{name: "nothing known", class: 512 * quantity.MiB},
		{
			name: "the grant's size", row: granted{size: quantity.Size{Memory: 1769 * quantity.MiB}},
			class: 1769 * quantity.MiB,
		},
		{
			name: "the sizing, when it is more", row: granted{size: quantity.Size{Memory: 512 * quantity.MiB}, sizing: sizing},
			class: 1024 * quantity.MiB,
		},
		{
			name: "the input makes it grow", row: granted{sizing: sizing}, need: predictor.Need{Input: 500 * quantity.MiB},
			class: 1769 * quantity.MiB,
		},
		{
			name: "running out of memory doubles it", need: predictor.Need{OutOfMemory: 1, LargestFailed: 512 * quantity.MiB},
			class: 1024 * quantity.MiB,
		},
		{
			name: "up to all that there is", need: predictor.Need{OutOfMemory: 1, LargestFailed: 6000 * quantity.MiB},
			class: 10240 * quantity.MiB,
		},
		{
			name: "and no further", need: predictor.Need{OutOfMemory: 1, LargestFailed: 10240 * quantity.MiB},
			class:   10240 * quantity.MiB,
			refused: "it needs 20 GiB, and the largest function has 10 GiB",
		},
		{
			name: "an input too large", row: granted{sizing: sizing}, need: predictor.Need{Input: 10 * quantity.GiB},
			class:   10240 * quantity.MiB,
			refused: "the largest function has 10 GiB",
		},
		{
			name: "too long", row: granted{sizing: slow}, class: 1024 * quantity.MiB,
			refused: "up to 16m40s, and a function may take 15m0s",
		},
		{name: "for the pool only", task: wire.Task{PoolOnly: true}, class: 512 * quantity.MiB, refused: "for the pool only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := class(venue, tt.row, tt.need); got != tt.class {
				t.Errorf("class: got %s, want %s", got, tt.class)
			}
			ending, _ := refusedBefore(venue, tt.row, tt.task, tt.need)
			if refused := ending.Outcome == predictor.Refused; refused != (tt.refused != "") ||
				!strings.Contains(ending.Message, tt.refused) {
				t.Errorf("refusal: got %q, want %q", ending.Message, tt.refused)
			}
		})
	}
}

func TestAnAnswerIsReadByWhatTheFunctionSaid(t *testing.T) {
	t.Parallel()
	unhandled := func(payload string) activities.FunctionAnswer {
		return activities.FunctionAnswer{
			Error: "Unhandled", Payload: []byte(payload), Memory: 512 * quantity.MiB,
			PeakMemory: 100 * quantity.MiB,
		}
	}
	full := unhandled(
		`{"errorType":"Runtime.ExitError","errorMessage":"RequestId: 1 Error: Runtime exited with error: signal: killed"}`)
	full.PeakMemory = 510 * quantity.MiB
	outOfMemory := unhandled(`{"errorType":"Runtime.ExitError","errorMessage":"signal: killed"}`)
	outOfMemory.ErrorType = "Runtime.OutOfMemory"
	crashed := unhandled(`{"errorType":"Runtime.ExitError","errorMessage":"exit status 2"}`)
	crashed.Log = "log\npanic: nil map\n\ngoroutine 1"
	for _, tt := range []struct {
		name    string
		answer  activities.FunctionAnswer
		timeout time.Duration
		want    slot.Ending
		message string
	}{
		{
			name: "an output", answer: activities.FunctionAnswer{Payload: []byte(`{"output":1}`)},
			want: slot.Ending{Outcome: predictor.Succeeded},
		},
		{
			name: "an error of the stage", answer: activities.FunctionAnswer{Payload: []byte(
				`{"error":{"message":"boom","stack":"x.go:1","permanent":true}}`)},
			want: slot.Ending{Outcome: predictor.Failed, Stack: "x.go:1", Permanent: true}, message: "boom",
		},
		{
			name: "memory refused to the stage", answer: activities.FunctionAnswer{Payload: []byte(
				`{"error":{"message":"full","out_of_memory":true}}`)},
			want: slot.Ending{Outcome: predictor.OutOfMemory, Cause: predictor.CauseMemoryRefused}, message: "full",
		},
		{
			name: "something else", answer: activities.FunctionAnswer{Payload: []byte(`"hello`)},
			want: slot.Ending{Outcome: predictor.Failed}, message: "no answer",
		},
		{
			name:   "the venue's time limit sends it to the pool",
			answer: unhandled(`{"errorMessage":"2026-01-01 id Task timed out after 900.00 seconds"}`),
			want:   slot.Ending{Outcome: predictor.TimedOut, ToPool: true}, message: "Task timed out",
		},
		{
			name: "the stage's own does not", answer: unhandled(`{"errorMessage":"id Task timed out after 60.00 seconds"}`),
			timeout: time.Minute,
			want:    slot.Ending{Outcome: predictor.TimedOut}, message: "Task timed out",
		},
		{
			name: "killed near its class", answer: full, want: slot.Ending{Outcome: predictor.OutOfMemory},
			message: "510 MiB of its 512 MiB",
		},
		{
			name: "killed far below it", answer: unhandled(`{"errorType":"Runtime.ExitError","errorMessage":"signal: killed"}`),
			want: slot.Ending{Outcome: predictor.Failed, Cause: predictor.CauseSignal}, message: "signal: killed",
		},
		{
			name: "out of memory by the venue's own word", answer: outOfMemory,
			want: slot.Ending{Outcome: predictor.OutOfMemory}, message: "signal: killed",
		},
		{
			name:    "an answer that is too large",
			answer:  unhandled(`{"errorType":"Function.ResponseSizeTooLarge","errorMessage":"exceeded maximum"}`),
			want:    slot.Ending{Outcome: predictor.Refused, Cause: predictor.CausePayload},
			message: "exceeded maximum",
		},
		{
			name: "a crash tells its panic", answer: crashed,
			want:    slot.Ending{Outcome: predictor.Failed, Cause: predictor.CauseExit, Stack: "panic: nil map\n\ngoroutine 1"},
			message: "exit status 2",
		},
		{
			name: "a description that is no JSON", answer: unhandled("plain text"),
			want: slot.Ending{Outcome: predictor.Failed, Cause: predictor.CauseExit}, message: "plain text",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			one := &member{call: &call{}, start: wire.StartAttempt{Task: wire.Task{Timeout: tt.timeout}}}
			got := fates(venue, []*member{one}, tt.answer)[0].ending
			if !strings.Contains(got.Message, tt.message) {
				t.Errorf("message: got %q, want it to say %q", got.Message, tt.message)
			}
			got.Message = ""
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("ending (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAVenueThatIsNotReachedRefusesOrLosesTheTask(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err   error
		what  string
		want  predictor.Outcome
		cause predictor.Cause
	}{
		{fmt.Errorf("429: %w", activities.ErrThrottled), "invoke", predictor.Refused, predictor.CauseThrottled},
		{fmt.Errorf("413: %w", activities.ErrTooLarge), "invoke", predictor.Refused, predictor.CausePayload},
		{errors.New("access denied"), "deploy", predictor.Refused, ""},
		{errors.New("connection reset"), "invoke", predictor.Lost, predictor.CauseVenue},
	} {
		if got := unreached(context.Background(), tt.err, tt.what); got.Outcome != tt.want || got.Cause != tt.cause ||
			!strings.Contains(got.Message, tt.err.Error()) {
			t.Errorf("%s: %v: got %s %s %q, want %s %s", tt.what, tt.err, got.Outcome, got.Cause, got.Message, tt.want, tt.cause)
		}
	}
}

func TestAnInvokeCostsWhatIsBilledAndNeverLessThanWeKnow(t *testing.T) {
	t.Parallel()
	const memory, within = quantity.GiB, 20 * time.Second
	at := time.Unix(100, 0)
	broken, throttled := errors.New("broken"), fmt.Errorf("429: %w", activities.ErrThrottled)
	price := func(seconds int64) quantity.Money { return 200_000 + 16_666_667*quantity.Money(seconds) }
	for _, tt := range []struct {
		name    string
		call    call
		timeout time.Duration
		want    quantity.Money
	}{
		{"never invoked", call{}, 0, 0},
		{"billed", call{invoked: at, answer: activities.FunctionAnswer{Billed: 3 * time.Second}}, 0, price(3)},
		{"throttled", call{invoked: at, err: throttled}, 0, 0},
		{"throttled until it was given up", call{invoked: at, err: throttled, abandoned: true}, 0, 0},
		{"too large", call{invoked: at, err: fmt.Errorf("413: %w", activities.ErrTooLarge)}, 0, 0},
		{"broken after two seconds", call{invoked: at, ended: at.Add(2 * time.Second), err: broken}, 0, price(2)},
		{"broken after its bound", call{invoked: at, ended: at.Add(time.Hour), err: broken, within: within}, 0, price(20)},
		{
			"one that ends with this process is billed until then",
			call{invoked: at, ended: at.Add(5 * time.Second), err: broken, outlives: 10 * time.Second},
			0, price(15),
		},
		{"abandoned runs into the venue's limit", call{invoked: at, ended: at, err: broken, abandoned: true}, 0, price(900)},
		{"or the stage's own", call{invoked: at, ended: at, err: broken, abandoned: true}, time.Minute, price(60)},
		{"or its bound", call{invoked: at, ended: at, err: broken, abandoned: true, within: within}, time.Minute, price(20)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.call.class, tt.call.highest = memory, most(venue, memory, tt.timeout, tt.call.within)
			if got := cost(venue, tt.call); got != tt.want {
				t.Errorf("cost: got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestStartingIsTheWaitForTheVenue(t *testing.T) {
	t.Parallel()
	at := time.Unix(100, 0)
	c := call{
		begun: at, invoked: at, ended: at.Add(5 * time.Second),
		answer: activities.FunctionAnswer{Duration: 3 * time.Second, Init: time.Second},
	}
	if got := started(c); got != 2*time.Second {
		t.Errorf("start: got %s, want 2s", got)
	}
	c.answer.Duration = 6 * time.Second // clocks differ
	if got := started(c); got != time.Second {
		t.Errorf("start with clocks that differ: got %s, want the init of 1s", got)
	}
}

func TestPausesAreSpread(t *testing.T) {
	t.Parallel()
	for draw, want := range map[float64]time.Duration{
		0: time.Second / 2, 0.5: time.Second,
		0.999: 1499 * time.Millisecond,
	} {
		if got := jittered(time.Second, draw); got != want {
			t.Errorf("jittered(1s, %v): got %s, want %s", draw, got, want)
		}
	}
}

func TestALogIsWhatTheFunctionPrinted(t *testing.T) {
	t.Parallel()
	log := "START RequestId: 1 Version: $LATEST\none\n\tEND RequestId: of its own\nEND RequestId: 1\nREPORT RequestId: " +
		"1 Duration: 2 ms"
	if got, want := printed(log), "one\n\tEND RequestId: of its own\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestARunTimeAtAFunctionIsPredictedForItsClass has attempts of ten seconds with one core, and functions that took half
// as long again: the small class has a bit more than half a core.
func TestARunTimeAtAFunctionIsPredictedForItsClass(t *testing.T) {
	t.Parallel()
	sizing := predictor.Sizing{
		Stage: predictor.StageID{App: "app", Name: "score"},
		Base:  quantity.Size{CPU: quantity.Core, Memory: quantity.GiB / 2},
		Wall:  predictor.Interval{Low: 9, Mid: 10, High: 11}, WallFallen: true,
		Duration: usage.Duration{Attempts: 9, Level: 10, Cores: 1},
		Speed:    usage.Speed{Busy: 1, Most: 1, Far: 2, Sizes: 2},
	}
	_, at := refusedBefore(venue, granted{sizing: sizing}, wire.Task{}, predictor.Need{})
	sizing.AtFunctions = 1.5
	_, slower := refusedBefore(venue, granted{sizing: sizing}, wire.Task{}, predictor.Need{})
	if at.Wall.Mid < 14 || at.Wall.Mid > 20 || math.Abs(slower.Wall.Mid/at.Wall.Mid-1.5) > 1e-9 ||
		slower.Wall.Low >= slower.Wall.Mid || slower.Wall.High <= slower.Wall.Mid {
		t.Errorf("predicted %+v, and %+v where functions took half as long again", at.Wall, slower.Wall)
	}
}
