package workflows_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/internal/account"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// TestATuningStaysWithinItsMoney has jobs that cost a dollar for each epoch: what is spent and reserved never exceeds
// what the tuning, or its run, may spend, and the best so far is the result.
func TestATuningStaysWithinItsMoney(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		money, budget quantity.Money
		ended         string
	}{
		"of its own":                   {30 * quantity.USD, 0, runs.EndedMoney},
		"its run's":                    {0, 30 * quantity.USD, runs.EndedBudget},
		"its own, less than the run's": {30 * quantity.USD, 400 * quantity.USD, runs.EndedMoney},
		"its run's, less than its own": {400 * quantity.USD, 30 * quantity.USD, runs.EndedBudget},
		"enough":                       {1000 * quantity.USD, 2000 * quantity.USD, runs.EndedDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTuner(t, spillway.Goal{Budget: c.budget}, func(_ context.Context, in fitInput, task wire.Task) (
				wire.Result, error,
			) {
				cost := quantity.USD.Times(in.Trial.To - in.Trial.From)
				if !task.Budgeted {
					t.Errorf("task %s may cost anything", task.ID)
				}
				if cost > task.Reserved { // as an attempt that is given no more
					return wire.Result{Cost: task.Reserved}, temporal.NewNonRetryableApplicationError("used up", wire.BudgetError,
						nil, map[string]any{"spent_picodollars": task.Reserved})
				}
				return told(float64(in.Trial.Number)+1/in.Trial.To, cost), nil
			})
			s := fitSearch()
			s.Money = c.money
			best, err := f.run(t, s)
			if err != nil {
				t.Fatal(err)
			}
			limit := c.money
			if c.budget > 0 && (limit == 0 || c.budget < limit) {
				limit = c.budget
			}
			if f.most > limit || best.Tuning.Spent != f.spent || best.Tuning.Ended != c.ended || best.Trial != 0 {
				t.Errorf("%s were spent and reserved of %s, %s spent, %s told, it ended %q, the best is %d", f.most, limit,
					f.spent, best.Tuning.Spent, best.Tuning.Ended, best.Trial)
			}
		})
	}
}

// TestTheLogOfATuningWithMoneySaysWhichTrialsRan: a job that waits until another has ended and freed money was taken
// before that one was reported, which decides what the search gives out when it is made anew from the log.
func TestTheLogOfATuningWithMoneySaysWhichTrialsRan(t *testing.T) {
	t.Parallel()
	for seed := range uint64(4) {
		for _, money := range []quantity.Money{25, 60, 120} {
			ran := map[string]float64{} // by task
			var f *tuner
			f = newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, task wire.Task) (wire.Result, error) {
				f.mu.Lock()
				ran[task.ID] = in.Rate
				f.mu.Unlock()
				return told(fitLoss(in), quantity.USD.Times(in.Trial.To-in.Trial.From)), nil
			})
			s := fitSearch()
			s.Seed, s.Money = seed, money*quantity.USD
			best, err := f.run(t, s)
			if err != nil {
				t.Fatalf("seed %d, %s: %v", seed, s.Money, err)
			}
			if best.Objective != best.Output.Loss {
				t.Errorf("seed %d, %s: the best told %g, and its output says %g", seed, s.Money, best.Objective, best.Output.Loss)
			}
			for _, trial := range best.Tuning.Trials {
				for _, job := range trial.Jobs {
					if rate := trial.Configuration["rate"].Number; ran[job.Task] != rate {
						t.Errorf("seed %d, %s: task %s ran with rate %g, and its trial %d has %g", seed, s.Money, job.Task,
							ran[job.Task], trial.Number, rate)
					}
				}
			}
		}
	}
}

// TestAGrowingJobWaitsForWhatOthersFree has a second job ask for more than is left while a third one runs, which frees
// it.
func TestAGrowingJobWaitsForWhatOthersFree(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan wire.Reserved, 1)
	f := newTuner(t, spillway.Goal{}, func(ctx context.Context, _ fitInput, task wire.Task) (wire.Result, error) {
		switch task.ID {
		case "fit-0":
			return told(1, 1000), nil
		case "fit-1":
			select {
			case given := <-answer:
				if given.Amount >= 3000 {
					return told(1, 3000), nil
				}
			case <-ctx.Done():
			}
			return wire.Result{Cost: task.Reserved}, temporal.NewNonRetryableApplicationError("used up", wire.BudgetError,
				nil, map[string]any{"spent_picodollars": task.Reserved})
		}
		<-asked
		return told(1, 500), nil
	})
	child, running := "", 0
	f.env.SetOnChildWorkflowStartedListener(func(info *workflow.Info, _ workflow.Context, _ converter.EncodedValues) {
		child = info.WorkflowExecution.ID
	})
	f.env.SetOnActivityStartedListener(func(*activity.Info, context.Context, converter.EncodedValues) {
		if running++; running != 3 {
			return
		}
		err := f.env.UpdateWorkflowByID(child, wire.ReserveUpdate, "", &testsuite.TestUpdateCallback{
			OnAccept: func() { close(asked) }, OnReject: func(err error) { t.Error(err) },
			OnComplete: func(told any, _ error) {
				reserved, _ := told.(wire.Reserved)
				answer <- reserved
			},
		}, wire.Reserve{Task: "fit-1", Least: 3000, Want: 3000, Waits: true})
		if err != nil {
			t.Error(err)
		}
	})
	s := fitSearch()
	s.Algorithm, s.Trials, s.Most, s.Money = spillway.Random, 3, 1, 5000
	best, err := f.run(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if best.Tuning.Ended != runs.EndedDone || best.Tuning.Spent != 4500 {
		t.Errorf("it ended %q after it had spent %d: %+v", best.Tuning.Ended, best.Tuning.Spent, best.Tuning.Trials)
	}
}

