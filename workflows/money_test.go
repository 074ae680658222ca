package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// priced is the input of the stages below: what the task costs, and whether it fails then.
type priced struct {
	Cost  quantity.Money `json:"cost"`
	Fails bool           `json:"fails,omitempty"`
}

var (
	cheap = spillway.NewStage("cheap", func(context.Context, priced) (int, error) { return 0, nil })
	dear  = spillway.NewStage("dear", func(context.Context, priced) (int, error) { return 0, nil })
)

// till is where the tasks of a test pay: it knows what was spent, and what is reserved for those in flight.
type till struct {
	mu              sync.Mutex
	spent, reserved quantity.Money
	now, most       int
	tasks           int
	worst           quantity.Money // the most that was spent and reserved when a task started
	unbounded       int            // tasks that came without a reservation
	mute            int            // tasks that never ask
}

func (p *till) enter(task wire.Task) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tasks++
	p.now++
	p.most = max(p.most, p.now)
	p.reserved += task.Reserved
	if !task.Budgeted {
		p.unbounded++
	}
	if !task.Asks {
		p.mute++
	}
	p.worst = max(p.worst, p.spent+p.reserved)
}

func (p *till) leave(task wire.Task, cost quantity.Money) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	p.reserved -= task.Reserved
	p.spent += cost
}

func (p *till) attempt(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
	p.enter(task)
	var in priced
	if err := json.Unmarshal(input, &in); err != nil {
		return wire.Result{}, err
	}
	time.Sleep(time.Millisecond) // so that attempts overlap
	if ctx.Err() != nil {
		p.leave(task, 0)
		return wire.Result{}, temporal.NewCanceledError()
	}
	p.leave(task, in.Cost)
	if in.Fails {
		return wire.Result{}, temporal.NewNonRetryableApplicationError("it fails", wire.StageError, nil,
			map[string]any{"spent_picodollars": in.Cost})
	}
	return wire.Result{Output: json.RawMessage("1"), Cost: in.Cost}, nil
}

// budgeted runs a pipeline with a budget in a run of this version.
func budgeted(
	t *testing.T, budget quantity.Money, version int, prices *wire.Prices, run func(workflow.Context) error,
	more ...func(*testsuite.TestWorkflowEnvironment),
) (*till, error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(time.Minute)
	ports := runs.Ports{Stages: []runs.AnyStage{cheap, dear}, Window: 16}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	if err := env.SetMemoOnStart(map[string]any{
		runs.GoalMemo:    spillway.Goal{Budget: budget},
		runs.OptionsMemo: wire.RunOptions{Version: version, Window: 16, Prices: prices},
	}); err != nil {
		t.Fatal(err)
	}
	pipeline := spillway.NewPipeline("spender", func(ctx workflow.Context, _ int) (int, error) { return 0, run(ctx) })
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	p := &till{}
	for _, stage := range ports.Stages {
		env.RegisterActivityWithOptions(p.attempt, activity.RegisterOptions{Name: stage.Name()})
	}
	for _, prepare := range more {
		prepare(env)
	}
	env.ExecuteWorkflow(pipeline.Name(), 0)
	if !env.IsWorkflowCompleted() {
		t.Fatal("the run hangs")
	}
	return p, env.GetWorkflowError()
}

func costing(n int, cost quantity.Money) []priced {
	all := make([]priced, n)
	for i := range all {
		all[i] = priced{Cost: cost}
	}
	return all
}

// both maps over two stages at once.
func both(ctx workflow.Context, first, second []priced) error {
	var errs [2]error
	group := workflow.NewWaitGroup(ctx)
	for i, one := range [][]priced{first, second} {
		group.Add(1)
		workflow.Go(ctx, func(ctx workflow.Context) {
			defer group.Done()
			stage := cheap
			if i == 1 {
				stage = dear
			}
			_, errs[i] = stage.Map(ctx, one)
		})
	}
	group.Wait(ctx)
	return errors.Join(errs[0], errs[1])
}

func TestTwoMapsAtOnceStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	const cost = 60*10 + 20*100
	p, err := budgeted(t, cost+400, 1, nil, func(ctx workflow.Context) error {
		return both(ctx, costing(60, 10), costing(20, 100))
	})
	if err != nil {
		t.Fatal(err)
	}
	if p.tasks != 80 || p.spent != cost || p.worst > cost+400 || p.unbounded > 0 {
		t.Errorf("got %d tasks, %d spent, at most %d spent and reserved of %d, %d tasks without a reservation; want 80 "+
			"tasks for %d within the budget",
			p.tasks, p.spent, p.worst, cost+400, p.unbounded, cost)
	}
	if p.most < 3 {
		t.Errorf("at most %d tasks were in flight", p.most)
	}
}

// TestTasksOfARunOfAnEarlierEngineDoNotAskForMoney: such a run has no handler that could answer them.
func TestTasksOfARunOfAnEarlierEngineDoNotAskForMoney(t *testing.T) {
	t.Parallel()
	p, err := budgeted(t, 5000, 0, nil, func(ctx workflow.Context) error {
		if _, err := dear.Run(ctx, priced{Cost: 20}); err != nil {
			return err
		}
		return both(ctx, costing(5, 10), costing(5, 20))
	})
	if err != nil || p.tasks != 11 || p.unbounded != p.tasks {
		t.Errorf("got %v and %d tasks, of which %d may cost what they like; want 11 and all of them", err, p.tasks,
			p.unbounded)
	}
}

