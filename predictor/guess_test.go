package predictor_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/words"
)

// ended is a success of a stage of the app "app" that took this much memory.
func ended(stage string, task int, at float64, peak quantity.Bytes) predictor.Record {
	r := record("earlier", stage, task, at, 1)
	r.Usage.PeakMemory = peak
	return r
}

// guessOf decides once for one task of a stage, which this program runs.
func guessOf(
	t *testing.T, state predictor.State, stage, program string, now float64,
) (predictor.Sizing, predictor.State) {
	t.Helper()
	hinted := hint("r", stage, 1, now)
	hinted.Program = program
	state = fold(state, started("r", 0, predictor.Goal{}), hinted)
	plan, state := predictor.Decide(state, laptop(now, 4))
	for _, sizing := range plan.Sizings {
		if sizing.Stage.Name == stage {
			return sizing, state
		}
	}
	t.Fatalf("no sizing of %s in %+v", stage, plan.Sizings)
	return predictor.Sizing{}, state
}

func TestAFirstAttemptBeginsWithWhatIsAlike(t *testing.T) {
	t.Parallel()
	seen := func() (state predictor.State) {
		for n, stage := range []string{"fit", "tune", "embed", "load", "split", "report"} {
			hinted, peak := hint("earlier", stage, 1, -2000), 900*quantity.MiB
			hinted.Program = "python3"
			if n >= 3 {
				hinted.Program, peak = predictor.GoProgram, 8*quantity.MiB
			}
			state = fold(state, hinted, ended(stage, n, -1000, peak))
		}
		return state
	}
	python, _ := guessOf(t, seen(), "score", "python3", 1)
	inGo, _ := guessOf(t, seen(), "score", predictor.GoProgram, 1)
	if python.Base.Memory < 200*quantity.MiB || inGo.Base.Memory > 128*quantity.MiB ||
		inGo.Base.Memory >= python.Base.Memory/4 {
		t.Errorf("like three of 900 MiB in Python: got %s; like three of 8 MiB in Go: got %s", python.Base.Memory,
			inGo.Base.Memory)
	}
	want := "no history; like 3 other stages of app with python3, and less so 3 more: "
	if !strings.HasPrefix(python.Source, want) || !python.Grows() {
		t.Errorf("it rests on %q, want %q", python.Source, want)
	}
}

// A pipeline that was copied under another name begins with what its model took.
func TestAStageOfTheSameNameElsewhereIsMostAlike(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for n, stage := range []predictor.StageID{
		{App: "other", Build: "b", Name: "fit"}, stageNamed("load"), stageNamed("split"),
	} {
		hinted, r := hint("earlier", "", 1, -2000), ended("", n, -1000, 8*quantity.MiB)
		hinted.Stage, r.Stage, hinted.Program = stage, stage, "python3"
		if stage.Name == "fit" {
			r.Usage.PeakMemory = 700 * quantity.MiB
		}
		state = fold(state, hinted, r)
	}
	got, _ := guessOf(t, state, "fit", "python3", 1)
	const like = "; like 1 other stage with python3 called fit, and less so 2 more: "
	if got.Base.Memory < 80*quantity.MiB || !strings.Contains(got.Source, like) {
		t.Errorf("like one of 700 MiB of its name: got %s because of %q", got.Base.Memory, got.Source)
	}
}

// A stage of one task a run has ended five times after five runs. It holds what it takes long before that.
func TestAFewAttemptsTeachASize(t *testing.T) {
	t.Parallel()
	var state predictor.State
	var got predictor.Sizing
	for n := range 4 {
		state = fold(state, ended("fit", n, float64(n)-100, 400*quantity.MiB))
		got, state = guessOf(t, state, "fit", "python3", float64(n+1))
		if limit := 400 * quantity.MiB * 2; got.Base.Memory > limit || got.Base.Memory < 400*quantity.MiB {
			t.Errorf("after %d attempts of 400 MiB: got %s, want 400 to 800 MiB", n+1, got.Base.Memory)
		}
		if !strings.HasPrefix(got.Source, words.Count(n+1, "attempt")+";") {
			t.Errorf("after %d attempts it rests on %q", n+1, got.Source)
		}
	}
	if got.Learned {
		t.Errorf("after four attempts: got %+v, want a guess", got)
	}
}

