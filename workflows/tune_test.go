package workflows_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/mock"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/interceptor"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	"go.temporal.io/sdk/testsuite"
	"go.temporal.io/sdk/worker"
	"go.temporal.io/sdk/workflow"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	spillway "github.com/spillway-ml/spillway/workflows"
	"github.com/spillway-ml/spillway/workflows/runs"
	"github.com/spillway-ml/spillway/workflows/spillwaytest"
)

// fitInput is what a trial of the stage `fit` is given: the nearer Rate is to .3, the lower is its loss, and each epoch
// lowers it.
type fitInput struct {
	Rate   float64        `json:"rate"`
	Kind   string         `json:"kind,omitempty"`
	Layers int            `json:"layers,omitempty"`
	Trial  spillway.Trial `json:"trial"`
}

type fitted struct {
	Loss   float64 `json:"loss"`
	Epochs float64 `json:"epochs"` // that this trial has had, by its checkpoints
	Began  float64 `json:"began"`  // where this job went on from
}

// fitEpochs trains from the checkpoint of the job before, epoch by epoch.
func fitEpochs(ctx context.Context, in fitInput) (fitted, error) {
	var state spillway.Checkpoint[float64]
	done, ok, err := state.Restore(ctx)
	if err != nil {
		return fitted{}, err
	}
	if began := in.Trial.From; ok != (began > 0) || done != began {
		return fitted{}, fmt.Errorf("the job is told to go on from %g, and its checkpoint is of %g", began, done)
	}
	for epoch := done + 1; epoch <= in.Trial.To; epoch++ {
		if err := state.Save(ctx, epoch); err != nil {
			return fitted{}, err
		}
		done = epoch
	}
	return fitted{Loss: fitLoss(in), Epochs: done, Began: in.Trial.From}, nil
}

func fitLoss(in fitInput) float64 { return math.Abs(in.Rate-.3) + 1/in.Trial.To }

var (
	fit      = spillway.NewStage("fit", fitEpochs)
	fitSpace = spillway.NewSpace("rate=0.0..1.0", "kind=a|b", "layers=1..9 if kind=b")
)

func fitSearch() spillway.Search[fitInput, fitted] {
	return spillway.Search[fitInput, fitted]{Space: fitSpace, Loss: "loss", Trials: 27, Most: 27, Seed: 1}
}

func tuned(
	s spillway.Search[fitInput, fitted],
) spillway.Pipeline[int, spillway.Tuned[fitted]] {
	return spillway.NewPipeline("tuner", func(ctx workflow.Context, _ int) (spillway.Tuned[fitted], error) {
		return spillway.Tune(ctx, fit, s)
	})
}

func TestATuningFindsTheBestTrialAndGoesOnFromCheckpoints(t *testing.T) {
	t.Parallel()
	best, err := spillwaytest.Run(t, tuned(fitSearch()), 0, fit)
	if err != nil {
		t.Fatal(err)
	}
	of := best.Tuning
	if of.Ended != runs.EndedDone || of.Begun != 27 || len(of.Trials) != 27 || *of.Best != best.Trial {
		t.Errorf("the tuning %+v has not tried all", of)
	}
	if best.Output.Epochs != 27 || best.Output.Loss != best.Objective || best.Output.Began != 9 {
		t.Errorf("the best trial's last job told %+v, want one that goes on to the end", best.Output)
	}
	jobs, nearest := 0, 0
	for i, trial := range of.Trials {
		if math.Abs(trial.Configuration["rate"].Number-.3) < math.Abs(of.Trials[nearest].Configuration["rate"].Number-.3) {
			nearest = i
		}
		_, has := trial.Configuration["layers"]
		if has != (trial.Configuration["kind"].Text == "b") {
			t.Errorf("trial %d has %+v: layers are for b alone", i, trial.Configuration)
		}
		for rung, job := range trial.Jobs {
			jobs++
			from := math.Pow(3, float64(rung-1))
			if rung == 0 {
				from = 0
			}
			if job.Rung != rung || job.From != from || job.To != math.Pow(3, float64(rung)) || job.Objective == nil ||
				!strings.HasPrefix(job.Task, "fit-") || job.EndedAt.Before(job.StartedAt) {
				t.Errorf("trial %d, job %d: %+v", i, rung, job)
			}
		}
		if len(trial.Jobs) == 4 != (trial.State == spillway.TrialFinished) {
			t.Errorf("trial %d is %s after %d jobs", i, trial.State, len(trial.Jobs))
		}
		if trial.State == spillway.TrialStopped && !strings.Contains(trial.Why, " of ") {
			t.Errorf("trial %d was stopped, and why: %q", i, trial.Why)
		}
	}
	if best.Trial != nearest {
		t.Errorf("trial %d is the best, want %d", best.Trial, nearest)
	}
	if got := of.Counts[spillway.TrialFinished] + of.Counts[spillway.TrialStopped]; got != 27 {
		t.Errorf("%v do not add up to 27", of.Counts)
	}
}

