package predictor_test

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"

	"github.com/spillway-ml/spillway/predictor"
)

// loss is a curve that falls from 3 to .5.
func loss(step int) float64 { return 0.5 + 2.5*math.Pow(float64(step), -0.6) }

// looked is a sample of a task that reports a metric.
func looked(run string, task, step, of int, at float64, metric string, value float64) predictor.Sampled {
	e := told(run, "train", task, step, of, at)
	e.Metrics = map[string]float64{metric: value, "learning_rate": 0.1}
	if math.IsNaN(value) {
		e.Metrics, e.NotFinite = map[string]float64{"learning_rate": 0.1}, []string{metric}
	}
	return e
}

// learned lets the first task of a run report the loss of these steps, one a second.
func learned(state predictor.State, run string, from, to, of int) predictor.State {
	for step := from; step <= to; step++ {
		state = fold(state, looked(run, 0, step, of, float64(step), "loss", loss(step)))
	}
	return state
}

// asked is how the only training of a run goes, fitted at the time of its step.
func asked(t *testing.T, state predictor.State, run string, at float64) predictor.Learning {
	t.Helper()
	state = predictor.Learn(state, after(at))
	found := state.LearningAhead(run)
	if len(found) != 1 {
		t.Fatalf("%d trainings of %s are told of, want one", len(found), run)
	}
	return found[0]
}

func TestARunningTrainingsEndIsExpectedByItsCurve(t *testing.T) {
	t.Parallel()
	got := asked(t, learned(firstRun(1, 1), "now", 1, 100, 400), "now", 100)
	if got.Metric != "loss" || got.Better != "lower" || got.Step != 100 || got.Phase != "learning" || got.Planned != 400 {
		t.Errorf("got %+v, want a loss that is learned at step 100 of 400", got)
	}
	want := loss(400)
	if got.Final == nil || got.Final.Low > want || got.Final.High < want || math.Abs(got.Final.Mid-want) > 0.03 {
		t.Errorf("at its end %+v is expected, want about %v", got.Final, want)
	}
	if n := len(got.Ahead); n < 8 || got.Ahead[n-1].Step != 400 || got.Ahead[n-1].Value != *got.Final {
		t.Errorf("ahead of it are %+v, want steps to the end", got.Ahead)
	}
	if left := learned(firstRun(1, 1), "now", 1, 100, 400).Learning("now")["now"]; len(left) != 1 || left[0].Final != nil {
		t.Errorf("before anybody fits its curve %+v is told, want its steps alone", left)
	}
}

func TestATrainingThatDivergesIsToldAtOnce(t *testing.T) {
	t.Parallel()
	state := learned(firstRun(1, 1), "now", 1, 20, 0)
	if got := asked(t, state, "now", 20); got.Phase != "learning" {
		t.Fatalf("the phase is %q, want learning", got.Phase)
	}
	state = fold(state, looked("now", 0, 21, 0, 20.1, "loss", math.NaN()))
	got := state.Learning("now")["now"][0] // nothing was fitted since
	if got.Phase != "diverged" || got.Value != nil || got.Step != 21 || got.Best == nil || got.Final != nil {
		t.Errorf("of a loss that is NaN %+v is told, want that it has diverged at step 21", got)
	}
	if _, err := json.Marshal(got); err != nil {
		t.Errorf("encode it: %v", err)
	}
	worse := learned(firstRun(1, 1), "now", 1, 20, 0)
	for i, value := range []float64{4, 5, 7, 9, 12} {
		worse = fold(worse, looked("now", 0, 21+i, 0, float64(21+i), "loss", value))
	}
	if got := asked(t, worse, "now", 30); got.Phase != "diverged" {
		t.Errorf("of a loss that rises to 12 the phase is %q, want diverged", got.Phase)
	}
	flat := learned(firstRun(1, 1), "now", 1, 10, 0)
	for step := 11; step <= 60; step++ {
		flat = fold(flat, looked("now", 0, step, 0, float64(step), "loss", loss(10)))
	}
	if got := asked(t, flat, "now", 60); got.Phase != "plateaued" {
		t.Errorf("of a loss that stays the phase is %q, want plateaued", got.Phase)
	}
}

func TestATrainingIsExpectedByEarlierOnesOfItsStage(t *testing.T) {
	t.Parallel()
	// What no curve shows before it comes: at step 30 the loss falls by a fifth.
	stepped := func(step int) float64 {
		if step >= 30 {
			return loss(step) - 0.2
		}
		return loss(step)
	}
	state := predictor.State{}
	for past := range 3 {
		run := fmt.Sprintf("past-%d", past)
		state = fold(state, started(run, 0, predictor.Goal{}), hint(run, "train", 1, 0), start(run, "train", 0, 0))
		for step := 1; step <= 60; step++ {
			state = fold(state, looked(run, 0, step, 60, float64(step), "loss", stepped(step)*(1+0.01*float64(past))))
		}
		state = fold(state, record(run, "train", 0, 61, 61),
			predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(61)})
		if left := state.Learning(run); len(left[run]) != 0 {
			t.Errorf("of a task that has ended %+v is told", left)
		}
	}
	state = fold(state, started("now", 0, predictor.Goal{}), hint("now", "train", 1, 0), start("now", "train", 0, 0))
	for step := 1; step <= 25; step++ {
		state = fold(state, looked("now", 0, step, 60, float64(step), "loss", stepped(step)))
	}
	again := reread(t, state)
	got := asked(t, state, "now", 25)
	if got.Earlier != 3 || got.Final == nil || math.Abs(got.Final.Mid-stepped(60)) > 0.03 {
		t.Errorf("%+v is told, at its end %+v, want about %v by three earlier ones", got, got.Final, stepped(60))
	}
	if other := asked(t, again, "now", 25); other.Final == nil || math.Abs(other.Final.Mid-got.Final.Mid) > 1e-4 {
		t.Errorf("after a checkpoint %+v is expected, before %+v", other.Final, got.Final)
	}
}

