package workflow_test

import (
	"math"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/cmd/internal/series"
	"github.com/spillway-ml/spillway/predictor"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/workflow"
)

func near(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Max(1, math.Abs(want)) }

// pastOf are tasks of one second with these inputs and peaks.
func pastOf(inputs, peaks []float64) workflow.Past {
	past := workflow.Past{Inputs: inputs, Peaks: peaks}
	for range peaks {
		past.Walls = append(past.Walls, 1)
	}
	return past
}

func TestBaselinesAnswerAsTheirPapersSay(t *testing.T) {
	t.Parallel()
	line := pastOf([]float64{10, 20, 30, 40, 50}, []float64{21, 41, 61, 81, 101})
	rare := pastOf([]float64{1, 1, 1, 1, 1}, []float64{5, 4, 5, 100, 5})
	task := workflow.Known{Process: "align", Requested: 1000, Input: 60}
	for _, c := range []struct {
		name   string
		rule   workflow.Rule
		past   workflow.Past
		failed []float64
		want   float64
	}{
		{"request", workflow.Requested, line, nil, 1000},
		{"request, after a failure", workflow.Requested, line, []float64{1000}, 2000},
		{"percentile", workflow.WittPercentile, line, nil, 97}, // rank 3.8 from 0
		{"percentile, after two failures", workflow.WittPercentile, line, []float64{97, 194}, 388},
		{"regression through a line", workflow.NewWittRegression(), line, nil, 121},
		{"regression, after a failure", workflow.NewWittRegression(), line, []float64{121}, 242},
		{"regression below zero", workflow.NewWittRegression(), pastOf(line.Inputs, []float64{50, 40, 30, 20, 10}), nil, 1},
		{"regression after less than nothing", workflow.NewWittRegression(), line, []float64{1}, 101},
		{"low wastage on a line", workflow.NewWittLowWastage(), line, nil, 121},
		{"low wastage, after a failure", workflow.NewWittLowWastage(), line, []float64{121}, 242},
		{"tovar leaves out what is rare", workflow.Tovar, rare, nil, 5},
		{"tovar, after a failure", workflow.Tovar, rare, []float64{5}, 100},
		{"tovar, after the largest", workflow.Tovar, rare, []float64{5, 100}, 128e9},
		{"tovar, after a node", workflow.Tovar, rare, []float64{5, 100, 128e9}, 256e9},
	} {
		if got := c.rule(c.past, task, c.failed).Limit; !near(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
	for name, rule := range rules {
		few := pastOf(line.Inputs[:4], line.Peaks[:4])
		if got := rule(few, task, nil).Limit; got != task.Requested {
			t.Errorf("%s knows four tasks and gives %v, want what is asked for", name, got)
		}
	}
}

// The regression is raised by how much the errors of the lines before differ.
func TestTheRegressionIsRaisedByItsErrors(t *testing.T) {
	t.Parallel()
	past := pastOf([]float64{10, 20, 30, 40, 50, 60}, []float64{20, 40, 60, 80, 100, 90})
	rule := workflow.NewWittRegression()
	// One error, (90 - 120) / 90, deviates from nothing.
	if got, want := rule(past, workflow.Known{Process: "a", Input: 35}, nil).Limit, 65.0; !near(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	// The line through the six is 65 + 55/35 (x - 35); the next task, of 250, was expected to take 120.
	past.Inputs, past.Peaks, past.Walls = append(past.Inputs, 70), append(past.Peaks, 250), append(past.Walls, 1)
	said := 120.0
	first, second := -30.0/90, (250-said)/250
	sigma := math.Abs(first-second) / 2
	line := workflow.Known{Process: "a", Input: 40} // the mean of the inputs: there the line is at the mean of the peaks
	if got, want := rule(past, line, nil).Limit, (640.0/7)*(1+sigma); !near(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// No constant wastes less than hindsight, tried on every peak and on some limits between.
func TestNoConstantBeatsHindsight(t *testing.T) {
	t.Parallel()
	tasks := made(40)
	for i := range tasks {
		tasks[i].Peak += int64(i*i) * gib / 50
		tasks[i].Run += time.Duration(i%3) * time.Second
	}
	best := workflow.ScoreOf(replay(t, tasks, workflow.Of(workflow.NewHindsight(tasks)))).Wastage
	for _, task := range tasks {
		for _, factor := range []float64{0.5, 0.9, 1, 1.1, 2} {
			constant := func(_ workflow.Past, _ workflow.Known, failed []float64) workflow.Answer {
				limit := float64(task.Peak) * factor
				if n := len(failed); n > 0 {
					limit = 2 * failed[n-1]
				}
				return workflow.Answer{Limit: limit}
			}
			if got := workflow.ScoreOf(replay(t, tasks, workflow.Of(constant))).Wastage; got < best*(1-1e-12) {
				t.Errorf("the constant %.0f wastes %v, hindsight %v", float64(task.Peak)*factor, got, best)
			}
		}
	}
}

func TestTimesAreExpectedByTheirRules(t *testing.T) {
	t.Parallel()
	past := workflow.Past{
		Inputs: []float64{1, 10, 100, 1000}, Peaks: []float64{1, 1, 1, 1}, Walls: []float64{3, 30, 300, 3000},
	}
	falls := workflow.Past{Inputs: []float64{100, 200}, Walls: []float64{1, 3}}
	square := past
	square.Walls = []float64{2, 200, 20000, 2000000}
	task := workflow.Known{Input: 50}
	for _, c := range []struct {
		name string
		rule workflow.Rule
		past workflow.Past
		want float64
	}{
		{"the median of 32", workflow.Last32, past, 165},
		{"the mean of 32", workflow.MeanWall, past, 3333.0 / 4},
		{"linear", workflow.LinearWall, past, 150},
		{"log-log", workflow.LogLogWall, square, 5000},
		{"linear is not below zero", workflow.LinearWall, falls, 0},
	} {
		if got := c.rule(c.past, task, nil).Wall.Mid; !near(got, c.want) {
			t.Errorf("%s: %v s, want %v s", c.name, got, c.want)
		}
	}
	long := workflow.Past{}
	for i := range 100 {
		long.Inputs, long.Peaks = append(long.Inputs, 1), append(long.Peaks, 1)
		long.Walls = append(long.Walls, float64(i))
	}
	want := predictor.Interval{Low: 71, Mid: 83.5, High: 96}
	if got := workflow.Last32(long, task, nil).Wall; got != want {
		t.Errorf("of 0 to 99 s: %+v, want %+v", got, want)
	}
}

func TestAScoreAddsUpWhatIsHeldAndNotUsed(t *testing.T) {
	t.Parallel()
	task := series.Task{Process: "a", Run: time.Hour, Peak: 1e9}
	interval := predictor.Interval{Low: 0.5e9, Mid: 1e9, High: 2e9}
	wall := predictor.Interval{Low: 7200, Mid: 7200, High: 14400}
	got := workflow.ScoreOf([]workflow.Outcome{
		{Task: task, Failed: []float64{0.5e9}, Limit: 2e9, Known: 4},
		{Task: task, Limit: 1e9, Known: 5, First: workflow.Answer{Peak: interval, Wall: wall}},
	})
	want := workflow.Score{
		Tasks: 2, Failures: 1, Wastage: 1.5, Scored: 1, WallMedian: 1, WallMean: 1, CoveredPeaks: 1,
		PeakInterval: math.Log(4), WallInterval: math.Log(2) + 10*math.Log(2),
	}
	if !near(got.PeakInterval, want.PeakInterval) || !near(got.WallInterval, want.WallInterval) {
		t.Errorf("interval scores %v and %v, want %v and %v", got.PeakInterval, got.WallInterval, want.PeakInterval,
			want.WallInterval)
	}
	got.PeakInterval, got.WallInterval = want.PeakInterval, want.WallInterval
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	far := workflow.ScoreOf([]workflow.Outcome{
		{Task: task, Limit: 1e9, Known: 5, First: workflow.Answer{Wall: predictor.Interval{Mid: 1e9}}},
	})
	if far.WallMean != 5 || far.CoveredPeaks != 0 || math.IsInf(far.PeakInterval, 0) {
		t.Errorf("a time that is far off: %+v", far)
	}
}

// A task whose limit never grows, or has grown to the largest host, ends the replay with words instead of hanging.
func TestAPolicyThatDoesNotGrowIsRefused(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]float64{
		"stuck": 1, "nothing": 0, "not a number": math.NaN(), "whole host": 1e15,
	} {
		tasks := made(1)
		tasks[0].Peak = 1 << 45
		rule := func(workflow.Past, workflow.Known, []float64) workflow.Answer { return workflow.Answer{Limit: limit} }
		if _, err := workflow.Replay(t.Context(), tasks, workflow.Of(rule)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
