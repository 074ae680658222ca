package exec

import (
	"fmt"
	"math"
)

// Filled returns the optimizer with its defaults in place of zeros. It refuses unknown kinds and numbers outside their
// range. The zero value becomes Adam at 0.001: an executor whose model brings an optimizer of its own asks the model
// first.
func (o Optimizer) Filled() (Optimizer, error) {
	if o.Kind == "" {
		if o != (Optimizer{}) {
			return o, fmt.Errorf("an optimizer without a kind; want %q, %q, %q or %q", SGD, Momentum, Adam, AdamW)
		}
		o.Kind = Adam
	}
	fill := func(value *float64, by float64) {
		if *value == 0 {
			*value = by
		}
	}
	switch o.Kind {
	case SGD:
		fill(&o.LearningRate, 0.01)
	case Momentum:
		fill(&o.LearningRate, 0.01)
		fill(&o.Momentum, 0.9)
	case AdamW:
		fill(&o.WeightDecay, 0.01)
		fallthrough
	case Adam:
		fill(&o.LearningRate, 0.001)
		fill(&o.Beta1, 0.9)
		fill(&o.Beta2, 0.999)
		fill(&o.Epsilon, 1e-8)
	default:
		return o, fmt.Errorf("optimizer %q; want %q, %q, %q or %q", o.Kind, SGD, Momentum, Adam, AdamW)
	}
	for _, of := range []struct {
		name        string
		value, most float64
	}{
		{"learning rate", o.LearningRate, math.MaxFloat64},
		{"momentum", o.Momentum, 1},
		{"beta 1", o.Beta1, math.Nextafter(1, 0)},
		{"beta 2", o.Beta2, math.Nextafter(1, 0)},
		{"epsilon", o.Epsilon, math.MaxFloat64},
		{"weight decay", o.WeightDecay, math.MaxFloat64},
	} {
		if !(of.value >= 0 && of.value <= of.most) {
			return o, fmt.Errorf("optimizer %s: a %s of %v; want 0 to %v", o.Kind, of.name, of.value, of.most)
		}
	}
	return o, nil
}
