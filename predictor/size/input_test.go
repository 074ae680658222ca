package size_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
)

// stagesBy draws stages of one program whose inputs span three decades: what they take lies around a power of that.
func stagesBy(random *rand.Rand, count int, power float64) []size.Experience {
	stages := make([]size.Experience, count)
	for i := range stages {
		input := math.Log(1e6) + random.Float64()*math.Log(1e3)
		level := math.Log(50e6) + power*(input-math.Log(30e6)) + 0.7*random.NormFloat64()
		stages[i] = size.ExperienceOf([]float64{math.Exp(level), math.Exp(level + 0.1*random.NormFloat64())})
		stages[i].Input = input
	}
	return stages
}

// How far first guesses are off, by the logarithm: what inputs tell makes them better where there is something to tell,
// and costs little where there is not.
func TestInputsTellOnlyWhatIsBeyondChance(t *testing.T) {
	t.Parallel()
	weak := size.WeakPrior("python3", nil)
	for _, c := range []struct {
		stages      int
		power, most float64 // of the squared error without inputs
	}{
		{2, 0, 1.06},
		{4, 0, 1.06},
		{16, 0, 1.06},
		{4, 1, 0.8},
		{16, 1, 0.5},
		{16, 0.5, 0.9},
	} {
		random := rand.New(rand.NewPCG(1, 2))
		with, without := 0.0, 0.0
		for range 2000 {
			stages := stagesBy(random, c.stages+1, c.power)
			asked, seen := stages[c.stages], stages[:c.stages]
			inputs := size.LearnInputs(weak, seen)
			alike := make([]size.Experience, len(seen))
			for i, e := range seen {
				alike[i] = inputs.At(e, inputs.Believed(asked.Input))
			}
			square := func(p size.Prior) float64 { return (p.Mean - asked.Mean) * (p.Mean - asked.Mean) }
			with += square(weak.Learn("with python3", alike))
			without += square(weak.Learn("with python3", seen))
		}
		if with > c.most*without {
			t.Errorf("%d stages by the power %g: the squared error is %.3f of that without inputs, want at most %g", c.stages,
				c.power, with/without, c.most)
		}
		t.Logf("%d stages by the power %g: %.3f", c.stages, c.power, with/without)
	}
}

// Whatever stages tell: more input never makes a guess smaller, nor larger by more than it is itself, and beyond the
// inputs that were seen nothing is believed.
func TestWhatInputsTellIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.Float64Range(2, 1e15)
		stages := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) size.Experience {
			e := size.ExperienceOf(rapid.SliceOfN(value, 0, 4).Draw(t, "peaks"))
			if rapid.Bool().Draw(t, "known") {
				e.Input = math.Log(value.Draw(t, "input"))
			}
			return e
		}), 0, 8).Draw(t, "stages")
		inputs := size.LearnInputs(size.WeakPrior("", nil), stages)
		if !(inputs.Power >= 0 && inputs.Power <= 1) {
			t.Fatalf("the power is %g", inputs.Power)
		}
		small := math.Log(value.Draw(t, "small"))
		large := small + rapid.Float64Range(0, 10).Draw(t, "larger")
		own := size.ExperienceOf([]float64{float64(quantity.MiB)})
		own.Input = math.Log(value.Draw(t, "own"))
		off := inputs.At(own, inputs.Believed(large)).Mean - inputs.At(own, inputs.Believed(small)).Mean
		if off < -1e-9 || off > large-small+1e-9 {
			t.Fatalf("inputs from e^%g to e^%g change what is thought by e^%g", small, large, off)
		}
		if far := inputs.Believed(100); inputs.Power > 0 && far != inputs.Most {
			t.Fatalf("of an input of e^100 e^%g is believed, want the largest that was seen, e^%g", far, inputs.Most)
		}
	})
}
