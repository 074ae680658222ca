package exectest

import "math"

// The constants of torch.nn.BatchNorm1d.
const (
	normEpsilon  = 1e-5
	normMomentum = 0.1
)

// batchNorm scales every column to mean 0 and variance 1 over the micro-batch, and keeps running statistics for later
// use: running = 0.9 running + 0.1 statistic, with the variance over n-1 (S. Ioffe, C. Szegedy,
// https://arxiv.org/abs/1502.03167, and torch.nn.BatchNorm1d).
type batchNorm struct{ columns int }

func (b batchNorm) declare() []declaration {
	shape := []int{b.columns}
	return []declaration{
		{name: "weight", shape: shape, center: 1},
		{name: "bias", shape: shape},
		{name: "running_mean", shape: shape, buffer: true},
		{name: "running_var", shape: shape, center: 1, buffer: true},
		{name: "num_batches_tracked", shape: nil, buffer: true},
	}
}

// forward keeps the scaled numbers, with a last row of the deviations.
func (b batchNorm) forward(p *pass, w weights, in []*matrix) (out, kept *matrix) {
	x := in[0]
	out, kept = newMatrix(x.rows, x.columns), newMatrix(x.rows+1, x.columns)
	n := float64(x.rows)
	for c := range b.columns {
		mean, square := 0.0, 0.0
		for r := range x.rows {
			mean += x.row(r)[c] / n
		}
		for r := range x.rows {
			d := x.row(r)[c] - mean
			square += d * d
		}
		deviation := math.Sqrt(square/n + normEpsilon)
		for r := range x.rows {
			scaled := (x.row(r)[c] - mean) / deviation
			kept.row(r)[c] = scaled
			out.row(r)[c] = scaled*w["weight"].value[c] + w["bias"].value[c]
		}
		kept.row(x.rows)[c] = deviation
		if !p.again {
			move(&w["running_mean"].value[c], mean)
			move(&w["running_var"].value[c], square/max(1, n-1))
		}
	}
	if !p.again {
		w["num_batches_tracked"].value[0]++
	}
	return out, kept
}

func move(running *float64, value float64) { *running += normMomentum * (value - *running) }

// backward is dx = w/s (g - mean(g) - z mean(g z)) for scaled numbers z and deviation s.
func (b batchNorm) backward(_ *pass, w weights, in []*matrix, _, kept, cotangent *matrix) []*matrix {
	x := in[0]
	dx := newMatrix(x.rows, x.columns)
	dw, db := make([]float64, b.columns), make([]float64, b.columns)
	n := float64(x.rows)
	for c := range b.columns {
		for r := range x.rows {
			db[c] += cotangent.row(r)[c]
			dw[c] += cotangent.row(r)[c] * kept.row(r)[c]
		}
		factor := w["weight"].value[c] / kept.row(x.rows)[c]
		for r := range x.rows {
			dx.row(r)[c] = factor * (cotangent.row(r)[c] - db[c]/n - kept.row(r)[c]*dw[c]/n)
		}
	}
	w["weight"].add(dw)
	w["bias"].add(db)
	return []*matrix{dx}
}
