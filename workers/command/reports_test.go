package command_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/termination"
)

// follow reads a text as reports.
func follow(tb testing.TB, w *command.Workspace, text string) ran {
	tb.Helper()
	var r ran
	r.reported = w.Follow(tb.Context(), strings.NewReader(text), command.Listener{
		Progress: func(step, of int, metrics map[string]float64) {
			told := wire.NewProgress(step, of, metrics)
			said := map[string]any{"step": step, "metrics": map[string]float64{}}
			if told.Metrics != nil {
				said["metrics"] = told.Metrics
			}
			if told.NotFinite != nil {
				said["not_finite"] = told.NotFinite
			}
			if of != 0 {
				said["of"] = of
			}
			line, err := json.Marshal(said)
			if err != nil {
				tb.Errorf("progress %d %v: %v", step, metrics, err)
			}
			r.told = append(r.told, string(line))
		},
		Checkpoint: func(ref activities.Ref) { r.kept = append(r.kept, ref) },
		Training: func(training predictor.Training) {
			r.told = append(r.told, fmt.Sprintf("training: %d of %d steps in %d parts", training.Steps, training.TotalSteps,
				len(training.Parts)))
		},
		Warn: func(text string) { r.told = append(r.told, "warning: "+text) },
	})
	return r
}

func TestAProgramReportsItsProgressAndItsResult(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: sh(`
		echo '{"progress": 1, "metrics": {"loss": 0.5}}' >$SPILLWAY_REPORT
		echo '{"progress": 2}' >&4
		echo '{"result": {"accuracy": 0.5, "seen": 9007199254740993}}' >$SPILLWAY_REPORT
		echo '{"result": {"accuracy": 0.98}, "progress": 3}' >$SPILLWAY_REPORT
		printf '{"out_of_memory": "device"}' >$SPILLWAY_REPORT
	`)}, activities.Ref{})
	r := run(t, w, command.Launch{})
	if r.err != nil {
		t.Fatal(r.err, r.output)
	}
	want := []string{`{"metrics":{"loss":0.5},"step":1}`, `{"metrics":{},"step":2}`, `{"metrics":{},"step":3}`}
	if diff := cmp.Diff(want, r.told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
	reported := command.Reported{
		Values:      map[string]any{"accuracy": json.Number("0.98"), "seen": json.Number("9007199254740993")},
		OutOfMemory: termination.Device, Lines: 5,
	}
	if diff := cmp.Diff(reported, r.reported); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
}

func TestALineThatCannotBeUnderstoodIsAWarningAndTheNextIsRead(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	for line, want := range map[string]string{
		`epoch 1: loss 0.5`: "not a JSON object",
		`[1]`:               "not a JSON object",
		`null`:              "not a JSON object",
		`{"progress": 1, "metrics": {"loss": 1e999}}`: "metrics",
		`{"training": 3}`:                                         "does not tell how a training goes",
		`{"training": null}`:                                      "null",
		`{"training": {"steps": "many"}}`:                         "does not tell how a training goes",
		`{"training": {"step_seconds": -1}}`:                      "must be between 0 and",
		`{"training": {"parts": [{}, {"peak_bytes": -1}]}}`:       "part 1: a peak of -1 bytes",
		`{"progress": 1.5}`:                                       "not the number of a step",
		`{"progress": -1}`:                                        "not the number of a step",
		`{"progress": "1"}`:                                       "not the number of a step",
		`{"retry": null}`:                                         "neither true nor false",
		`{"retry": "no"}`:                                         "neither true nor false",
		`{"progress": 1, "metrics": {"loss": "low"}}`:             "loss are not numbers",
		`{"progress": 1, "metrics": [1]}`:                         "not an object of numbers",
		`{"metrics": {"loss": 1}}`:                                "without progress",
		`{"progres": 1}`:                                          `"progres": no such key`,
		`{"checkpoint": 1}`:                                       "not a path",
		`{"checkpoint": "missing"}`:                               "nothing at missing",
		`{"checkpoint": "/etc/hostname"}`:                         "not below",
		`{"checkpoint": "../../../../../../etc"}`:                 "not below",
		`{"checkpoint": "."}`:                                     "not below",
		`{"result": 1}`:                                           "not an object",
		`{"out_of_memory": "disk"}`:                               "neither",
		`{"result": {"x": "` + strings.Repeat("x", 1<<20) + `"}}`: "longer than 1 MiB",
		"\xff\xfe": "not a JSON object",
	} {
		t.Run(fmt.Sprintf("%.40s", line), func(t *testing.T) {
			t.Parallel()
			r := follow(t, w, "\n"+line+"\n"+`{"progress": 7}`)
			n := len(r.told)
			if n < 2 || !strings.HasPrefix(r.told[n-2], "warning: report line 2: ") || !strings.Contains(r.told[n-2], want) ||
				r.told[n-1] != `{"metrics":{},"step":7}` {
				t.Errorf("told: got %q, want a warning of line 2 with %q, and step 7", r.told, want)
			}
		})
	}
}

