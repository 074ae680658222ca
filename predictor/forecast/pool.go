package forecast

import "math"

// pool weighs the logarithms of odds: a logistic regression, learned by steps of AdaGrad (Duchi, Hazan and Singer,
// JMLR 2011, https://jmlr.org/papers/v12/duchi11a.html).
type pool struct {
	Weights, Squares [signCount + 1]float64
}

// start weighs all signs the same, a sign that is not there at another's place included: what they agree on is said.
func (p *pool) start() {
	for _, sign := range []int{stateSign, hourSign, daySign, weekSign} {
		p.Weights[sign] = 1.0 / 4
	}
}

const poolStep = 0.1

func (p *pool) chance(signs *[signCount]float32) float64 {
	logit := p.Weights[signCount]
	for i, sign := range signs {
		logit += p.Weights[i] * float64(sign)
	}
	return 1 / (1 + math.Exp(-logit))
}

func (p *pool) observe(signs *[signCount]float32, inside bool) {
	miss := p.chance(signs)
	if inside {
		miss--
	}
	step := func(i int, sign float64) {
		slope := miss * sign
		p.Squares[i] += slope * slope
		if p.Squares[i] > 0 {
			p.Weights[i] -= poolStep * slope / math.Sqrt(1+p.Squares[i])
		}
	}
	for i, sign := range signs {
		step(i, float64(sign))
	}
	step(signCount, 1)
}

// logOdds of a chance, at most 1 to 1,000 either way.
func logOdds(chance float64) float64 {
	chance = math.Min(math.Max(chance, 0.001), 0.999)
	return math.Log(chance / (1 - chance))
}
