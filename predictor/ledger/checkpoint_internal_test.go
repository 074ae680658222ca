package ledger

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// saved is all that a checkpoint writes.
type saved struct {
	Head savedLedger
	Runs []savedRun
}

// savedOf is what a checkpoint of l would write now.
func savedOf(l *Ledger) saved {
	c := l.Checkpoint()
	c.head.Over.sort()
	all := saved{Head: c.head}
	for i := range c.runs {
		all.Runs = append(all.Runs, *c.runs[i].encoded())
	}
	return all
}

// again is a ledger that was written and read.
func again(t *testing.T, l *Ledger) *Ledger {
	t.Helper()
	var written bytes.Buffer
	if err := l.Checkpoint().Encode(&written); err != nil {
		t.Fatal(err)
	}
	read, err := Restore(&written)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

// step is something that happens to a ledger.
type step func(*Ledger)

// pick is one of some.
func pick[T any](r *rand.Rand, of []T) T { return of[r.IntN(len(of))] }

// drawStep draws the step of a number: an event as a stack tells it, of few runs, stages and tasks, so that events
// meet; or that somebody keeps runs, decides, or forecasts. Runs come and go.
func drawStep(r *rand.Rand, number int) step {
	run := fmt.Sprint("r", number/60+r.IntN(4))
	stage := predictor.StageID{App: "app", Build: "b1", Name: pick(r, []string{"prep", "train", "train", ""})}
	task, attempt := fmt.Sprint("t", r.IntN(7)), 1+r.IntN(3)
	venue := pick(r, []predictor.Venue{predictor.Pool, predictor.Function})
	host := pick(r, []string{"laptop", "second"})
	epoch := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	when := epoch.Add(time.Duration(r.Int64N(int64(time.Hour))))
	wall := time.Duration(r.Int64N(int64(time.Minute)))
	memory := quantity.Bytes(r.Int64N(int64(3 * quantity.GiB)))
	grant := quantity.Size{CPU: 1000, Memory: memory / 2 * 2}
	metrics := map[string]float64{"loss": wall.Seconds()}
	training := &predictor.Training{Steps: int64(attempt), Parts: make([]predictor.TrainingPart, attempt)}
	if attempt == 1 {
		metrics, training = nil, nil
	}
	tell := func(event predictor.Event) step { return func(l *Ledger) { l.Apply(event) } }
	switch r.IntN(13) {
	case 0:
		return tell(predictor.RunStarted{Run: run, Pipeline: "p", App: "app", Build: "b1", Input: []byte(`{}`), At: when})
	case 1:
		return tell(predictor.GoalChanged{Run: run, Goal: predictor.Goal{Deadline: wall}, At: when})
	case 2:
		state := pick(r, []predictor.RunState{predictor.RunSucceeded, predictor.RunCancelled})
		return tell(predictor.RunEnded{Run: run, State: state, Result: []byte("1"), At: when})
	case 3:
		return tell(predictor.Scheduled{
			Run: run, Stage: stage, Tasks: attempt, Expected: attempt - 1, PoolOnly: attempt == 1, Declared: grant, At: when,
		})
	case 4, 5:
		return tell(predictor.AttemptStarted{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: venue, Host: host, Queue: wall, Grant: grant, At: when,
		})
	case 6:
		return tell(predictor.Sampled{
			Run: run, Stage: stage, Task: task, Attempt: attempt, Venue: venue, Host: host, Memory: memory, CPU: 700,
			Grant: grant, Step: attempt, Metrics: metrics, Training: training, At: when,
		})
	case 7:
		return tell(predictor.Reused{Run: run, Stage: stage, From: "r0", Tasks: attempt, Saved: 5, Wall: wall, At: when})
	case 8:
		return tell(predictor.HostHeld{
			Host: host, Capacity: quantity.Size{CPU: 4000, Memory: 8 * quantity.GiB}, From: when.Add(-time.Minute), At: when,
			PricePerHour: quantity.Money(attempt) * quantity.USD,
		})
	case 9:
		one := predictor.Decision{ID: fmt.Sprint(wall), At: when, Stage: stage, What: "slots", Inputs: metrics}
		return func(l *Ledger) { l.Decided(one) }
	case 10:
		return func(l *Ledger) { l.Keep(l.Unkept(attempt)) }
	case 11:
		expected := predictor.Forecast{Finish: predictor.Interval{Mid: wall.Seconds()}, Runs: attempt}
		return func(l *Ledger) { l.Forecast(run, when, expected) }
	default:
		return tell(predictor.Record{
			Run: run, Stage: stage, Pipeline: "q", Task: task, Attempt: attempt, Venue: venue, Host: host,
			Outcome: pick(r, []predictor.Outcome{
				predictor.Succeeded, predictor.Succeeded, predictor.OutOfMemory, predictor.Refused, predictor.Refused,
			}),
			ScheduledAt: when.Add(-wall - time.Second), At: when, Queue: time.Second / 2, Cost: quantity.Money(wall),
			Grant:     grant,
			Predicted: predictor.Prediction{Wall: predictor.Interval{Mid: wall.Seconds()}, Memory: predictor.Interval{Mid: 1e6}},
			Usage:     quantity.Usage{CPU: wall / 2, Wall: wall, PeakMemory: memory}, Metrics: metrics, Training: training,
			Step: attempt, Error: strings.Repeat("e", attempt*100),
		})
	}
}

// TestALedgerThatIsRestoredKnowsWhatOneKnowsThatTookInAll cuts streams of events at random places.
func TestALedgerThatIsRestoredKnowsWhatOneKnowsThatTookInAll(t *testing.T) {
	t.Parallel()
	for seed := range uint64(16) {
		r := rand.New(rand.NewPCG(seed, 1))
		whole, cut := New(), New()
		for number := range 1500 {
			do := drawStep(r, number)
			do(whole)
			do(cut)
			if r.IntN(100) == 0 {
				cut = again(t, cut)
			}
		}
		cut = again(t, cut)
		want, got := savedOf(whole), savedOf(cut)
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("seed %d: a ledger that was restored knows something else (-whole +restored):\n%s", seed, diff)
		}
		if diff := cmp.Diff(whole.Runs(Query{}), cut.Runs(Query{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("a ledger that was restored shows something else (-whole +restored):\n%s", diff)
		}
		now := whole.Latest().Add(time.Minute)
		inOrder := cmpopts.SortSlices(func(a, b Accruing) bool {
			return fmt.Sprint(*a.Span.Owner, a.Task, a.Attempt) < fmt.Sprint(*b.Span.Owner, b.Task, b.Attempt)
		})
		if diff := cmp.Diff(whole.Accruing(now), cut.Accruing(now), cmpopts.EquateEmpty(), inOrder); diff != "" {
			t.Fatalf("other attempts cost something (-whole +restored):\n%s", diff)
		}
		for _, run := range whole.Going() {
			a, _ := whole.Detail(run)
			b, known := cut.Detail(run)
			if !known {
				t.Fatalf("the details of run %s, which goes on, are gone", run)
			}
			if diff := cmp.Diff(a.Attempts(AttemptQuery{}), b.Attempts(AttemptQuery{}), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("run %s has other attempts (-whole +restored):\n%s", run, diff)
			}
			if diff := cmp.Diff(a.Breakdown(now), b.Breakdown(now), cmpopts.EquateEmpty()); diff != "" {
				t.Fatalf("the time of run %s went elsewhere (-whole +restored):\n%s", run, diff)
			}
		}
	}
}

// TestNobodyComparesStaticSizesWhileTheLedgerIsHeld looks at a run that goes on and at one that takes in no more: what
// is seen is of when it was looked at, and is computed when it is asked for.
func TestNobodyComparesStaticSizesWhileTheLedgerIsHeld(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	stage := predictor.StageID{App: "app", Build: "b1", Name: "prep"}
	l := New()
	record := func(run, task string) {
		l.Apply(predictor.Record{
			Run: run, Stage: stage, Task: task, Attempt: 1, Venue: predictor.Pool, Outcome: predictor.Succeeded, Cost: 7, At: at,
		})
	}
	for i := range maxSettling + 1 {
		run := fmt.Sprint("r", i)
		record(run, "t")
		l.Apply(predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: at})
	}
	record("going", "first")
	seen, _ := l.Snapshot("going")
	l.Unkept(10)
	l.Checkpoint()
	record("going", "second")
	for _, run := range []string{"r0", "r1", "going"} {
		if l.runs[run].static.of == nil {
			t.Errorf("static sizes of %s were compared, though nobody has asked for them yet", run)
		}
	}
	if got := seen.View(); got.Static.Actual != 7 || got.Totals.Cost != 7 {
		t.Errorf("the run had cost %d picodollars when it was looked at, and is seen with %d and %d", 7, got.Static.Actual,
			got.Totals.Cost)
	}
	if got, _ := l.Run("going"); got.Static.Actual != 14 {
		t.Errorf("the run has cost %d picodollars now, and is seen with %d", 14, got.Static.Actual)
	}
}

// TestARunThatTakesInNoMoreIsRestoredWithItsSums restores runs whose details somebody else can rebuild, and one that is
// known by its name only.
func TestARunThatTakesInNoMoreIsRestoredWithItsSums(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)
	stage := predictor.StageID{App: "app", Build: "b1", Name: "prep"}
	whole := New()
	whole.over.add(runKey("long-over"))
	for i := range maxSettling + 1 {
		run := fmt.Sprint("r", i)
		whole.Apply(predictor.RunStarted{Run: run, Pipeline: "p", At: at})
		whole.Apply(predictor.Record{
			Run: run, Stage: stage, Task: "t", Attempt: 1, Outcome: predictor.Succeeded, Cost: 7, At: at,
		})
		whole.Apply(predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: at.Add(time.Minute)})
	}
	l := again(t, whole)
	l.Apply(predictor.Scheduled{Run: "long-over", Stage: stage, Tasks: 1, At: at})
	if l.Knows("long-over") {
		t.Error("a late word has opened a run again that was over")
	}
	if view, known := l.Run("r0"); !known || view.Totals.Cost != 7 {
		t.Errorf("the first run is %+v, known %v; want what it has cost", view, known)
	}
	for run, want := range map[string]bool{"r0": false, "r1": true} {
		if _, known := l.Detail(run); known != want {
			t.Errorf("the details of %s are known: %v, want %v", run, known, want)
		}
	}
}

