package child_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/child"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

var silent = slog.New(slog.DiscardHandler)

func TestASlotRunsOneAttemptAfterAnother(t *testing.T) {
	t.Parallel()
	slot := serve(t, silent)
	for input, want := range map[string]string{"3": "6", "0": "0", "-4": "-8"} {
		slot.start(attempt("double", input))
		answer := slot.done()
		if string(answer.Output) != want || answer.Error != nil {
			t.Errorf("double of %s: got %s, %+v, want %s", input, answer.Output, answer.Error, want)
		}
		if answer.Wall <= 0 || answer.CPU < 0 || answer.PeakMemory < quantity.MiB {
			t.Errorf("what the attempt took must be measured: %+v", answer)
		}
	}
	if err := slot.hangUp(); err != nil {
		t.Errorf("end of Serve: got %v, want none", err)
	}
}

func TestAStageKnowsItsAttemptAndItsLogLinesNameIt(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	slot := serve(t, slog.New(slog.NewTextHandler(&log, nil)))
	start := attempt("look", "1")
	start.Attempt, start.Task.Timeout = 2, time.Minute
	slot.start(start)
	if diff := cmp.Diff(`{"run":"run-1","stage":"look","task":"look-7","number":2,"venue":"pool","timeout":60000000000}`,
		string(slot.done().Output)); diff != "" {
		t.Errorf("what the stage saw (-want +got):\n%s", diff)
	}
	if err := slot.hangUp(); err != nil { // and with it nobody writes the log any more
		t.Fatal(err)
	}
	if line := log.String(); !strings.Contains(line, "msg=looked run=run-1 stage=look task=look-7") {
		t.Errorf("log: got %q, want the run, the stage and the task", line)
	}
}

func TestATrainingIsToldAsItGoesAndKnowsThoseBefore(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	slot := serve(t, slog.New(slog.NewTextHandler(&log, nil)))
	start := attempt("train", "0")
	start.Past = []predictor.Training{{StepSeconds: 2}, {StepSeconds: 3}}
	slot.start(start)
	for step := int64(1); step <= 3; step++ {
		want := predictor.Training{Executor: "gomlx", Steps: step, TotalSteps: 3}
		if diff := cmp.Diff(&want, slot.next().Training); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", step, diff)
		}
	}
	if answer := slot.done(); string(answer.Output) != "[2,3]" {
		t.Errorf("what the stage knew of earlier trainings: got %s, want [2,3]", answer.Output)
	}
	slot.start(attempt("train", "0"))
	for range 3 {
		slot.next()
	}
	if answer := slot.done(); string(answer.Output) != "null" {
		t.Errorf("what the next attempt knew: got %s, want nothing of the one before", answer.Output)
	}
	if err := slot.hangUp(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "training is left out") {
		t.Errorf("log: got %q, want that a training that cannot be is left out", log.String())
	}
}

func TestProgressAndCheckpointsAreToldAtOnceAndTheNextAttemptGoesOnFromTheLast(t *testing.T) {
	t.Parallel()
	slot := serve(t, silent)
	slot.start(attempt("count", "2"))
	var last activities.Ref
	for step := 1; step <= 2; step++ {
		checkpoint := slot.next().Checkpoint
		if checkpoint == nil || len(checkpoint.Digest) != 64 {
			t.Fatalf("step %d: got %+v, want a checkpoint", step, checkpoint)
		}
		last = *checkpoint
		want := &wire.Progress{Step: step, Metrics: map[string]float64{"done": float64(step) / 2}}
		if diff := cmp.Diff(want, slot.next().Progress); diff != "" {
			t.Errorf("progress of step %d (-want +got):\n%s", step, diff)
		}
	}
	answer := slot.done()
	if string(answer.Output) != "0" || answer.Written != quantity.Bytes(2*last.Bytes) || answer.Read != 0 {
		t.Errorf("first attempt: got %s, %d bytes written, %d read", answer.Output, answer.Written, answer.Read)
	}
	if diff := cmp.Diff(&last, answer.Checkpoint); diff != "" || answer.Progress == nil || answer.Progress.Step != 2 {
		t.Errorf("the answer must repeat the newest reports: %+v %+v", answer.Checkpoint, answer.Progress)
	}

	again := attempt("count", "2")
	again.Attempt, again.Resume = 2, last
	slot.start(again)
	if answer := slot.done(); string(answer.Output) != "2" || answer.Read != quantity.Bytes(last.Bytes) ||
		answer.Progress != nil || answer.Checkpoint != nil {
		t.Errorf("second attempt: got %+v, want that it began at 2 and reported nothing", answer)
	}
}

