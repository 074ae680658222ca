package predictor_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

// ofMiB is an attempt with an input of so many MiB, whose Record or start tells it.
func ofMiB[E predictor.Record | predictor.AttemptStarted](e E, mib int) E {
	switch e := any(&e).(type) {
	case *predictor.Record:
		e.Usage.Input = quantity.Bytes(mib) * quantity.MiB
	case *predictor.AttemptStarted:
		e.Input = quantity.Bytes(mib) * quantity.MiB
	}
	return e
}

// mapped is a state with an earlier run of the pipeline whose 20 tasks took a second for each MiB, with up to three
// percent more or less.
func mapped() predictor.State {
	state := fold(predictor.State{}, started("past", -1000, predictor.Goal{}))
	at, end := -1000.0, -1000.0
	for i := range 20 {
		mib := []int{1, 4, 16, 64, 128}[i%5]
		wall := float64(mib) * (1 + 0.03*math.Sin(float64(i)))
		hinted := hint("past", "map", 1, at)
		hinted.Input = quantity.Bytes(mib) * quantity.MiB
		line := ofMiB(record("past", "map", i, at+wall, wall), mib)
		state = fold(state, hinted, ofMiB(start("past", "map", i, at), mib), line)
		end = max(end, at+wall)
		at++
	}
	return fold(state, predictor.RunEnded{Run: "past", State: predictor.RunSucceeded, At: after(end)})
}

// TestARunningAttemptIsForecastByItsOwnInput has two tasks that run, of a second and of two minutes. Where an engine of
// an earlier build has started them, they are taken for alike, as they were.
func TestARunningAttemptIsForecastByItsOwnInput(t *testing.T) {
	t.Parallel()
	begun := func(goal predictor.Goal) predictor.State {
		state := fold(mapped(), started("now", 0, goal))
		for _, mib := range []int{1, 128} {
			hinted := hint("now", "map", 1, 0)
			hinted.Input = quantity.Bytes(mib) * quantity.MiB
			state = fold(state, hinted)
		}
		return state
	}
	small, large := start("now", "map", 0, 0), start("now", "map", 1, 0)
	told := fold(begun(predictor.Goal{Deadline: 100 * time.Second}), ofMiB(small, 1), ofMiB(large, 128))
	got, known := told.Forecast("now", after(1))
	if !known || !about(got.Finish, 127, 0.1) || got.Late < 0.95 {
		t.Errorf("one of 1 MiB and one of 128 MiB run: %+v known %v, want about 127 s and a missed deadline", got, known)
	}
	ended := ofMiB(record("now", "map", 0, 1, 1), 1)
	got, known = fold(twinOf(t, told), ended).Forecast("now", after(100))
	if !known || !about(got.Finish, 28, 0.35) {
		t.Errorf("99 s later: %+v known %v, want about 28 s", got, known)
	}
	untold := fold(begun(predictor.Goal{}), small, large)
	if got, known := untold.Forecast("now", after(1)); !known || got.Finish.High-got.Finish.Low < 30 {
		t.Errorf("of earlier builds: %+v known %v, want a wide interval", got, known)
	}
}

// TestARunningAttemptIsForecastByWhatExplainsItsStage has a number that is no input: epochs.
func TestARunningAttemptIsForecastByWhatExplainsItsStage(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("past", -1000, predictor.Goal{}), hint("past", "train", 20, -1000))
	with := func(epochs int) map[string]float64 { return map[string]float64{"epochs": float64(epochs), "seed": 7} }
	for i := range 20 {
		epochs := 1 + 7*i%20
		line := record("past", "train", i, -900, 10*float64(epochs)*(1+0.03*math.Sin(float64(i))))
		line.Features = with(epochs)
		state = fold(state, line)
	}
	begun := start("now", "train", 0, 0)
	begun.Features = with(20)
	state = fold(
		state, predictor.RunEnded{Run: "past", State: predictor.RunSucceeded, At: after(-900)},
		started("now", 0, predictor.Goal{}), hint("now", "train", 1, 0), begun,
	)
	if got, known := state.Forecast("now", after(10)); !known || !about(got.Finish, 190, 0.1) {
		t.Errorf("20 epochs: %+v known %v, want about 190 s", got, known)
	}
	if got, known := twinOf(t, state).Forecast("now", after(100)); !known || !about(got.Finish, 100, 0.2) {
		t.Errorf("read from a checkpoint, after 100 s: %+v known %v, want about 100 s", got, known)
	}
}