func TestABudgetThatIsTooSmallEndsTheRunBeforeItIsPassed(t *testing.T) {
	t.Parallel()
	p, err := budgeted(t, 900, 1, nil, func(ctx workflow.Context) error {
		return both(ctx, costing(60, 10), costing(20, 100))
	})
	if err == nil || !strings.Contains(err.Error(), spillway.BudgetError) ||
		!strings.Contains(err.Error(), "raise --budget") {
		t.Errorf("got %v, want an error that says what to do", err)
	}
	if p.worst > 900 || p.spent > 900 || p.tasks < 10 {
		t.Errorf("got %d tasks, %d spent, at most %d spent and reserved of 900", p.tasks, p.spent, p.worst)
	}
}

func TestWhatAFailedTaskAndAFailedChunkCostIsCounted(t *testing.T) {
	t.Parallel()
	p, err := budgeted(t, 500, 1, nil, func(ctx workflow.Context) error {
		for range 20 { // until the budget is what fails them
			if _, err := cheap.Map(ctx, []priced{{Cost: 30, Fails: true}}); err == nil {
				return errors.New("the Map did not fail")
			}
			if _, err := dear.Run(ctx, priced{Cost: 20, Fails: true}); err == nil {
				return errors.New("the task did not fail")
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if p.worst > 500 || p.spent > 500 || p.spent < 400 {
		t.Errorf("%d spent, at most %d spent and reserved, want nearly all of the budget of 500", p.spent, p.worst)
	}
}

func TestAFreePoolRunsAsManyAtATimeAsWithoutABudget(t *testing.T) {
	t.Parallel()
	p, err := budgeted(t, 500, 1, nil, func(ctx workflow.Context) error {
		_, err := cheap.Map(ctx, costing(200, 0))
		return err
	})
	if err != nil || p.tasks != 200 {
		t.Fatalf("got %d tasks, %v", p.tasks, err)
	}
	if p.most < 8 {
		t.Errorf("%d tasks that cost nothing were in flight at a time, with a window of 16", p.most)
	}
}

func TestBeforeAPriceIsKnownSizeTimesTimeoutIsReserved(t *testing.T) {
	t.Parallel()
	sized := dear.With(spillway.Hints{CPU: 1000, Memory: quantity.GiB, Timeout: time.Hour, PoolOnly: true})
	// an attempt costs at most 10
	prices := &wire.Prices{HostPerHour: 40, HostCapacity: quantity.Size{CPU: 4000, Memory: 4 * quantity.GiB}}
	run := func(budget quantity.Money) *till {
		p, err := budgeted(t, budget, 1, prices, func(ctx workflow.Context) error {
			var futures []spillway.Future[int]
			for range 8 {
				futures = append(futures, sized.Start(ctx, priced{Cost: 2}))
			}
			for _, future := range futures {
				if _, err := future.Get(ctx); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || p.tasks != 8 || p.worst > budget {
			t.Fatalf("a budget of %d: %d tasks, at most %d spent and reserved, %v", budget, p.tasks, p.worst, err)
		}
		return p
	}
	if wide := run(100); wide.most < 4 {
		t.Errorf("within a wide budget %d of 8 tasks were in flight", wide.most)
	}
	run(25)
}

func TestAGoalThatIsLoweredStartsNothingNewAndReachesChunks(t *testing.T) {
	t.Parallel()
	var refused error
	lower := func(env *testsuite.TestWorkflowEnvironment) {
		env.RegisterDelayedCallback(func() {
			env.UpdateWorkflow(runs.GoalUpdate, "g1", &testsuite.TestUpdateCallback{
				OnAccept: func() {}, OnReject: func(err error) { refused = err }, OnComplete: func(any, error) {},
			}, spillway.Goal{Budget: 600})
		}, time.Millisecond)
	}
	p, err := budgeted(t, 0, 1, nil, func(ctx workflow.Context) error {
		_, err := cheap.Map(ctx, costing(300, 10))
		return err
	}, lower)
	if refused != nil {
		t.Fatalf("the goal was refused: %v", refused)
	}
	if err == nil || p.tasks >= 300 || p.spent > 600+2*16*15 {
		t.Errorf("got %d tasks for %d, %v; want it to end at the new budget of 600", p.tasks, p.spent, err)
	}
	p, err = budgeted(t, 200, 1, nil, func(ctx workflow.Context) error {
		_, err := cheap.Map(ctx, costing(300, 1))
		return err
	}, func(env *testsuite.TestWorkflowEnvironment) {
		env.RegisterDelayedCallback(func() {
			env.UpdateWorkflow(runs.GoalUpdate, "g1", &testsuite.TestUpdateCallback{
				OnAccept: func() {}, OnReject: func(err error) { refused = err }, OnComplete: func(any, error) {},
			}, spillway.Goal{Budget: 1000})
		}, time.Millisecond)
	})
	if err != nil || refused != nil || p.tasks != 300 {
		t.Errorf("raised: got %d tasks, %v, refused %v", p.tasks, err, refused)
	}
}

func TestABudgetThatIsLowerThanWhatIsSpentIsRefused(t *testing.T) {
	t.Parallel()
	var refused error
	p, err := budgeted(t, 1000, 1, nil, func(ctx workflow.Context) error {
		for range 4 {
			if _, err := dear.Run(ctx, priced{Cost: 100}); err != nil {
				return err
			}
		}
		return workflow.Sleep(ctx, time.Hour)
	}, func(env *testsuite.TestWorkflowEnvironment) {
		env.RegisterDelayedCallback(func() {
			env.UpdateWorkflow(runs.GoalUpdate, "g1", &testsuite.TestUpdateCallback{
				OnAccept: func() { t.Error("a budget below what is spent was accepted") }, OnReject: func(err error) {
					refused = err
				},
				OnComplete: func(any, error) {},
			}, spillway.Goal{Budget: 300})
		}, 30*time.Minute)
	})
	if err != nil || p.tasks != 4 {
		t.Errorf("the run: %d tasks, %v; want it to go on", p.tasks, err)
	}
	if refused == nil || !strings.Contains(refused.Error(), "has spent") {
		t.Errorf("got %v, want a refusal that says what is spent", refused)
	}
}

func TestATaskInFlightIsGivenMoreWhileThereIsAny(t *testing.T) {
	t.Parallel()
	var given []wire.Reserved
	ask := func(env *testsuite.TestWorkflowEnvironment) {
		var once sync.Once
		env.SetOnActivityStartedListener(func(*activity.Info, context.Context, converter.EncodedValues) {
			once.Do(func() {
				for _, least := range []quantity.Money{300, 5000} {
					env.UpdateWorkflow(wire.ReserveUpdate, "", &testsuite.TestUpdateCallback{
						OnAccept: func() {}, OnReject: func(err error) { t.Error(err) },
						OnComplete: func(answer any, err error) {
							if reserved, ok := answer.(wire.Reserved); ok && err == nil {
								given = append(given, reserved)
							}
						},
					}, wire.Reserve{Task: "dear-0", Least: least, Want: 2 * least, Waits: true})
				}
			})
		})
	}
	_, err := budgeted(t, 1000, 1, nil, func(ctx workflow.Context) error {
		_, err := dear.Run(ctx, priced{Cost: 400})
		return err
	}, ask)
	if err != nil {
		t.Fatal(err)
	}
	if len(given) != 2 || given[0].Amount < 300 || given[0].Amount > 1000 || given[1].Amount >= 5000 ||
		given[1].Budget != 1000 {
		t.Errorf("got %+v, want at least 300 and then no 5,000 of a budget of 1,000", given)
	}
}

// TestABudgetThatComesLaterReachesATaskInFlight: the task was scheduled without one, and asks so that it hears of it.
func TestABudgetThatComesLaterReachesATaskInFlight(t *testing.T) {
	t.Parallel()
	var given []wire.Reserved
	steer := func(env *testsuite.TestWorkflowEnvironment) {
		update := func(name string, argument any) {
			env.UpdateWorkflow(name, "", &testsuite.TestUpdateCallback{
				OnAccept: func() {}, OnReject: func(err error) { t.Error(err) },
				OnComplete: func(answer any, err error) {
					if reserved, ok := answer.(wire.Reserved); ok && err == nil {
						given = append(given, reserved)
					}
				},
			}, argument)
		}
		var once sync.Once
		env.SetOnActivityStartedListener(func(*activity.Info, context.Context, converter.EncodedValues) {
			once.Do(func() {
				update(wire.ReserveUpdate, wire.Reserve{Task: "dear-0", Least: 300, Want: 600, Unlimited: true})
				update(runs.GoalUpdate, spillway.Goal{Budget: 1000})
				update(wire.ReserveUpdate, wire.Reserve{Task: "dear-0", Least: 900, Want: 1200, Unlimited: true})
				update(wire.ReserveUpdate, wire.Reserve{Task: "dear-0", Least: 5000, Want: 9000, Unlimited: true})
			})
		})
	}
	p, err := budgeted(t, 0, 1, nil, func(ctx workflow.Context) error {
		if _, err := dear.Run(ctx, priced{Cost: 400}); err != nil {
			return err
		}
		_, err := dear.Run(ctx, priced{Cost: 400})
		return err
	}, steer)
	if err != nil || p.mute > 0 || p.worst < 600 {
		t.Fatalf("%v; %d tasks do not ask, %d reserved at most; want that both ask, and that the second comes with what "+
			"the first tells", err, p.mute, p.worst)
	}
	want := []wire.Reserved{{Unlimited: true, Amount: 600}, {Amount: 900, Budget: 1000}, {Amount: 900, Budget: 1000}}
	if diff := cmp.Diff(want, given); diff != "" {
		t.Errorf("answers (-want +got):\n%s", diff)
	}
}
