package chain_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/chain"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// host runs the command of a task, as a slot host does.
type host func(ctx context.Context, task wire.Task, command wire.Command) (wire.CommandResult, error)

// echo keeps every output, under a digest of its own, and reports nothing.
func echo(_ context.Context, _ wire.Task, command wire.Command) (wire.CommandResult, error) {
	result := wire.CommandResult{Outputs: map[string]wire.CommandFile{}}
	for _, output := range command.Outputs {
		result.Outputs[output.Name] = wire.CommandFile{Path: output.Path, Artifact: ref("e")}
	}
	return result, nil
}

// isSingle reports whether the command of c comes with each run.
func isSingle(c chain.Chain) bool {
	single, err := chain.Single(c.Name())
	return err == nil && single.Digest() == c.Digest()
}

// environment is Temporal's test environment with the chain's workflow and stages, which run on run.
func environment(tb testing.TB, c chain.Chain, run host) *testsuite.TestWorkflowEnvironment {
	tb.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	env := suite.NewTestWorkflowEnvironment()
	env.SetTestTimeout(2 * time.Minute)
	on := runs.Ports{Stages: c.Stages()}
	env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{runs.NewInterceptor(on)}})
	runs.Register(env, on, []runs.AnyPipeline{c.Pipeline()})
	for _, stage := range c.Stages() {
		env.RegisterActivityWithOptions(func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result,
			error,
		) {
			var command wire.Command
			if err := json.Unmarshal(input, &command); err != nil {
				return wire.Result{}, err
			}
			if err := c.Permits(stage.Describe().Name, command); err != nil && !isSingle(c) {
				tb.Errorf("a host would refuse what the run asks for: %v", err)
			}
			result, err := run(ctx, task, command)
			if err != nil {
				return wire.Result{}, temporal.NewNonRetryableApplicationError(err.Error(), wire.StageError, nil)
			}
			output, err := json.Marshal(result)
			return wire.Result{Output: output}, err
		}, activity.RegisterOptions{Name: stage.Name()})
	}
	return env
}

// start runs a chain to its end.
func start(tb testing.TB, c chain.Chain, input json.RawMessage, run host) (chain.Result, error) {
	tb.Helper()
	env := environment(tb, c, run)
	env.ExecuteWorkflow(c.Name(), input)
	var result chain.Result
	err := env.GetWorkflowResult(&result)
	return result, err
}

// recorder is a host that remembers its commands by task.
type recorder struct {
	sync.Mutex

	commands map[string]wire.Command
	order    []string
	answer   host
}

func (r *recorder) run(ctx context.Context, task wire.Task, command wire.Command) (wire.CommandResult, error) {
	r.Lock()
	if r.commands == nil {
		r.commands = map[string]wire.Command{}
	}
	r.commands[task.ID] = command
	r.order = append(r.order, task.ID)
	r.Unlock()
	return r.answer(ctx, task, command)
}

func TestARunPutsValuesAndFilesWhereTheChainSays(t *testing.T) {
	t.Parallel()
	r := &recorder{answer: echo}
	result, err := start(t, packed(t, mustParse(t, churn)), json.RawMessage(`{"epochs":5.0}`), r.run)
	if err != nil {
		t.Fatal(err)
	}
	clean := []wire.CommandFile{{Path: "clean.csv", Artifact: ref("e")}}
	wantTrain := wire.Command{
		Arguments: []string{"python", "train.py", "--lr", "0.01", "--epochs", "5"}, Code: ref("a"), Requirements: ref("b"),
		Environment: map[string]string{"PYTHONHASHSEED": "0"}, Files: clean,
		Outputs:    []wire.CommandOutput{{Name: "model", Path: "model.pt"}},
		Parameters: map[string]float64{"lr": 0.01, "seed": 2, "epochs": 5},
	}
	if diff := cmp.Diff(wantTrain, r.commands["train-4"]); diff != "" {
		t.Errorf("the fifth of six trainings (-want +got):\n%s", diff)
	}
	wantPrepare := wire.Command{
		Arguments: []string{"sh", "-e", "-c", "python prepare.py --in raw.csv --out clean.csv"}, Code: ref("a"),
		Requirements: ref("b"),
		Environment:  map[string]string{"PYTHONHASHSEED": "0"},
		Files:        []wire.CommandFile{{Path: "raw.csv", Artifact: ref("c")}},
		Outputs: []wire.CommandOutput{
			{Name: "clean", Path: "clean.csv"},
			{Name: "plots", Path: "plots", Optional: true},
		},
	}
	if diff := cmp.Diff(wantPrepare, r.commands["prepare-0"]); diff != "" {
		t.Errorf("prepare (-want +got):\n%s", diff)
	}
	var models []string
	for _, file := range r.commands["pick-0"].Files {
		models = append(models, file.Path)
	}
	if diff := cmp.Diff([]string{"models/0", "models/1", "models/2", "models/3", "models/4", "models/5"}, models); diff !=
		"" {
		t.Errorf("files of pick (-want +got):\n%s", diff)
	}
	if got := result.Stages["train"]; got.Tasks != 6 || len(got.Outputs["model"]) != 6 ||
		result.Stages["prepare"].Outputs["clean"][0].Artifact != ref("e") {
		t.Errorf("result %+v: want the outputs of every stage", result)
	}
}