func TestAProgramTellsHowMuchThereIsToDo(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	const plain = `{"metrics":{},"step":12}`
	for of, want := range map[string][]string{
		"50":      {`{"metrics":{},"of":50,"step":12}`},
		"12":      {`{"metrics":{},"of":12,"step":12}`},
		"9e15":    {`{"metrics":{},"of":9000000000000000,"step":12}`},
		"null":    {plain},
		"0":       {`"of": 0 is not how many there are`, plain},
		"-50":     {`"of": -50 is not how many`, plain},
		"50.5":    {`"of": 50.5 is not how many`, plain},
		"1e300":   {`"of": 1e300 is not how many`, plain},
		`"fifty"`: {`"of": \"fifty\" is not how many`, plain},
		"[50]":    {`"of": [50] is not how many`, plain},
		"NaN":     {"taken for null", plain},
		"11":      {`"of": 12 are done, of 11: it is left out`, plain},
	} {
		t.Run(of, func(t *testing.T) {
			t.Parallel()
			r := follow(t, w, `{"progress": 12, "of": `+of+`}`)
			if len(r.told) != len(want) {
				t.Fatalf("told: got %q, want %q", r.told, want)
			}
			for i, text := range want {
				if !strings.Contains(r.told[i], strings.ReplaceAll(text, `\"`, `"`)) {
					t.Errorf("told: got %q, want %q", r.told[i], text)
				}
			}
		})
	}
	r := follow(t, w, `{"progress": 1, "of": 50}`+"\n"+`{"progress": 2, "of": 60}`+"\n"+`{"progress": 3, "of": 70}`+"\n"+
		`{"of": 70}`)
	want := []string{
		`{"metrics":{},"of":50,"step":1}`,
		"warning: report line 2: \"of\": it was 50 and is 60; the newest counts, and the end is predicted the less surely",
		`{"metrics":{},"of":60,"step":2}`, `{"metrics":{},"of":70,"step":3}`,
		"warning: report line 4: it has of without progress, the number of the step",
	}
	if diff := cmp.Diff(want, r.told); diff != "" {
		t.Errorf("a total that changes is told once (-want +got):\n%s", diff)
	}
}