// TestAStageThatReturnsNaNHasDivergedAtOnce: JSON has no NaN, and another attempt would come to the same.
func TestAStageThatReturnsNaNHasDivergedAtOnce(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	stage := spillway.NewStage("nan", func(_ context.Context, in fitInput) (fitted, error) {
		calls.Add(1)
		if in.Trial.Number%2 == 1 {
			return fitted{Loss: math.NaN()}, nil
		}
		return fitted{Loss: math.Inf(in.Trial.Number - 1)}, nil // -Inf is no best loss
	})
	s := spillway.Search[fitInput, fitted]{Space: fitSpace, Loss: "loss", Trials: 6, Most: 1}
	_, err := spillwaytest.Run(t, spillway.NewPipeline("nan", func(ctx workflow.Context, _ int) (int, error) {
		_, err := spillway.Tune(ctx, stage, s)
		return 0, err
	}), 0, stage)
	if err == nil || !strings.Contains(err.Error(), "6 diverged and 0 failed") || calls.Load() != 6 {
		t.Errorf("after %d calls: got %v, want 6 trials that diverged", calls.Load(), err)
	}
}

// tuner runs tunings in a test environment in which attempt does the jobs.
type tuner struct {
	find func(context.Context, wire.Lookup) ([]*wire.Kept, error) // of results of earlier runs
	tell func(predictor.Event)

	env *testsuite.TestWorkflowEnvironment

	mu    sync.Mutex
	tasks []wire.Task
	keys  map[string]wire.ResultKey // by task
	most  quantity.Money            // that was spent and reserved at a time
	spent quantity.Money
	held  map[string]quantity.Money
}

func newTuner(
	t *testing.T, goal spillway.Goal, attempt func(context.Context, fitInput, wire.Task) (wire.Result, error),
) *tuner {
	t.Helper()
	var suite testsuite.WorkflowTestSuite
	suite.SetLogger(sdklog.NewStructuredLogger(slog.New(slog.DiscardHandler)))
	f := &tuner{
		env: suite.NewTestWorkflowEnvironment(), held: map[string]quantity.Money{}, keys: map[string]wire.ResultKey{},
	}
	f.env.SetTestTimeout(5 * time.Minute)
	if err := f.env.SetMemoOnStart(map[string]any{
		runs.GoalMemo:    goal,
		runs.OptionsMemo: wire.RunOptions{Version: wire.WorkflowVersion, Window: 8},
	}); err != nil {
		t.Fatal(err)
	}
	f.env.RegisterActivityWithOptions(func(ctx context.Context, task wire.Task, input json.RawMessage) (wire.Result,
		error,
	) {
		var in fitInput
		if err := json.Unmarshal(input, &in); err != nil {
			return wire.Result{}, err
		}
		f.mu.Lock()
		f.tasks = append(f.tasks, task)
		f.held[task.ID] = task.Reserved
		f.keys[task.ID] = wire.NewResultKey(task.Stage, task.Command, task.CacheVersion, input)
		f.most = max(f.most, f.taken())
		f.mu.Unlock()
		result, err := attempt(ctx, in, task)
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.held, task.ID)
		f.spent += result.Cost
		return result, err
	}, activity.RegisterOptions{Name: fit.Name()})
	return f
}

// taken is what is spent and reserved; the caller holds mu.
func (f *tuner) taken() quantity.Money {
	taken := f.spent
	for _, held := range f.held {
		taken += held
	}
	return taken
}