func TestARunReplacesAnInputOfTheChain(t *testing.T) {
	t.Parallel()
	r := &recorder{answer: echo}
	input := fmt.Sprintf(`{"inputs":{"raw":{"digest":%q,"bytes":10}}}`, strings.Repeat("9", 64))
	if _, err := start(t, packed(t, mustParse(t, churn)), json.RawMessage(input), r.run); err != nil {
		t.Fatal(err)
	}
	if got := r.commands["prepare-0"].Files[0].Artifact; got != ref("9") {
		t.Errorf("prepare is given %v, want the input of the run", got)
	}
}

// testChain is a chain of testdata.
func testChain(tb testing.TB, name string) chain.Chain {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	return mustParse(tb, string(text))
}

func TestAStageFansOutOverWhatEarlierOnesReportedAndLeft(t *testing.T) {
	t.Parallel()
	r := &recorder{answer: func(ctx context.Context, task wire.Task, command wire.Command) (wire.CommandResult, error) {
		result, err := echo(ctx, task, command)
		switch task.Stage.Name {
		case "list":
			result.Values = map[string]any{"shards": []any{"x y", 7, "z"}, "count": 3, "name": "$(rm -rf /)'\""}
			delete(result.Outputs, "note")
		case "work":
			result.Values = map[string]any{"loss": float64(len(task.ID))}
			if task.ID == "work-3" {
				delete(result.Outputs, "part") // as an optional one may be left out
			}
		case "last":
			result.Values = map[string]any{"accuracy": 0.5}
		}
		return result, err
	}}
	result, err := start(t, testChain(t, "report"), nil, r.run)
	if err != nil {
		t.Fatal(err)
	}
	var worked [][]string
	for i := range 6 {
		command := r.commands[fmt.Sprintf("work-%d", i)]
		worked = append(worked, command.Arguments[1:])
		if diff := cmp.Diff([]wire.CommandFile{{Path: "in", Artifact: ref("e")}}, command.Files); diff != "" {
			t.Errorf("files of work-%d (-want +got):\n%s", i, diff)
		}
	}
	want := [][]string{
		{"x y", "a", "of 3"},
		{"x y", "b", "of 3"},
		{"7", "a", "of 3"},
		{"7", "b", "of 3"},
		{"z", "a", "of 3"},
		{"z", "b", "of 3"},
	}
	if diff := cmp.Diff(want, worked); diff != "" {
		t.Errorf("work (-want +got):\n%s", diff)
	}
	if got := r.commands["work-2"].Parameters; !cmp.Equal(got, map[string]float64{"shard": 7, "list.result.count": 3}) {
		t.Errorf("parameters %v: want the numbers among the values", got)
	}
	if got := result.Stages["check"].Tasks; got != 6 || len(r.commands["check-3"].Files) != 0 ||
		len(r.commands["check-2"].Files) != 1 {
		t.Errorf("check has %d tasks with the files %v and %v, want one for each task of work, without a file where "+
			"none was left",
			got, r.commands["check-3"].Files, r.commands["check-2"].Files)
	}
	if got := r.commands["worst-1"].Arguments; !slices.Equal(got, []string{"worst", "6"}) {
		t.Errorf("worst-1 runs %q, want what the task of work reported", got)
	}
	last := r.commands["last-0"]
	wantScript := `echo "${SPILLWAY_VALUE_1}" "${SPILLWAY_VALUE_2}"`
	if last.Arguments[3] != wantScript || last.Environment["SPILLWAY_VALUE_1"] != "3" ||
		last.Environment["SPILLWAY_VALUE_2"] != "$(rm -rf /)'\"" {
		t.Errorf("last runs %q with %v", last.Arguments, last.Environment)
	}
	if len(last.Files) != 5 || last.Files[3].Path != "parts/4" {
		t.Errorf("last is given %v, want the parts of the tasks that left one, under their numbers", last.Files)
	}
	if diff := cmp.Diff([]map[string]any{{"accuracy": 0.5}}, result.Stages["last"].Values); diff != "" ||
		result.Stages["list"].Values != nil {
		t.Errorf("values of the last stage (-want +got):\n%s\nand of the first: %v", diff, result.Stages["list"].Values)
	}
	if position := slices.Index(r.order, "last-0"); position != len(r.order)-1 {
		t.Errorf("last started before the stages that it comes after: %v", r.order)
	}
}

