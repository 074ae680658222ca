package app

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
)

// asApp is set when the test binary is started as an app: Main ends the process, and a slot process has descriptors of
// its own.
const asApp = "SPILLWAY_TEST_AS_APP"

func TestMain(m *testing.M) {
	if os.Getenv(asApp) != "" {
		Main(shop())
	}
	goleak.VerifyTestMain(m)
}

type order struct {
	Items int    `json:"items"`
	Note  string `json:"note,omitempty"`
}

var (
	pick = workflows.NewStage("pick", func(_ context.Context, in order) (int, error) { return in.Items, nil }).
		With(workflows.Hints{CPU: 500, Memory: 64 * workflows.MiB, Timeout: time.Minute, MaxAttempts: 5})
	pack = workflows.NewStage("pack", func(_ context.Context, items int) (int, error) { return items, nil }).
		With(workflows.Hints{PoolOnly: true})
	sell = workflows.NewPipeline("sell", pick.Run)
	ship = workflows.NewPipeline("ship", pack.Run)
)

// shop is an app of two pipelines and two stages.
func shop() Options {
	return Options{
		Name: "shop",
		Pipelines: []Pipeline{
			sell.On(workflows.Binding{Subject: "orders.*", Filter: map[string]any{"kind": "new"}, MaxRuns: 2}).
				WithGoal(workflows.Goal{Budget: workflows.USD}),
			ship,
		},
		Stages: []Stage{pick, pack},
	}
}

// start runs the app as Main does, in an environment of these variables only.
func start(
	t *testing.T, options Options, environment map[string]string, args ...string,
) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), options, args, func(name string) string { return environment[name] }, &out, &errs)
	return code, out.String(), errs.String()
}

func TestAnAppDescribesItsPipelinesAndStages(t *testing.T) {
	t.Parallel()
	code, stdout, stderr := start(t, shop(), nil, "describe", "--json")
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d, %q; want 0 and nothing", code, stderr)
	}
	var got wire.App
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	want := wire.App{
		Version: wire.Version, Name: "shop", SIMD: builtWithSIMD(), WorkflowVersion: wire.WorkflowVersion,
		Pipelines: []wire.Pipeline{
			{
				Name: "sell", Goal: predictor.Goal{Budget: quantity.USD},
				Bindings: []wire.Binding{{
					Pipeline: "sell", Subject: "orders.*", Filter: map[string]any{"kind": "new"},
					MaxRuns: 2,
				}},
			},
			{Name: "ship"},
		},
		Stages: []wire.Stage{
			{Name: "pick", Declared: quantity.Size{CPU: 500, Memory: 64 * quantity.MiB}, MaxAttempts: 5, Timeout: time.Minute},
			{Name: "pack", MaxAttempts: runs.DefaultMaxAttempts, PoolOnly: true},
		},
	}
	schemas := make([]string, len(got.Pipelines))
	for i := range got.Pipelines {
		schemas[i], got.Pipelines[i].Input = string(got.Pipelines[i].Input), nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("description (-want +got):\n%s", diff)
	}
	if !strings.Contains(schemas[0], `"items"`) || !strings.Contains(schemas[1], `"integer"`) {
		t.Errorf("schemas of the inputs: got %q, want the fields and types", schemas)
	}
}