func (f *tuner) run(t *testing.T, s spillway.Search[fitInput, fitted]) (best spillway.Tuned[fitted], err error) {
	t.Helper()
	pipeline := tuned(s)
	ports := runs.Ports{Stages: []runs.AnyStage{fit}, Find: f.find, Tell: f.tell}
	f.env.SetWorkerOptions(worker.Options{
		Interceptors:             []interceptor.WorkerInterceptor{runs.NewInterceptor(ports)},
		DeadlockDetectionTimeout: time.Minute,
	})
	runs.Register(f.env, ports, []runs.AnyPipeline{pipeline})
	f.env.ExecuteWorkflow(pipeline.Name(), 0)
	if !f.env.IsWorkflowCompleted() {
		t.Fatal("the run hangs")
	}
	if err := f.env.GetWorkflowError(); err != nil {
		return best, err
	}
	return best, f.env.GetWorkflowResult(&best)
}

// told is the result of a job with this loss.
func told(loss float64, cost quantity.Money) wire.Result {
	return wire.Result{Output: json.RawMessage(fmt.Sprintf(`{"loss":%g,"epochs":1,"began":0}`, loss)), Cost: cost}
}

func TestTrialsThatFailOrDivergeEndNoTuning(t *testing.T) {
	t.Parallel()
	f := newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, _ wire.Task) (wire.Result, error) {
		switch number := in.Trial.Number; {
		case number%5 == 1:
			return wire.Result{}, temporal.NewNonRetryableApplicationError("it "+strings.Repeat("fails ", 100), wire.StageError,
				nil)
		case number%5 == 2:
			return wire.Result{Output: json.RawMessage(`{"loss":null}`)}, nil
		case number%5 == 3:
			return wire.Result{}, temporal.NewNonRetryableApplicationError(
				"encode output: json: unsupported value: NaN", wire.StageError, nil)
		case number == 4:
			return wire.Result{Output: json.RawMessage(`{"accuracy":1,"epochs":3}`)}, nil
		case number == 0 && in.Trial.Rung == 1: // the best
			return wire.Result{Output: json.RawMessage(`{"loss":"nan"}`)}, nil
		}
		return told(float64(in.Trial.Number), 0), nil
	})
	s := fitSearch()
	s.Trials = 25
	best, err := f.run(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if best.Trial != 5 || best.Output.Loss != 5 || best.Objective != 5 {
		t.Errorf("the best is trial %d with %+v, want 5, the first that neither fails nor diverges", best.Trial, best.Output)
	}
	counts := best.Tuning.Counts
	if counts[spillway.TrialFailed] != 6 || counts[spillway.TrialDiverged] != 11 {
		t.Errorf("%v: 6 failed and 11 diverged", counts)
	}
	for number, want := range map[int]string{
		1: "it fails", 2: "no finite number", 3: "NaN", 4: `no "loss": the fields of its output are accuracy, epochs`,
		0: "no finite number",
	} {
		if trial := best.Tuning.Trials[number]; !strings.Contains(trial.Why, want) || len(trial.Why) > 310 {
			t.Errorf("trial %d is %s, and why: %q; want %q in at most 300 bytes", number, trial.State, trial.Why, want)
		}
	}
}

func TestATuningNoneOfWhoseTrialsTellsAnythingFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		attempt func(in fitInput) (wire.Result, error)
		trials  int
		tasks   int // at most
		want    string
	}{
		"all fail": {
			func(fitInput) (wire.Result, error) {
				return wire.Result{}, temporal.NewNonRetryableApplicationError("no such file", wire.StageError, nil)
			}, 27, 16, "the first: no such file",
		},
		"both fail": {
			func(fitInput) (wire.Result, error) {
				return wire.Result{}, temporal.NewNonRetryableApplicationError("no such file", wire.StageError, nil)
			}, 2, 2, "none of 2 trials told \"loss\", and 2 failed",
		},
		"all diverge": {
			func(fitInput) (wire.Result, error) {
				return wire.Result{Output: json.RawMessage(`{"loss":"inf"}`)}, nil
			},
			6, 6, "none of 6 trials told a finite \"loss\": 6 diverged",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, _ wire.Task) (wire.Result, error) {
				return c.attempt(in)
			})
			s := fitSearch()
			s.Trials = c.trials
			_, err := f.run(t, s)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(f.tasks) > c.tasks {
				t.Errorf("after %d tasks: got %v, want %q", len(f.tasks), err, c.want)
			}
		})
	}
}