func TestWhatAProgramReportsMustFitWhereItIsUsed(t *testing.T) {
	t.Parallel()
	shards := make([]any, 5001)
	for i := range shards {
		shards[i] = i
	}
	for name, test := range map[string]struct {
		values map[string]any
		want   string
	}{
		"nothing":      {nil, `stage work: variable shard of for_each: stage list did not report "shards"; there are none`},
		"another name": {map[string]any{"shard": []any{1}}, `stage list did not report "shards"; nearest: shard`},
		"no list":      {map[string]any{"shards": "abc", "count": 1}, `"abc" is no list`},
		"a list of more": {
			map[string]any{"shards": []any{1, []any{2}}, "count": 1},
			"member 1 is [2]: give a number, a truth value or a text",
		},
		"null":  {map[string]any{"shards": nil, "count": 1}, "null is no list"},
		"a NUL": {map[string]any{"shards": []any{"a\x00"}, "count": 1}, "NUL"},
		"too many": {
			map[string]any{"shards": shards, "count": 1},
			"for_each has 10002 combinations: at most 10000 are run",
		},
		"a list in text": {
			map[string]any{"shards": []any{1}, "count": []any{1}},
			"list.result.count is [1]: only a number, a truth value or a text",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := start(t, testChain(t, "report"), nil,
				func(ctx context.Context, task wire.Task, command wire.Command) (wire.CommandResult, error) {
					result, err := echo(ctx, task, command)
					result.Values = test.values
					return result, err
				})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want a failure that says %q", err, test.want)
			}
		})
	}
}

func TestAnEmptyListIsAStageWithoutTasks(t *testing.T) {
	t.Parallel()
	result, err := start(t, testChain(t, "report"), nil,
		func(ctx context.Context, task wire.Task, command wire.Command) (wire.CommandResult, error) {
			left, err := echo(ctx, task, command)
			left.Values = map[string]any{"shards": []any{}, "count": 0, "name": ""}
			return left, err
		})
	if err != nil || result.Stages["work"].Tasks != 0 || result.Stages["last"].Tasks != 1 {
		t.Errorf("got %+v and %v, want no task of work, and the last stage to run", result, err)
	}
}

