package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"

	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	spillway "github.com/spillway-ml/spillway/workflows"
)

// memory keeps results as a venue does, and runs stages that count their attempts.
type memory struct {
	mu     sync.Mutex
	kept   []wire.Kept
	ran    []string // stages, one for each attempt
	told   []predictor.Reused
	broken bool
}

// find is what activities/results does on a server.
func (m *memory) find(_ context.Context, lookup wire.Lookup) ([]*wire.Kept, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		return nil, errors.New("the server is away")
	}
	found := make([]*wire.Kept, len(lookup.Keys))
	for i, key := range lookup.Keys {
		for _, kept := range m.kept {
			if kept.Key == key && lookup.Shared || kept.Key.Content == key.Content && kept.Run == lookup.Run {
				found[i] = &kept
			}
		}
	}
	return found, nil
}

var failing = temporal.NewNonRetryableApplicationError("it fails", wire.StageError, nil)

// attempt is a stage's activity: it squares, sums, or fails where it is told to.
func (m *memory) attempt(fails func(stage string) bool) func(context.Context, wire.Task, json.RawMessage) (wire.Result, error) {
	return func(_ context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.ran = append(m.ran, task.Stage.Name)
		if fails != nil && fails(task.ID) {
			return wire.Result{}, failing
		}
		key := wire.NewResultKey(task.Stage, task.Command, input)
		m.kept = append(m.kept, wire.Kept{Key: key, Run: task.Run, Stage: task.Stage.Name, Task: task.ID, Output: input, Cost: quantity.USD})
		return wire.Result{Output: input, Cost: quantity.USD}, nil
	}
}

// Stages that return their input.
var (
	first = spillway.NewStage("first", func(_ context.Context, in int) (int, error) { return in, nil })
	many  = spillway.NewStage("many", func(_ context.Context, in int) (int, error) { return in, nil })
	clock = spillway.NewStage("clock", func(_ context.Context, in int) (int, error) { return in, nil }).With(spillway.Hints{NoCache: true})
	last  = spillway.NewStage("last", func(_ context.Context, in []int) ([]int, error) { return in, nil })
)

// chainOfStages calls first, many for each number below what it returned, clock and last.
func chainOfStages(ctx workflow.Context, n int) ([]int, error) {
	n, err := first.Run(ctx, n)
	if err != nil {
		return nil, err
	}
	inputs := make([]int, n)
	for i := range inputs {
		inputs[i] = i
	}
	numbers, err := many.Map(ctx, inputs)
	if err != nil {
		return nil, err
	}
	now, err := clock.Run(ctx, len(numbers))
	if err != nil {
		return nil, err
	}
	return last.Run(ctx, append(numbers, now))
}

// run runs the pipeline as a run of its own and returns how many attempts of each stage it took.
func (m *memory) run(t *testing.T, build string, n int, options *wire.RunOptions, fails func(task string) bool) (attempts map[string]int, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	if options != nil {
		if err := env.SetMemoOnStart(map[string]any{spillway.OptionsMemo: *options}); err != nil {
			t.Fatal(err)
		}
	}
	stages := []spillway.AnyStage{first, many, clock, last}
	host := spillway.Host{App: "app", Build: build, Stages: stages, Find: m.find, Tell: func(event predictor.Event) {
		if told, ok := event.(predictor.Reused); ok {
			m.told = append(m.told, told)
		}
	}}
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{spillway.NewInterceptor(host)}})
	pipeline := spillway.NewPipeline("numbers", chainOfStages)
	spillway.Register(env, host, []spillway.AnyPipeline{pipeline})
	for _, stage := range stages {
		env.RegisterActivityWithOptions(m.attempt(fails), activity.RegisterOptions{Name: stage.Name()})
	}
	m.ran, m.told = nil, nil
	env.ExecuteWorkflow(pipeline.Name(), n)
	attempts = map[string]int{}
	for _, stage := range m.ran {
		attempts[stage]++
	}
	if err := env.GetWorkflowError(); err != nil {
		return attempts, err
	}
	var numbers []int
	if err := env.GetWorkflowResult(&numbers); err != nil {
		t.Fatal(err)
	}
	want := make([]int, n+1)
	for i := range want {
		want[i] = i
	}
	if !slices.Equal(numbers, want) {
		t.Errorf("numbers: got %v, want %v", numbers, want)
	}
	return attempts, nil
}

func TestARunTakesWhatEarlierRunsHaveMadeOfTheSameInput(t *testing.T) {
	t.Parallel()
	m := &memory{}
	ordinary := &wire.RunOptions{}
	for _, c := range []struct {
		name    string
		build   string
		n       int
		options *wire.RunOptions
		want    string
	}{
		{"nothing is kept yet", "b1", 3, ordinary, "map[clock:1 first:1 last:1 many:3]"},
		{"all but what depends on more than its input", "b1", 3, ordinary, "map[clock:1]"},
		{"shards that are new", "b1", 5, ordinary, "map[clock:1 first:1 last:1 many:2]"},
		{"another build", "b2", 3, ordinary, "map[clock:1 first:1 last:1 many:3]"},
		{"the cache is not wanted", "b1", 3, &wire.RunOptions{NoCache: true}, "map[clock:1 first:1 last:1 many:3]"},
		{"a run that began before there was a cache", "b1", 3, nil, "map[clock:1 first:1 last:1 many:3]"},
		{"of some stages only", "b1", 3, &wire.RunOptions{Only: []string{"first"}}, "map[clock:1 last:1 many:3]"},
	} {
		attempts, err := m.run(t, c.build, c.n, c.options, nil)
		if got := fmt.Sprint(attempts); got != c.want || err != nil {
			t.Errorf("%s: got attempts %s and error %v, want %s", c.name, got, err, c.want)
		}
	}
	m.broken = true
	if attempts, err := m.run(t, "b1", 3, ordinary, nil); len(attempts) != 4 || err != nil {
		t.Errorf("results cannot be looked up: got attempts %v and error %v, want all to run", attempts, err)
	}
}

func TestARetryRunsOnlyWhatIsNeededAlsoWithAnotherBuild(t *testing.T) {
	t.Parallel()
	m := &memory{}
	attempts, err := m.run(t, "b1", 4, &wire.RunOptions{}, func(task string) bool { return task == "many-2" })
	if err == nil || attempts["last"] != 0 {
		t.Fatalf("the run with the failure: got attempts %v and error %v", attempts, err)
	}
	run := m.kept[0].Run
	attempts, err = m.run(t, "b2", 4, &wire.RunOptions{RetryOf: run}, nil)
	if err != nil || attempts["first"] != 0 || attempts["many"] < 1 || attempts["clock"] != 1 || attempts["last"] != 1 {
		t.Errorf("the retry: got attempts %v and error %v, want only what failed and what follows", attempts, err)
	}
	saved := 0
	for _, told := range m.told {
		saved += told.Tasks
		if told.From != run || told.Saved != quantity.Money(told.Tasks)*quantity.USD {
			t.Errorf("told %+v, want what the tasks of run %s cost", told, run)
		}
	}
	if want := 1 + 4 - attempts["many"]; saved != want {
		t.Errorf("told of %d results, want %d: all that did not run", saved, want)
	}
}