// TestATuningWhoseOwnMoneyRefusesAJobSaysSo, and does not put it down to the budget of its run, which has more.
func TestATuningWhoseOwnMoneyRefusesAJobSaysSo(t *testing.T) {
	t.Parallel()
	answer := make(chan struct{})
	f := newTuner(t, spillway.Goal{Budget: 100_000}, func(ctx context.Context, _ fitInput, task wire.Task) (
		wire.Result, error,
	) {
		if task.ID == "fit-0" {
			return told(1, 1000), nil
		}
		select {
		case <-answer:
		case <-ctx.Done():
		}
		return wire.Result{Cost: task.Reserved}, temporal.NewNonRetryableApplicationError("used up", wire.BudgetError,
			nil, map[string]any{"spent_picodollars": task.Reserved})
	})
	child, running := "", 0
	f.env.SetOnChildWorkflowStartedListener(func(info *workflow.Info, _ workflow.Context, _ converter.EncodedValues) {
		child = info.WorkflowExecution.ID
	})
	f.env.SetOnActivityStartedListener(func(*activity.Info, context.Context, converter.EncodedValues) {
		if running++; running != 2 {
			return
		}
		err := f.env.UpdateWorkflowByID(child, wire.ReserveUpdate, "", &testsuite.TestUpdateCallback{
			OnAccept: func() {}, OnReject: func(err error) { t.Error(err) },
			OnComplete: func(any, error) { close(answer) },
		}, wire.Reserve{Task: "fit-1", Least: 9000, Want: 9000, Waits: true})
		if err != nil {
			t.Error(err)
		}
	})
	s := fitSearch()
	s.Algorithm, s.Trials, s.Most, s.Money = spillway.Random, 2, 1, 5000
	best, err := f.run(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if best.Tuning.Ended != runs.EndedMoney || !strings.Contains(best.Tuning.Trials[1].Why, "that the tuning may cost") {
		t.Errorf("it ended %q: %+v", best.Tuning.Ended, best.Tuning.Trials)
	}
}

// TestMoneyForThePartBeforeOfATuningIsNotTaken: parts of a tuning have one workflow ID, and a signal may come late.
func TestMoneyForThePartBeforeOfATuningIsNotTaken(t *testing.T) {
	t.Parallel()
	limit := 30 * quantity.USD
	f := newTuner(t, spillway.Goal{Budget: limit}, func(_ context.Context, in fitInput, task wire.Task) (
		wire.Result, error,
	) {
		return told(float64(in.Trial.Number), min(task.Reserved, quantity.USD.Times(in.Trial.To-in.Trial.From))), nil
	})
	f.env.SetOnChildWorkflowStartedListener(func(info *workflow.Info, _ workflow.Context, _ converter.EncodedValues) {
		late := account.Block{Seq: 99, Part: info.WorkflowExecution.ID + "#7", Granted: 400 * quantity.USD}
		if err := f.env.SignalWorkflowByID(info.WorkflowExecution.ID, "spillway.money", late); err != nil {
			t.Error(err)
		}
	})
	if best, err := f.run(t, fitSearch()); err != nil || f.most > limit || best.Tuning.Ended != runs.EndedBudget {
		t.Errorf("%v: it ended %q, and %s were spent and reserved of %s", err, best.Tuning.Ended, f.most, limit)
	}
}

func TestATuningThatCannotPayOneTrialSaysSo(t *testing.T) {
	t.Parallel()
	f := newTuner(t, spillway.Goal{}, func(_ context.Context, _ fitInput, task wire.Task) (wire.Result, error) {
		return wire.Result{}, temporal.NewNonRetryableApplicationError("used up", wire.BudgetError, nil,
			map[string]any{"spent_picodollars": task.Reserved})
	})
	s := fitSearch()
	s.Money = quantity.USD / 100
	if _, err := f.run(t, s); err == nil || !strings.Contains(err.Error(), "no trial could be paid from the $0.01") {
		t.Errorf("got %v", err)
	}
}

// TestATuningEndsWhenItsTimeIsUp has jobs that take a minute, in a time that is skipped.
func TestATuningEndsWhenItsTimeIsUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		time, deadline, first time.Duration // first is what the first job takes
		ended                 string
		failed                string
		least                 int // trials that begin
	}{
		"there is enough":                   {10 * time.Hour, 0, time.Minute, runs.EndedDone, "", 27},
		"there is too little":               {150 * time.Second, 0, time.Minute, runs.EndedTime, "", 6},
		"the run's deadline comes":          {0, 150 * time.Second, time.Minute, runs.EndedDeadline, "", 6},
		"a trial never reports":             {10 * time.Minute, 0, 1000 * time.Hour, runs.EndedTime, "", 20},
		"it is not enough for a single job": {30 * time.Second, 0, time.Minute, "", `no trial told "loss" within the 30s`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTuner(t, spillway.Goal{Deadline: c.deadline}, nil)
			var begun atomic.Bool
			f.env.OnActivity(fit.Name(), mock.Anything, mock.Anything, mock.Anything).
				Return(told(1, 0), nil).
				AfterFn(func() time.Duration {
					if begun.Swap(true) {
						return time.Minute
					}
					return c.first
				})
			s := fitSearch()
			s.Time = c.time
			best, err := f.run(t, s)
			if c.failed != "" {
				if err == nil || !strings.Contains(err.Error(), c.failed) {
					t.Errorf("got %v, want %q", err, c.failed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			took, limit := best.Tuning.EndedAt.Sub(best.Tuning.StartedAt), cmp.Or(c.time, c.deadline)
			if best.Tuning.Ended != c.ended || took > limit || best.Tuning.Begun < c.least {
				t.Errorf("it began %d trials in %s and ended: %s; want %s within %s", best.Tuning.Begun, took,
					best.Tuning.Ended, c.ended, limit)
			}
			if c.first > time.Hour && !slices.ContainsFunc(best.Tuning.Trials, func(trial runs.Trial) bool {
				return strings.Contains(trial.Why, "the tuning's time was up")
			}) {
				t.Errorf("no trial was stopped for the time: %+v", best.Tuning.Trials)
			}
		})
	}
}

// TestWhatWaitsForASlotTakesNoLongerForIt has one slot do a tuning's jobs one after another, ten seconds each, while
// eight of them are scheduled at a time: there is enough time for all of them, or not.
func TestWhatWaitsForASlotTakesNoLongerForIt(t *testing.T) {
	t.Parallel()
	const each = 10 * time.Second
	for limit, want := range map[time.Duration]string{
		500 * time.Second: runs.EndedDone, 155 * time.Second: runs.EndedTime,
	} {
		t.Run(limit.String(), func(t *testing.T) {
			t.Parallel()
			f := newTuner(t, spillway.Goal{}, nil)
			result := told(1, 0)
			result.Took = each
			begin := f.env.Now()
			ends := []chan time.Duration{make(chan time.Duration, 1)} // when the slot is free for a job, by number
			ends[0] <- 0
			for number := range 60 {
				ends = append(ends, make(chan time.Duration, 1))
				own := mock.MatchedBy(func(task wire.Task) bool { return task.ID == fmt.Sprint("fit-", number) })
				f.env.OnActivity(fit.Name(), mock.Anything, own, mock.Anything).Return(result, nil).
					AfterFn(func() time.Duration {
						now := f.env.Now().Sub(begin)
						end := max(<-ends[number], now) + each
						ends[number+1] <- end
						return end - now
					})
			}
			s := fitSearch()
			s.Time = limit
			best, err := f.run(t, s)
			if err != nil {
				t.Fatal(err)
			}
			if best.Tuning.Ended != want {
				t.Errorf("of %s it took %s, and ended: %s", limit, best.Tuning.EndedAt.Sub(best.Tuning.StartedAt),
					best.Tuning.Ended)
			}
			for _, trial := range best.Tuning.Trials {
				if strings.Contains(trial.Why, "the tuning's time was up") {
					t.Errorf("trial %d was begun too late: %s", trial.Number, trial.Why)
				}
			}
		})
	}
}

// TestAnotherDeadlineReachesATuningUnderWay has jobs that take a minute, and a run that is given less time, or more,
// after the first ones.
func TestAnotherDeadlineReachesATuningUnderWay(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after time.Duration
		ended         string
	}{
		"sooner": {0, 150 * time.Second, runs.EndedDeadline},
		"later":  {400 * time.Second, 10 * time.Hour, runs.EndedDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTuner(t, spillway.Goal{Deadline: c.before}, nil)
			f.env.OnActivity(fit.Name(), mock.Anything, mock.Anything, mock.Anything).Return(told(1, 0), nil).
				AfterFn(func() time.Duration { return time.Minute })
			f.env.RegisterDelayedCallback(func() {
				f.env.UpdateWorkflowNoRejection(runs.GoalUpdate, "", t, spillway.Goal{Deadline: c.after})
			}, 90*time.Second)
			best, err := f.run(t, fitSearch())
			if err != nil {
				t.Fatal(err)
			}
			if best.Tuning.Ended != c.ended {
				t.Errorf("it ended %q with %d trials, want %q", best.Tuning.Ended, best.Tuning.Begun, c.ended)
			}
		})
	}
}
