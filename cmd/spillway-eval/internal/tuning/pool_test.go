package tuning

import (
	"math"
	"math/rand/v2"
	"testing"
)

// madeUp are the losses of 18 to 35 trials over a hundred steps: power laws of the steps that cross, with noise in some
// pools and noise that is annealed in others; one in ten trials diverges on the way.
func madeUp(seed, number uint64) Pool {
	r := rand.New(rand.NewPCG(seed, number))
	var p Pool
	noise, annealed := 0.01*float64(number%3), 0.1*float64(number%4/2)
	for range 18 + r.IntN(18) {
		end, gain, power := 0.3*math.Exp(0.3*r.NormFloat64()), math.Exp(0.5*r.NormFloat64()), 0.3+0.5*r.Float64()
		diverges := math.Inf(1)
		if r.Float64() < 0.1 {
			diverges = 20 + 60*r.Float64()
		}
		var t Trial
		for step := 1.0; step <= 100; step++ {
			loss := end + gain*math.Pow(1+0.3*step, -power) + noise*r.NormFloat64() + annealed*(1-step/100)*r.Float64()
			if step > diverges {
				loss = 10
			}
			t.Steps, t.Values = append(t.Steps, step), append(t.Values, loss)
		}
		p.Trials = append(p.Trials, t)
	}
	return p
}

// On curves that nobody recorded, ASHA finds as much more than random search as on those that somebody did, and what
// curves say costs nothing.
func TestASHAFindsMoreThanRandomSearchOnMadeUpCurves(t *testing.T) {
	t.Parallel()
	regrets := map[string][]float64{}
	for _, searcher := range Searchers() {
		regrets[searcher] = make([]float64, len(Multiples))
	}
	for number := range uint64(24) {
		pool := madeUp(1, number)
		for _, searcher := range []string{"asha", Plain, "random"} {
			regret, err := pool.Regret(t.Context(), searcher, 10, 1)
			if err != nil {
				t.Fatal(err)
			}
			for i := range regret {
				regrets[searcher][i] += regret[i] / 24
			}
		}
	}
	for i, most := range []float64{0.75, 0.55, 0.55} {
		ours, plain, random := regrets["asha"][i], regrets[Plain][i], regrets["random"][i]
		t.Logf("%gR: ASHA %.3f, without curves %.3f, random %.3f", Multiples[i], ours, plain, random)
		if ours > most*random || ours > 1.05*plain {
			t.Errorf("%gR: ASHA has %g, want %g of random search's %g and 1.05 times %g at most", Multiples[i], ours, most,
				random, plain)
		}
	}
}