func TestAnAttemptThatFailsSaysWhatARetryCanHope(t *testing.T) {
	t.Parallel()
	lost := attempt("count", "2")
	lost.Resume = activities.Ref{Digest: strings.Repeat("0", 64), Bytes: 1}
	for name, c := range map[string]struct {
		start wire.StartAttempt
		want  wire.StageFailure
		texts []string
	}{
		"an error": {attempt("fail", `""`), wire.StageFailure{}, []string{"it never works"}},
		"a permanent error": {
			attempt("fail", `"permanent"`),
			wire.StageFailure{Permanent: true},
			[]string{"the file is gone"},
		},
		"a training that is too large for its server": {
			attempt("fail", `"no room"`),
			wire.StageFailure{Permanent: true},
			[]string{"train: the parameter server has no room"},
		},
		"memory that was refused": {
			attempt("fail", `"memory"`),
			wire.StageFailure{OutOfMemory: true},
			[]string{"device: out of memory"},
		},
		"an input of another type": {
			attempt("double", `"two"`),
			wire.StageFailure{Permanent: true},
			[]string{"stage double", "input does not decode", "int"},
		},
		"an object in place of a text": {
			attempt("fail", `{}`),
			wire.StageFailure{Permanent: true},
			[]string{"stage fail", "input does not decode"},
		},
		"a stage that is not listed": {
			attempt("treble", "1"),
			wire.StageFailure{Permanent: true},
			[]string{`stage "treble" is not listed in app.Main`, "add it to Stages"},
		},
		"a checkpoint that is missing": {lost, wire.StageFailure{}, []string{"restore checkpoint", "missing"}},
		"a goroutine that is ended": {
			attempt("goexit", "1"),
			wire.StageFailure{},
			[]string{"stage goexit", "runtime.Goexit", "return an error"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			slot := serve(t, silent)
			slot.start(c.start)
			answer := slot.done()
			if answer.Error == nil || answer.Output != nil {
				t.Fatalf("got %+v, want a failure and no output", answer)
			}
			for _, text := range c.texts {
				if !strings.Contains(answer.Error.Message, text) {
					t.Errorf("message: got %q, want that it says %q", answer.Error.Message, text)
				}
			}
			got := *answer.Error
			got.Message = ""
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
			slot.start(attempt("double", "1"))
			if answer := slot.done(); string(answer.Output) != "2" {
				t.Errorf("the attempt after it: got %+v, want 2", answer)
			}
		})
	}
}

func TestAPanicIsAFailureWithItsStackAndTheSlotGoesOn(t *testing.T) {
	t.Parallel()
	slot := serve(t, silent)
	slot.start(attempt("panic", `"boom"`))
	failure := slot.done().Error
	if failure == nil || failure.Message != "stage panic panicked: boom" || failure.Permanent || failure.OutOfMemory {
		t.Fatalf("got %+v, want a failure that another attempt may avoid", failure)
	}
	if !strings.Contains(failure.Stack, "helpers_test.go") {
		t.Errorf("stack: got %q, want the line of the stage", failure.Stack)
	}
	slot.start(attempt("double", "1"))
	if answer := slot.done(); string(answer.Output) != "2" {
		t.Errorf("the attempt after it: got %+v, want 2", answer)
	}
}

func TestCancelEndsTheContextOfTheAttemptGoingOnAndOfNoOther(t *testing.T) {
	t.Parallel()
	slot := serve(t, silent)
	slot.send(wire.ToChild{Cancel: true}) // nothing goes on
	slot.start(attempt("wait", "1"))
	slot.send(wire.ToChild{Cancel: true})
	if answer := slot.done(); answer.Error != nil {
		t.Errorf("got %+v, want what the stage returned when its context ended", answer)
	}
	slot.send(wire.ToChild{Cancel: true}) // it is over
	slot.start(attempt("look", "1"))
	if answer := slot.done(); answer.Error != nil {
		t.Errorf("the attempt after it: got %+v, want no failure", answer.Error)
	}
}