// TestRoomIsAwaitedByTheInputOfWhatRuns has a host that an attempt fills that takes two minutes, or a second, by its
// input.
func TestRoomIsAwaitedByTheInputOfWhatRuns(t *testing.T) {
	t.Parallel()
	for mib, want := range map[int]string{128: "have room for one more in 2m", 4: "have room for one more in 3 s"} {
		begun := ofMiB(start("now", "map", 0, 0), mib)
		begun.Grant = quantity.Size{CPU: quantity.Core, Memory: quantity.GiB}
		state := fold(learn(mapped(), "other", 5, 3), started("now", 0, predictor.Goal{}), hint("now", "map", 1, 0), begun,
			hint("now", "other", 1, 0))
		snapshot := laptop(1, 1)
		snapshot.Functions.Enabled = false
		plan, _ := predictor.Decide(state, snapshot)
		if got := strings.Join(reasons(plan), "\n"); !strings.Contains(got, want) {
			t.Errorf("an attempt of %d MiB fills the host, want %q:\n%s", mib, want, got)
		}
	}
}

// TestWhatIsKnownOfARunningAttemptIsBounded has thousands of numbers, of which a State remembers few, and none when the
// attempt has ended.
func TestWhatIsKnownOfARunningAttemptIsBounded(t *testing.T) {
	t.Parallel()
	many := map[string]float64{"not a number": math.NaN(), strings.Repeat("long", 100): 1}
	for i := range 2000 {
		many[strings.Repeat("x", 1+i%90)+strings.Repeat("y", i/90)] = float64(i)
	}
	begun := ofMiB(start("now", "map", 0, 0), 5)
	begun.Features = many
	called := func() predictor.State {
		return fold(predictor.State{}, started("now", 0, predictor.Goal{}), hint("now", "map", 1, 0))
	}
	before, state := fold(called(), start("now", "map", 0, 0)), fold(called(), begun)
	if grown := len(encode(t, state)) - len(encode(t, before)); grown > 2048 {
		t.Errorf("a State is %d bytes larger by what is known of an attempt", grown)
	}
	ended := record("now", "map", 0, 1, 1)
	without, with := fold(before, ended), fold(state, ended)
	if string(encode(t, without)) != string(encode(t, with)) {
		t.Error("something of it is left when it has ended")
	}
}

// TestWhatIsLeftOfALogNormalTime compares with numbers of it.
func TestWhatIsLeftOfALogNormalTime(t *testing.T) {
	t.Parallel()
	lasts := memory.Lasting{Median: 100, Spread: 0.5}
	for _, age := range []float64{0, 10, 100, 200} {
		sum, square, n := 0.0, 0.0, 0.0
		for i := range 200_000 {
			u := (float64(i) + 0.5) / 200_000
			if took := 100 * math.Exp(0.5*math.Sqrt2*math.Erfinv(2*u-1)); took > age {
				sum, square, n = sum+took-age, square+(took-age)*(took-age), n+1
			}
		}
		mean := sum / n
		variation := math.Sqrt(square/n/mean/mean - 1)
		got := lasts.Beyond(age)
		if math.Abs(got.Mean/mean-1) > 0.05 || math.Abs(got.Variation/variation-1) > 0.1 {
			t.Errorf("at %v s %+v is left, want %v and %v", age, got, mean, variation)
		}
	}
	last := 0.0
	for _, age := range []float64{1e3, 1e4, 1e6, 1e9} {
		got := lasts.Beyond(age)
		if got.Mean <= last || got.Mean > 1.01*age || !(got.Variation < 20) {
			t.Errorf("one that has outlived all goes on for %+v at %v s", got, age)
		}
		last = got.Mean
	}
	if got := lasts.Beyond(1e9); got.Mean < 0.9e9 {
		t.Errorf("it goes on for %v s, want about as long again", got.Mean)
	}
}