func TestStagesThatDoNotWaitForEachOtherRunAtTheSameTime(t *testing.T) {
	t.Parallel()
	c := mustParse(t, "name: both\ncode: none\nstages:\n  a: {run: [a]}\n  b: {run: [b]}\n  c: {run: [c], "+
		"after: [a, b]}\n")
	var together sync.WaitGroup
	together.Add(2)
	if _, err := start(t, c, nil, func(_ context.Context, task wire.Task, _ wire.Command) (wire.CommandResult, error) {
		if task.Stage.Name != "c" {
			together.Done()
			together.Wait() // neither ends before the other has begun
		}
		return wire.CommandResult{}, nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestTheFirstFailureStopsTheOthersAndNamesItsTask(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, fails, want string }{
		"one task": {"name: n\ncode: none\nstages:\n  slow: {run: [x]}\n  bad: {run: [x]}\n  next: {run: [x], " +
			"after: bad}\n", "bad-0", "bad: exit code 3"},
		"of a fan-out": {"name: n\ncode: none\nstages:\n  slow: {run: [x]}\n  bad: {run: [x], for_each: {i: {to: 9}}}\n  " +
			"next: {run: [x], after: bad}\n", "bad-4", "bad[4]: exit code 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun, stopped := make(chan struct{}), make(chan struct{})
			r := &recorder{answer: func(ctx context.Context, task wire.Task, _ wire.Command) (wire.CommandResult, error) {
				switch task.ID {
				case test.fails:
					<-begun
					return wire.CommandResult{}, errors.New("exit code 3")
				case "slow-0":
					close(begun)
					// the second heartbeat is held back for seconds, so the first shall come after the failure
					time.Sleep(100 * time.Millisecond)
					for ctx.Err() == nil {
						activity.RecordHeartbeat(ctx)
						time.Sleep(time.Millisecond) // a heartbeat is how an attempt learns that it is to stop
					}
					close(stopped)
					return wire.CommandResult{}, ctx.Err()
				}
				return wire.CommandResult{}, nil
			}}
			_, err := start(t, mustParse(t, test.text), nil, r.run)
			if failed, ok := errors.AsType[*temporal.ApplicationError](err); !ok || failed.Message() != test.want ||
				failed.Type() != wire.StageError {
				t.Errorf("got %v, want a failure that says %q", err, test.want)
			}
			wait(t, stopped)
			if _, ran := r.commands["next-0"]; ran {
				t.Error("a stage ran after one that failed")
			}
		})
	}
}

func TestACancelledRunStopsItsTasksAndIsCancelled(t *testing.T) {
	t.Parallel()
	stopped := make(chan struct{})
	c := mustParse(t, "name: n\ncode: none\nstages:\n  slow: {run: [x]}\n  next: {run: [x], after: slow}\n")
	var env *testsuite.TestWorkflowEnvironment
	env = environment(t, c, func(ctx context.Context, task wire.Task, _ wire.Command) (wire.CommandResult, error) {
		if task.ID != "slow-0" {
			t.Errorf("task %s ran", task.ID)
		}
		env.CancelWorkflow()
		// the second heartbeat is held back for seconds, so the first shall come after the cancellation
		time.Sleep(100 * time.Millisecond)
		for ctx.Err() == nil {
			activity.RecordHeartbeat(ctx)
			time.Sleep(time.Millisecond) // a heartbeat is how an attempt learns that it is to stop
		}
		close(stopped)
		return wire.CommandResult{}, ctx.Err()
	})
	env.ExecuteWorkflow(c.Name(), nil)
	wait(t, stopped)
	if err := env.GetWorkflowError(); !temporal.IsCanceledError(errors.Unwrap(err)) &&
		!strings.Contains(err.Error(), "canceled") {
		t.Errorf("got %v, want a cancellation", err)
	}
}

func TestAChainThatIsNotPackedDoesNotRun(t *testing.T) {
	t.Parallel()
	_, err := start(t, mustParse(t, one()), nil, echo)
	if failed, ok := errors.AsType[*temporal.ApplicationError](err); !ok || failed.Type() != runs.InputError ||
		!strings.Contains(err.Error(), "not packed") {
		t.Errorf("got %v, want a refusal", err)
	}
}

func TestAChainSaysWhichInputsItTakesBeforeARun(t *testing.T) {
	t.Parallel()
	c := mustParse(t, "name: fit\ncode: none\nparameters: {epochs: 3}\nstages:\n  train: {run: ['${epochs}']}\n")
	for input, want := range map[string]string{
		`{}`:                 "",
		`{"epochs": 7}`:      "",
		`{"epochs": "many"}`: "parameter epochs",
		`{"speed": 1}`:       `unknown parameter "speed"`,
		`7`:                  "it is no JSON object",
	} {
		if err := c.CheckInput(json.RawMessage(input)); (err == nil) != (want == "") ||
			err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("input %s: got %v, want %q", input, err, want)
		}
	}
	if described, err := c.Pipeline().Describe(); err != nil || !described.Validates {
		t.Errorf("described as %+v, %v; want that it validates", described, err)
	}
}

