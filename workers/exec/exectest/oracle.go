package exectest

import (
	"math"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
)

// optimizers are those whose updates are compared with formulas; that of plain gradient descent is seen by its clipped
// steps.
func optimizers() []exec.Optimizer {
	return []exec.Optimizer{
		{Kind: exec.Momentum, LearningRate: 0.02, Momentum: 0.8, WeightDecay: 0.01},
		{Kind: exec.Adam, LearningRate: 0.002, Beta1: 0.8, Beta2: 0.95, Epsilon: 1e-6, WeightDecay: 0.01},
		{Kind: exec.AdamW, LearningRate: 0.002, Beta1: 0.8, Beta2: 0.95, Epsilon: 1e-6, WeightDecay: 0.1},
	}
}

// checkOptimizer compares a split with the unsplit model, and the exported states before and after a step with the
// formula.
func (f *fixture) checkOptimizer(t *testing.T, o exec.Optimizer) {
	t.Helper()
	const few = 10
	layout := f.layout(t, 1)
	layout.Optimizer = o
	want := f.load(t, layout).train(t, gpipe, 0, few+1)
	layout = f.layout(t, 2)
	layout.Optimizer = o
	l := f.load(t, layout)
	losses := l.train(t, alternating, 0, few)
	before := read(t, l.export(t), f.probe.Model)
	losses = append(losses, l.train(t, alternating, few, few+1)...)
	near(t, "2 parts", losses, want, f.Split)
	after := read(t, l.export(t), f.probe.Model)
	compared := 0
	for path, old := range before {
		name, ok := strings.CutPrefix(path, "parameter/")
		if !ok {
			continue
		}
		slot := func(of map[string][]float64, kind string, n int) []float64 {
			numbers := of[slotPath(kind, name)]
			if len(numbers) != n {
				t.Fatalf("%s has %d numbers; want %d", slotPath(kind, name), len(numbers), n)
			}
			return numbers
		}
		n := len(old)
		if o.Kind == exec.Momentum {
			buffer := slot(after, "momentum_buffer", n)
			for i, x := range old {
				compared += agree(t, path, after[path][i], x-o.LearningRate*buffer[i], x, o.LearningRate)
			}
			continue
		}
		if step := slot(after, "step", 1)[0]; step != few+1 {
			t.Fatalf("%s counts %v steps; want %d", name, step, few+1)
		}
		m0, v0 := slot(before, "exp_avg", n), slot(before, "exp_avg_sq", n)
		m1, v1 := slot(after, "exp_avg", n), slot(after, "exp_avg_sq", n)
		for i, x := range old {
			// The first moment tells the gradient, decayed weights included, and the second must be of the same.
			g := (m1[i] - o.Beta1*m0[i]) / (1 - o.Beta1)
			compared += agree(t, path+" second moment", v1[i], o.Beta2*v0[i]+(1-o.Beta2)*g*g, v1[i], 1e-4*math.Abs(v1[i])+1e-12)
			decayed := x
			if o.Kind == exec.AdamW {
				decayed *= 1 - o.LearningRate*o.WeightDecay
			}
			mean, square := m1[i]/(1-math.Pow(o.Beta1, few+1)), v1[i]/(1-math.Pow(o.Beta2, few+1))
			compared += agree(t, path, after[path][i], decayed-o.LearningRate*mean/(math.Sqrt(square)+o.Epsilon), x,
				o.LearningRate)
		}
	}
	t.Logf("%d numbers agree with the formula", compared)
	if compared == 0 {
		t.Error("nothing was compared")
	}
}

// agree fails where an updated number is not what the formula says, up to the rounding of 32-bit numbers of this size
// and a thousandth of the step.
func agree(t *testing.T, what string, got, want, size, step float64) int {
	t.Helper()
	if !(math.Abs(got-want) <= 4e-7*math.Abs(size)+1e-3*math.Abs(step)) {
		t.Errorf("%s is %v; the formula says %v", what, got, want)
		return 0
	}
	return 1
}