// TestWhatCannotBeTunedIsRefusedAtOnce: no task is run.
func TestWhatCannotBeTunedIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	type search = spillway.Search[fitInput, fitted]
	for name, c := range map[string]struct {
		change func(*search)
		want   string
	}{
		"no space":            {func(s *search) { s.Space = nil }, "it has no parameter"},
		"a field that is not": {func(s *search) { s.Space = spillway.NewSpace("rat=0.0..1.0") }, `unknown field "rat"`},
		"a field of another type": {
			func(s *search) { s.Space = spillway.NewSpace("layers=0.0..1.0") },
			"cannot unmarshal number",
		},
		"a field in other letters": {
			func(s *search) { s.Space = spillway.NewSpace("RATE=0.0..1.0") },
			`parameter "RATE": the field of the input is called "rate"`,
		},
		"the trial's own field in other letters": {
			func(s *search) { s.Space = spillway.NewSpace("Trial=1..2") }, "the trial's own",
		},
		"the trial's own field": {func(s *search) { s.Space = spillway.NewSpace("trial=1..2") }, "the trial's own"},
		"a range upside down": {
			func(s *search) { s.Space = spillway.Space{{Name: "rate", Kind: "float", Low: 1}} }, "the lower end comes first",
		},
		"a log through zero": {
			func(s *search) { s.Space = spillway.Space{{Name: "rate", Kind: "float", High: 1, Log: true}} },
			"a logarithmic range is above 0",
		},
		"the same name twice": {
			func(s *search) { s.Space = append(spillway.NewSpace("rate=0.0..1.0"), s.Space[0]) }, "it is there twice",
		},
		"no objective":             {func(s *search) { s.Loss = "" }, "no objective"},
		"an objective that is not": {func(s *search) { s.Loss = "los" }, `no field "los"`},
		"no trials":                {func(s *search) { s.Trials = 0 }, "0 trials"},
		"too many trials":          {func(s *search) { s.Trials = 5001 }, "at most 5000"},
		"too many jobs":            {func(s *search) { s.Trials, s.GoOn = 5000, true }, "are 20000 jobs"},
		"a search that takes long to make again": {
			func(s *search) { s.Trials, s.Algorithm = 1155, spillway.BOHB },
			"1155 trials by bohb: with 3 parameters it has at most 1154",
		},
		"an input that each trial would bear": {
			func(s *search) { s.Input.Kind = strings.Repeat("x", 128<<10) }, "pass what is large as an artifact",
		},
		"nothing to train":    {func(s *search) { s.Most = 0 }, "give each trial something"},
		"no such algorithm":   {func(s *search) { s.Algorithm = "grid" }, `no algorithm "grid"`},
		"negative time":       {func(s *search) { s.Time = -1 }, "negative"},
		"negative money":      {func(s *search) { s.Money = -1 }, "negative"},
		"a name that is none": {func(s *search) { s.Name = "My tuning" }, "lower-case"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTuner(t, spillway.Goal{}, func(context.Context, fitInput, wire.Task) (wire.Result, error) {
				return told(1, 0), nil
			})
			s := fitSearch()
			c.change(&s)
			_, err := f.run(t, s)
			if err == nil || !strings.Contains(err.Error(), c.want) || len(f.tasks) > 0 {
				t.Errorf("after %d tasks: got %v, want %q", len(f.tasks), err, c.want)
			}
			if refused, ok := errors.AsType[*temporal.ApplicationError](err); !ok || refused.Type() != runs.InputError {
				t.Errorf("got %v, want an %s", err, runs.InputError)
			}
		})
	}
}

