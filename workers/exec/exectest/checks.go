package exectest

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/exec"
)

// checkSplits loads each split once, as loading may start processes, and lets it begin again by importing.
func (f *fixture) checkSplits(t *testing.T, numbers []int) {
	t.Helper()
	var split []string // the state of the last split after half of the steps
	for _, parts := range numbers {
		t.Run(fmt.Sprintf("%d parts train as one does", parts), func(t *testing.T) {
			l := f.load(t, f.layout(t, parts))
			initial := l.export(t)
			same(t, "parameters as the seed makes them", read(t, initial, f.probe.Model), read(t, f.initial, f.probe.Model), 0)
			losses := l.train(t, gpipe, 0, half)
			exported := l.export(t)
			near(t, "GPipe", append(losses, l.train(t, gpipe, half, steps)...), f.losses, f.Split)
			l.restore(t, initial)
			near(t, "1F1B after an import of the first state", l.train(t, alternating, 0, steps), f.losses, f.Split)
			l.restore(t, f.halfway)
			near(t, "1F1B on from what one part exported", l.train(t, alternating, half, steps), f.losses[half:], f.Split)
			split = make([]string, len(exported))
			directory := filepath.Dir(f.initial[0])
			for i, path := range exported {
				split[i] = filepath.Join(directory, fmt.Sprintf("of-%d-%d", parts, i))
				if err := os.Rename(path, split[i]); err != nil {
					t.Fatal(err)
				}
			}
			f.checkUsage(t, l)
			f.checkCancel(t, l)
		})
	}
	t.Run("one part goes on from what others exported", func(t *testing.T) {
		f.base.restore(t, split)
		near(t, "unsplit", f.base.train(t, gpipe, half, steps), f.losses[half:], f.Split)
	})
	t.Run("a part of another model is refused and changes nothing", func(t *testing.T) {
		before := read(t, f.base.export(t), f.probe.Model)
		if err := f.base.Stages()[0].Import(t.Context(), renamed(t, f.halfway, strings.Repeat("0", 64))); err == nil {
			t.Error("it is imported")
		}
		if err := f.base.Stages()[0].Import(t.Context(), withoutParameters(t, split, f.probe.Model)); err == nil {
			t.Error("a state is imported that lacks a part")
		}
		same(t, "after what was refused", read(t, f.base.export(t), f.probe.Model), before, 0)
	})
	t.Run("the trained model is written", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "model")
		if err := f.base.Write(t.Context(), split, path); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Size() == 0 {
			t.Errorf("got %v, %v; want a file", info, err)
		}
	})
}

// withoutParameters leaves the first part out that has any.
func withoutParameters(t *testing.T, paths []string, model string) []string {
	t.Helper()
	for i, path := range paths {
		for name := range read(t, []string{path}, model) {
			if strings.HasPrefix(name, "parameter/") {
				return slices.Delete(slices.Clone(paths), i, i+1)
			}
		}
	}
	t.Fatal("no part has parameters")
	return nil
}

// checkUsage compares what the stages hold with what the unsplit model holds.
func (f *fixture) checkUsage(t *testing.T, l *loaded) {
	t.Helper()
	held := func(l *loaded) (parameters, optimizer quantity.Bytes) {
		for i, s := range l.Stages() {
			u, err := s.Usage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if u.Peak != 0 && u.Peak < u.Parameters {
				t.Errorf("stage %d: a peak of %v; its parameters alone are %v", i, u.Peak, u.Parameters)
			}
			parameters += u.Parameters
			optimizer += u.Optimizer
		}
		return parameters, optimizer
	}
	wantParameters, wantOptimizer := held(f.base)
	slots := quantity.Bytes(1)
	if f.optimizer.Kind == exec.Adam {
		slots = 2
	}
	if wantParameters <= 0 || wantOptimizer < slots*wantParameters {
		t.Errorf("unsplit: %v of parameters and %v of the optimizer's state; want %d times as much", wantParameters,
			wantOptimizer, slots)
	}
	// Steps may be counted once for each parameter or once for each part.
	parameters, optimizer := held(l)
	if parameters != wantParameters || optimizer < slots*parameters {
		t.Errorf("%v of parameters and %v of the optimizer's state in all parts; want %v and %v", parameters, optimizer,
			wantParameters, wantOptimizer)
	}
}