// What others do changes no size: a stage is sized anew when an attempt of its own has ended.
func TestAGuessIsNotChangedByOthers(t *testing.T) {
	t.Parallel()
	first, state := guessOf(t, predictor.State{}, "fit", "python3", 1)
	for n := range 20 {
		state = fold(state, ended("other", n, float64(n+2), 2*quantity.GiB))
		plan, after := predictor.Decide(state, laptop(float64(n+2), 4))
		state = after
		for _, sizing := range plan.Sizings {
			if sizing.Stage.Name == "fit" && sizing.Base != first.Base {
				t.Fatalf("after %d attempts of another stage: got %s, want %s still", n+1, sizing.Base, first.Base)
			}
		}
	}
}

// A sample of an attempt that has grown beyond what was thought of it sizes the next.
func TestWhatRunsTeachesTheNext(t *testing.T) {
	t.Parallel()
	first, state := guessOf(t, predictor.State{}, "train", "python3", 1)
	state = fold(state, start("r", "train", 0, 1))
	state = sampling(state, 0, 2, 3, 2*quantity.GiB, 950)
	next, _ := guessOf(t, state, "train", "python3", 4)
	if next.Base.Memory < quantity.GiB || next.Base.Memory <= first.Base.Memory {
		t.Errorf("while an attempt runs that takes 2 GiB: got %s, want about as much", next.Base.Memory)
	}
}

// How far a guess was off says nothing of what is learned: it switches nothing off.
func TestAWrongGuessSwitchesNothingOff(t *testing.T) {
	t.Parallel()
	var state predictor.State
	for n := range 8 { // eight that began at once, when nothing was known
		r := ended("score", n, float64(n)-100, 100*quantity.MiB)
		r.Predicted.Memory = predictor.Interval{Low: 1, Mid: 10 * float64(quantity.GiB), High: 1e12}
		r.Predicted.Guess = true
		state = fold(state, r)
	}
	if got, _ := guessOf(t, state, "score", "", 1); !got.Learned || got.Static {
		t.Errorf("got %+v, want what eight attempts taught", got)
	}
}

// Functions do not grow: what they are given for a stage of which nothing is known rests on no guess.
func TestAGuessIsForThePool(t *testing.T) {
	t.Parallel()
	goal := predictor.Goal{Deadline: 30e9}
	state := fold(predictor.State{}, started("r", 0, goal), hint("r", "score", 200, 0),
		ended("score", 0, 0.5, 300*quantity.MiB))
	plan, _ := predictor.Decide(state, laptop(1, 1))
	for _, grant := range plan.Grants {
		if grant.Venue == predictor.Function && grant.Slots > 0 {
			if grant.Size.Memory < 4*300*quantity.MiB {
				t.Errorf("a function has %s, want at least four times the one peak that is known", grant.Size.Memory)
			}
			return
		}
	}
	t.Error("nothing spills, so nothing was shown")
}

// What cannot be given more while it runs begins with a part of the host.
func TestWhatCannotGrowBeginsWithAPartOfTheHost(t *testing.T) {
	t.Parallel()
	hinted := hint("r", "fit", 1, 1)
	hinted.Program, hinted.Fixed = "registry.example/fit", true
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hinted)
	plan, state := predictor.Decide(state, laptop(2, 4))
	want := laptop(2, 4).Hosts[0].Capacity.Memory / 4
	if got := plan.Sizings[0]; got.Base.Memory != want || !strings.Contains(got.Source, "host's free room") {
		t.Errorf("in a container: got %s because of %q, want %s", got.Base.Memory, got.Source, want)
	}
	state = fold(state, ended("fit", 0, 3, 40*quantity.MiB))
	if got, _ := guessOf(t, state, "fit", "python3", 4); got.Base.Memory >= want {
		t.Errorf("and when it is a program of the host: got %s, want a guess", got.Base.Memory)
	}
}

// A moment without a host changes nothing of what is thought.
func TestAGuessOutlivesAMomentWithoutAHost(t *testing.T) {
	t.Parallel()
	before, state := guessOf(t, predictor.State{}, "fit", "python3", 1)
	for n := range 2 {
		_, state = predictor.Decide(state, predictor.Snapshot{Now: after(float64(n + 2)), Policy: predictor.DefaultPolicy()})
	}
	plan, _ := predictor.Decide(state, laptop(4, 4))
	if diff := cmp.Diff(before, plan.Sizings[0]); diff != "" {
		t.Errorf("the sizing before and after (-before +after):\n%s", diff)
	}
}

