package workflow_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spillway-ml/spillway/cmd/internal/series"

	"github.com/spillway-ml/spillway/cmd/spillway-eval/internal/workflow"
)

const gib = int64(1) << 30

// made are n tasks of one process, one each second, of five seconds; peaks grow with inputs.
func made(n int) []series.Task {
	var tasks []series.Task
	for i := range n {
		start := time.Duration(i) * time.Second
		tasks = append(tasks, series.Task{
			Process: "align", Start: start, Complete: start + 5*time.Second, Run: 5 * time.Second, CPUs: 1,
			Requested: 8 * gib, Input: int64(1+i*7%10) * gib / 10, Peak: int64(1+i*7%10) * gib / 5,
		})
	}
	return tasks
}

func production(t *testing.T) workflow.Policy {
	t.Helper()
	policy, err := workflow.NewProduction(t.Context(), "made")
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

func replay(t *testing.T, tasks []series.Task, policy workflow.Policy) []workflow.Outcome {
	t.Helper()
	outcomes, err := workflow.Replay(t.Context(), tasks, policy)
	if err != nil {
		t.Fatal(err)
	}
	return outcomes
}

// knowing answers with the peak itself.
type knowing struct{ tasks []series.Task }

func (k knowing) Size(_ context.Context, task workflow.Known, _ []float64) (workflow.Answer, error) {
	return workflow.Answer{Limit: float64(k.tasks[task.ID].Peak)}, nil
}
func (knowing) RanOut(context.Context, workflow.Known, float64) error      { return nil }
func (knowing) Ended(context.Context, workflow.Known, workflow.Took) error { return nil }

func TestWhoKnowsThePeaksWastesAndLosesNothing(t *testing.T) {
	t.Parallel()
	tasks := made(50)
	score := workflow.ScoreOf(replay(t, tasks, knowing{tasks}))
	if score.Tasks != 50 || score.Failures != 0 || score.Wastage != 0 {
		t.Errorf("got %+v", score)
	}
}

// A size rests on what had ended when the task started: whatever later tasks take, and those that still run, it stays
// what it is.
func TestNoSizeKnowsTheFuture(t *testing.T) {
	t.Parallel()
	policies := map[string]func() workflow.Policy{"production": func() workflow.Policy { return production(t) }}
	for name, rule := range map[string]func() workflow.Rule{
		"last_32":     func() workflow.Rule { return workflow.Last32 },
		"percentile":  func() workflow.Rule { return workflow.WittPercentile },
		"regression":  workflow.NewWittRegression,
		"low wastage": workflow.NewWittLowWastage,
		"tovar":       func() workflow.Rule { return workflow.Tovar },
		"log-log":     func() workflow.Rule { return workflow.LogLogWall },
	} {
		policies[name] = func() workflow.Policy { return workflow.Of(rule()) }
	}
	tasks := made(60)
	for name, policy := range policies {
		usual := replay(t, tasks, policy())
		for at := 0; at < len(tasks); at += 7 {
			poisoned := made(60)
			for i := range poisoned {
				switch {
				case i > at:
					poisoned[i].Peak *= 30
				case i == at || poisoned[i].Complete <= tasks[at].Start:
					continue
				default: // it runs: another peak that runs out of memory as often
					poisoned[i].Peak = int64(usual[i].Limit)
				}
				poisoned[i].Run *= 100
				poisoned[i].Complete += time.Hour
			}
			got := replay(t, poisoned, policy())[at]
			if diff := cmp.Diff(usual[at], got); diff != "" {
				t.Errorf("%s, task %d: %s", name, at, diff)
			}
		}
	}
}

// rules are those that give what is asked for until five tasks have ended.
var rules = map[string]workflow.Rule{
	"request": workflow.Requested, "last_32": workflow.Last32, "percentile": workflow.WittPercentile,
	"regression": workflow.NewWittRegression(), "low wastage": workflow.NewWittLowWastage(), "tovar": workflow.Tovar,
}