func TestAStepWhoseLossHasDivergedStillCounts(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	r := follow(t, w,
		`{"progress": 3, "metrics": {"loss": NaN, "a": -Infinity, "rate": 0.1, "note \"NaN": 2}, "result": {"words": "NaN, `+
			`\"Infinity", "loss": Infinity}}`)
	if len(r.told) != 2 || !strings.Contains(r.told[0], "taken for null") ||
		r.told[1] != `{"metrics":{"note \"NaN":2,"rate":0.1},"not_finite":["a","loss"],"step":3}` {
		t.Errorf("told: got %q, want a warning and the step with its metrics, those that are not finite by name", r.told)
	}
	if diff := cmp.Diff(map[string]any{"words": `NaN, "Infinity`, "loss": nil}, r.reported.Values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
	left, err := w.Collect(t.Context(), r.reported.Values)
	if diff := cmp.Diff([]string{"a", "loss"}, left.NotFinite); err != nil || diff != "" {
		t.Errorf("what was no finite number: %v (-want +got):\n%s", err, diff)
	}
	follow(t, w, `{"progress": 3, "metrics": {"loss": NaN}}`+"\n"+`{"progress": 4, "metrics": {"loss": 0.5}}`)
	if left, err = w.Collect(t.Context(), nil); err != nil || left.NotFinite != nil {
		t.Errorf("after a finite loss %v is left, %v", left.NotFinite, err)
	}
}

func TestAResultThatIsTooLargeIsRefusedAsAWhole(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	half := strings.Repeat("x", 600<<10)
	r := follow(t, w, fmt.Sprintf(`{"result": {"a": %q}}`+"\n"+`{"result": {"b": %q}}`+"\n"+`{"result": {"a": 1}}`, half,
		half))
	if len(r.told) != 1 || !strings.Contains(r.told[0], "larger than 1 MiB") {
		t.Errorf("told: got %q, want one warning", r.told)
	}
	if diff := cmp.Diff(map[string]any{"a": json.Number("1")}, r.reported.Values); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}

func TestATrainingIsToldAndOneThatIsTooLongIsAWarning(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	r := follow(t, w,
		`{"training": {"executor": "torch", "steps": 2, "total_steps": 9, "parts": [{"device": "cpu:0"}, {"device": `+
			`"cpu:1"}], "added_later": 1}}`+"\n"+
			fmt.Sprintf(`{"training": {"steps": 3, "added_later": %q}}`, strings.Repeat("x", 257<<10))+"\n"+
			`{"training": {"steps": 4, "total_steps": 9, "step_seconds": NaN}}`)
	if len(r.told) != 4 || r.told[0] != "training: 2 of 9 steps in 2 parts" ||
		!strings.Contains(r.told[1], "longer than 256 KiB") ||
		!strings.Contains(r.told[2], "NaN") || r.told[3] != "training: 4 of 9 steps in 0 parts" {
		t.Errorf("told: got %q, want the first and the last, and why the second is not understood", r.told)
	}
}

func TestWarningsAreFew(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	r := follow(t, w, strings.Repeat("log\n", 10_000))
	if len(r.told) != 20 || !strings.Contains(r.told[19], "further warnings are not shown") || r.reported.Lines != 10_000 {
		t.Errorf("got %d warnings of %d lines, the last %q; want 20 that say there are more", len(r.told), r.reported.Lines,
			r.told[len(r.told)-1])
	}
}

func TestTheNextAttemptResumesFromTheCheckpoint(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"a file":                     `echo 41 >step.ckpt; echo '{"checkpoint": "step.ckpt"}' >&4`,
		"a directory":                `mkdir -p c/1; echo 41 >c/1/step.ckpt; echo '{"checkpoint": "c/1"}' >&4`,
		"by its absolute path":       `echo 41 >step.ckpt; echo "{\"checkpoint\": \"$PWD/step.ckpt\"}" >&4`,
		"in the temporary directory": `echo 41 >$TMPDIR/step.ckpt; echo "{\"checkpoint\": \"$TMPDIR/step.ckpt\"}" >&4`,
		"by a link":                  `echo 41 >step.ckpt; ln -s step.ckpt last; echo '{"checkpoint": "last"}' >&4`,
		"where the command starts":   `echo 41 >step.ckpt; echo '{"checkpoint": "step.ckpt"}' >&4`,
		"of many, the newest": `for i in 1 2 3 41; do echo $i >$i.ckpt; echo "{\"checkpoint\": \"$i.ckpt\"}" ` +
			`>&4; done`,
		"after it was " +
			"replaced whole": `echo 0 >step.ckpt; echo '{"checkpoint": "step.ckpt"}' >&4; echo 41 >new; mv new step.ckpt; ` +
			`echo '{"checkpoint": "step.ckpt"}' >&4`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			c := wire.Command{Arguments: sh(script)}
			if name == "where the command starts" {
				c.Directory, c.Code = "src", h.tree(t, map[string]string{"src/x": ""})
			}
			r := run(t, h.prepare(t, c, activities.Ref{}), command.Launch{})
			if r.err != nil || len(r.kept) == 0 {
				t.Fatalf("first attempt: got %v, checkpoints %v, told %q", r.err, r.kept, r.told)
			}
			again := newHost(t)
			again.Store, again.store = h.store, h.store
			resumed := again.prepare(t, wire.Command{Arguments: sh(
				`cat "$SPILLWAY_RESUME" 2>/dev/null || cat "$SPILLWAY_RESUME/step.ckpt"`)}, r.kept[len(r.kept)-1])
			if r := run(t, resumed, command.Launch{}); r.output != "41\n" || r.err != nil {
				t.Errorf("second attempt: got %q, %v, want 41", r.output, r.err)
			}
		})
	}
}