func TestACheckpointThatIsDamagedOrOfAnotherVersionIsRefused(t *testing.T) {
	t.Parallel()
	l := New()
	l.Apply(predictor.RunStarted{Run: "r", Pipeline: "p", At: time.Now()})
	var written bytes.Buffer
	if err := l.Checkpoint().Encode(&written); err != nil {
		t.Fatal(err)
	}
	for cut := 0; cut < written.Len(); cut += 7 {
		if _, err := Restore(bytes.NewReader(written.Bytes()[:cut])); err == nil {
			t.Fatalf("the first %d of %d bytes are taken for a whole checkpoint", cut, written.Len())
		}
	}
	for _, version := range []int{oldestCheckpoint - 1, CheckpointVersion + 1} {
		other := l.Checkpoint()
		other.head.Version = version
		var written bytes.Buffer
		if err := other.Encode(&written); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("version %d, this engine reads 2 to %d", version, CheckpointVersion)
		if _, err := Restore(&written); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a checkpoint of another version: %v", err)
		}
	}
}

// TestACheckpointOfAnEarlierVersionIsGoneOnWith reads what an engine wrote whose forecasts did not say what they rest
// on.
func TestACheckpointOfAnEarlierVersionIsGoneOnWith(t *testing.T) {
	t.Parallel()
	written, err := os.ReadFile("testdata/version-2.checkpoint")
	if err != nil {
		t.Fatal(err)
	}
	l, err := Restore(bytes.NewReader(written))
	if err != nil {
		t.Fatal(err)
	}
	ended, _ := l.Run("ended")
	going, known := l.Run("going")
	if ended.Totals.Cost != 7 || ended.Actual.Seconds != 60 || !known {
		t.Errorf("the run that ended is %+v; want what it has taken", ended)
	}
	expected := going.Predicted
	if expected.Runs != 4 || expected.FinishSeconds.Mid != 60 || expected.Cost.High != 3 || expected.Basis != "" {
		t.Errorf("the forecast of the run that goes on is %+v; want what was told", expected)
	}
	at := expected.At.Add(time.Second)
	l.Forecast("going", at, predictor.Forecast{Finish: predictor.Interval{Mid: 50}, Basis: "its own tasks", Late: 0.5})
	if read, _ := again(t, l).Run("going"); read.Latest.Basis != "its own tasks" || read.Latest.Late != 0.5 {
		t.Errorf("the next forecast is %+v; want what it rests on, and how probable it is that it is late", read.Latest)
	}
}