// However many cores a host has: what attempts of unknown need may grow to has room, as far as nine in ten go.
func TestFirstAttemptsHaveRoomToGrow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		host := laptop(2, rapid.IntRange(1, 256).Draw(t, "cores"))
		host.Hosts[0].Capacity.Memory = quantity.Bytes(rapid.Int64Range(1, 512).Draw(t, "memory_gib")) * quantity.GiB
		host.Hosts[0].Free = host.Hosts[0].Capacity
		var state predictor.State
		for n := range rapid.IntRange(0, 3).Draw(t, "known") {
			peak := quantity.Bytes(rapid.Int64Range(1<<20, 1<<33).Draw(t, "peak"))
			state = fold(state, ended("known-"+string(rune('a'+n)), n, -100, peak))
		}
		state = fold(state, started("r", 0, predictor.Goal{}))
		for n := range rapid.IntRange(1, 4).Draw(t, "stages") {
			hinted := hint("r", "new-"+string(rune('a'+n)), rapid.IntRange(1, 500).Draw(t, "tasks"), 1)
			hinted.Program = rapid.SampledFrom([]string{"", predictor.GoProgram, "python3"}).Draw(t, "program")
			state = fold(state, hinted)
		}
		plan, _ := predictor.Decide(state, host)
		grown, several := quantity.Bytes(0), false
		for _, grant := range plan.Grants {
			if grant.Venue != predictor.Pool {
				continue
			}
			for _, sizing := range plan.Sizings {
				if sizing.Stage != grant.Stage {
					continue
				}
				_, expected, _ := sizing.For(predictor.Need{}, host.Hosts[0].Capacity)
				high := min(quantity.Bytes(expected.Memory.High), host.Hosts[0].Capacity.Memory)
				grown += quantity.Bytes(grant.Slots) * max(high, grant.Size.Memory)
			}
			several = several || grant.Slots > 1
		}
		if several && grown > host.Hosts[0].Capacity.Memory { // one slot each there is in any case
			t.Errorf("nine in ten take %s at most, and the host has %s: %+v", grown, host.Hosts[0].Capacity.Memory, plan.Grants)
		}
	})
}

// TestFirstAttemptsHaveRoomToGrowWhileTheyRun starts what was granted, tick after tick.
func TestFirstAttemptsHaveRoomToGrowWhileTheyRun(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("r", 0, predictor.Goal{}), hint("r", "new", 400, 1))
	first, before := 0, 0
	for tick := range 10 {
		snapshot := laptop(2+float64(tick), 256)
		snapshot.Hosts[0].Capacity.Memory = 16 * quantity.GiB
		snapshot.Hosts[0].Free = snapshot.Hosts[0].Capacity
		var plan predictor.Plan
		plan, state = predictor.Decide(state, snapshot)
		now := slots(plan, "new", predictor.Pool)
		if tick == 0 {
			first = now
		}
		if now != first || now < 2 {
			t.Fatalf("tick %d: %d slots, want the %d of the first", tick, now, first)
		}
		for i := before; i < now; i++ {
			begun := start("r", "new", i, 2.5+float64(tick))
			begun.Grant = plan.Sizings[0].Base
			state = fold(state, begun)
		}
		before = now
	}
}