// checkCancel ends a step; the pipeline is of no use afterwards.
func (*fixture) checkCancel(t *testing.T, l *loaded) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b, err := l.Batch(ctx, steps)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	started := time.Now()
	if _, err := l.Stages()[0].Forward(ctx, steps, 0, b.MicroBatches[0], nil); err == nil {
		t.Error("a forward pass succeeds whose context has ended")
	}
	if _, err := l.engine(t, gpipe, 0).Step(ctx, steps); err == nil {
		t.Error("a step succeeds whose context has ended")
	}
	if spent := time.Since(started); spent > 30*time.Second {
		t.Errorf("it took %v to end", spent)
	}
}

// plain is an optimizer whose steps are as large as gradients. Adam's are not: it divides gradients by their size, so
// one that is nothing but rounding moves a parameter as far as any other, and rounding differs where gradients are
// added up in another order.
func plain() exec.Optimizer { return exec.Optimizer{Kind: exec.Momentum, LearningRate: 0.02} }

func (f *fixture) checkFullBatch(t *testing.T) {
	layout := f.layout(t, 1)
	layout.Optimizer = plain()
	want := f.load(t, layout).train(t, gpipe, 0, steps)
	layout.MicroBatches = 1
	near(t, "one full batch", f.load(t, layout).train(t, gpipe, 0, steps), want, f.FullBatch)
}

func (f *fixture) checkRecomputation(t *testing.T) {
	l := f.load(t, f.recomputed(t))
	initial := l.export(t)
	near(t, "GPipe", l.train(t, gpipe, 0, steps), f.losses, f.Split)
	l.restore(t, initial)
	near(t, "1F1B", l.train(t, alternating, 0, steps), f.losses, f.Split)
}

// recomputed is a layout of two parts that keep no activations.
func (f *fixture) recomputed(t *testing.T) exec.Layout {
	t.Helper()
	layout := f.layout(t, 2)
	for i := range layout.Parts {
		layout.Parts[i].Recompute = true
	}
	return layout
}