// TestAStageThatIsToldNoTurnIsTriedAtRandom has an input without a field "trial".
func TestAStageThatIsToldNoTurnIsTriedAtRandom(t *testing.T) {
	t.Parallel()
	type plain struct {
		Rate float64 `json:"rate"`
	}
	stage := spillway.NewStage("plain", func(_ context.Context, in plain) (fitted, error) {
		return fitted{Loss: -in.Rate}, nil
	})
	s := spillway.Search[plain, fitted]{
		Space: spillway.NewSpace("rate=0.0..1.0"), Loss: "loss", Trials: 9, Maximise: true,
	}
	run := func() (spillway.Tuned[fitted], error) {
		return spillwaytest.Run(t, spillway.NewPipeline("plain", func(ctx workflow.Context, _ int) (spillway.Tuned[fitted],
			error,
		) {
			return spillway.Tune(ctx, stage, s)
		}), 0, stage)
	}
	best, err := run()
	if err != nil {
		t.Fatal(err)
	}
	for _, trial := range best.Tuning.Trials {
		if trial.Jobs[0].To != 1 || len(trial.Jobs) != 1 || *trial.Jobs[0].Objective > best.Objective {
			t.Errorf("trial %+v: want one job each, none better than %g", trial, best.Objective)
		}
	}
	s.Algorithm = spillway.Hyperband
	s.Most = 9
	if _, err := run(); err == nil || !strings.Contains(err.Error(), "3 rungs, and a trial is not told how far to train") {
		t.Errorf("got %v", err)
	}
}

// TestTuningsOfAStageFollowEachOther: their tasks and their workflows have names of their own.
func TestTuningsOfAStageFollowEachOther(t *testing.T) {
	t.Parallel()
	type both struct {
		First, Second spillway.Tuned[fitted]
		Last          fitted
	}
	got, err := spillwaytest.Run(t, spillway.NewPipeline("twice", func(ctx workflow.Context, _ int) (both, error) {
		var b both
		s := fitSearch()
		s.Trials = 3
		var err error
		if b.First, err = spillway.Tune(ctx, fit, s); err != nil {
			return b, err
		}
		s.Algorithm = spillway.Halving
		if b.Second, err = spillway.Tune(ctx, fit, s); err != nil {
			return b, err
		}
		b.Last, err = fit.Run(ctx, fitInput{Rate: 1, Trial: spillway.Trial{To: 2}})
		return b, err
	}), 0, fit)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, one := range []spillway.Tuned[fitted]{got.First, got.Second} {
		for _, trial := range one.Tuning.Trials {
			for _, job := range trial.Jobs {
				if seen[job.Task] || job.Task != fmt.Sprintf("fit-%d", len(seen)) && one.Tuning.Options.Algorithm == "" {
					t.Errorf("task %s is there twice", job.Task)
				}
				seen[job.Task] = true
			}
		}
	}
	for i := range len(seen) {
		if !seen[fmt.Sprintf("fit-%d", i)] {
			t.Errorf("there is no task %d of %d", i, len(seen))
		}
	}
}

// TestAThousandTrialsAndMoreStayWithinTheBoundsOfTemporal runs 4,096 trials, and counts the jobs of each child
// workflow and the bytes of its input and its result.
func TestAThousandTrialsAndMoreStayWithinTheBoundsOfTemporal(t *testing.T) {
	t.Parallel()
	digest := strings.Repeat("ab", 32)
	f := newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, task wire.Task) (wire.Result, error) {
		if (in.Trial.From > 0) != (task.Resume.Digest != "") || !task.Tells {
			t.Errorf("task %s of trial %+v goes on from %q", task.ID, in.Trial, task.Resume.Digest)
		}
		result := told(fitLoss(in), 1)
		result.Checkpoint = activities.Ref{Digest: digest[:50] + fmt.Sprintf("%014d", in.Trial.Number*10+in.Trial.Rung)}
		return result, nil
	})
	parts, largest, jobs := 0, 0, 0
	f.env.SetOnChildWorkflowStartedListener(func(_ *workflow.Info, _ workflow.Context, args converter.EncodedValues) {
		var raw json.RawMessage
		if err := args.Get(&raw); err != nil {
			t.Error(err)
		}
		parts++
		largest = max(largest, len(raw))
	})
	f.env.SetOnChildWorkflowCompletedListener(func(_ *workflow.Info, result converter.EncodedValue, err error) {
		var raw struct {
			Log struct {
				Jobs []json.RawMessage `json:"jobs"`
			} `json:"log"`
		}
		if err := errors.Join(err, result.Get(&raw)); err != nil {
			t.Error(err)
		}
		// an activity has three events, and the workflow task that its end brings three
		if events := 6 * len(raw.Log.Jobs); events > 8000 {
			t.Errorf("a part has %d jobs, which are about %d events", len(raw.Log.Jobs), events)
		}
		jobs += len(raw.Log.Jobs)
	})
	s := fitSearch()
	s.Trials = 4096
	best, err := f.run(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if best.Tuning.Begun != 4096 || parts < 5 || jobs != len(f.tasks) || largest > 2<<20*8/10 ||
		best.Tuning.Counts[spillway.TrialFinished] == 0 || best.Output.Loss != best.Objective {
		t.Errorf("%d trials in %d parts, %d jobs of %d tasks, inputs of at most %d bytes", best.Tuning.Begun, parts, jobs,
			len(f.tasks), largest)
	}
	told := map[string]bool{}
	for _, trial := range best.Tuning.Trials {
		for _, job := range trial.Jobs {
			told[job.Task] = true
		}
	}
	if len(told) != jobs {
		t.Errorf("%d different tasks of %d jobs", len(told), jobs)
	}
	t.Logf("%d jobs in %d parts, inputs of at most %d bytes", jobs, parts, largest)
}