func TestOptionsThatAreWrongAreRefusedWithExitCodeTwo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Options)
		want   []string
	}{
		"a stage that is not listed": {func(o *Options) {
			o.Stages = []Stage{pick}
		}, []string{`stage "pack"`, "app_test.go:", "is not listed in app.Main"}},
		"a stage that is listed twice": {
			func(o *Options) { o.Stages = append(o.Stages, pick) }, []string{`stage "pick" is listed twice`, "another name"},
		},
		"a pipeline that is listed twice": {
			func(o *Options) { o.Pipelines = append(o.Pipelines, sell) },
			[]string{`pipeline "sell" is listed twice`, "another name"},
		},
		"a goal that no run can have": {
			func(o *Options) {
				o.Pipelines[0] = sell.WithGoal(workflows.Goal{Deadline: -1})
			}, []string{"pipeline sell", "negative"},
		},
		"no pipeline": {func(o *Options) { o.Pipelines = nil }, []string{"at least one pipeline"}},
		"no name":     {func(o *Options) { o.Name = "" }, []string{"needs a Name"}},
		"a name with a space": {
			func(o *Options) { o.Name = "my shop" },
			[]string{`app name "my shop"`, "lower-case letters"},
		},
		"a name with an at":     {func(o *Options) { o.Name = "shop@2" }, []string{`app name "shop@2"`}},
		"a name that is a page": {func(o *Options) { o.Name = strings.Repeat("s", 41) }, []string{"at most 40"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options := shop()
			c.change(&options)
			for _, environment := range []map[string]string{
				nil,
				{wire.RoleEnvironment: wire.RoleChild},
				{wire.RoleEnvironment: wire.RoleWorkflows},
			} {
				code, stdout, stderr := start(t, options, environment, "describe")
				if code != 2 || stdout != "" {
					t.Errorf("with %v: exit code %d and %q, want 2 and nothing", environment, code, stdout)
				}
				for _, text := range c.want {
					if !strings.Contains(stderr, text) {
						t.Errorf("with %v: got %q, want that it says %q", environment, stderr, text)
					}
				}
			}
		})
	}
}

func TestAPersonIsToldHowToRunTheApp(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		args    []string
		code    int
		problem string
	}{
		{nil, 0, ""},
		{[]string{"help"}, 0, ""},
		{[]string{"--help"}, 0, ""},
		{[]string{"-h"}, 0, ""},
		{[]string{"run"}, 2, "shop: unknown argument \"run\"\n"},
		{[]string{"--version"}, 2, "shop: unknown argument \"--version\"\n"},
	} {
		code, stdout, stderr := start(t, shop(), nil, c.args...)
		if code != c.code || stderr != c.problem {
			t.Errorf("%q: exit code %d, %q; want %d, %q", c.args, code, stderr, c.code, c.problem)
		}
		for _, text := range []string{
			"shop is a Spillway app", "spillway run sell --app ", "spillway run ship --app ",
			"spillway dev --app ", " describe --json",
		} {
			if !strings.Contains(stdout, text) {
				t.Errorf("%q: got %q, want that it says %q", c.args, stdout, text)
			}
		}
	}
}

func TestARoleThatLacksItsEnvironmentFailsByTheNameOfTheVariable(t *testing.T) {
	t.Parallel()
	complete := map[string]string{
		wire.RoleEnvironment: wire.RoleWorkflows, wire.BuildEnvironment: "build",
		wire.ArtifactsEnvironment: artifact.URL(t.TempDir()),
		wire.TemporalEnvironment:  "127.0.0.1:1", wire.NATSEnvironment: "nats://127.0.0.1:1",
	}
	with := func(name, value string) map[string]string {
		changed := maps.Clone(complete)
		changed[name] = value
		return changed
	}
	for name, c := range map[string]struct {
		environment map[string]string
		want        string
	}{
		"a slot without artifacts": {
			map[string]string{wire.RoleEnvironment: wire.RoleChild},
			wire.ArtifactsEnvironment + " is not set",
		},
		"a function without artifacts": {
			map[string]string{"AWS_LAMBDA_RUNTIME_API": "127.0.0.1:1"},
			wire.ArtifactsEnvironment + " is not set",
		},
		"a function with a store of no kind": {map[string]string{
			"AWS_LAMBDA_RUNTIME_API":  "127.0.0.1:1",
			wire.ArtifactsEnvironment: "ftp://host/a",
		}, `scheme "ftp" is not supported`},
		"a slot with a store of no kind": {map[string]string{
			wire.RoleEnvironment:      wire.RoleChild,
			wire.ArtifactsEnvironment: "artifacts",
		}, "has no scheme"},
		"a function with a server elsewhere": {map[string]string{
			"AWS_LAMBDA_RUNTIME_API":  "127.0.0.1:1",
			wire.ArtifactsEnvironment: artifact.URL(t.TempDir()),
			wire.ServerEnvironment:    "http://artifacts:hidden@192.0.2.1:80",
		}, "parameter server: the relay of artifacts at 192.0.2.1:80 is not on this machine"},
		"a worker without a build": {with(wire.BuildEnvironment, ""), wire.BuildEnvironment + " is not set"},
		"a worker without artifacts": {
			with(wire.ArtifactsEnvironment, ""),
			wire.ArtifactsEnvironment + " is not set",
		},
		"a worker without Temporal": {
			with(wire.TemporalEnvironment, ""),
			wire.TemporalEnvironment + " is not set",
		},
		"a worker without NATS":           {with(wire.NATSEnvironment, ""), wire.NATSEnvironment + " is not set"},
		"a worker with a window of words": {with(wire.WindowEnvironment, "wide"), wire.WindowEnvironment},
		"a worker with a store that it cannot open": {
			with(wire.ArtifactsEnvironment, "s3://bucket"),
			"there are no credentials in AWS_ACCESS_KEY_ID",
		},
		"a worker whose NATS does not answer":   {complete, "connect to NATS at nats://127.0.0.1:1"},
		"a worker whose NATS has a strange URL": {with(wire.NATSEnvironment, "nats://127.0.0.1:port"), "connect to NATS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := start(t, shop(), c.environment)
			if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "shop: ") || !strings.Contains(stderr, c.want) {
				t.Errorf("exit code %d, %q, %q; want 1, nothing and an error that says %q", code, stdout, stderr, c.want)
			}
		})
	}
}