// Not parallel: the limits are those of the process.
func TestALimitHoldsFromTheMessageOn(t *testing.T) {
	cores, memory := runtime.GOMAXPROCS(0), debug.SetMemoryLimit(-1)
	defer func() {
		runtime.GOMAXPROCS(cores)
		debug.SetMemoryLimit(memory)
	}()
	slot := serve(t, silent)
	for _, c := range []struct {
		name         string
		grant, limit quantity.Size
		cores        string
		memory       int64
	}{
		{"whole cores", quantity.Size{CPU: 3000, Memory: 4 * quantity.GiB}, quantity.Size{}, "3", 4 << 30 * 95 / 100},
		{
			"a part of a core is one",
			quantity.Size{CPU: 100, Memory: 4 * quantity.GiB},
			quantity.Size{},
			"1",
			4 << 30 * 95 / 100,
		},
		{"a part more is one more", quantity.Size{CPU: 1001}, quantity.Size{}, "2", 4 << 30 * 95 / 100},
		{
			"raised while it runs",
			quantity.Size{CPU: 1000, Memory: quantity.GiB},
			quantity.Size{CPU: 4000, Memory: 2 * quantity.GiB},
			"4", 2 << 30 * 95 / 100,
		},
		{
			"lowered while it runs",
			quantity.Size{CPU: 4000, Memory: 2 * quantity.GiB},
			quantity.Size{CPU: 2000, Memory: quantity.GiB},
			"2", 1 << 30 * 95 / 100,
		},
		{"no room is no limit", quantity.Size{}, quantity.Size{}, "2", 1 << 30 * 95 / 100},
	} {
		start := attempt("wait", "1")
		start.Grant = c.grant
		slot.start(start)
		if !c.limit.IsZero() {
			slot.send(wire.ToChild{Limit: &c.limit})
		}
		slot.send(wire.ToChild{Cancel: true}) // messages are obeyed in order: the stage returns under the new limit
		if answer := slot.done(); string(answer.Output) != c.cores {
			t.Errorf("%s: the stage ran on %s cores, want %s", c.name, answer.Output, c.cores)
		}
		if got := debug.SetMemoryLimit(-1); math.Abs(float64(got-c.memory)) > 16 {
			t.Errorf("%s: memory limit %d, want %d", c.name, got, c.memory)
		}
	}
}

func TestTheEndOfTheChannelEndsTheAttemptGoingOnAndWaitsForIt(t *testing.T) {
	t.Parallel()
	fromUs, in := io.Pipe()
	var stopped bool
	begun := make(chan struct{})
	listed := child.NewStages([]runs.AnyStage{workflows.NewStage("linger", func(ctx context.Context, _ int) (int, error) {
		close(begun)
		<-ctx.Done()
		for range 100 {
			runtime.Gosched()
		}
		stopped = true
		return 0, ctx.Err()
	})})
	var out bytes.Buffer
	ended := make(chan error, 1)
	go func() {
		ended <- child.Serve(context.WithoutCancel(t.Context()), listed, openStore(t), silent,
			child.Channels{In: fromUs, Out: &out})
	}()
	slot := &supervisor{t: t, in: in}
	slot.start(attempt("linger", "1"))
	<-begun
	_ = in.Close()
	if err := <-ended; err != nil || !stopped {
		t.Errorf("Serve returned %v, attempt over: %t; want no error and an attempt that is over", err, stopped)
	}
	if !strings.Contains(out.String(), "context canceled") {
		t.Errorf("sent %q, want the end of the attempt", out.String())
	}
}

func TestASlotEndsWhenTheSupervisorIsGoneOrSpeaksNonsense(t *testing.T) {
	t.Parallel()
	gone, other := io.Pipe()
	_ = gone.Close()
	for name, c := range map[string]struct {
		in   string
		out  io.Writer
		want string
	}{
		"nobody reads": {"", other, "write to supervisor"},
		"text":         {"hello\n", io.Discard, "read from supervisor"},
		"half a line":  {`{"cancel":tr`, io.Discard, "read from supervisor"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := child.Serve(t.Context(), stages(), openStore(t), silent,
				child.Channels{In: strings.NewReader(c.in), Out: c.out})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error that says %q", err, c.want)
			}
		})
	}
}

func TestAnAttemptWhoseReportsNobodyReadsStillEnds(t *testing.T) {
	t.Parallel()
	slot := serve(t, silent)
	_ = slot.out.Close()
	slot.start(attempt("count", "50"))
	if err := slot.hangUp(); err != nil {
		t.Errorf("got %v, want none", err)
	}
}

