package usage_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

func thought() usage.Thought { return usage.Thought{Slope: 0.5, Give: 0.5, Spread: 0.1} }

// quantilesOf are those of 10, 50 and 90 percent of what is drawn at x.
func quantilesOf(g usage.Growth, x float64) [3]float64 {
	random := rand.New(rand.NewPCG(1, 2))
	draws := make([]float64, 4000)
	for i := range draws {
		draws[i] = g.Draw(map[string]float64{"x": x}, random)
	}
	slices.Sort(draws)
	return [3]float64{draws[400], draws[2000], draws[3600]}
}

func TestAGrowthFindsThePowerAndSaysHowSureItIs(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for _, power := range []float64{0, 0.5, 1} {
		var seen []usage.Grown
		for range 6 {
			x := math.Exp(random.Float64() * math.Log(100))
			seen = append(seen, usage.Grown{
				Value: 7 * math.Pow(x, power) * math.Exp(0.05*random.NormFloat64()), With: map[string]float64{"x": x},
			})
		}
		for _, x := range []float64{1, 10, 100} {
			got, want := quantilesOf(usage.LearnGrowth(seen, thought()), x), 7*math.Pow(x, power)
			if got[0] > want || got[2] < want || got[1] < 0.85*want || got[1] > 1.15*want {
				t.Errorf("power %v at %v: %v, want %v within", power, x, got, want)
			}
		}
	}
}

// Two that are alike are no reason to expect the third within four percent.
func TestFewObservationsGiveAWideInterval(t *testing.T) {
	t.Parallel()
	width := func(n int) float64 {
		seen := slices.Repeat([]usage.Grown{{Value: 100}}, n)
		got := quantilesOf(usage.LearnGrowth(seen, thought()), 0)
		return got[2] / got[0]
	}
	one, two, eight := width(1), width(2), width(8)
	if one < 1.4 || two < 1.25 || eight < 1.1 || one <= two || two <= eight {
		t.Errorf("from the 10th to the 90th percentile by a factor of %v after one, %v after two, %v after eight", one, two,
			eight)
	}
	once := usage.LearnGrowth([]usage.Grown{{Value: 100, With: map[string]float64{"x": 1}}}, thought())
	if got := quantilesOf(once, 100); got[2]/got[0] < 3 {
		t.Errorf("at a hundred times the only input: %v, want an interval that tells that nobody knows", got)
	}
}

// TestAGrowthCoversAsItSays draws worlds as they are thought of beforehand: then four of five are within.
func TestAGrowthCoversAsItSays(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	for _, n := range []int{1, 2, 5} {
		within := 0
		const worlds = 400
		for range worlds {
			power := 0.0
			if random.IntN(2) == 0 {
				power = 0.5 + 0.5*random.NormFloat64()
			}
			at := func() usage.Grown {
				x := math.Exp(2 * random.NormFloat64())
				return usage.Grown{
					Value: math.Pow(x, power) * math.Exp(0.1*random.NormFloat64()), With: map[string]float64{"x": x},
				}
			}
			var seen []usage.Grown
			for range n {
				seen = append(seen, at())
			}
			next := at()
			got := quantilesOf(usage.LearnGrowth(seen, thought()), next.With["x"])
			if got[0] <= next.Value && next.Value <= got[2] {
				within++
			}
		}
		if part := float64(within) / worlds; part < 0.72 || part > 0.92 {
			t.Errorf("after %d, %v of what comes is within the interval for 80 percent", n, part)
		}
	}
}

func TestAGrowthOfNonsenseKnowsNothingOrStaysFinite(t *testing.T) {
	t.Parallel()
	if usage.LearnGrowth(nil, thought()).Known() || usage.LearnGrowth([]usage.Grown{{Value: -1}}, thought()).Known() ||
		usage.LearnGrowth([]usage.Grown{{Value: math.NaN()}}, thought()).Known() {
		t.Error("nothing was seen, and something is known")
	}
	seen := []usage.Grown{
		{Value: 1e-300, With: map[string]float64{"x": 1e-300, "y": math.Inf(1)}},
		{Value: math.Inf(1)},
		{Value: 1e300, With: map[string]float64{"x": 1e300, "y": math.NaN()}},
	}
	g, random := usage.LearnGrowth(seen, thought()), rand.New(rand.NewPCG(7, 8))
	for _, x := range []float64{0, -1, 1, 1e308, math.NaN(), math.Inf(1)} {
		if got := g.Draw(map[string]float64{"x": x}, random); math.IsNaN(got) || got < 0 {
			t.Errorf("at %v: %v", x, got)
		}
	}
}