// TestProgressThatStallsOrJumpsBackMakesNoNonsense has an attempt of 100 steps, as all before it that took 100 seconds.
func TestProgressThatStallsOrJumpsBackMakesNoNonsense(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("past", -1000, predictor.Goal{}), hint("past", "train", 10, -1000))
	for i := range 10 {
		line := record("past", "train", i, -900, 100+float64(i))
		line.Step = 100
		state = fold(state, start("past", "train", i, -1000), line)
	}
	state = fold(
		state, predictor.RunEnded{Run: "past", State: predictor.RunSucceeded, At: after(-900)},
		started("now", 0, predictor.Goal{}), hint("now", "train", 1, 0), start("now", "train", 0, 0),
	)
	at := func(step int, seconds float64) predictor.Sampled {
		return predictor.Sampled{
			Run: "now", Stage: stageNamed("train"), Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
			Step: step, At: after(seconds),
		}
	}
	for _, c := range []struct {
		name    string
		from    int
		samples [][2]float64 // step, second
		now     float64
		least   float64
		most    float64
	}{
		{"as the others", 0, [][2]float64{{10, 10}, {50, 50}}, 50, 45, 62},
		{"what it takes to begin is no step", 0, [][2]float64{{1, 60}, {2, 61}, {41, 100}}, 100, 50, 75},
		{"one word alone says little", 0, [][2]float64{{1, 30}}, 30, 50, 300},
		{"four times as slow", 0, [][2]float64{{1, 4}, {10, 40}, {20, 80}}, 80, 250, 400},
		{"none for five minutes", 0, [][2]float64{{10, 10}, {50, 50}, {50, 350}}, 350, 150, 1000},
		{"it begins anew", 0, [][2]float64{{10, 10}, {50, 50}, {1, 51}, {30, 80}}, 80, 20, 120},
		{"several workers out of order", 0, [][2]float64{{10, 10}, {9, 11}, {50, 50}, {48, 51}, {52, 52}}, 52, 40, 60},
		{"more than there are", 0, [][2]float64{{10, 10}, {500, 50}}, 50, 40, 70},
		{"at once", 0, [][2]float64{{10, 0}, {50, 0}}, 0, 90, 120},
		{"before it began", 0, [][2]float64{{10, -100}, {50, -50}}, 50, 20, 200},
	} {
		seen := twinOf(t, state)
		for _, one := range c.samples {
			seen = fold(seen, at(int(one[0]), one[1]))
		}
		got, known := twinOf(t, seen).Forecast("now", after(c.now))
		if mid := got.Finish.Mid; !known || mid < c.least || mid > c.most || got.Finish.Low > mid || got.Finish.High < mid {
			t.Errorf("%s: %+v known %v, want %v to %v s", c.name, got.Finish, known, c.least, c.most)
		}
	}
}