func TestAFunctionAnswersAsASlotDoes(t *testing.T) {
	t.Parallel()
	invoke := child.Function(stages(), openStore(t), silent)
	call := func(start wire.StartAttempt) wire.Answer {
		t.Helper()
		answer, err := invoke(t.Context(), wire.Invoke{Version: wire.Version, Start: start})
		if err != nil {
			t.Fatalf("a failure of the stage is no failure of the function: %v", err)
		}
		return answer
	}
	if answer := call(attempt("double", "4")); string(answer.Output) != "8" || answer.Wall <= 0 {
		t.Errorf("double of 4: got %+v", answer)
	}
	if answer := call(attempt("look", "1")); !strings.Contains(string(answer.Output),
		`"venue":"`+string(predictor.Function)+`"`) {
		t.Errorf("the stage saw %s, want the venue function", answer.Output)
	}
	if answer := call(attempt("fail", `"permanent"`)); answer.Error == nil || !answer.Error.Permanent {
		t.Errorf("a permanent failure: got %+v", answer.Error)
	}
	if answer := call(attempt("panic", `"boom"`)); answer.Error == nil || answer.Error.Stack == "" {
		t.Errorf("a panic: got %+v", answer.Error)
	}
	answer := call(attempt("count", "3"))
	if answer.Progress == nil || answer.Progress.Step != 3 || answer.Checkpoint == nil {
		t.Errorf("a function tells its newest reports with its answer: got %+v", answer)
	}
	again := attempt("count", "3")
	again.Resume = *answer.Checkpoint
	if answer := call(again); string(answer.Output) != "3" {
		t.Errorf("the next attempt began at %s, want 3", answer.Output)
	}
}

func TestAFunctionRefusesAVersionThatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	invoke := child.Function(stages(), openStore(t), silent)
	for _, version := range []int{0, wire.Version + 1} {
		if _, err := invoke(t.Context(), wire.Invoke{Version: version, Start: attempt("double", "4")}); !errors.Is(err,
			wire.ErrVersion) {
			t.Errorf("version %d: got %v, want ErrVersion", version, err)
		}
	}
}

func TestEachAttemptMarksTheEndOfWhatItPrinted(t *testing.T) {
	t.Parallel()
	s := serve(t, silent)
	for n := 1; n <= 2; n++ {
		s.start(attempt("double", `21`))
		s.done()
		if got, want := s.printed.String(), strings.Repeat(wire.OutputEnd, n); got != want {
			t.Errorf("after %d attempts: got %q, want %q", n, got, want)
		}
	}
}

func TestAStageFindsTheServerThatComesWithItsAttempt(t *testing.T) {
	t.Parallel()
	type key struct{}
	listed := child.NewStages([]runs.AnyStage{workflows.NewStage("ask", func(ctx context.Context, _ int) (string, error) {
		server, _ := ctx.Value(key{}).(string)
		return server, nil
	})})
	for server, want := range map[string]string{"": `""`, "here": `"here"`, "elsewhere": `""`} {
		start := attempt("ask", "1")
		message, err := json.Marshal(wire.ToChild{Start: &start, Server: server})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		fromUs, in := io.Pipe()
		toThem := io.MultiReader(bytes.NewReader(message), fromUs)
		err = child.Serve(t.Context(), listed, openStore(t), silent, child.Channels{
			In: toThem, Out: writes(func(p []byte) (int, error) {
				if bytes.Contains(p, []byte(`"done"`)) {
					_ = in.Close()
				}
				return out.Write(p)
			}),
			Server: func(ctx context.Context, location string) (context.Context, error) {
				if location != "here" {
					return nil, errors.New("it is not on this machine")
				}
				return context.WithValue(ctx, key{}, location), nil
			},
		})
		if err != nil || !strings.Contains(out.String(), `"output":`+want) {
			t.Errorf("server %q: %q, %v; want the output %s", server, out.String(), err, want)
		}
	}
}

// writes is an io.Writer.
type writes func(p []byte) (int, error)

func (w writes) Write(p []byte) (int, error) { return w(p) }

// TestAFunctionWithoutAParameterServerIsUnfit: at the pool there may be one.
func TestAFunctionWithoutAParameterServerIsUnfit(t *testing.T) {
	t.Parallel()
	answer, err := child.Function(stages(), openStore(t), silent)(t.Context(),
		wire.Invoke{Version: wire.Version, Start: attempt("serve", "1")})
	if err != nil {
		t.Fatal(err)
	}
	failure := answer.Error
	if failure == nil || failure.Unfit != predictor.CauseStart || !strings.Contains(failure.Message, "parameter server") {
		t.Errorf("a function: %+v", failure)
	}
	slot := serve(t, silent)
	slot.start(attempt("serve", "1"))
	if failure := slot.done().Error; failure == nil || failure.Unfit != "" {
		t.Errorf("the pool: %+v", failure)
	}
}
