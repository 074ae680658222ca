package exectest

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"strconv"
)

// pass is what layers know of a micro-batch besides their inputs.
type pass struct {
	seed    uint64
	step    int64
	first   int // the number of its first sample in the batch
	inputs  *matrix
	targets []int
	share   float64 // of the batch's samples
	poison  bool    // the loss is not a number
	again   bool    // the forward pass is being repeated
}

// weights are what a layer has learnt, by the names that it declares.
type weights map[string]*parameter

// layer is one operation. Forward returns its output and what it keeps; backward adds the gradients of the weights up
// and returns the cotangents of the inputs.
type layer interface {
	declare() []declaration
	forward(p *pass, w weights, in []*matrix) (out *matrix, kept *matrix)
	backward(p *pass, w weights, in []*matrix, out, kept, cotangent *matrix) []*matrix
}

// declaration is a parameter or a buffer of a layer.
type declaration struct {
	name   string
	shape  []int
	spread float64 // parameters start between -spread and spread around center
	center float64
	buffer bool
}

// key makes a number of what a mask or a parameter depends on.
func key(parts ...any) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			_, _ = h.Write([]byte(p))
		case int64:
			_, _ = h.Write([]byte(strconv.FormatInt(p, 10)))
		}
		_, _ = h.Write([]byte{0})
	}
	return h.Sum64()
}

// dense is x W + b.
type dense struct{ in, out int }

func (d dense) declare() []declaration {
	spread := 1 / math.Sqrt(float64(d.in))
	return []declaration{
		{name: "weight", shape: []int{d.in, d.out}, spread: spread},
		{name: "bias", shape: []int{d.out}, spread: spread},
	}
}

func (d dense) forward(_ *pass, w weights, in []*matrix) (out, kept *matrix) {
	x, weight, bias := in[0], w["weight"].value, w["bias"].value
	y := newMatrix(x.rows, d.out)
	for r := range x.rows {
		row := y.row(r)
		copy(row, bias)
		for i, v := range x.row(r) {
			for o := range row {
				row[o] += v * weight[i*d.out+o]
			}
		}
	}
	return y, nil
}

func (d dense) backward(_ *pass, w weights, in []*matrix, _, _, cotangent *matrix) []*matrix {
	x, weight, bias := in[0], w["weight"], w["bias"]
	dx := newMatrix(x.rows, d.in)
	dw, db := make([]float64, len(weight.value)), make([]float64, len(bias.value))
	for r := range x.rows {
		g := cotangent.row(r)
		for o, v := range g {
			db[o] += v
		}
		for i, v := range x.row(r) {
			for o, c := range g {
				dw[i*d.out+o] += v * c
				dx.row(r)[i] += c * weight.value[i*d.out+o]
			}
		}
	}
	weight.add(dw)
	bias.add(db)
	return []*matrix{dx}
}

// tanh is the hyperbolic tangent.
type tanh struct{}

func (tanh) declare() []declaration { return nil }

func (tanh) forward(_ *pass, _ weights, in []*matrix) (out, kept *matrix) {
	return in[0].each(func(_ int, x float64) float64 { return math.Tanh(x) }), nil
}

func (tanh) backward(_ *pass, _ weights, _ []*matrix, out, _, cotangent *matrix) []*matrix {
	return []*matrix{out.each(func(i int, y float64) float64 { return (1 - y*y) * cotangent.data[i] })}
}

// dropout zeroes a part of the numbers and scales the others up. Its masks depend on (seed, step, name, sample) alone.
type dropout struct {
	name string
	rate float64
}

func (dropout) declare() []declaration { return nil }

func (d dropout) forward(p *pass, _ weights, in []*matrix) (out, kept *matrix) {
	mask := newMatrix(in[0].rows, in[0].columns)
	for r := range mask.rows {
		random := rand.New(rand.NewPCG(p.seed, key(d.name, p.step, int64(p.first+r))))
		row := mask.row(r)
		for i := range row {
			if random.Float64() >= d.rate {
				row[i] = 1 / (1 - d.rate)
			}
		}
	}
	return in[0].each(func(i int, x float64) float64 { return x * mask.data[i] }), mask
}

func (dropout) backward(_ *pass, _ weights, _ []*matrix, _, mask, cotangent *matrix) []*matrix {
	return []*matrix{cotangent.each(func(i int, c float64) float64 { return c * mask.data[i] })}
}

// add is the sum of two inputs.
type add struct{}

func (add) declare() []declaration { return nil }

func (add) forward(_ *pass, _ weights, in []*matrix) (out, kept *matrix) {
	return sum(in[0], in[1]), nil
}

func (add) backward(_ *pass, _ weights, _ []*matrix, _, _, cotangent *matrix) []*matrix {
	return []*matrix{cotangent, cotangent}
}

// crossEntropy is the mean over the samples of -log softmax(x)[target].
type crossEntropy struct{}

func (crossEntropy) declare() []declaration { return nil }

func (crossEntropy) forward(p *pass, _ weights, in []*matrix) (out, kept *matrix) {
	likely := newMatrix(in[0].rows, in[0].columns)
	loss := newMatrix(1, 1)
	for r := range likely.rows {
		x, row := in[0].row(r), likely.row(r)
		most, total := x[0], 0.0
		for _, v := range x {
			most = max(most, v)
		}
		for i, v := range x {
			row[i] = math.Exp(v - most)
			total += row[i]
		}
		for i := range row {
			row[i] /= total
		}
		loss.data[0] += (math.Log(total) + most - x[p.targets[r]]) / float64(likely.rows)
	}
	if p.poison {
		loss.data[0] = math.NaN()
	}
	return loss, likely
}

func (crossEntropy) backward(p *pass, _ weights, in []*matrix, out, likely, cotangent *matrix) []*matrix {
	scale := cotangent.data[0] / float64(in[0].rows)
	if math.IsNaN(out.data[0]) {
		scale = math.NaN()
	}
	return []*matrix{likely.each(func(i int, y float64) float64 {
		if p.targets[i/likely.columns] == i%likely.columns {
			y--
		}
		return y * scale
	})}
}
