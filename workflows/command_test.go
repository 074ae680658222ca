package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

var shell = spillway.NewCommand("shell").With(
	spillway.Hints{CPU: 2 * spillway.Core, Memory: spillway.GiB, MaxAttempts: 2})

// ref is a reference to bytes that nobody reads here.
func ref(digit string, bytes int64) spillway.Ref {
	return spillway.Ref{Digest: strings.Repeat(digit, 64), Bytes: bytes}
}

var listing = spillway.Command{
	Arguments: []string{"ls", "-l"}, Code: ref("a", 1000), Requirements: ref("b", 2000),
	Files: []spillway.CommandFile{{Path: "x", Artifact: ref("c", 30)}, {Path: "y", Artifact: ref("d", 4), Tree: true}},
}

func TestACommandStageTellsTheEngineThatAHostRunsIt(t *testing.T) {
	t.Parallel()
	want := wire.Stage{
		Name: "shell", Declared: quantity.Size{CPU: 2 * quantity.Core, Memory: quantity.GiB}, MaxAttempts: 2,
		Command: true,
	}
	if diff := cmp.Diff(want, shell.Describe()); diff != "" {
		t.Errorf("description (-want +got):\n%s", diff)
	}
}

func TestACommandStageIsNotAFunctionToCall(t *testing.T) {
	t.Parallel()
	_, err := shell.Call(t.Context(), json.RawMessage(`{"arguments":["true"]}`))
	if !errors.Is(err, runs.ErrHostRuns) || !errors.Is(err, spillway.ErrPermanent) ||
		!strings.Contains(err.Error(), "stage shell") {
		t.Errorf("got %v, want ErrHostRuns, permanent, and the stage", err)
	}
}

// Fixed says that attempts cannot be given more while they run: who guesses at their need must know.
func TestAHintTellsWhichAttemptsCannotGrow(t *testing.T) {
	t.Parallel()
	sizes := func(_ context.Context, _ square, proposed spillway.Proposal) (spillway.Size, error) {
		return proposed.Size, nil
	}
	recommended := squared.WithRecommender(sizes)
	inImage := listing
	inImage.Image = "registry.example/list"
	imports := listing
	imports.Arguments = []string{"sh", "-c", "python3 a.py"}
	imports.Program, imports.Imports = "python3", []string{"torch"}
	plain := imports
	plain.Imports = []string{}
	for name, c := range map[string]struct {
		pipeline runs.AnyPipeline
		stage    runs.AnyStage
		input    any
		output   string
		program  string
		imports  []string
		fixed    bool
	}{
		"a command": {spillway.NewPipeline("p", shell.Run), shell, listing, `{}`, "ls", nil, false},
		"a command in an image": {
			spillway.NewPipeline("p", shell.Run), shell, inImage, `{}`, inImage.Image, nil, true,
		},
		"a program in Python": {
			spillway.NewPipeline("p", shell.Run), shell, imports, `{}`, "python3", imports.Imports, false,
		},
		"one that imports no modules of others": {
			spillway.NewPipeline("p", shell.Run), shell, plain, `{}`, "python3", plain.Imports, false,
		},
		"a function": {spillway.NewPipeline("p", squared.Run), squared, square{}, `1`, predictor.GoProgram, nil, false},
		"a function that sizes itself": {
			spillway.NewPipeline("p", recommended.Run), recommended, square{}, `1`, predictor.GoProgram, nil, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
			env := suite.NewTestWorkflowEnvironment()
			env.SetTestTimeout(time.Minute)
			var hints []predictor.Scheduled
			ports := runs.Ports{Stages: []runs.AnyStage{c.stage}, Tell: func(e predictor.Event) {
				if scheduled, ok := e.(predictor.Scheduled); ok && scheduled.Tasks > 0 {
					hints = append(hints, scheduled)
				}
			}}
			env.SetWorkerOptions(worker.Options{
				Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
				DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
			})
			runs.Register(env, ports, []runs.AnyPipeline{c.pipeline})
			env.RegisterActivityWithOptions(func(context.Context, wire.Task, json.RawMessage) (wire.Result, error) {
				return wire.Result{Output: json.RawMessage(c.output)}, nil
			}, activity.RegisterOptions{Name: c.stage.Name()})
			env.ExecuteWorkflow("p", c.input)
			if err := env.GetWorkflowError(); err != nil {
				t.Fatal(err)
			}
			if len(hints) != 1 || hints[0].Fixed != c.fixed || hints[0].Program != c.program ||
				!reflect.DeepEqual(hints[0].Imports, c.imports) {
				t.Errorf("hints %+v: want one of %s that imports %#v, fixed: %t", hints, c.program, c.imports, c.fixed)
			}
		})
	}
}

