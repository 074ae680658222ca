package curve

import "math"

// A shape is one curve of a family, from 1 or more down to 0 over x, the step as a part of the steps seen. A learning
// curve is offset + scale * shape, with scale >= 0.
type shape struct {
	family family
	// at and bend are the parameters that are not linear.
	at, bend float64
}

type family int8

// The families. Domhan, Springenberg and Hutter (IJCAI 2015) fit power, exponential, MMF, log-power and Weibull curves
// to training runs; log-power, a / (1 + (x/e^b)^c), is MMF in other letters, so one stands for both.
const (
	// power is x^-bend.
	power family = iota
	// logarithm is -log x, the power whose exponent goes to 0.
	logarithm
	// exponential is exp(-x/at).
	exponential
	// weibull is exp(-(x/at)^bend).
	weibull
	// mmf is 1 / (1 + (x/at)^bend), of Morgan, Mercer and Flodin (1975).
	mmf
	// optimus is 1 / (1 + x/at): 1 / (a k + b) + c of Optimus (Peng et al., EuroSys 2018).
	optimus
	// straight is 1 - x/2: a learning rate that is being annealed to nothing takes the loss down like that.
	straight
)

func (s shape) value(x float64) float64 {
	switch s.family {
	case power:
		return math.Pow(x, -s.bend)
	case logarithm:
		return -math.Log(x)
	case exponential:
		return math.Exp(-x / s.at)
	case weibull:
		return math.Exp(-math.Pow(x/s.at, s.bend))
	case mmf:
		return 1 / (1 + math.Pow(x/s.at, s.bend))
	case optimus:
		return 1 / (1 + x/s.at)
	default:
		return -x
	}
}

// inverse is the x at which the shape has a value; +Inf where it never has one as low.
func (s shape) inverse(value float64) float64 {
	switch s.family {
	case logarithm:
		return math.Exp(-value)
	case straight:
		return -value
	default:
	}
	if !(value > 0) {
		return math.Inf(1)
	}
	switch s.family {
	case power:
		return math.Pow(value, -1/s.bend)
	case exponential:
		return -s.at * math.Log(value)
	case weibull:
		return s.at * math.Pow(math.Max(0, -math.Log(value)), 1/s.bend)
	case mmf:
		return s.at * math.Pow(math.Max(0, 1/value-1), 1/s.bend)
	default:
		return s.at * math.Max(0, 1/value-1)
	}
}

// shapes returns all that are tried: a grid whose steps are finer than what a few dozen points with noise can tell
// apart.
func shapes() []shape {
	all := []shape{{family: logarithm}, {family: straight}}
	for _, bend := range []float64{0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3} {
		all = append(all, shape{family: power, bend: bend})
	}
	// From a fiftieth of what was seen, after which everything is flat, to three times as much.
	for _, at := range []float64{0.02, 0.05, 0.1, 0.2, 0.35, 0.6, 1, 1.7, 3} {
		all = append(all, shape{exponential, at, 1}, shape{optimus, at, 1})
		for _, bend := range []float64{0.35, 0.6, 1.5, 2.5} {
			all = append(all, shape{mmf, at, bend})
		}
		for _, bend := range []float64{0.3, 0.5, 0.7, 1.5, 2.5} {
			all = append(all, shape{weibull, at, bend})
		}
	}
	return all
}
