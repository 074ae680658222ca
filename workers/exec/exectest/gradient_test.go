package exectest

import (
	"math"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/workers/exec"
)

// total is the loss of a batch as the model is.
func total(s *stage, p *pass) float64 {
	f := &flight{pass: p, values: tensors{}, kept: tensors{}}
	for _, op := range s.ops {
		s.apply(f, op)
	}
	return f.values["loss"].data[0]
}

func TestGradientsAreThoseOfFiniteDifferences(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"mlp", "batchnorm"} {
		m, err := newModel(name)
		if err != nil {
			t.Fatal(err)
		}
		s := newStage(&reference{model: m}, 0, exec.Layout{Parts: []exec.Part{{InFlight: 1}}, MicroBatches: 1, Seed: 3}, m)
		inputs, targets := newDataset(48).batch(3, 0, 12)
		p := &pass{seed: 3, inputs: inputs, targets: targets, share: 1, again: true}
		f := &flight{pass: p}
		s.compute(f)
		sums := tensors{"loss": {rows: 1, columns: 1, data: []float64{1}}}
		for _, op := range slices.Backward(m) {
			s.differentiate(f, op, sums)
		}
		const h = 1e-6
		for _, w := range s.parameters() {
			if w.buffer {
				continue
			}
			for i, at := range w.value {
				w.value[i] = at + h
				above := total(s, p)
				w.value[i] = at - h
				below := total(s, p)
				w.value[i] = at
				want := (above - below) / (2 * h)
				if got := w.gradient[i]; math.Abs(got-want) > 1e-7+1e-5*math.Abs(want) {
					t.Errorf("%s: %s[%d]: got %v, want %v", name, w.name, i, got, want)
				}
			}
		}
	}
}