// heldStore lets Put wait.
type heldStore struct {
	*commandtest.Store
	began, goOn chan struct{}
}

func (s heldStore) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	s.began <- struct{}{}
	<-s.goOn
	return s.Store.Put(ctx, r)
}

func TestReadingGoesOnWhileACheckpointIsStoredAndTheNewestIsStoredNext(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	store := heldStore{h.store, make(chan struct{}), make(chan struct{})}
	h.Store = store
	w := h.prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	for _, name := range []string{"1", "2", "3"} {
		if err := os.WriteFile(filepath.Join(w.Directory(), name), []byte(name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	reader, writer := io.Pipe()
	steps, done := make(chan int), make(chan struct{})
	var kept []activities.Ref
	go func() {
		defer close(done)
		w.Follow(t.Context(), reader, command.Listener{
			Progress:   func(step, _ int, _ map[string]float64) { steps <- step },
			Checkpoint: func(ref activities.Ref) { kept = append(kept, ref) },
		})
	}()
	write := func(line string) {
		if _, err := io.WriteString(writer, line+"\n"); err != nil {
			t.Error(err)
		}
	}
	write(`{"checkpoint": "1"}`)
	<-store.began
	go func() {
		write(`{"checkpoint": "2"}`)
		write(`{"checkpoint": "3"}`)
		write(`{"progress": 1}`)
	}()
	if step := <-steps; step != 1 { // it was read while 1 is being stored
		t.Errorf("step: got %d, want 1", step)
	}
	store.goOn <- struct{}{}
	<-store.began
	if err := writer.Close(); err != nil {
		t.Error(err)
	}
	store.goOn <- struct{}{}
	<-done
	if len(kept) != 2 {
		t.Fatalf("kept %d checkpoints, want the first and the last", len(kept))
	}
	if diff := cmp.Diff(map[string]string{"3": "3"}, h.files(t, kept[1])); diff != "" {
		t.Errorf("the last checkpoint (-want +got):\n%s", diff)
	}
}

func TestACheckpointThatIsWrittenToWhileItIsStoredIsNotKept(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	store := heldStore{h.store, make(chan struct{}), make(chan struct{})}
	h.Store = store
	w := h.prepare(t, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	file := filepath.Join(w.Directory(), "model")
	if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	go func() {
		<-store.began
		if err := os.WriteFile(file, make([]byte, 2<<20), 0o600); err != nil {
			t.Error(err)
		}
		store.goOn <- struct{}{}
	}()
	r := follow(t, w, `{"checkpoint": "model"}`)
	if len(r.kept) != 0 || len(r.told) != 1 || !strings.Contains(r.told[0], "changed during packing") {
		t.Errorf("got %v kept and %q told, want a warning", r.kept, r.told)
	}
}

func TestAStrayProcessThatHoldsThePipeDoesNotHoldFollow(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: sh(
		"sleep 60 >/dev/null 2>&1 & echo $! ; echo '{\"progress\": 1}' >&4")}, activities.Ref{})
	program, err := w.Program(command.Launch{})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	program.Command.Stdout = &out
	if err := program.Start((*exec.Cmd).Start); err != nil {
		t.Fatal(err)
	}
	done := make(chan command.Reported)
	go func() { done <- w.Follow(t.Context(), program.Reports, command.Listener{}) }()
	if err := program.Command.Wait(); err != nil {
		t.Error(err)
	}
	if err := program.Ended(); err != nil {
		t.Fatal(err)
	}
	if reported := <-done; reported.Lines != 1 {
		t.Errorf("got %d lines, want 1", reported.Lines)
	}
	if err := program.Reports.Close(); err != nil {
		t.Error(err)
	}
	kill := exec.CommandContext(context.WithoutCancel(t.Context()), "kill", "-9", strings.TrimSpace(out.String()))
	if err := kill.Run(); err != nil {
		t.Error(err)
	}
}

// TestWhatWasReportedBeforeTheEndIsReadHoweverLate has a process that comes to reading only after a second, as on a
// host whose cores others have.
func TestWhatWasReportedBeforeTheEndIsReadHoweverLate(t *testing.T) {
	t.Parallel()
	w := newHost(t).prepare(t, wire.Command{Arguments: sh(`echo '{"progress": 1}' >&4; echo '{"result": {"a": 1}}' >&4`)},
		activities.Ref{})
	program, err := w.Program(command.Launch{})
	if err != nil {
		t.Fatal(err)
	}
	if err := program.Start((*exec.Cmd).Start); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(program.Command.Wait(), program.Ended()); err != nil {
		t.Fatal(err)
	}
	if err := program.Reports.SetReadDeadline(time.Unix(1, 0)); err != nil { // for a second to have passed
		t.Fatal(err)
	}
	reported := w.Follow(t.Context(), program.Reports, command.Listener{})
	want := command.Reported{Values: map[string]any{"a": json.Number("1")}, Lines: 2}
	if diff := cmp.Diff(want, reported); diff != "" {
		t.Errorf("reported (-want +got):\n%s", diff)
	}
	if err := program.Reports.Close(); err != nil {
		t.Error(err)
	}
}

// FuzzFollow gives it any bytes: it ends, tells only finite metrics and what can be encoded, and warns at most 20
// times.
func FuzzFollow(f *testing.F) {
	f.Add([]byte(`{"progress": 1, "metrics": {"loss": 0.5}}` + "\n" + `{"checkpoint": "x"}` + "\n" +
		`{"result": {"a": [1]}}`))
	f.Add([]byte("\n{\n{}\nnull\n{\"result\": null, \"out_of_memory\": \"host\"}"))
	f.Add([]byte(`{"progress": 1e300, "checkpoint": "../.."}`))
	f.Add([]byte(`{"training": {"steps": 1, "step_seconds": 1e300, "parts": [{"peak_bytes": 1}]}}` + "\n" +
		`{"training": {"bubble": 0.5, "parts": null}}`))
	dir := f.TempDir()
	options := command.Options{
		Root: filepath.Join(dir, "root"), Cache: filepath.Join(dir, "cache"),
		Store: commandtest.NewStore(),
	}
	w, err := command.Prepare(f.Context(), options, wire.Command{Arguments: []string{"true"}}, activities.Ref{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := w.Remove(context.WithoutCancel(f.Context())); err != nil {
			f.Error(err)
		}
	})
	f.Fuzz(func(t *testing.T, data []byte) {
		warnings := 0
		reported := w.Follow(t.Context(), strings.NewReader(string(data)), command.Listener{
			Progress: func(step, of int, metrics map[string]float64) {
				if of != 0 && of < step {
					t.Errorf("step %d of %d", step, of)
				}
				for name, value := range metrics {
					if step < 0 || math.IsInf(value, 0) {
						t.Errorf("step %d, metric %q: got %v", step, name, value)
					}
				}
			},
			Training: func(training predictor.Training) {
				if err := training.Validate(); err != nil {
					t.Errorf("training %+v: %v", training, err)
				}
			},
			Warn: func(string) { warnings++ },
		})
		if _, err := json.Marshal(reported.Values); err != nil {
			t.Error(err)
		}
		if warnings > 20 || reported.Lines > strings.Count(string(data), "\n")+1 {
			t.Errorf("got %d warnings, %d lines", warnings, reported.Lines)
		}
	})
}
