package size

import (
	"math"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// inputGive is how far the power lies from 0, by which what stages take grows with their inputs, before anything was
// seen: what streams its input takes the same for any, which is 0, and what reads all of it takes in proportion, which
// is 1 and so as far as such powers lie at most, two deviations away.
const inputGive = 0.5

// Inputs is how what stages of one program take hangs together with how large their inputs are. The zero value is not
// at all.
type Inputs struct {
	// Power is by what power of the input a stage takes more, 0 to 1: it is never thought to take less for more, nor more
	// than in proportion.
	Power float64
	// Least and Most are the natural logarithms of the inputs, in bytes, that it was learned from: beyond them it is not
	// believed.
	Least, Most float64
}

// LearnInputs learns from stages of one program, of which the prior is thought before: the regression of their means
// over the logarithms of their inputs, shrunk to none as far as chance would do as well (see [usage.Power]). A stage of
// which inputs are not known tells nothing.
func LearnInputs(p Prior, stages []Experience) Inputs {
	var x, y, noise []float64
	learned := Inputs{Least: math.Inf(1), Most: math.Inf(-1)}
	for _, e := range stages {
		if e.Attempts == 0 || !(e.Input > 0) {
			continue
		}
		x, y, noise = append(x, e.Input), append(y, e.Mean), append(noise, math.Sqrt(p.Within/float64(e.Attempts)))
		learned.Least, learned.Most = min(learned.Least, e.Input), max(learned.Most, e.Input)
	}
	thought := usage.Thought{Give: inputGive, Spread: math.Sqrt(p.Between)}
	learned.Power = min(max(0, usage.Power(x, y, noise, thought)), 1)
	if learned.Power == 0 {
		return Inputs{}
	}
	return learned
}

// Believed is the logarithm of an input in bytes, 0 where it is not known, as far as something is known of such inputs;
// 0 where nothing is.
func (i Inputs) Believed(input float64) float64 {
	if !(input > 0) || i.Power == 0 {
		return 0
	}
	return min(max(input, i.Least), i.Most)
}

// At is what a stage would tell whose inputs have this logarithm; the same where either is not known.
func (i Inputs) At(e Experience, input float64) Experience {
	if e.Input > 0 && input > 0 {
		e.Mean += i.Power * (input - e.Input)
		e.Input = input
	}
	return e
}