func TestASlotProcessServesAttemptsUntilItsChannelEnds(t *testing.T) {
	t.Parallel()
	theirIn, in := pipe(t)
	out, theirOut := pipe(t)
	process := appProcess(t, wire.RoleEnvironment+"="+wire.RoleChild,
		wire.ArtifactsEnvironment+"="+artifact.URL(t.TempDir()))
	process.ExtraFiles = []*os.File{theirIn, theirOut}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = theirIn.Close(), theirOut.Close()

	answers := json.NewDecoder(out)
	next := func() (message wire.FromChild) {
		t.Helper()
		if err := answers.Decode(&message); err != nil {
			t.Fatal(err)
		}
		return message
	}
	if first := next(); !first.Ready {
		t.Fatalf("first message: got %+v, want ready", first)
	}
	// An interrupt from the terminal goes to the whole process group, and must not end attempts before the engine does.
	if err := process.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	task := wire.Task{
		Version: wire.Version, Run: "r", ID: "pick-0",
		Stage: predictor.StageID{App: "shop", Build: "b", Name: "pick"},
	}
	message := wire.ToChild{Start: &wire.StartAttempt{Task: task, Attempt: 1, Input: json.RawMessage(`{"items":3}`)}}
	if err := json.NewEncoder(in).Encode(message); err != nil {
		t.Fatal(err)
	}
	if answer := next().Done; answer == nil || answer.Error != nil || string(answer.Output) != "3" {
		t.Errorf("answer: got %+v, want 3", answer)
	}
	_ = in.Close()
	if err := process.Wait(); err != nil {
		t.Errorf("end of the process: %v, want exit code 0", err)
	}
	if rest, err := io.ReadAll(answers.Buffered()); err != nil || strings.TrimSpace(string(rest)) != "" {
		t.Errorf("after the answer: got %q, %v, want nothing", rest, err)
	}
}

func TestASlotProcessThatNoEngineStartedSaysSo(t *testing.T) {
	t.Parallel()
	process := appProcess(t, wire.RoleEnvironment+"="+wire.RoleChild,
		wire.ArtifactsEnvironment+"="+artifact.URL(t.TempDir()))
	stderr, err := process.CombinedOutput()
	if process.ProcessState.ExitCode() != 1 || !strings.Contains(string(stderr), "is started by the engine only") {
		t.Errorf("got %v, %q; want exit code 1 and who starts it", err, stderr)
	}
}

// appProcess is a process of the app, in an environment of these variables.
func appProcess(t *testing.T, environment ...string) *exec.Cmd {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0])
	process.Env = append([]string{asApp + "=1"}, environment...)
	return process
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}
