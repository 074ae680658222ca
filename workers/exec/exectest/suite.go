package exectest

import (
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/state"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// Subject is an executor that is tested.
type Subject struct {
	// Name is for people.
	Name string
	// New returns an executor of a model by name, with its data.
	New func(tb testing.TB, model string) exec.Executor
	// Device returns the device of a part.
	Device func(part int) exec.Device
	// Precision is that of probes and layouts; empty is float32.
	Precision exec.Precision
	// Models are the names of the models. The first goes through all checks and normalizes no batches; "batchnorm" does,
	// and the others are small but usual, with dropout.
	Models []string
	// Split is how much the losses of a split may differ from those of the unsplit model with the same micro-batches,
	// relative to them; 0 is 1e-5.
	Split float64
	// FullBatch is how much they may differ from those of one full batch; 0 is 1e-4.
	FullBatch float64
	// Dear says that loading a part takes a second or more, as it starts a process: then about half of the checks that
	// load run only with SPILLWAY_MEASURE=1.
	Dear bool
}

// What every check trains with, unless it is about it.
const (
	batch        = 24
	microBatches = 4
	steps        = 50
	half         = steps / 2
	seed         = 11
)

// batchNormalization is the name of the model whose micro-batches are not independent.
const batchNormalization = "batchnorm"

// Run checks that an executor keeps the contract of package exec. The sub-tests of models run in parallel. With
// SPILLWAY_MEASURE=1 every model is split into 2, 3 and 4 parts; otherwise all but the first only once, and the first
// one, too, where loading is dear.
func Run(t *testing.T, subject Subject) {
	t.Helper()
	if subject.Split == 0 {
		subject.Split = 1e-5
	}
	if subject.FullBatch == 0 {
		subject.FullBatch = 1e-4
	}
	all := os.Getenv("SPILLWAY_MEASURE") == "1"
	for i, name := range subject.Models {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t, subject, name)
			parts := []int{2, 3, 4}
			if !all && (i > 0 || subject.Dear) {
				parts = []int{3 - i%2}
			}
			f.checkSplits(t, parts)
			switch {
			case name == batchNormalization:
				f.checkNormalization(t)
			case i == 0:
				f.checkRest(t, all || !subject.Dear)
			}
		})
	}
}

// checkRest checks what one model shows for all.
func (f *fixture) checkRest(t *testing.T, all bool) {
	t.Helper()
	t.Run("a full batch gives the same losses", f.checkFullBatch)
	t.Run("recomputation changes nothing", f.checkRecomputation)
	t.Run("gradients are clipped by the norm of all parts", f.checkClipping)
	optimizers := optimizers()
	if all {
		t.Run("uneven micro-batches weigh as many samples as they have", f.checkUneven)
		t.Run("layouts that do not divide the model are refused", f.checkLayouts)
	} else {
		optimizers = optimizers[len(optimizers)-1:]
	}
	for _, optimizer := range optimizers {
		t.Run("updates are those of "+optimizer.Kind, func(t *testing.T) { f.checkOptimizer(t, optimizer) })
	}
}

// fixture is a model with what its unsplit training came to.
type fixture struct {
	Subject
	executor exec.Executor
	probe    exec.Probe
	// optimizer is Adam, but for a model whose batches are normalized: gradients of biases before are nothing but rounding
	// there, which Adam would turn into steps of full size that running statistics follow.
	optimizer exec.Optimizer
	base      *loaded   // unsplit
	initial   []string  // its exported state before the first step
	halfway   []string  // and after half of the steps
	losses    []float64 // of all steps
}

func newFixture(t *testing.T, subject Subject, name string) *fixture {
	t.Helper()
	f := &fixture{Subject: subject, executor: subject.New(t, name)}
	probe, err := f.executor.Probe(t.Context(), exec.ProbeOptions{
		Samples: batch / microBatches, Device: subject.Device(0), Precision: subject.Precision,
	})
	if err != nil {
		t.Fatalf("probe %s: %v", name, err)
	}
	if err := probe.Graph.Validate(); err != nil {
		t.Fatalf("the probed graph of %s: %v", name, err)
	}
	if probe.Model == "" || probe.Forward <= 0 || probe.Backward <= 0 {
		t.Fatalf("the probe of %s measured %v forward and %v backward of model %q", name, probe.Forward, probe.Backward,
			probe.Model)
	}
	f.probe = probe
	f.optimizer = exec.Optimizer{Kind: exec.Adam, LearningRate: 0.003}
	if name == batchNormalization {
		f.optimizer = plain()
	}
	f.base = f.load(t, f.layout(t, 1))
	f.initial = f.base.export(t)
	f.losses = f.base.train(t, gpipe, 0, half)
	f.halfway = f.base.export(t)
	f.losses = append(f.losses, f.base.train(t, gpipe, half, steps)...)
	first, last := mean(f.losses[:5]), mean(f.losses[steps-5:])
	if !(last < first) {
		t.Errorf("the loss goes from %v to %v in %d steps; it must fall", first, last, steps)
	}
	t.Logf("%s: %d operations, loss %.4g to %.4g", name, len(probe.Graph.Ops), first, last)
	return f
}

func mean(list []float64) float64 {
	total := 0.0
	for _, x := range list {
		total += x
	}
	return total / float64(len(list))
}

// layout splits the model into parts that may hold all micro-batches.
func (f *fixture) layout(t *testing.T, parts int) exec.Layout {
	t.Helper()
	l := exec.Layout{
		Batch: batch, MicroBatches: microBatches, Seed: seed, Precision: f.Precision, Optimizer: f.optimizer,
	}
	if parts == 1 {
		l.Parts = []exec.Part{{Device: f.Device(0), InFlight: microBatches}}
		return l
	}
	split, err := Split(f.probe, parts)
	if err != nil {
		t.Fatal(err)
	}
	for i, ops := range split {
		l.Parts = append(l.Parts, exec.Part{Ops: ops, Device: f.Device(i), InFlight: microBatches})
	}
	return l
}