// TestTheFirstWordOfALongTrainingSaysNothingOfItsEnd has a script that nobody knows import for 16 s, and then do ten
// steps in each.
func TestTheFirstWordOfALongTrainingSaysNothingOfItsEnd(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		first int // steps of 1,000
		known bool
	}{{"one of a hundred parts", 10, false}, {"a quarter", 250, true}} {
		begun := started("r", 0, predictor.Goal{})
		begun.Stages = []string{"train"}
		state := fold(predictor.State{}, begun, hint("r", "train", 1, 0), start("r", "train", 0, 0))
		say := func(step int, at float64) {
			state = fold(state, predictor.Sampled{
				Run: "r", Stage: stageNamed("train"), Task: "train-0", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
				Step: step, Of: 1000, At: after(at),
			})
		}
		say(c.first, 16)
		if got, known := state.Forecast("r", after(16)); known != c.known {
			t.Errorf("%s: after one word, it ends in %+v s: known %v, want %v", c.name, got.Finish, known, c.known)
		}
		for i := range 4 {
			say(c.first+10*(i+1), 17+float64(i))
		}
		want := float64(1000-c.first-40) / 10
		if got, known := state.Forecast("r", after(20)); !known || got.Finish.Low > want || got.Finish.High < want ||
			math.Abs(got.Finish.Mid-want) > 0.2*want {
			t.Errorf("%s: it ends in %+v s: known %v, want %v s", c.name, got.Finish, known, want)
		}
	}
}

// TestAnAttemptEndsByHowMuchItSaysThereIs has attempts of 100 to 100,000 rows, of which nothing tells before how many
// there are: the one that goes on does a hundred in ten seconds.
func TestAnAttemptEndsByHowMuchItSaysThereIs(t *testing.T) {
	t.Parallel()
	state := fold(predictor.State{}, started("past", -20_000, predictor.Goal{}), hint("past", "load", 4, -20_000))
	for i, rows := range []int{100, 1000, 10_000, 100_000} {
		line := record("past", "load", i, -9000, float64(rows)/10)
		line.Step = rows
		state = fold(state, start("past", "load", i, -20_000), line)
	}
	state = fold(
		state, predictor.RunEnded{Run: "past", State: predictor.RunSucceeded, At: after(-9000)},
		started("now", 0, predictor.Goal{}), hint("now", "load", 1, 0), start("now", "load", 0, 0),
	)
	type report struct{ step, of, second int }
	for _, c := range []struct {
		name    string
		reports []report
		least   float64 // seconds that are left after 200
		most    float64
	}{
		{"a total", []report{{500, 5000, 50}, {1000, 5000, 100}, {2000, 5000, 200}}, 270, 330},
		{"one that is in bytes", []report{{5e11, 5e12, 50}, {1e12, 5e12, 100}, {2e12, 5e12, 200}}, 270, 330},
		{"told late", []report{{500, 0, 50}, {1000, 0, 100}, {2000, 5000, 200}}, 270, 330},
		{"one that has grown by a little", []report{{500, 5000, 50}, {1000, 5000, 100}, {2000, 5100, 200}}, 260, 360},
		{"taken back", []report{{500, 5000, 50}, {1000, 5000, 100}, {2000, 0, 200}}, 330, 1e5},
		{"below what is done", []report{{500, 5000, 50}, {1000, 5000, 100}, {2000, 1500, 200}}, 330, 1e5},
		{"negative", []report{{500, -5, 50}, {1000, -5, 100}, {2000, math.MinInt, 200}}, 330, 1e5},
	} {
		seen := twinOf(t, state)
		for _, one := range c.reports {
			seen = fold(seen, predictor.Sampled{
				Run: "now", Stage: stageNamed("load"), Task: "load-0", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
				Step: one.step, Of: one.of, At: after(float64(one.second)),
			})
		}
		got, known := twinOf(t, seen).Forecast("now", after(200))
		if mid := got.Finish.Mid; !known || mid < c.least || mid > c.most || got.Finish.Low > mid || got.Finish.High < mid {
			t.Errorf("%s: %+v known %v, want %v to %v s", c.name, got.Finish, known, c.least, c.most)
		}
	}
}