// TestATuningTellsHowItStands asks a tuning while jobs of it are under way, page by page.
func TestATuningTellsHowItStands(t *testing.T) {
	t.Parallel()
	f := newTuner(t, spillway.Goal{}, nil)
	f.env.OnActivity(fit.Name(), mock.Anything, mock.Anything, mock.Anything).Return(told(1, 5), nil).
		AfterFn(func() time.Duration { return time.Minute })
	var halfway, page runs.Tuning
	id := ""
	f.env.SetOnChildWorkflowStartedListener(func(info *workflow.Info, _ workflow.Context, _ converter.EncodedValues) {
		id = info.WorkflowExecution.ID
	})
	f.env.RegisterDelayedCallback(func() {
		for into, asked := range map[*runs.Tuning]runs.TuningPage{&halfway: {}, &page: {First: 4, Trials: 3}} {
			answer, err := f.env.QueryWorkflowByID(id, runs.TuningQuery, asked)
			if err == nil {
				err = answer.Get(into)
			}
			if err != nil {
				t.Error(err)
			}
		}
	}, 90*time.Second)
	if _, err := f.run(t, fitSearch()); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(id, "/fit-tune") {
		t.Errorf("the tuning is called %q", id)
	}
	if halfway.Counts[runs.TrialRunning] != 4 || halfway.Ended != "" || halfway.Begun != len(halfway.Trials) ||
		halfway.Best == nil || halfway.Spent != 20 || halfway.Options.Eta != 3 || halfway.Stage != "fit" {
		t.Errorf("after 90 seconds: %+v, want 4 jobs that run and 4 that are over", halfway)
	}
	for _, trial := range halfway.Trials {
		last := trial.Jobs[len(trial.Jobs)-1]
		running := trial.State == runs.TrialRunning
		if running != last.EndedAt.IsZero() || running == (last.Objective != nil) {
			t.Errorf("trial %d is %s, and its last job: %+v", trial.Number, trial.State, last)
		}
	}
	if len(page.Trials) != 3 || page.Trials[0].Number != 4 || page.Begun != halfway.Begun {
		t.Errorf("the page from 4 on: %+v", page.Trials)
	}
}

// TestATuningDecidesAheadAsLittleAsItsWindowAllows has jobs take a minute each: with the window of a run of before, all
// 27 trials begin before the first goes on; now four do, or as many as the run is told to have in flight.
func TestATuningDecidesAheadAsLittleAsItsWindowAllows(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ version, told, want, most int }{
		"before":                {3, 0, 27, 27},
		"nobody tells a window": {wire.WorkflowVersion, 0, 4, predictor.TuningWindow},
		"a window is told":      {wire.WorkflowVersion, 12, 12, 12},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTuner(t, spillway.Goal{}, nil)
			if err := f.env.SetMemoOnStart(map[string]any{
				runs.GoalMemo: spillway.Goal{}, runs.OptionsMemo: wire.RunOptions{Version: c.version, Window: 64},
			}); err != nil {
				t.Fatal(err)
			}
			f.env.OnActivity(fit.Name(), mock.Anything, mock.Anything, mock.Anything).Return(told(1, 5), nil).
				AfterFn(func() time.Duration { return time.Minute })
			if c.told > 0 {
				f.env.RegisterDelayedCallback(func() {
					window := predictor.Window{Stage: predictor.StageID{Name: fit.Name()}, Tasks: c.told}
					f.env.UpdateWorkflow(runs.WindowUpdate, "", &testsuite.TestUpdateCallback{
						OnReject: func(err error) { t.Error(err) }, OnAccept: func() {}, OnComplete: func(any, error) {},
					}, window)
				}, time.Second)
			}
			best, err := f.run(t, fitSearch())
			if err != nil {
				t.Fatal(err)
			}
			var jobs []runs.TrialJob
			for _, trial := range best.Tuning.Trials {
				jobs = append(jobs, trial.Jobs...)
			}
			slices.SortStableFunc(jobs, func(a, b runs.TrialJob) int { return a.StartedAt.Compare(b.StartedAt) })
			before, most := 0, 0 // jobs that were begun before the first of the second rung's; most at a time
			for i, job := range jobs {
				if before == 0 && job.Rung > 0 {
					before = i
				}
				running := 0
				for _, other := range jobs[:i+1] {
					if other.EndedAt.After(job.StartedAt) {
						running++
					}
				}
				most = max(most, running)
			}
			if before != c.want || most > c.most {
				t.Errorf("%d jobs began before the first trial went on, want %d; %d were in flight, want %d at most", before,
					c.want, most, c.most)
			}
		})
	}
}

