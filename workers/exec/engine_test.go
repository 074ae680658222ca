package exec_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/schedule"
)

func TestMain(m *testing.M) {
	if directory := os.Getenv(saverDirectory); directory != "" {
		fmt.Fprintln(os.Stderr, saver(directory))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

// operations are those of the reference's multilayer perceptron, in order.
func operations() []string {
	return []string{"dense1", "tanh1", "dropout1", "dense2", "tanh2", "dropout2", "add", "dense3", "loss"}
}

// layout cuts the operations before each of these.
func layout(batch, microBatches int, cuts ...int) exec.Layout {
	l := exec.Layout{
		Batch: batch, MicroBatches: microBatches, Seed: 5,
		Optimizer: exec.Optimizer{Kind: exec.Adam, LearningRate: 0.01},
	}
	from := 0
	for i, to := range append(slices.Clone(cuts), len(operations())) {
		l.Parts = append(l.Parts, exec.Part{
			Ops: operations()[from:to], Device: exec.Device{ID: fmt.Sprintf("cpu-%d", i)}, InFlight: microBatches,
		})
		from = to
	}
	return l
}

func load(tb testing.TB, options exectest.Options, l exec.Layout) exec.Pipeline {
	tb.Helper()
	p, err := exectest.Reference(options).Load(tb.Context(), l)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

func engine(tb testing.TB, p exec.Pipeline, s schedule.Schedule, o exec.EngineOptions) *exec.Engine {
	tb.Helper()
	e, err := exec.NewEngine(p, s, o)
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

// must returns a schedule that is known to be possible.
func must(s schedule.Schedule, err error) schedule.Schedule {
	if err != nil {
		panic(err)
	}
	return s
}

func losses(tb testing.TB, e *exec.Engine, from, to int64) []float64 {
	tb.Helper()
	var list []float64
	for step := from; step < to; step++ {
		report, err := e.Step(tb.Context(), step)
		if err != nil {
			tb.Fatal(err)
		}
		list = append(list, report.Loss)
	}
	return list
}

func TestEveryScheduleOfEverySplitTrainsAsOnePartDoes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		cuts := rapid.SliceOfNDistinct(rapid.IntRange(1, len(operations())-1), 0, 5, rapid.ID[int]).Draw(rt, "cuts")
		slices.Sort(cuts)
		stages := len(cuts) + 1
		microBatches := rapid.IntRange(1, 6).Draw(rt, "micro-batches")
		batch := rapid.IntRange(microBatches, 24).Draw(rt, "batch")
		clip := rapid.SampledFrom([]float64{0, 0.1, 1000}).Draw(rt, "clip")
		options := schedule.Options{Recompute: rapid.Bool().Draw(rt, "recompute")}
		var s schedule.Schedule
		switch kind := rapid.SampledFrom([]string{"gpipe", "1f1b", "interleaved"}).Draw(rt, "schedule"); {
		case kind == "interleaved" && stages%2 == 0 && microBatches%(stages/2) == 0:
			s = must(schedule.Interleaved(stages/2, microBatches, 2, options))
		case kind == "1f1b":
			s = must(schedule.OneForwardOneBackward(stages, microBatches, options))
		default:
			s = must(schedule.GPipe(stages, microBatches, options))
		}
		split := layout(batch, microBatches, cuts...)
		for i := range split.Parts {
			split.Parts[i].Recompute = options.Recompute && rapid.Bool().Draw(rt, "keeps nothing")
		}
		one := layout(batch, microBatches)
		unsplit := engine(t, load(t, exectest.Options{}, one), must(schedule.GPipe(1, microBatches, schedule.Options{})),
			exec.EngineOptions{ClipNorm: clip})
		want := losses(t, unsplit, 0, 4)
		got := losses(t, engine(t, load(t, exectest.Options{}, split), s, exec.EngineOptions{ClipNorm: clip, Layout: split}),
			0, 4)
		for i := range want {
			if math.Abs(got[i]-want[i]) > 1e-12*want[i] {
				rt.Fatalf("losses %v; want %v", got, want)
			}
		}
	})
}

func TestAStepReportsWhatItDid(t *testing.T) {
	t.Parallel()
	l := layout(24, 4, 3, 6)
	p := load(t, exectest.Options{}, l)
	e := engine(t, p, must(schedule.OneForwardOneBackward(3, 4, schedule.Options{})),
		exec.EngineOptions{ClipNorm: 0.1, Layout: l})
	report, err := e.Step(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if report.Samples != 24 || report.Duration <= 0 || report.Data <= 0 || len(report.Busy) != 3 ||
		!(report.GradientNorm > 0.1) {
		t.Errorf("got %+v", report)
	}
	for worker, busy := range report.Busy {
		if busy <= 0 || busy > report.Duration {
			t.Errorf("worker %d is busy for %v of %v", worker, busy, report.Duration)
		}
	}
	if b := report.Bubble(); !(b > 0 && b < 1) {
		t.Errorf("a bubble of %v", b)
	}
}

func TestTheBubbleIsTheShareOfTimeInWhichWorkersWait(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		report exec.StepReport
		want   float64
	}{
		{exec.StepReport{}, 0},
		{exec.StepReport{Duration: time.Second}, 0},
		{exec.StepReport{Duration: 10, Busy: []time.Duration{10, 5}}, 0.25},
		{exec.StepReport{Duration: 10, Busy: []time.Duration{11}}, 0},
	} {
		if got := test.report.Bubble(); got != test.want {
			t.Errorf("%+v: got %v, want %v", test.report, got, test.want)
		}
	}
}

var errBurnt = errors.New("burnt")

func TestTheFirstFailureEndsTheStepAndIsNamed(t *testing.T) {
	t.Parallel()
	l := layout(24, 4, 2, 4, 6)
	for failing := range l.Parts {
		for _, panics := range []bool{false, true} {
			p := load(t, exectest.Options{Fail: func(_ context.Context, step int64, stage int) error {
				if step != 1 || stage != failing {
					return nil
				}
				if panics {
					panic(errBurnt)
				}
				return errBurnt
			}}, l)
			e := engine(t, p, must(schedule.GPipe(4, 4, schedule.Options{})), exec.EngineOptions{Layout: l})
			losses(t, e, 0, 1)
			_, err := e.Step(t.Context(), 1)
			var cause *exec.StageError
			if !errors.As(err, &cause) || !strings.Contains(err.Error(), errBurnt.Error()) {
				t.Fatalf("got %v, want a failure of a stage", err)
			}
			if !panics && !errors.Is(err, errBurnt) {
				t.Errorf("%v does not wrap %v", err, errBurnt)
			}
			want := schedule.Instruction{Kind: schedule.Forward, MicroBatch: 0, Stage: failing}
			if diff := cmp.Diff(want, cause.Instruction); diff != "" {
				t.Error(diff)
			}
			if _, err := e.Step(t.Context(), 2); !errors.Is(err, exec.ErrBroken) {
				t.Errorf("the next step: got %v, want %v", err, exec.ErrBroken)
			}
		}
	}
}

func TestAStageThatEndsItsGoroutineIsAFailure(t *testing.T) {
	t.Parallel()
	l := layout(24, 4, 4)
	p := load(t, exectest.Options{Fail: func(_ context.Context, _ int64, stage int) error {
		if stage == 1 {
			runtime.Goexit()
		}
		return nil
	}}, l)
	e := engine(t, p, must(schedule.GPipe(2, 4, schedule.Options{})), exec.EngineOptions{})
	var cause *exec.StageError
	if _, err := e.Step(t.Context(), 0); !errors.As(err, &cause) || cause.Instruction.Stage != 1 {
		t.Errorf("got %v, want a failure of stage 1", err)
	}
}

func TestAContextThatEndsEndsTheStep(t *testing.T) {
	t.Parallel()
	l := layout(24, 4, 2, 4)
	ctx, cancel := context.WithCancelCause(t.Context())
	p := load(t, exectest.Options{Fail: func(ctx context.Context, _ int64, stage int) error {
		if stage < 2 {
			return nil
		}
		cancel(errBurnt)
		<-ctx.Done()
		return context.Cause(ctx)
	}}, l)
	e := engine(t, p, must(schedule.OneForwardOneBackward(3, 4, schedule.Options{})), exec.EngineOptions{})
	if _, err := e.Step(ctx, 0); !errors.Is(err, errBurnt) {
		t.Errorf("got %v, want %v", err, errBurnt)
	}
}

func TestALossThatIsNoNumberStopsTraining(t *testing.T) {
	t.Parallel()
	l := layout(24, 4, 4)
	options := exectest.Options{NaN: func(step int64) bool { return step == 3 }}
	s := must(schedule.OneForwardOneBackward(2, 4, schedule.Options{}))
	for _, clip := range []float64{0, 1} {
		p := load(t, options, l)
		e := engine(t, p, s, exec.EngineOptions{ClipNorm: clip})
		losses(t, e, 0, 3)
		before := parameters(t, p)
		_, err := e.Step(t.Context(), 3)
		var loss *exec.LossError
		if !errors.Is(err, exec.ErrLoss) || !errors.As(err, &loss) || loss.Step != 3 || loss.Updated != (clip == 0) {
			t.Fatalf("clip %v: got %v", clip, err)
		}
		if clip > 0 && !math.IsNaN(loss.GradientNorm) || clip == 0 && !math.IsNaN(loss.Loss) {
			t.Errorf("clip %v: got %+v, want a value that is no number", clip, loss)
		}
		if same := cmp.Equal(before, parameters(t, p)); same != (clip > 0) {
			t.Errorf("clip %v: the parameters are those before the step: %v", clip, same)
		}
	}
}

func TestSchedulesThatThePipelineCannotRunAreRefused(t *testing.T) {
	t.Parallel()
	two := layout(24, 4, 4)
	narrow := layout(24, 4, 4)
	narrow.Parts[0].InFlight = 2
	forgetful := layout(24, 4, 4)
	forgetful.Parts[1].Recompute = true
	p := load(t, exectest.Options{}, two)
	gpipe := must(schedule.GPipe(2, 4, schedule.Options{}))
	broken := must(schedule.GPipe(2, 4, schedule.Options{}))
	broken.Workers[0] = broken.Workers[0][1:]
	for name, test := range map[string]struct {
		schedule schedule.Schedule
		options  exec.EngineOptions
		want     string
	}{
		"stages":    {must(schedule.GPipe(3, 4, schedule.Options{})), exec.EngineOptions{}, "the pipeline has 2"},
		"malformed": {broken, exec.EngineOptions{}, "before forward"},
		"replicas":  {must(schedule.GPipe(2, 4, schedule.Options{AllReduce: true})), exec.EngineOptions{}, "no replicas"},
		"in flight": {gpipe, exec.EngineOptions{Layout: narrow}, "loaded for 2"},
		"micro-batches": {
			must(schedule.GPipe(2, 3, schedule.Options{})),
			exec.EngineOptions{Layout: two},
			"the layout has 4",
		},
		"parts":         {gpipe, exec.EngineOptions{Layout: layout(24, 4)}, "1 parts"},
		"recomputation": {gpipe, exec.EngineOptions{Layout: forgetful}, "keeps no activations"},
		"clip":          {gpipe, exec.EngineOptions{ClipNorm: -1}, "clip norm"},
		"no clip":       {gpipe, exec.EngineOptions{ClipNorm: math.NaN()}, "clip norm"},
	} {
		if _, err := exec.NewEngine(p, test.schedule, test.options); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	e := engine(t, p, must(schedule.GPipe(2, 3, schedule.Options{})), exec.EngineOptions{})
	if _, err := e.Step(t.Context(), 0); err == nil || !strings.Contains(err.Error(), "4 micro-batches") {
		t.Errorf("a batch of another number of micro-batches: got %v", err)
	}
}