// TestATotalThatMovesSaysLittle has an attempt whose total is always ten more than what is done.
func TestATotalThatMovesSaysLittle(t *testing.T) {
	t.Parallel()
	state := learn(fold(predictor.State{}, started("earlier", -2000, predictor.Goal{}),
		hint("earlier", "load", 10, -2000)), "load", 10, 1000)
	state = fold(
		state, predictor.RunEnded{Run: "earlier", State: predictor.RunSucceeded, At: after(-990)},
		started("now", 0, predictor.Goal{}), hint("now", "load", 1, 0), start("now", "load", 0, 0),
	)
	for second := 1; second <= 200; second++ {
		state = fold(state, predictor.Sampled{
			Run: "now", Stage: stageNamed("load"), Task: "load-0", Attempt: 1, Venue: predictor.Pool, Host: "laptop",
			Step: second, Of: second + 10, At: after(float64(second)),
		})
	}
	if got, known := state.Forecast("now", after(200)); !known || got.Finish.Mid < 600 {
		t.Errorf("%+v known %v, want about 800 s as its stage lets expect, not 10", got.Finish, known)
	}
}

// TestForecastsAreJudgedByOneClock has runs whose hosts' clocks are right, an hour ahead and an hour behind: whether a
// forecast has held does not depend on it.
func TestForecastsAreJudgedByOneClock(t *testing.T) {
	t.Parallel()
	widthAfter := func(off float64) string {
		var state predictor.State
		for i := range 12 {
			id, at := "run-"+string(rune('a'+i)), 1e4*float64(i)
			begun := start(id, "map", 0, at+off)
			line := record(id, "map", 0, at+10+off, 10)
			line.ScheduledAt = after(at)
			state = fold(
				state, started(id, at, predictor.Goal{}), hint(id, "map", 5, at), begun, line,
			)
			for task := 1; task < 5; task++ {
				late := at + 10*float64(task)
				line := record(id, "map", task, late+10+off, 10)
				line.ScheduledAt, line.Queue = after(at), time.Duration(10*task)*time.Second
				state = fold(state, start(id, "map", task, late+off), line)
			}
			state = fold(state, predictor.RunEnded{Run: id, State: predictor.RunSucceeded, At: after(at + 50)})
		}
		var stored struct {
			Width float64 `json:"run_width"`
		}
		if err := json.Unmarshal(encode(t, state), &stored); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%.4f", stored.Width)
	}
	want := widthAfter(0)
	for _, off := range []float64{3600, -3600} {
		if got := widthAfter(off); got != want {
			t.Errorf("with clocks of hosts that are %v s off forecasts are as wide as %s, want %s", off, got, want)
		}
	}
	if want == "0.0000" {
		t.Error("no forecast was judged")
	}
}

// TestOneAttemptAtFunctionsIsOneDraw has ten attempts of ten seconds at the pool, and one at functions that took a
// hundred: the offer is between, and comes to what functions take with those that follow.
func TestOneAttemptAtFunctionsIsOneDraw(t *testing.T) {
	t.Parallel()
	offered := func(attempts int) float64 {
		state := learn(predictor.State{}, "score", 10, 10)
		for i := range attempts {
			line := record("earlier", "score", 100+i, -500+float64(i), 100)
			line.Venue = predictor.Function
			line.Grant = quantity.Size{Memory: 1769 * quantity.MiB}
			state = fold(state, line)
		}
		goal := predictor.Goal{Minimise: predictor.Latency}
		plan, _ := predictor.Decide(fold(state, started("r", 0, goal), hint("r", "score", 200, 0)), laptop(0, 1))
		for _, d := range plan.Decisions {
			if told, known := d.Inputs["function_wall_seconds"]; known {
				return told
			}
		}
		t.Fatalf("nothing is offered:\n%s", strings.Join(reasons(plan), "\n"))
		return 0
	}
	none, one, many := offered(0), offered(1), offered(30)
	if none > 15 || one < 15 || one > 40 || many < 80 {
		t.Errorf("functions take %v s by the pool, %v with one of 100 s there and %v with 30", none, one, many)
	}
}
