package runner_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/command/tree"
	"github.com/spillway-ml/spillway/workers/runner"
)

// The tests of this package are not parallel: an environment serves one invoke at a time, and whatever its process has
// started ends with that.

// site is a function in this process.
type site struct {
	store  activities.Store
	dir    string
	log    bytes.Buffer
	handle func(context.Context, wire.Invoke) (wire.Answer, error)
}

func open(t *testing.T, change ...func(*runner.Options)) *site {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("functions run on Linux")
	}
	store, err := artifact.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s := &site{store: store, dir: t.TempDir()}
	options := runner.Options{Store: store, Dir: s.dir, Output: &s.log, Lookup: func(name string) (string, bool) {
		value, set := map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin"}[name]
		return value, set
	}}
	for _, one := range change {
		one(&options)
	}
	s.handle = runner.Handler(t.Context(), options)
	return s
}

// put stores a file.
func (s *site) put(t *testing.T, text string) activities.Ref {
	t.Helper()
	ref, err := s.store.Put(t.Context(), strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return ref
}

// run runs a command as an attempt that change completes.
func (s *site) run(t *testing.T, c wire.Command, change ...func(*wire.StartAttempt)) wire.Answer {
	t.Helper()
	return s.runWithin(t, t.Context(), c, change...)
}

//nolint:revive // t first, as in all tests
func (s *site) runWithin(
	t *testing.T, ctx context.Context, c wire.Command, change ...func(*wire.StartAttempt),
) wire.Answer {
	t.Helper()
	input, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	start := wire.StartAttempt{
		Task:    wire.Task{Run: "r", Stage: predictor.StageID{App: "a", Build: "b", Name: "s"}, ID: "s-0", Command: true},
		Attempt: 1, Input: input, Grant: quantity.Size{CPU: 1500, Memory: 512 * quantity.MiB},
	}
	for _, one := range change {
		one(&start)
	}
	answer, err := s.handle(ctx, wire.Invoke{Version: wire.Version, Start: start})
	if err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(s.dir, "attempts", "*")); err != nil || len(left) > 0 {
		t.Errorf("left of the attempt: %v, %v; want nothing", left, err)
	}
	return answer
}

func sh(script string) wire.Command {
	return wire.Command{Arguments: []string{"sh", "-e", "-c", script}}
}

// said is what an answer has of one stream.
func said(answer wire.Answer, isError bool) string {
	var text strings.Builder
	for _, part := range answer.Printed {
		if part.Error == isError {
			text.Write(part.Text)
		}
	}
	return text.String()
}

