package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	"github.com/spillway-ml/spillway/workflows/runs"
)

// memory keeps results as a venue does, and runs stages that count their attempts.
type memory struct {
	mu     sync.Mutex
	kept   []wire.Kept
	ran    []string // stages, one for each attempt of the newest run
	runs   int      // which that is: attempts of a run that failed may end after it
	told   []predictor.Reused
	broken bool
	lost   int       // of each lookup, how many of its keys have no answer but an error
	now    time.Time // of the next run; the zero time is that of the test environment
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
			if kept.Key == key && lookup.Shared && !kept.At.Before(lookup.NotBefore) ||
				kept.Key.Content == key.Content && kept.Run == lookup.Run {
				found[i] = &kept
			}
		}
	}
	if lost := found[:min(m.lost, len(found))]; len(lost) > 0 {
		clear(lost)
		return found, errors.New("the server has no room")
	}
	return found, nil
}

var failing = temporal.NewNonRetryableApplicationError("it fails", wire.StageError, nil)

// attempt is a stage's activity: it squares, sums, or fails where it is told to.
func (m *memory) attempt(
	fails func(stage string) bool,
) func(context.Context, wire.Task, json.RawMessage) (wire.Result, error) {
	run := m.runs
	return func(_ context.Context, task wire.Task, input json.RawMessage) (wire.Result, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if run == m.runs {
			m.ran = append(m.ran, task.Stage.Name)
		}
		if fails != nil && fails(task.ID) {
			return wire.Result{}, failing
		}
		key := wire.NewResultKey(task.Stage, task.Command, task.CacheVersion, input)
		m.kept = append(m.kept, wire.Kept{
			Key: key, Run: task.Run, Stage: task.Stage.Name, Task: task.ID, Output: input,
			Cost: quantity.USD, At: m.now,
		})
		return wire.Result{Output: input, Cost: quantity.USD}, nil
	}
}

// Stages that return their input. Two of them declare a cache.
var (
	first = spillway.NewStage("first", func(_ context.Context, in int) (int, error) { return in, nil })
	many  = spillway.NewStage("many", func(_ context.Context, in int) (int, error) {
		return in, nil
	}).With(spillway.Hints{Cache: true})
	clock = spillway.NewStage("clock", func(_ context.Context, in int) (int, error) { return in, nil })
	last  = spillway.NewStage("last", func(_ context.Context, in []int) ([]int, error) { return in, nil }).
		With(spillway.Hints{Cache: true, CacheFor: time.Hour, CacheVersion: "2"})
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
func (m *memory) run(
	t *testing.T, build string, n int, options *wire.RunOptions, fails func(task string) bool,
) (attempts map[string]int, err error) {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	if !m.now.IsZero() {
		env.SetStartTime(m.now)
	}
	if options != nil {
		if err := env.SetMemoOnStart(map[string]any{runs.OptionsMemo: *options}); err != nil {
			t.Fatal(err)
		}
	}
	m.mu.Lock()
	m.runs++
	m.ran, m.told = nil, nil
	m.mu.Unlock()
	stages := []runs.AnyStage{first, many, clock, last}
	ports := runs.Ports{App: "app", Build: build, Stages: stages, Find: m.find, Tell: func(event predictor.Event) {
		if told, ok := event.(predictor.Reused); ok {
			m.told = append(m.told, told)
		}
	}}
	env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
	})
	pipeline := spillway.NewPipeline("numbers", chainOfStages)
	runs.Register(env, ports, []runs.AnyPipeline{pipeline})
	for _, stage := range stages {
		env.RegisterActivityWithOptions(m.attempt(fails), activity.RegisterOptions{Name: stage.Name()})
	}
	env.ExecuteWorkflow(pipeline.Name(), n)
	attempts = map[string]int{}
	m.mu.Lock()
	defer m.mu.Unlock()
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

