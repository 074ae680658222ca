package predictor_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// went is a run at a time with one stage of so many tasks at a time on four slots, of so many seconds each; it returns
// when it has ended.
func went(state predictor.State, number int, at float64, tasks int, wall float64, features map[string]float64) (
	predictor.State, float64,
) {
	run := fmt.Sprintf("earlier-%d", number)
	begun := started(run, at, predictor.Goal{})
	begun.InputBytes, begun.Features = 100, features
	hinted := hint(run, "map", tasks, at)
	hinted.Input = 100
	state = fold(state, begun, hinted)
	end := at
	for first := 0; first < tasks; first += 4 {
		ids := make([]int, min(4, tasks-first))
		for i := range ids {
			ids[i] = 1000*number + first + i
			state = fold(state, start(run, "map", ids[i], end))
		}
		end += wall
		for _, id := range ids {
			line := record(run, "map", id, end, wall*(1+0.02*math.Sin(float64(id))))
			line.Usage.Input = 100
			state = fold(state, line)
		}
	}
	return fold(state, predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(end)}), end + 60
}

// expect is what is forecast of a run that has begun, before it has called a stage or after.
func expect(
	t *testing.T, state predictor.State, at float64, tasks int, features map[string]float64,
) predictor.Forecast {
	t.Helper()
	begun := started("now", at, predictor.Goal{})
	begun.InputBytes, begun.Features = 100, features
	state = fold(twinOf(t, state), begun)
	if tasks > 0 {
		hinted := hint("now", "map", tasks, at)
		hinted.Input = 100
		state = fold(state, hinted)
	}
	got, known := state.Forecast("now", after(at))
	if !known {
		t.Fatal("nothing is forecast")
	}
	return got
}

// TestRunsOfTwoModelsInTurnAreForecastByTheirModel has runs whose inputs differ in a text: one model takes ten times as
// long as the other.
func TestRunsOfTwoModelsInTurnAreForecastByTheirModel(t *testing.T) {
	t.Parallel()
	of := func(model string) map[string]float64 {
		return map[string]float64{usage.CategoryName("model"): usage.Category(model), "epochs": 3}
	}
	var state predictor.State
	at := -1e5
	for i := range 6 {
		if i%2 == 0 {
			state, at = went(state, i, at, 8, 10, of("small"))
		} else {
			state, at = went(state, i, at, 8, 100, of("large"))
		}
	}
	for model, want := range map[string]float64{"small": 20, "large": 200} {
		for _, tasks := range []int{0, 8} {
			got := expect(t, state, at, tasks, of(model)).Finish
			if !about(got, want, 0.25) || got.High > 3*got.Low {
				t.Errorf("%s with %d tasks called: %+v, want about %v s", model, tasks, got, want)
			}
		}
	}
	first, end := went(predictor.State{}, 0, -1e5, 8, 10, of("small"))
	same, other := expect(t, first, end, 0, of("small")).Finish, expect(t, first, end, 0, of("large")).Finish
	if same.High > 6*same.Low || other.High < 8*other.Low {
		t.Errorf("after one run of small %+v is expected of the next, and %+v of one of large, want that to be wide", same,
			other)
	}
	if got := expect(t, state, at, 0, of("another")); got.Finish.High < 100 || got.Finish.Low > 40 {
		t.Errorf("a model that nobody has run: %+v, want a wide interval", got.Finish)
	}
}

// TestANumberOfShardsThatChanges has runs that divide 400 seconds of work into as many shards as their input says.
func TestANumberOfShardsThatChanges(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		of := func(shards int) map[string]float64 {
			if !told {
				return nil
			}
			return map[string]float64{"shards": float64(shards), "seed": math.Abs(math.Sin(float64(shards)))}
		}
		var state predictor.State
		at := -1e5
		for i, shards := range []int{4, 40, 8, 80} {
			state, at = went(state, i, at, shards, 400/float64(shards), of(shards))
		}
		for _, shards := range []int{16, 200} {
			got := expect(t, state, at, shards, of(shards))
			if !about(got.Finish, 100, 0.25) {
				t.Errorf("%d shards that are called, told %v: %+v, want about 100 s", shards, told, got.Finish)
			}
			got = expect(t, state, at, 0, of(shards))
			if told && !about(got.Finish, 100, 0.3) || got.Finish.Low > 100 || got.Finish.High < 100 || got.Finish.High > 3600 {
				t.Errorf("%d shards that are to come, told %v: %+v, want about 100 s", shards, told, got.Finish)
			}
		}
	}
}

// TestTheNumberOfTasksFollowsTheInputThatSaysIt has runs whose tasks take ten seconds each, as many as the input says.
func TestTheNumberOfTasksFollowsTheInputThatSaysIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name      string
		features  func(tasks int) map[string]float64
		earlier   []int
		low, high float64 // of the middle for 160 tasks on four slots
	}{
		{
			"it does", func(n int) map[string]float64 { return map[string]float64{"files": float64(n)} },
			[]int{8, 40, 16},
			320, 480,
		},
		{
			"twice as many", func(n int) map[string]float64 { return map[string]float64{"files": float64(n) / 2} },
			[]int{8, 40, 16},
			320, 480,
		},
		{"it says nothing of it", func(int) map[string]float64 { return nil }, []int{8, 40, 400}, 20, 1000},
	} {
		var state predictor.State
		at := -1e5
		for i, tasks := range c.earlier {
			state, at = went(state, i, at, tasks, 10, c.features(tasks))
		}
		got := expect(t, state, at, 0, c.features(160)).Finish
		if got.Mid < c.low || got.Mid > c.high || got.Low > 400 || got.High < 400 {
			t.Errorf("%s: %+v, want 400 s", c.name, got)
		}
	}
}