// TestATrialThatItsCurveLeavesBehindDoesNotGoOn has six trials of which the third and the fourth are the best at first.
// The third goes on to 0.2; the curve of the other says that it ends above, and so does what it gained.
func TestATrialThatItsCurveLeavesBehindDoesNotGoOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		metric   string
		maximise bool
		version  int
		out      bool
	}{
		"its loss":                             {"loss", false, wire.WorkflowVersion, true},
		"another metric of the same value":     {"val_loss", false, wire.WorkflowVersion, true},
		"a metric of which more is better":     {"accuracy", false, wire.WorkflowVersion, false},
		"what is maximised":                    {"accuracy", true, wire.WorkflowVersion, true},
		"a run that began before there was it": {"loss", false, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sign := 1.0
			if c.maximise {
				sign = -1
			}
			f := newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, task wire.Task) (wire.Result, error) {
				turn, loss := in.Trial, 1.0
				if n := turn.Number; n == 2 || n == 3 {
					loss = []float64{0.3, 0.4}[n-2] - 0.1*float64(turn.Rung)
				}
				result := told(sign*loss, 1)
				asked := c.version >= 4 && turn.Rung < 2
				switch s := task.Stretch; {
				case (s != nil) != asked:
					t.Errorf("rung %d: what its curve says is asked for: %v", turn.Rung, s)
				case s == nil:
				case s.To != turn.To || s.Before != turn.To/3 || s.Most != 9 || s.From != 0: // no checkpoint was saved
					t.Errorf("rung %d does %+v", turn.Rung, *s)
				case turn.Number == 3:
					before := sign * 0.41
					result.Prospect = &predictor.Prospect{
						Metric: c.metric, Value: sign * loss, Low: min(sign*0.35, sign*0.38), High: max(sign*0.35, sign*0.38),
						Before: &before,
					}
				}
				return result, nil
			})
			if err := f.env.SetMemoOnStart(map[string]any{
				runs.GoalMemo: spillway.Goal{}, runs.OptionsMemo: wire.RunOptions{Version: c.version, Window: 1},
			}); err != nil {
				t.Fatal(err)
			}
			s := fitSearch()
			s.Trials, s.Most, s.Least, s.Maximise = 6, 9, 1, c.maximise
			best, err := f.run(t, s)
			if err != nil {
				t.Fatal(err)
			}
			if best.Trial != 2 || best.Objective != sign*0.1 && math.Abs(best.Objective-sign*0.1) > 1e-9 {
				t.Errorf("trial %d is the best with %g, want 2", best.Trial, best.Objective)
			}
			trial := best.Tuning.Trials[3]
			want := "rung 0: predicted 0.35 to 0.38 at 9, and the best so far is 0.1"
			if c.maximise {
				want = "rung 0: predicted -0.38 to -0.35 at 9, and the best so far is -0.1"
			}
			if out := len(trial.Jobs) == 1; out != c.out || out && (trial.Why != want || trial.State != runs.TrialStopped) {
				t.Errorf("the other had %d jobs, is %s, and why: %q; want out %v, %q", len(trial.Jobs), trial.State, trial.Why,
					c.out, want)
			}
		})
	}
}