func TestARunTakesWhatOtherRunsHaveMadeWhereThatIsAskedFor(t *testing.T) {
	t.Parallel()
	m := &memory{now: time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)}
	ordinary := &wire.RunOptions{Version: wire.WorkflowVersion}
	of := func(edit func(*wire.RunOptions)) *wire.RunOptions {
		options := *ordinary
		edit(&options)
		return &options
	}
	for _, c := range []struct {
		name    string
		build   string
		n       int
		later   time.Duration
		options *wire.RunOptions
		want    string
	}{
		{"nothing is kept yet", "b1", 3, 0, ordinary, "map[clock:1 first:1 last:1 many:3]"},
		{"stages run again that declare no cache", "b1", 3, time.Hour, ordinary, "map[clock:1 first:1]"},
		{"shards that are new", "b1", 5, 0, ordinary, "map[clock:1 first:1 last:1 many:2]"},
		{"another build", "b2", 3, 0, ordinary, "map[clock:1 first:1 last:1 many:3]"},
		{"the run asks for all", "b1", 3, 0, of(func(o *wire.RunOptions) { o.Cache = true }), "map[]"},
		{"a result is too old", "b1", 3, time.Second, ordinary, "map[clock:1 first:1 last:1]"},
		{"nothing is wanted", "b1", 3, 0, of(func(o *wire.RunOptions) {
			o.NoCache = true
		}), "map[clock:1 first:1 last:1 many:3]"},
		{"of some stages only", "b1", 3, 0, of(func(o *wire.RunOptions) {
			o.Only = []string{"many"}
		}), "map[clock:1 first:1 last:1]"},
		{"a run that an engine began which shared by default", "b1", 3, 0, &wire.RunOptions{}, "map[]"},
		{"a run that began before there was a cache", "b1", 3, 0, nil, "map[clock:1 first:1 last:1 many:3]"},
	} {
		m.now = m.now.Add(c.later)
		attempts, err := m.run(t, c.build, c.n, c.options, nil)
		if got := fmt.Sprint(attempts); got != c.want || err != nil {
			t.Errorf("%s: got attempts %s and error %v, want %s", c.name, got, err, c.want)
		}
	}
	m.now, m.lost = m.now.Add(-time.Second), 1
	attempts, err := m.run(t, "b1", 3, ordinary, nil)
	if got, want := fmt.Sprint(attempts), "map[clock:1 first:1 last:1 many:1]"; got != want || err != nil {
		t.Errorf("one result of each lookup cannot be taken: got attempts %s and error %v, want %s", got, err, want)
	}
	m.broken = true
	if attempts, err := m.run(t, "b1", 3, ordinary, nil); len(attempts) != 4 || err != nil {
		t.Errorf("results cannot be looked up: got attempts %v and error %v, want all to run", attempts, err)
	}
}

func TestAStageThatRefusesIsNeverTakenFromAnotherRun(t *testing.T) {
	t.Parallel()
	plain, cached, refusing := wire.Stage{Name: "s"}, wire.Stage{Name: "s", Cache: true},
		wire.Stage{Name: "s", NoCache: true}
	for _, c := range []struct {
		name    string
		options wire.RunOptions
		stage   wire.Stage
		shares  bool
	}{
		{"by default", wire.RunOptions{Version: 1}, plain, false},
		{"declared", wire.RunOptions{Version: 1}, cached, true},
		{"asked for", wire.RunOptions{Version: 1, Cache: true}, plain, true},
		{"asked for and refused", wire.RunOptions{Version: 1, Cache: true}, refusing, false},
		{"by the default of version 0", wire.RunOptions{}, plain, true},
		{"refused in version 0", wire.RunOptions{}, refusing, false},
	} {
		if got := c.options.Shares(c.stage); got != c.shares {
			t.Errorf("%s: got %v, want %v", c.name, got, c.shares)
		}
		c.options.RetryOf = "before"
		if !c.options.Reuses(c.stage) {
			t.Errorf("%s: a retry does not take what the run before has finished", c.name)
		}
	}
}