// loaded is a pipeline and what it was loaded with.
type loaded struct {
	exec.Pipeline
	layout exec.Layout
}

// load loads a layout until the end of the test.
func (f *fixture) load(t *testing.T, layout exec.Layout) *loaded {
	t.Helper()
	p, err := f.executor.Load(t.Context(), layout)
	if err != nil {
		t.Fatalf("load %d parts: %v", len(layout.Parts), err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close %d parts: %v", len(layout.Parts), err)
		}
	})
	if got := len(p.Stages()); got != len(layout.Parts) {
		t.Fatalf("%d stages of %d parts", got, len(layout.Parts))
	}
	if got := p.Data().Model; got != f.probe.Model {
		t.Fatalf("the pipeline is of model %q; the probe said %q", got, f.probe.Model)
	}
	return &loaded{p, layout}
}

// plan makes a schedule.
type plan func(workers, microBatches int, o schedule.Options) (schedule.Schedule, error)

// Values of plan.
var (
	gpipe       plan = schedule.GPipe
	alternating plan = schedule.OneForwardOneBackward
)

func (l *loaded) engine(t *testing.T, p plan, clip float64) *exec.Engine {
	t.Helper()
	recompute := slices.ContainsFunc(l.layout.Parts, func(p exec.Part) bool { return p.Recompute })
	s, err := p(len(l.layout.Parts), l.layout.MicroBatches, schedule.Options{Recompute: recompute})
	if err != nil {
		t.Fatal(err)
	}
	e, err := exec.NewEngine(l.Pipeline, s, exec.EngineOptions{ClipNorm: clip, Layout: l.layout})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// train runs the steps from one number to before another and returns their losses.
func (l *loaded) train(t *testing.T, p plan, from, to int64) []float64 {
	t.Helper()
	e := l.engine(t, p, 0)
	var losses []float64
	for step := from; step < to; step++ {
		report, err := e.Step(t.Context(), step)
		if err != nil {
			t.Fatal(err)
		}
		losses = append(losses, report.Loss)
	}
	return losses
}

// export returns files of all stages.
func (l *loaded) export(t *testing.T) []string {
	t.Helper()
	directory := t.TempDir()
	var paths []string
	var waits []func() error
	for i, s := range l.Stages() {
		path := filepath.Join(directory, fmt.Sprintf("part-%d.safetensors", i))
		wait, err := s.Export(t.Context(), path)
		if err != nil {
			t.Fatalf("export stage %d: %v", i, err)
		}
		paths, waits = append(paths, path), append(waits, wait)
	}
	for i, wait := range waits {
		if err := wait(); err != nil {
			t.Fatalf("export stage %d: %v", i, err)
		}
	}
	return paths
}

func (l *loaded) restore(t *testing.T, paths []string) {
	t.Helper()
	for i, s := range l.Stages() {
		if err := s.Import(t.Context(), paths); err != nil {
			t.Fatalf("import into stage %d: %v", i, err)
		}
	}
}

// read returns the numbers of exported files by name, and refuses a tensor that two parts have.
func read(t *testing.T, paths []string, model string) map[string][]float64 {
	t.Helper()
	all := map[string][]float64{}
	for _, path := range paths {
		found, err := readParts([]string{path}, model)
		if err != nil {
			t.Fatal(err)
		}
		for name, tensor := range found {
			numbers, err := Numbers(tensor)
			if err != nil {
				t.Fatal(err)
			}
			if _, twice := all[name]; twice {
				t.Errorf("%s is in two parts", name)
			}
			all[name] = numbers
		}
	}
	return all
}

// floor is what losses are compared with at least: those below are compared as if they were this large.
const floor = 1e-3

// difference is the largest of |got - want| / max(|want|, floor).
func difference(got, want []float64) float64 {
	if len(got) != len(want) {
		return math.Inf(1)
	}
	worst := 0.0
	for i := range got {
		d := math.Abs(got[i]-want[i]) / max(math.Abs(want[i]), floor)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		worst = max(worst, d)
	}
	return worst
}

// near fails where losses differ by more than a bound, and tells by how much they differ.
func near(t *testing.T, what string, got, want []float64, bound float64) {
	t.Helper()
	d := difference(got, want)
	if d > bound {
		t.Errorf("%s: losses differ by %.3g of them; want at most %g\ngot  %v\nwant %v", what, d, bound, got, want)
		return
	}
	t.Logf("%s: losses differ by %.3g of them", what, d)
}

// same fails where two exported states have not the same names, or numbers further apart than a bound.
func same(t *testing.T, what string, got, want map[string][]float64, bound float64) {
	t.Helper()
	if g, w := slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)); !slices.Equal(g, w) {
		t.Fatalf("%s: names\n%q\nwant\n%q", what, g, w)
	}
	for name := range want {
		if d := difference(got[name], want[name]); d > bound {
			t.Errorf("%s: %s differs by %.3g; want at most %g", what, name, d, bound)
		}
	}
}

// renamed returns copies of exported files that say that they are of another model.
func renamed(t *testing.T, paths []string, model string) []string {
	t.Helper()
	directory := t.TempDir()
	var copies []string
	for _, path := range paths {
		found, err := readParts([]string{path}, "")
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(directory, filepath.Base(path))
		metadata := map[string]string{state.FormatKey: state.Part, state.ModelKey: model}
		if err := state.Write(to, metadata, slices.Collect(maps.Values(found))); err != nil {
			t.Fatal(err)
		}
		copies = append(copies, to)
	}
	return copies
}