func (f *fixture) checkUneven(t *testing.T) {
	full := f.layout(t, 1)
	full.Batch, full.MicroBatches, full.Optimizer = batch+1, 1, plain()
	want := f.load(t, full).train(t, gpipe, 0, steps)
	uneven := f.layout(t, 2)
	uneven.Batch, uneven.Optimizer = batch+1, plain()
	l := f.load(t, uneven)
	b, err := l.Batch(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{6, 6, 6, 7}; !slices.Equal(b.Samples, want) {
		t.Errorf("micro-batches have %v samples; want %v", b.Samples, want)
	}
	near(t, "25 samples in 4 micro-batches against one batch", l.train(t, alternating, 0, steps), want, f.FullBatch)
}

func (f *fixture) checkClipping(t *testing.T) {
	const clip, rate = 0.05, 0.5
	clipped := func(parts int) (losses, norms []float64) {
		layout := f.layout(t, parts)
		layout.Optimizer = exec.Optimizer{Kind: exec.SGD, LearningRate: rate}
		l := f.load(t, layout)
		e := l.engine(t, alternating, clip)
		before := read(t, l.export(t), f.probe.Model)
		for step := range int64(10) {
			report, err := e.Step(t.Context(), step)
			if err != nil {
				t.Fatal(err)
			}
			losses, norms = append(losses, report.Loss), append(norms, report.GradientNorm)
			if step > 0 {
				continue
			}
			// Plain gradient descent moves the parameters by the rate times the clipped norm.
			want := rate * min(norms[0], clip)
			if got := distance(read(t, l.export(t), f.probe.Model), before); math.Abs(got-want) > 1e-3*want {
				t.Errorf("%d parts: parameters moved by %v; want %v", parts, got, want)
			}
		}
		return losses, norms
	}
	losses, norms := clipped(1)
	if norms[0] <= clip {
		t.Fatalf("a norm of %v; the check needs more than %v", norms[0], clip)
	}
	splitLosses, splitNorms := clipped(2)
	near(t, "2 parts", splitLosses, losses, f.Split)
	near(t, "norms of gradients", splitNorms, norms, 10*f.Split)
}

// distance is the Euclidean distance of the parameters.
func distance(a, b map[string][]float64) float64 {
	total := 0.0
	for name := range b {
		if strings.HasPrefix(name, "parameter/") {
			for i := range b[name] {
				d := a[name][i] - b[name][i]
				total += d * d
			}
		}
	}
	return math.Sqrt(total)
}

// checkNormalization checks statistics of micro-batches: they are those of the samples that pass together, and are
// counted once.
func (f *fixture) checkNormalization(t *testing.T) {
	t.Helper()
	f.base.restore(t, f.initial)
	f.base.train(t, gpipe, 0, half)
	want := buffers(read(t, f.base.export(t), f.probe.Model))
	if len(want) == 0 {
		t.Fatal("the model has no buffers; running statistics are some")
	}
	for name, numbers := range want {
		if strings.HasSuffix(name, "num_batches_tracked") && numbers[0] != half*microBatches {
			t.Errorf("%s is %v after %d steps of %d micro-batches", name, numbers[0], half, microBatches)
		}
	}
	t.Run("running statistics are updated once for each micro-batch, also where it is recomputed", func(t *testing.T) {
		l := f.load(t, f.recomputed(t))
		near(t, "recomputed", l.train(t, alternating, 0, half), f.losses[:half], f.Split)
		same(t, "running statistics", buffers(read(t, l.export(t), f.probe.Model)), want, 1e-2)
	})
	t.Run("a full batch is normalized by other statistics", func(t *testing.T) {
		layout := f.layout(t, 1)
		layout.MicroBatches = 1
		if d := difference(f.load(t, layout).train(t, gpipe, 0, half), f.losses[:half]); d < f.FullBatch {
			t.Errorf("losses differ by %.3g; the statistics of micro-batches are not those of the batch", d)
		}
	})
}

func buffers(all map[string][]float64) map[string][]float64 {
	found := map[string][]float64{}
	for name, numbers := range all {
		if strings.HasPrefix(name, "buffer/") {
			found[name] = numbers
		}
	}
	return found
}

func (f *fixture) checkLayouts(t *testing.T) {
	for name, change := range map[string]func(*exec.Layout){
		"an unknown operation":        func(l *exec.Layout) { l.Parts[0].Ops = append(l.Parts[0].Ops, "no such operation") },
		"an operation in two parts":   func(l *exec.Layout) { l.Parts[0].Ops = append(l.Parts[0].Ops, l.Parts[1].Ops[0]) },
		"an operation in no part":     func(l *exec.Layout) { l.Parts[1].Ops = l.Parts[1].Ops[1:] },
		"tensors that go backwards":   func(l *exec.Layout) { slices.Reverse(l.Parts) },
		"more micro-batches than fit": func(l *exec.Layout) { l.MicroBatches = l.Batch + 1 },
		"an unknown optimizer":        func(l *exec.Layout) { l.Optimizer.Kind = "no such optimizer" },
	} {
		layout := f.layout(t, 2)
		for i := range layout.Parts {
			layout.Parts[i].Ops = slices.Clone(layout.Parts[i].Ops)
		}
		change(&layout)
		p, err := f.executor.Load(t.Context(), layout)
		if err == nil {
			t.Errorf("%s is loaded", name)
			if err := p.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		t.Logf("%s: %v", name, err)
	}
}