func TestACacheVersionIsAShortText(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"", "2", "mnist 2026-11", strings.Repeat("v", 100)} {
		if err := runs.CheckCacheVersion(version); err != nil {
			t.Errorf("%q: %v", version, err)
		}
	}
	for _, hints := range []spillway.Hints{
		{CacheVersion: "a\x00b"},
		{CacheVersion: "a\nb"},
		{CacheVersion: strings.Repeat("v", 101)},
		{CacheVersion: "\xff"},
		{CacheFor: -1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%+v is taken, want a panic", hints)
				}
			}()
			first.With(hints)
		}()
	}
}

func TestARetryRunsOnlyWhatIsNeededAlsoWithAnotherBuild(t *testing.T) {
	t.Parallel()
	m := &memory{}
	attempts, err := m.run(t, "b1", 4, &wire.RunOptions{Version: wire.WorkflowVersion}, func(task string) bool {
		return task == "many-2"
	})
	if err == nil || attempts["last"] != 0 {
		t.Fatalf("the run with the failure: got attempts %v and error %v", attempts, err)
	}
	run := m.kept[0].Run
	attempts, err = m.run(t, "b2", 4, &wire.RunOptions{Version: wire.WorkflowVersion, RetryOf: run}, nil)
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

// TestARetryTakesAResultOnce: a step that repeats with the same input gets the result that the run before had of it at
// first, and then new ones.
func TestARetryTakesAResultOnce(t *testing.T) {
	t.Parallel()
	polls := func(ctx workflow.Context, in int) (int, error) {
		for range 3 {
			if _, err := first.Run(ctx, in); err != nil {
				return 0, err
			}
		}
		_, err := clock.Map(ctx, []int{in, in}) // equal shards of one Map take one result together
		return in, err
	}
	carried := map[string]any{"started_at": time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	for _, version := range []int{1, wire.WorkflowVersion} {
		for name, c := range map[string]struct {
			memo map[string]any
			want string
		}{
			"at first":                      {map[string]any{}, "map[first:2]"},
			"after it has continued as new": {map[string]any{runs.CarriedMemo: carried}, "map[clock:2 first:3]"},
		} {
			t.Run(fmt.Sprintf("%s, version %d", name, version), func(t *testing.T) {
				t.Parallel()
				var suite testsuite.WorkflowTestSuite
				suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
				env := suite.NewTestWorkflowEnvironment()
				c.memo[runs.OptionsMemo] = wire.RunOptions{Version: version, RetryOf: "before"}
				if err := env.SetMemoOnStart(c.memo); err != nil {
					t.Fatal(err)
				}
				m := &memory{}
				for _, stage := range []string{"first", "clock"} {
					key := wire.NewResultKey(predictor.StageID{App: "app", Build: "b0", Name: stage}, false, "", json.RawMessage("7"))
					m.kept = append(m.kept, wire.Kept{Key: key, Run: "before", Output: json.RawMessage("7")})
				}
				stages := []runs.AnyStage{first, clock}
				ports := runs.Ports{App: "app", Build: "b1", Stages: stages, Find: m.find}
				env.SetWorkerOptions(worker.Options{
					Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
					DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
				})
				pipeline := spillway.NewPipeline("polls", polls)
				runs.Register(env, ports, []runs.AnyPipeline{pipeline})
				for _, stage := range stages {
					env.RegisterActivityWithOptions(m.attempt(nil), activity.RegisterOptions{Name: stage.Name()})
				}
				env.ExecuteWorkflow(pipeline.Name(), 7)
				attempts := map[string]int{}
				for _, stage := range m.ran {
					attempts[stage]++
				}
				if err := env.GetWorkflowError(); err != nil || fmt.Sprint(attempts) != c.want {
					t.Errorf("got attempts %v and error %v, want %s", attempts, err, c.want)
				}
			})
		}
	}
}