// How long a stage takes of which no attempt has ended is thought of by what is alike: it gets the slots that it needs
// before one has ended.
func TestAFirstRunIsThoughtToTakeAsLongAsWhatIsAlike(t *testing.T) {
	t.Parallel()
	slotsOf := func(state predictor.State) map[string]int {
		state = fold(state, started("r", 0, predictor.Goal{}))
		for stage, program := range map[string]string{"long": "python3", "short": predictor.GoProgram} {
			hinted := hint("r", stage, 20, 1)
			hinted.Program = program
			state = fold(state, hinted)
		}
		plan, _ := predictor.Decide(state, laptop(2, 16))
		slots := map[string]int{}
		for _, grant := range plan.Grants {
			if grant.Venue == predictor.Pool {
				slots[grant.Stage.Name] = grant.Slots
			}
		}
		return slots
	}
	if got := slotsOf(predictor.State{}); got["long"] != 8 || got["short"] != 8 {
		t.Errorf("where nothing is known: got %v slots, want 8 each", got)
	}
	var state predictor.State
	for n, stage := range []string{"fit", "tune", "embed", "load", "split", "report"} {
		hinted, done := hint("earlier", stage, 1, -2000), ended(stage, n, -1000, 8*quantity.MiB)
		hinted.Program, done.Usage.Wall = "python3", 10*time.Minute
		if n >= 3 {
			hinted.Program, done.Usage.Wall = predictor.GoProgram, 10*time.Millisecond
		}
		state = fold(state, hinted, done)
	}
	if got := slotsOf(state); got["long"] < 12 || got["long"]+got["short"] != 16 {
		t.Errorf("like three of ten minutes, and like three of ten milliseconds: got %v slots, want most for the long", got)
	}
}

// A script that imports what another one does is like that one, whatever else they have in common.
func TestAFirstAttemptBeginsWithWhatImportsTheSame(t *testing.T) {
	t.Parallel()
	var known predictor.State
	for n, seen := range []struct {
		stage   predictor.StageID
		imports []string
		peak    quantity.Bytes
	}{
		{predictor.StageID{App: "fit", Build: "b", Name: "fit"}, []string{"heavytensors", "numpy"}, 700 * quantity.MiB},
		{predictor.StageID{App: "plain", Build: "b", Name: "plain"}, []string{}, 9 * quantity.MiB},
		{predictor.StageID{App: "rows", Build: "b", Name: "rows"}, []string{"numpy"}, 40 * quantity.MiB},
	} {
		hinted, r := hint("earlier", "", 1, -2000), ended("", n, -1000, seen.peak)
		hinted.Stage, hinted.Program, hinted.Imports, r.Stage = seen.stage, "python3", seen.imports, seen.stage
		known = fold(known, hinted, r)
	}
	for _, test := range []struct {
		stage       string
		imports     []string
		least, most quantity.Bytes
		like        string
	}{
		{
			"same",
			[]string{"heavytensors", "numpy"},
			70, 700,
			"like 1 other stage with python3 that import heavytensors, numpy, and less so 2 more",
		},
		{"some", []string{"heavytensors", "yaml"}, 60, 700, "like 1 other stage that import some of the same modules"},
		{"none", []string{}, 9, 30, "like 1 other stage with python3 that import no modules of others"},
		{"unknown", nil, 20, 60, "like 3 other stages with python3:"},
	} {
		hinted := hint("r", test.stage, 1, 1)
		hinted.Program, hinted.Imports = "python3", test.imports
		plan, next := predictor.Decide(fold(known, started("r", 0, predictor.Goal{}), hinted), laptop(1, 4))
		known = next
		for _, sizing := range plan.Sizings {
			if sizing.Stage != hinted.Stage {
				continue
			}
			if got := sizing.Base.Memory / quantity.MiB; got < test.least || got > test.most ||
				!strings.Contains(sizing.Source, test.like) {
				t.Errorf("%s: got %d MiB because of %q, want %d to %d because of %q", test.stage, got, sizing.Source,
					test.least, test.most, test.like)
			}
		}
	}
}