func TestAFanOutOverSeveralChildWorkflowsKeepsItsOrder(t *testing.T) {
	t.Parallel()
	c := mustParse(t, "name: wide\ncode: none\nstages:\n  many: {run: ['${i}', '${j}'], for_each: {i: {to: 34}, j: "+
		"{to: 30}}}\n")
	result, err := start(t, c, nil, func(_ context.Context, _ wire.Task, command wire.Command) (wire.CommandResult,
		error,
	) {
		return wire.CommandResult{Values: map[string]any{"product": strings.Join(command.Arguments, "x")}}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, values := range result.Stages["many"].Values {
		if want := fmt.Sprintf("%dx%d", i/30+1, i%30+1); values["product"] != want {
			t.Fatalf("task %d: got %v, want %s", i, values["product"], want)
		}
	}
	if got := result.Stages["many"].Tasks; got != 1020 {
		t.Errorf("%d tasks, want 1020", got)
	}
}

func TestASingleRunsTheCommandOfItsInput(t *testing.T) {
	t.Parallel()
	c, err := chain.Single("train")
	if err != nil {
		t.Fatal(err)
	}
	in := chain.SingleInput{
		Command: wire.Command{
			Arguments: []string{"python", "train.py"}, InPlace: "/srv",
			Outputs: []wire.CommandOutput{{Name: "m", Path: "m.pt"}},
		},
		Memory: workflows.GiB, Timeout: time.Minute, MaxAttempts: 2,
	}
	input, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var seen wire.Task
	result, err := start(t, c, input, func(ctx context.Context, task wire.Task, command wire.Command) (wire.CommandResult,
		error,
	) {
		seen = task
		if diff := cmp.Diff(in.Command, command); diff != "" {
			t.Errorf("command (-want +got):\n%s", diff)
		}
		left, err := echo(ctx, task, command)
		left.Values, left.Changed = map[string]any{"loss": 0.5}, ref("c")
		return left, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen.Declared.Memory != workflows.GiB || seen.Timeout != time.Minute || seen.MaxAttempts != 2 || !seen.Command {
		t.Errorf("task %+v lacks what the input says", seen)
	}
	changed := ref("c")
	want := chain.Result{Stages: map[string]chain.StageResult{"train": {
		Tasks: 1, Outputs: map[string][]wire.CommandFile{"m": {{Path: "m.pt", Artifact: ref("e")}}},
		Values: []map[string]any{{"loss": 0.5}}, Changed: &changed,
	}}}
	if diff := cmp.Diff(want, result); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}
	for _, bad := range []string{
		`{"command":{"arguments":[]}}`, `{"command":{"arguments":["x"]},"cpu_milli":-1}`,
		`{"command":{"arguments":["x"]},"max_attempts":1000}`,
	} {
		if _, err := start(t, c, json.RawMessage(bad), echo); err == nil ||
			!strings.Contains(err.Error(), "input of pipeline train") {
			t.Errorf("%s: got %v, want a refusal", bad, err)
		}
	}
}

// wait waits for something that must happen, and fails the test when it does not.
func wait(tb testing.TB, happened <-chan struct{}) {
	tb.Helper()
	select {
	case <-happened:
	case <-time.After(time.Minute):
		tb.Fatal("the task that goes on was not stopped")
	}
}

// TestARunTellsWhichStagesItCalls: with no other to follow, what is known of these tells when it ends.
func TestARunTellsWhichStagesItCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		whole bool
		want  []string
	}{{true, []string{"prepare", "train", "pick"}}, {false, nil}} {
		churned := packed(t, mustParse(t, churn))
		var started predictor.RunStarted
		ports := runs.Ports{Stages: churned.Stages(), Whole: c.whole, Tell: func(event predictor.Event) {
			if e, ok := event.(predictor.RunStarted); ok {
				started = e
			}
		}}
		env := environment(t, churned, echo)
		env.SetWorkerOptions(worker.Options{Interceptors: []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)}})
		env.ExecuteWorkflow(churned.Name(), json.RawMessage(`{"epochs":5.0}`))
		if err := env.GetWorkflowError(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, started.Stages); diff != "" || started.Run == "" {
			t.Errorf("a run of %q where its stages are all: %v (-want +told):\n%s", started.Run, c.whole, diff)
		}
	}
}