// TestTheTaskOfACommandCarriesItsFiles runs a command as runs of each version of steps do, and looks where it goes.
func TestTheTaskOfACommandCarriesItsFiles(t *testing.T) {
	t.Parallel()
	one := spillway.NewPipeline("one", shell.Run)
	many := spillway.NewPipeline("many", func(ctx workflow.Context, in spillway.Command) (spillway.CommandResult, error) {
		all, err := shell.Map(ctx, []spillway.Command{in})
		if err != nil {
			return spillway.CommandResult{}, err
		}
		return all[0], nil
	})
	free := listing
	free.Requirements = spillway.Ref{}
	contained := free
	contained.Image = "python:3.12"
	for name, c := range map[string]struct {
		pipeline runs.AnyPipeline
		version  int
		command  spillway.Command
		unfit    string
		poolOnly bool
	}{
		"one task":                      {one, wire.WorkflowVersion, free, "", false},
		"a Map":                         {many, wire.WorkflowVersion, free, "", false},
		"one task of an earlier engine": {one, 2, free, "", true},
		"a Map of an earlier engine":    {many, 2, free, "", true},
		"one task that functions cannot run": {
			one, wire.WorkflowVersion, contained, "it runs in the container image python:3.12", true,
		},
		"a Map that functions cannot run": {
			many, wire.WorkflowVersion, contained, "it runs in the container image python:3.12", true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var suite testsuite.WorkflowTestSuite
			suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
			env := suite.NewTestWorkflowEnvironment()
			env.SetTestTimeout(time.Minute)
			if err := env.SetMemoOnStart(map[string]any{runs.OptionsMemo: wire.RunOptions{Version: c.version}}); err != nil {
				t.Fatal(err)
			}
			var told []predictor.Scheduled
			ports := runs.Ports{
				App: "app", Build: "b1", Stages: []runs.AnyStage{shell},
				Tell: func(e predictor.Event) {
					if scheduled, ok := e.(predictor.Scheduled); ok {
						told = append(told, scheduled)
					}
				},
			}
			env.SetWorkerOptions(worker.Options{
				Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
				DeadlockDetectionTimeout: time.Minute, // a busy machine is no deadlock
			})
			runs.Register(env, ports, []runs.AnyPipeline{c.pipeline})
			var task wire.Task
			var queue string
			var command spillway.Command
			env.RegisterActivityWithOptions(func(ctx context.Context, given wire.Task, input json.RawMessage) (wire.Result,
				error,
			) {
				task, queue = given, activity.GetInfo(ctx).TaskQueue
				return wire.Result{Output: json.RawMessage(`{"exit":0,"values":{"files":2}}`)}, json.Unmarshal(input, &command)
			}, activity.RegisterOptions{Name: "shell"})
			env.ExecuteWorkflow(c.pipeline.Name(), c.command)
			var result spillway.CommandResult
			if err := env.GetWorkflowResult(&result); err != nil {
				t.Fatal(err)
			}
			id := predictor.StageID{App: "app", Build: "b1", Name: "shell"}
			want := map[bool]string{false: id.Queue(), true: id.PoolQueue()}[c.poolOnly]
			if !task.Command || task.PoolOnly != c.poolOnly || queue != want || task.Input != 34 || task.MaxAttempts != 2 {
				t.Errorf("task %+v on queue %s: want a command on %s with 34 bytes of files and 2 attempts", task, queue, want)
			}
			input := quantity.Bytes(0)
			for _, hint := range told {
				input += hint.Input
				if hint.PoolOnly != c.poolOnly || hint.Unfit != c.unfit {
					t.Errorf("hint %+v: want it for the pool only: %t, as %q", hint, c.poolOnly, c.unfit)
				}
			}
			if len(told) == 0 || input != 34 {
				t.Errorf("hints %+v: want 34 bytes", told)
			}
			if diff := cmp.Diff(c.command, command); diff != "" {
				t.Errorf("the input of the activity (-want +got):\n%s", diff)
			}
			if result.Values["files"] != 2.0 {
				t.Errorf("result %+v lacks the reported value", result)
			}
		})
	}
}