// layout writes the names and types of all that a checkpoint has. In which package a type of the predictor is, is in no
// checkpoint.
func layout(of reflect.Type, known map[reflect.Type]bool, out *strings.Builder) {
	if known[of] {
		return
	}
	known[of] = true
	switch of.Kind() {
	case reflect.Struct:
		fmt.Fprintf(out, "%s:", typeName(of))
		for field := range of.Fields() {
			if field.IsExported() {
				fmt.Fprintf(out, " %s %s", field.Name, typeName(field.Type))
			}
		}
		out.WriteString("\n")
		for field := range of.Fields() {
			if field.IsExported() {
				layout(field.Type, known, out)
			}
		}
	case reflect.Slice, reflect.Pointer, reflect.Map, reflect.Array:
		layout(of.Elem(), known, out)
	default:
	}
}

// typeName is the name of a type, as if the vocabulary of the predictor were declared where it is found.
func typeName(of reflect.Type) string {
	return regexp.MustCompile(`\b(fact|plan|size)\.`).ReplaceAllString(of.String(), "predictor.")
}

// TestTheLayoutOfACheckpointHasItsVersion fails where a type of a checkpoint has changed: then CheckpointVersion is to
// be one more, so that an engine of before is not taken for one of now, and the sum below another.
func TestTheLayoutOfACheckpointHasItsVersion(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	known := map[reflect.Type]bool{}
	layout(reflect.TypeFor[savedLedger](), known, &text)
	layout(reflect.TypeFor[savedRun](), known, &text)
	const version, want = 13, "5ace38a0d526ec72"
	if got := strconv.FormatUint(keyOf(text.String()), 16); CheckpointVersion != version || got != want {
		t.Errorf("version %d, layout %s; want %d, %s. It is now:\n%s", CheckpointVersion, got, version, want, text.String())
	}
}
