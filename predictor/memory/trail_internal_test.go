package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
)

var trains = fact.StageID{App: "app", Build: "b", Name: "train"}

// trainingAt is when the tests of trainings begin.
var trainingAt = time.Date(2026, 11, 27, 9, 0, 0, 0, time.UTC)

// begins has tasks of a run at the pool, none of which has reported.
func begins(tasks ...string) *State {
	m := New()
	m.Fold(fact.RunStarted{Run: "r", Pipeline: "p", App: "app", At: trainingAt})
	m.Fold(fact.Scheduled{Run: "r", Stage: trains, Tasks: len(tasks), At: trainingAt})
	for _, task := range tasks {
		m.Fold(fact.AttemptStarted{
			Run: "r", Stage: trains, Task: task, Attempt: 1, Venue: fact.Pool, Host: "laptop", At: trainingAt,
		})
	}
	return m
}

// reports lets a task tell a step.
func reports(m *State, task string, step int, loss float64) {
	m.Fold(fact.Sampled{
		Run: "r", Stage: trains, Task: task, Attempt: 1, Venue: fact.Pool, Host: "laptop", Step: step,
		Metrics: map[string]float64{"loss": loss}, At: trainingAt.Add(time.Duration(step) * time.Second),
	})
}

// TestALongTrainingHasItsTurnBesideManyShortOnes fits one a few times while in each second more begin than are fitted.
func TestALongTrainingHasItsTurnBesideManyShortOnes(t *testing.T) {
	t.Parallel()
	const seconds = 12
	tasks := []string{"long"}
	for i := range seconds * 2 * mostFits {
		tasks = append(tasks, fmt.Sprintf("short-%d", i))
	}
	m := begins(tasks...)
	long := func() *Trail { return m.trails[taskKey("r", "long")] }
	fits := 0
	for second := range seconds {
		reports(m, "long", second+1, 1/float64(second+1))
		before := long().fit
		for _, task := range tasks[1+second*mostFits*2 : 1+(second+1)*mostFits*2] {
			reports(m, task, 1, 1)
		}
		m.Learn(fact.At(trainingAt.Add(time.Duration(second) * 2 * time.Second)))
		if long().fit != before {
			fits++
		}
	}
	if fits < 3 {
		t.Errorf("it was fitted %d times in %d looks, want it to have its turn", fits, seconds)
	}
}

// TestASampleThatIsToldAgainIsNothingNew tells a value that single precision does not have.
func TestASampleThatIsToldAgainIsNothingNew(t *testing.T) {
	t.Parallel()
	m := begins("a")
	for step := range 4 {
		reports(m, "a", step+1, 0.1)
	}
	m.Learn(fact.At(trainingAt.Add(time.Minute)))
	if reports(m, "a", 4, 0.1); m.trails[taskKey("r", "a")].changed {
		t.Error("the same sample is taken for a new one")
	}
	if reports(m, "a", 4, 0.2); !m.trails[taskKey("r", "a")].changed {
		t.Error("another value of the step is nothing new")
	}
}

// TestTrainingsAreForgottenBeforeStages has a checkpoint that is too large.
func TestTrainingsAreForgottenBeforeStages(t *testing.T) {
	t.Parallel()
	m := begins("a", "b")
	for step := range 4 {
		reports(m, "a", step+1, 0.1)
		reports(m, "b", step+1, 0.1)
	}
	m.Fold(fact.Record{
		Run: "r", Stage: trains, Task: "a", Attempt: 1, Venue: fact.Pool, Outcome: fact.Succeeded,
		At: trainingAt.Add(time.Minute),
	})
	if len(m.trails) != 1 || m.curved != 4 {
		t.Fatalf("%d trails, %d points of curves", len(m.trails), m.curved)
	}
	arrivals := len(m.arrivals.stages)
	if n := m.Lighten(); n == 0 || m.curved != 0 || len(m.trails) != 0 || len(m.arrivals.stages) != arrivals ||
		len(m.models) != 1 {
		t.Errorf("%d forgotten: %d points of curves, %d trails, %d forecasts and %d models are left", n, m.curved,
			len(m.trails), len(m.arrivals.stages), len(m.models))
	}
}
