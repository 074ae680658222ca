package exectest

import (
	"math"

	"github.com/spillway-ml/spillway/workers/exec"
)

// update applies a gradient as torch.optim does (https://pytorch.org/docs/stable/optim.html). o has no zeros in place
// of defaults.
func (p *parameter) update(o exec.Optimizer, scale float64) {
	decay := o.WeightDecay
	if o.Kind == exec.AdamW {
		for i := range p.value {
			p.value[i] *= 1 - o.LearningRate*decay
		}
		decay = 0
	}
	gradient := make([]float64, len(p.value))
	for i := range gradient {
		if p.gradient != nil {
			gradient[i] = p.gradient[i] * scale
		}
		gradient[i] += decay * p.value[i]
	}
	p.gradient = nil
	switch o.Kind {
	case exec.SGD:
		p.descend(o.LearningRate, gradient)
	case exec.Momentum:
		buffer := p.slots["momentum_buffer"]
		if buffer == nil {
			buffer = make([]float64, len(p.value))
			p.slots["momentum_buffer"] = buffer
		}
		for i, g := range gradient {
			buffer[i] = o.Momentum*buffer[i] + g
		}
		p.descend(o.LearningRate, buffer)
	default:
		p.adam(o, gradient)
	}
}

func (p *parameter) descend(rate float64, direction []float64) {
	for i, d := range direction {
		p.value[i] -= rate * d
	}
}

func (p *parameter) adam(o exec.Optimizer, gradient []float64) {
	if p.slots["step"] == nil {
		p.slots["step"] = make([]float64, 1)
		p.slots["exp_avg"], p.slots["exp_avg_sq"] = make([]float64, len(p.value)), make([]float64, len(p.value))
	}
	step, mean, square := p.slots["step"], p.slots["exp_avg"], p.slots["exp_avg_sq"]
	step[0]++
	first, second := 1-math.Pow(o.Beta1, step[0]), 1-math.Pow(o.Beta2, step[0])
	for i, g := range gradient {
		mean[i] = o.Beta1*mean[i] + (1-o.Beta1)*g
		square[i] = o.Beta2*square[i] + (1-o.Beta2)*g*g
		p.value[i] -= o.LearningRate / first * mean[i] / (math.Sqrt(square[i]/second) + o.Epsilon)
	}
}