// What reads the same kind of files is like another that does, also where another program runs it.
func TestAFirstAttemptBeginsWithWhatReadsTheSame(t *testing.T) {
	t.Parallel()
	var known predictor.State
	for n, seen := range []struct {
		name, program, kind string
		peak                quantity.Bytes
	}{
		{"pictures", "python3", "jpg", 900 * quantity.MiB},
		{"rows", "python3", "csv", 40 * quantity.MiB},
		{"tables", "Rscript", "csv", 60 * quantity.MiB},
		{"notes", "Rscript", "txt", 500 * quantity.MiB},
	} {
		id := predictor.StageID{App: seen.name, Build: "b", Name: seen.name}
		hinted, r := hint("earlier", "", 1, -2000), ended("", n, -1000, seen.peak)
		hinted.Stage, hinted.Program, hinted.Kind, r.Stage = id, seen.program, seen.kind, id
		known = fold(known, hinted, r)
	}
	memory := map[string]quantity.Bytes{}
	for _, test := range []struct{ kind, like string }{
		{"csv", "like 1 other stage with python3 that read csv, and less so 3 more"},
		{"jpg", "like 1 other stage with python3 that read jpg, and less so 3 more"},
		{"txt", "like 2 other stages with python3, and less so 2 more"},
		{"", "like 2 other stages with python3, and less so 2 more"},
	} {
		hinted := hint("r", "reads"+test.kind, 1, 1)
		hinted.Program, hinted.Kind = "python3", test.kind
		plan, next := predictor.Decide(fold(known, started("r", 0, predictor.Goal{}), hinted), laptop(1, 4))
		known = next
		for _, sizing := range plan.Sizings {
			if sizing.Stage != hinted.Stage {
				continue
			}
			memory[test.kind] = sizing.Base.Memory
			if !strings.Contains(sizing.Source, test.like) {
				t.Errorf("%q: because of %q, want %q", test.kind, sizing.Source, test.like)
			}
		}
	}
	if memory["csv"] >= memory[""] || memory[""] >= memory["jpg"] {
		t.Errorf("what reads csv is given %s, what reads jpg %s, and what reads nothing that is known %s", memory["csv"],
			memory["jpg"], memory[""])
	}
}

// Of a program that takes a hundred times as much for inputs that are a hundred times as large, a stage that nobody has
// seen begins with what its input tells; where what others take has nothing to do with their inputs, it does not.
func TestAFirstAttemptBeginsWithWhatInputsAsLargeTake(t *testing.T) {
	t.Parallel()
	begins := func(peakOf func(stage int, input quantity.Bytes) quantity.Bytes, input quantity.Bytes) predictor.Sizing {
		var state predictor.State
		for n := range 8 {
			id := predictor.StageID{App: "app-" + string(rune('a'+n)), Build: "b", Name: "step-" + string(rune('a'+n))}
			of := 4 * quantity.MiB
			if n%2 == 1 {
				of *= 100
			}
			hinted, r := hint("earlier", "", 1, -2000), ended("", n, -1000, peakOf(n, of))
			hinted.Stage, hinted.Program, hinted.Input, r.Stage, r.Usage.Input = id, "python3", of, id, of
			r.Usage.Wall = time.Second
			state = fold(state, hinted, r)
		}
		hinted := hint("r", "new", 1, 1)
		hinted.Program, hinted.Input = "python3", input
		plan, _ := predictor.Decide(fold(state, started("r", 0, predictor.Goal{}), hinted), laptop(1, 4))
		for _, sizing := range plan.Sizings {
			if sizing.Stage == hinted.Stage {
				return sizing
			}
		}
		t.Fatalf("no sizing of %v", hinted.Stage)
		return predictor.Sizing{}
	}
	memory := func(s predictor.Sizing, input quantity.Bytes) float64 {
		got, _, _ := s.For(predictor.Need{Input: input}, laptop(1, 4).Hosts[0].Capacity)
		return float64(got.Memory)
	}
	inProportion := func(_ int, input quantity.Bytes) quantity.Bytes { return 3 * input }
	small, large := begins(inProportion, 4*quantity.MiB), begins(inProportion, 400*quantity.MiB)
	of := memory(large, 400*quantity.MiB) / memory(small, 4*quantity.MiB)
	if of < 10 || of > 100 {
		t.Errorf("400 MiB begin with %.1f times as much as 4 MiB, want 10 to 100: %q and %q", of, large.Source, small.Source)
	}
	if want := ", with an input of 400 MiB"; !strings.Contains(large.Source, want) {
		t.Errorf("it rests on %q, want %q in it", large.Source, want)
	}
	if got := memory(begins(inProportion, quantity.GiB*2), 2*quantity.GiB); got > memory(large, 2*quantity.GiB)*1.01 {
		t.Errorf("an input larger than any begins with %.0f bytes, want what it has beyond the largest byte by byte", got)
	}
	byChance := func(stage int, _ quantity.Bytes) quantity.Bytes {
		return (20 + 60*quantity.Bytes(stage/2%2)) * quantity.MiB
	}
	small, large = begins(byChance, 4*quantity.MiB), begins(byChance, 400*quantity.MiB)
	if of := float64(large.Base.Memory) / float64(small.Base.Memory); of > 1.5 {
		t.Errorf("inputs tell nothing, and 400 MiB begin with %.1f times as much as 4 MiB", of)
	}
}