// reread is a copy of a state from its checkpoint.
func reread(t *testing.T, state predictor.State) (again predictor.State) {
	t.Helper()
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatal(err)
	}
	return again
}

func TestARetriedTrainingGoesOnWithItsCurve(t *testing.T) {
	t.Parallel()
	state := learned(firstRun(1, 1), "now", 1, 40, 100)
	failed := record("now", "train", 0, 41, 41)
	failed.Outcome = predictor.Failed
	second := start("now", "train", 0, 42)
	second.Attempt = 2
	state = fold(state, failed, second)
	if left := state.Learning("now")["now"]; len(left) != 0 {
		t.Errorf("of an attempt that has said nothing yet %+v is told", left)
	}
	for step := 31; step <= 50; step++ { // from the checkpoint at step 30
		e := looked("now", 0, step, 100, float64(50+step), "loss", loss(step))
		e.Attempt = 2
		state = fold(state, e)
	}
	got := asked(t, state, "now", 100)
	if got.Attempt != 2 || got.Step != 50 || got.Phase != "learning" || got.Final == nil ||
		math.Abs(got.Final.Mid-loss(100)) > 0.03 {
		t.Errorf("got %+v, at its end %+v, want about %v by all steps from 1 on", got, got.Final, loss(100))
	}
}

func TestATrainingWhoseMetricSaysNothingIsNotFollowed(t *testing.T) {
	t.Parallel()
	state := firstRun(1, 1)
	for step := 1; step <= 10; step++ {
		state = fold(state, looked("now", 0, step, 0, float64(step), "done", float64(step)/10))
	}
	if found := predictor.Learn(state, after(10)).Learning("now"); len(found["now"]) != 0 {
		t.Errorf("by a metric of no known direction %+v is told", found)
	}
}

func TestWhatIsKeptOfTrainingsIsBounded(t *testing.T) {
	t.Parallel()
	state := firstRun(1, 1)
	for step := 1; step <= 20_000; step++ {
		state = fold(state, looked("now", 0, step, 0, float64(step), "loss", loss(step)))
	}
	got := asked(t, state, "now", 20_000)
	if want := loss(40_000); len(got.Ahead) == 0 || math.Abs(got.Ahead[len(got.Ahead)-1].Value.Mid-want) > 0.01 {
		t.Errorf("at twice its steps %+v is expected, want %v", got.Ahead, want)
	}
	one, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	bare, err := json.Marshal(firstRun(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	if most := 9 << 10; len(one)-len(bare) > most { // 256 points are 2.7 KiB; the rest is of progress and of live sizes
		t.Errorf("a task of 20,000 steps takes %d bytes of a checkpoint, want %d at most", len(one)-len(bare), most)
	}
	tasks := 400
	full := firstRun(tasks, tasks)
	for step := 1; step <= 300; step++ {
		for task := range tasks {
			full = fold(full, looked("now", task, step, 300, float64(step), "loss", loss(step)))
		}
	}
	running, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	for task := range tasks {
		full = fold(full, record("now", "train", task, 301, 301))
	}
	ended, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d bytes while %d tasks run, %d once they have ended", len(running), tasks, len(ended))
	if len(running) > 1<<20 || len(ended) > 100<<10 {
		t.Errorf("a checkpoint of %d trainings has %d bytes, once they have ended %d", tasks, len(running), len(ended))
	}
}

// TestEndedTasksTeachByTheirRecordsAlone has tasks whose reports nobody heard while they ran, as those of functions.
func TestEndedTasksTeachByTheirRecordsAlone(t *testing.T) {
	t.Parallel()
	state := predictor.State{}
	for past := range 3 {
		run := fmt.Sprintf("past-%d", past)
		line := record(run, "train", 0, 1, 1)
		line.Step, line.Of, line.Metrics = 40, 40, map[string]float64{"loss": loss(40)}
		line.Curve = &predictor.Curve{Metric: "loss"}
		for step := 1; step <= 40; step++ {
			line.Curve.Steps = append(line.Curve.Steps, int64(step))
			line.Curve.Values = append(line.Curve.Values, loss(step))
		}
		state = fold(state, started(run, 0, predictor.Goal{}), hint(run, "train", 1, 0), start(run, "train", 0, 0), line,
			predictor.RunEnded{Run: run, State: predictor.RunSucceeded, At: after(2)})
	}
	state = fold(state, started("now", 0, predictor.Goal{}), hint("now", "train", 1, 0), start("now", "train", 0, 0),
		looked("now", 0, 1, 0, 1, "loss", loss(1)), looked("now", 0, 4, 0, 2, "loss", loss(4)))
	got := asked(t, state, "now", 2)
	if got.Earlier != 3 || got.Planned != 40 || got.Final == nil || math.Abs(got.Final.Mid-loss(40)) > 0.05 {
		t.Errorf("got %+v, at its end %+v, want about %v at step 40 by three earlier tasks", got, got.Final, loss(40))
	}
}

// BenchmarkLearningOfManyTrainings is what each look at a run takes while its trainings go on.
func BenchmarkLearningOfManyTrainings(b *testing.B) {
	const tasks = 200
	state := firstRun(tasks, tasks)
	for step := 1; step <= 30; step++ {
		for task := range tasks {
			state = fold(state, looked("now", task, step, 0, float64(step), "loss", loss(step)))
		}
	}
	for look := range tasks { // more than it takes to fit all
		state = predictor.Learn(state, after(float64(30+2*look)))
	}
	b.ReportAllocs()
	for b.Loop() {
		state.Learning("now")
	}
}