// TestTasksOfATuningAreToldAsSuch has no need of their announcement, which may be lost. Tunings of before have the
// windows of Maps.
func TestTasksOfATuningAreToldAsSuch(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]bool{3: false, wire.WorkflowVersion: true} {
		f := newTuner(t, spillway.Goal{}, func(_ context.Context, in fitInput, _ wire.Task) (wire.Result, error) {
			return told(fitLoss(in), 1), nil
		})
		tasks := 0
		f.tell = func(event predictor.Event) {
			if e, is := event.(predictor.Scheduled); is && e.Tasks > 0 {
				if tasks += e.Tasks; e.Tuning != want {
					t.Errorf("version %d: a task is told as a tuning's: %v", version, e.Tuning)
				}
			}
		}
		options := wire.RunOptions{Version: version, Window: 8}
		if err := f.env.SetMemoOnStart(map[string]any{runs.OptionsMemo: options}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.run(t, fitSearch()); err != nil || tasks < 27 {
			t.Errorf("version %d: %d tasks were told: %v", version, tasks, err)
		}
	}
}

// TestATuningTakesBackWhatItAnnouncedAndDoesNotDo counts what the loop is told of jobs that are to come: whoever
// believes in them holds functions for them, and keeps a part of the run's goal.
func TestATuningTakesBackWhatItAnnouncedAndDoesNotDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		time  time.Duration
		takes bool // what an earlier run did
		fails bool
	}{
		"it is done":         {},
		"its time is up":     {time: 150 * time.Second},
		"it is done already": {takes: true},
		"it fails":           {fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newTuner(t, spillway.Goal{}, nil)
			result, failure := told(1, 1), error(nil)
			if c.fails {
				result, failure = wire.Result{}, temporal.NewNonRetryableApplicationError("the disk is full", wire.StageError, nil)
			}
			f.env.OnActivity(fit.Name(), mock.Anything, mock.Anything, mock.Anything).Return(result, failure).
				AfterFn(func() time.Duration { return time.Minute })
			options := wire.RunOptions{Version: wire.WorkflowVersion, Window: 8}
			if c.takes {
				options.RetryOf = "first"
				f.find = func(context.Context, wire.Lookup) ([]*wire.Kept, error) {
					return []*wire.Kept{{Run: "first", Output: result.Output, Told: &wire.Told{}}}, nil
				}
			}
			if err := f.env.SetMemoOnStart(map[string]any{runs.OptionsMemo: options}); err != nil {
				t.Fatal(err)
			}
			most, left := 0, 0
			f.tell = func(event predictor.Event) {
				if e, is := event.(predictor.Scheduled); is {
					left = max(0, left-e.Tasks-e.Withdrawn) + e.Expected
					most = max(most, left)
				}
			}
			search := fitSearch()
			search.Time = c.time
			if _, err := f.run(t, search); (err != nil) != c.fails || most != search.Trials || left != 0 {
				t.Errorf("of %d jobs that were announced %d are to come after its end: %v", most, left, err)
			}
		})
	}
}

// TestATuningOfBeforeGoesByHowLongItsJobsTook has jobs that take a minute, and of which hosts tell that they ran for a
// second: another one has time by that, and none by what runs of before go by, whoever replays them.
func TestATuningOfBeforeGoesByHowLongItsJobsTook(t *testing.T) {
	t.Parallel()
	for version, want := range map[int]int{3: 1, wire.WorkflowVersion: 2} {
		f := newTuner(t, spillway.Goal{}, nil)
		options := wire.RunOptions{Version: version, Window: 1}
		if err := f.env.SetMemoOnStart(map[string]any{runs.OptionsMemo: options}); err != nil {
			t.Fatal(err)
		}
		result := told(1, 5)
		result.Took = time.Second
		f.env.OnActivity(fit.Name(), mock.Anything, mock.Anything, mock.Anything).Return(result, nil).
			AfterFn(func() time.Duration { return time.Minute })
		search := fitSearch()
		search.Time = 90 * time.Second
		best, err := f.run(t, search)
		if err != nil {
			t.Fatal(err)
		}
		if best.Tuning.Begun != want || best.Tuning.Ended != runs.EndedTime {
			t.Errorf("version %d: %d jobs were begun until %s, want %d", version, best.Tuning.Begun, best.Tuning.Ended, want)
		}
	}
}