func TestACommandRunsWithItsFilesAndLeavesItsOutputs(t *testing.T) {
	s := open(t)
	c := sh(`cat in.txt > out.txt; echo printed; echo complained >&2
		echo '{"progress": 2, "of": 7, "metrics": {"loss": NaN}}' > "$SPILLWAY_REPORT"
		echo '{"progress": 3, "of": 7, "metrics": {"loss": 0.5}}' > "$SPILLWAY_REPORT"
		echo '{"result": {"rows": 2}}' > "$SPILLWAY_REPORT"
		echo "$OMP_NUM_THREADS $SPILLWAY_TASK $SPILLWAY_ATTEMPT" >> out.txt`)
	c.Files = []wire.CommandFile{{Path: "in.txt", Artifact: s.put(t, "given\n")}}
	c.Outputs = []wire.CommandOutput{{Name: "out", Path: "out.txt"}}
	answer := s.run(t, c)
	var result wire.CommandResult
	if err := json.Unmarshal(answer.Output, &result); err != nil || answer.Error != nil {
		t.Fatalf("got %+v, %v; want a result", answer.Error, err)
	}
	content, err := activities.ReadAll(t.Context(), s.store, result.Outputs["out"].Artifact.Digest)
	if want := "given\n2 s-0 1\n"; err != nil || string(content) != want {
		t.Errorf("output: got %q, %v; want %q", content, err, want)
	}
	if diff := cmp.Diff(map[string]any{"rows": 2.0}, result.Values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	// What is said of its first report comes before or after its own words.
	if got := said(answer, true); said(answer, false) != "printed\n" || !strings.Contains(got, "complained\n") ||
		!strings.Contains(got, "NaN") {
		t.Errorf("printed %q and %q; want each stream's own", said(answer, false), got)
	}
	if p := answer.Progress; p == nil || p.Step != 3 || p.Of != 7 || p.Metrics["loss"] != 0.5 {
		t.Errorf("progress: got %+v", answer.Progress)
	}
	if diff := cmp.Diff(&predictor.Curve{
		Metric: "loss", Steps: []int64{3}, Values: []float64{0.5}, NotFinite: []int64{2},
	}, answer.Curve); diff != "" {
		t.Errorf("the curve of its loss (-want +got):\n%s", diff)
	}
	if answer.Wall <= 0 || answer.PeakMemory <= 0 || answer.Read != 6 || answer.Written == 0 {
		t.Errorf("usage: got %+v", answer)
	}
	if _, rest := wire.CutFunctionNotes(s.log.String()); strings.Contains(rest, "spillway-note") ||
		!strings.Contains(rest, "complained\n") {
		t.Errorf("the log without notes: got %q", rest)
	}
}

// TestALogTellsTheLastCheckpointWhateverIsPrintedAfterIt looks at the last 4 KiB of the log at each of its lengths, as
// at a function that was killed then.
func TestALogTellsTheLastCheckpointWhateverIsPrintedAfterIt(t *testing.T) {
	s := open(t)
	answer := s.run(t, sh(`echo half > state; echo '{"checkpoint": "state"}' > "$SPILLWAY_REPORT"
		sleep 0.5
		i=0; while [ $i -lt 400 ]; do echo "line $i of a program that says much"; i=$((i+1)); done
		head -c 9000 /dev/zero | tr '\0' x
		exit 3`))
	if answer.Checkpoint == nil || answer.Error == nil || answer.Error.Permanent ||
		!strings.Contains(answer.Error.Message, "exit code 3") {
		t.Fatalf("got %+v and checkpoint %v; want exit code 3 with one", answer.Error, answer.Checkpoint)
	}
	log := s.log.String()
	first := strings.Index(log, answer.Checkpoint.Digest)
	if first < 0 {
		t.Fatalf("the log has no checkpoint: %q", log)
	}
	first += strings.Index(log[first:], "\n") + 1
	for end := first; end <= len(log); end++ {
		note, _ := wire.CutFunctionNotes(log[max(0, end-4<<10):end])
		if note.Checkpoint == nil || note.Checkpoint.Digest != answer.Checkpoint.Digest {
			t.Fatalf("the last 4 KiB of the first %d bytes of %d: got %+v, want the checkpoint", end, len(log), note)
		}
	}
	// The next attempt goes on from it.
	again := s.run(t, sh(`cat "$SPILLWAY_RESUME"`), func(start *wire.StartAttempt) { start.Resume = *answer.Checkpoint })
	if again.Error != nil || said(again, false) != "half\n" {
		t.Errorf("resumed: got %+v, %q", again.Error, said(again, false))
	}
}

func TestAProgramWhoseTimeIsOverIsStopped(t *testing.T) {
	s := open(t)
	const killed = "; it did not end when it was asked to, and was killed"
	for name, c := range map[string]struct {
		limit  time.Duration // of the function; 0 for none
		script string
		change func(*wire.StartAttempt)
		want   wire.StageFailure
	}{
		"the function's own limit": {8 * time.Second, "sleep 600", func(*wire.StartAttempt) {}, wire.StageFailure{
			TimedOut: true, Message: "the function's time was over",
		}},
		"the stage's timeout": {0, "sleep 600", func(start *wire.StartAttempt) {
			start.Task.Timeout = 300 * time.Millisecond
		}, wire.StageFailure{TimedOut: true, Message: "the attempt ran past the stage's timeout of 300ms"}},
		"the run's money": {0, "sleep 600", func(start *wire.StartAttempt) {
			start.Bound = 400 * time.Millisecond
		}, wire.StageFailure{Bounded: true, Message: "the run's money for the attempt is used up"}},
		"a program that goes on": {0, `trap "" TERM; while true; do sleep 0.05; done`, func(
			start *wire.StartAttempt,
		) {
			start.Bound = 400 * time.Millisecond
		}, wire.StageFailure{Bounded: true, Message: "the run's money for the attempt is used up" + killed}},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			if c.limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.limit)
				defer cancel()
			}
			answer := s.runWithin(t, ctx, sh(c.script), c.change)
			if answer.Error == nil {
				t.Fatal("it ended well")
			}
			if !strings.Contains(c.want.Message, killed) { // a busy machine may be late to end what obeys
				answer.Error.Message = strings.TrimSuffix(answer.Error.Message, killed)
			}
			if diff := cmp.Diff(c.want, *answer.Error); diff != "" {
				t.Errorf("failure (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatAFunctionLacksThePoolMayHave(t *testing.T) {
	s := open(t, func(o *runner.Options) { o.Disk = 8 * quantity.MiB })
	if _, err := exec.LookPath("/usr/bin/python3"); err != nil {
		t.Skipf("needs python3: %v", err)
	}
	large := sh("true")
	large.Files = []wire.CommandFile{{
		Path: "a", Artifact: activities.Ref{Digest: strings.Repeat("a", 64), Bytes: 9 << 20},
	}}
	for name, c := range map[string]struct {
		command wire.Command
		want    predictor.Cause
		says    string
	}{
		"a program":            {wire.Command{Arguments: []string{"no-such-program"}}, predictor.CauseStart, "not in PATH"},
		"a program in a shell": {sh("no-such-program --x"), predictor.CauseStart, "exit code 127"},
		"a module": {
			wire.Command{Arguments: []string{"python3", "-c", "import no_such_module"}},
			predictor.CauseStart,
			"No module named 'no_such_module'",
		},
		"a file of the host": {
			wire.Command{Arguments: []string{"python3", "-c", "open('/srv/no such file')"}},
			predictor.CauseStart,
			"'/srv/no such file'",
		},
		"nothing, but a file of its own": {
			wire.Command{Arguments: []string{"python3", "-c", "open('rows.csv')"}}, "", "'rows.csv'",
		},
		"room for its files": {large, predictor.CauseDisk, "it needs 9 MiB"},
		"room for what it writes": {
			sh("head -c 20000000 /dev/zero > large; sleep 600"), predictor.CauseDisk, "take too much room",
		},
		"nothing": {sh("exit 3"), "", "the command ended with exit code 3"},
		"nothing, by its word": {
			sh(`echo '{"retry": false}' > "$SPILLWAY_REPORT"; exit 3`), "", `it reported {"retry": false}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			answer := s.run(t, c.command)
			if answer.Error == nil || answer.Error.Unfit != c.want || !strings.Contains(answer.Error.Message, c.says) {
				t.Fatalf("got %+v, want %q and %q", answer.Error, c.want, c.says)
			}
			if permanent := strings.Contains(name, "word"); answer.Error.Permanent != permanent {
				t.Errorf("permanent: got %t, want %t", answer.Error.Permanent, permanent)
			}
		})
	}
}

func TestWhatIsWrongWithACommandNoVenueMends(t *testing.T) {
	s := open(t)
	missing := sh("true")
	missing.Files = []wire.CommandFile{{Path: "a", Artifact: activities.Ref{Digest: strings.Repeat("a", 64), Bytes: 1}}}
	for name, c := range map[string]wire.Command{
		"no program": {}, "a file that is gone": missing,
		"a path that leaves": {Arguments: []string{"true"}, Directory: "../.."},
	} {
		t.Run(name, func(t *testing.T) {
			if answer := s.run(t, c); answer.Error == nil || !answer.Error.Permanent || answer.Error.Unfit != "" {
				t.Errorf("got %+v, want a failure for good", answer.Error)
			}
		})
	}
	if _, err := s.handle(t.Context(), wire.Invoke{Version: wire.Version + 1}); !errors.Is(err, wire.ErrVersion) {
		t.Errorf("an invoke of another version: got %v", err)
	}
}

// TestWhatAProgramLeavesRunningEndsWithIt has a program leave one that has no parent any more, in a session of its own.
func TestWhatAProgramLeavesRunningEndsWithIt(t *testing.T) {
	s := open(t)
	answer := s.run(t, sh(`(setsid sh -c 'echo $$ >&2; exec sleep 600' &) ; sleep 0.5; echo done`))
	if answer.Error != nil || said(answer, false) != "done\n" {
		t.Fatalf("got %+v, %q", answer.Error, said(answer, false))
	}
	pid, err := strconv.Atoi(strings.TrimSpace(said(answer, true)))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v, want that it is gone", pid, err)
	}
}

func TestCodeIsUnpackedOnceAndOfMuchOutputTheLastIsKept(t *testing.T) {
	s := open(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go.sh"), []byte("head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	code, err := tree.Pack(t.Context(), s.store, dir, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := wire.Command{Arguments: []string{"sh", "go.sh"}, Code: code}
	first, second := s.run(t, c), s.run(t, c)
	if first.Read == 0 || second.Read != 0 {
		t.Errorf("read %s and %s, want the code the first time only", first.Read, second.Read)
	}
	printed := said(first, false)
	if !strings.HasSuffix(printed, "x\nend\n") || len(printed) > wire.MaxPrinted ||
		len(printed) < wire.MaxPrinted-64<<10 ||
		!strings.Contains(said(first, true), "of the output are not kept") {
		t.Errorf("printed %d bytes and %q, want the last of them with a word", len(printed), said(first, true))
	}
}

// TestTheInterpreterOfTheRuntimeIsFoundFirst puts another python3 where a managed runtime would have its own.
func TestTheInterpreterOfTheRuntimeIsFoundFirst(t *testing.T) {
	lang := t.TempDir()
	if err := os.WriteFile(filepath.Join(lang, "python3"), []byte("#!/bin/sh\necho the runtime\\'s, $LD_LIBRARY_PATH\n"),
		0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	s := open(t, func(o *runner.Options) {
		o.Interpreter = filepath.Join(lang, "python3.13")
		o.Lookup = func(name string) (string, bool) {
			value, set := map[string]string{"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/var/lang/lib"}[name]
			return value, set
		}
	})
	for name, given := range map[string]map[string]string{
		"nothing": nil, "the PATH of a shell": {"PATH": "/usr/local/bin:/usr/bin:/bin"}, "an empty one": {"PATH": ""},
	} {
		answer := s.run(t, wire.Command{Arguments: []string{"python3"}, Environment: given})
		if want := "the runtime's, /var/lang/lib\n"; answer.Error != nil || said(answer, false) != want {
			t.Errorf("given %s: got %+v, %q; want %q", name, answer.Error, said(answer, false), want)
		}
	}
}

// TestWhatAProcessThatWasKilledLeftIsGone has a process before this one leave the files of an attempt.
func TestWhatAProcessThatWasKilledLeftIsGone(t *testing.T) {
	dir := t.TempDir()
	left := filepath.Join(dir, "attempts", "attempt-LEFT")
	if err := errors.Join(os.MkdirAll(filepath.Join(left, "work"), 0o700),
		os.WriteFile(left+".lock", nil, 0o600),
		os.WriteFile(filepath.Join(left, "work", "secret"), []byte("of another"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s := open(t, func(o *runner.Options) { o.Dir = dir })
	s.dir = dir
	answer := s.run(t, sh(`ls ../..`))
	if got := said(answer, false); answer.Error != nil || strings.Contains(got, "LEFT") ||
		!strings.Contains(got, "attempt-") {
		t.Errorf("got %+v, %q; want its own files alone", answer.Error, got)
	}
}

// stuck is a store that takes what is in a file named half no more, nor gives it up unless it is told to.
type stuck struct {
	activities.Store
	gaveUp chan error
}

func (s stuck) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	content, err := io.ReadAll(r)
	if err != nil {
		return activities.Ref{}, err
	}
	if !bytes.Contains(content, []byte("half done")) {
		return s.Store.Put(ctx, bytes.NewReader(content))
	}
	select {
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(20 * time.Second):
		err = errors.New("nobody told it to give up")
	}
	s.gaveUp <- err
	return activities.Ref{}, err
}

// TestACheckpointThatIsNotStoredInTimeHoldsNoAnswerUp has a store that does not take the last checkpoint.
func TestACheckpointThatIsNotStoredInTimeHoldsNoAnswerUp(t *testing.T) {
	gaveUp := make(chan error, 9)
	s := open(t, func(o *runner.Options) { o.Store = stuck{Store: o.Store, gaveUp: gaveUp} })
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	answer := s.runWithin(t, ctx, sh(`echo half done > half; echo '{"checkpoint": "half"}' > "$SPILLWAY_REPORT"; exit 3`))
	if err := <-gaveUp; ctx.Err() != nil || err == nil || !strings.Contains(err.Error(), "no more time") {
		t.Errorf("the store gave up with %v, the function with %v; want that it had no more time, and an answer", err,
			ctx.Err())
	}
	if answer.Error == nil || !strings.Contains(answer.Error.Message, "exit code 3") ||
		!strings.Contains(said(answer, true), "the checkpoint half is not kept") {
		t.Errorf("got %+v, %q", answer.Error, said(answer, true))
	}
}

// TestACheckpointThatIsNotStoredInTimeLeavesTimeForOutputs: of a program that has ended well they are what counts.
func TestACheckpointThatIsNotStoredInTimeLeavesTimeForOutputs(t *testing.T) {
	gaveUp := make(chan error, 9)
	s := open(t, func(o *runner.Options) { o.Store = stuck{Store: o.Store, gaveUp: gaveUp} })
	c := sh(`echo half done > half; echo '{"checkpoint": "half"}' > "$SPILLWAY_REPORT"; echo all done > out`)
	c.Outputs = []wire.CommandOutput{{Name: "out", Path: "out"}}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
	defer cancel()
	answer := s.runWithin(t, ctx, c)
	if err := <-gaveUp; err == nil || !strings.Contains(err.Error(), "no more time") {
		t.Errorf("the store gave up with %v, want that it had no more time", err)
	}
	var result wire.CommandResult
	if err := json.Unmarshal(answer.Output, &result); err != nil || answer.Error != nil ||
		result.Outputs["out"].Artifact.Digest == "" {
		t.Errorf("got %+v and %s, %v; want the output", answer.Error, answer.Output, err)
	}
}

func TestAScriptInPythonFindsTheModuleByWhichItReports(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		commandtest.Skip(t, "python", err)
	}
	answer := open(t).run(t, wire.Command{Arguments: []string{"python3", "-B", "-c", `
import spillway
spillway.progress(3, 10, {"loss": float("nan"), "samples_per_second": 5})
spillway.result(accuracy=0.5)
`}})
	want := &wire.Progress{
		Step: 3, Of: 10, Metrics: map[string]float64{"samples_per_second": 5}, NotFinite: []string{"loss"},
	}
	if diff := cmp.Diff(want, answer.Progress); diff != "" || answer.Error != nil {
		t.Errorf("progress (-want +got):\n%s\n%+v", diff, answer.Error)
	}
	if !strings.Contains(string(answer.Output), `"accuracy":0.5`) {
		t.Errorf("got %s, want the result", answer.Output)
	}
}
