package usage

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestOneKindIsNone compares an explanation by a category with one value with that of growths without any: the level of
// all is in a.
func TestOneKindIsNone(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	thought := Thought{Slope: 0.5, Give: 0.5, Spread: 0.1}
	for n := 1; n <= 8; n++ {
		x, y, weights, same := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range n {
			x[i], weights[i], same[i] = 3*random.NormFloat64(), random.Float64()+0.1, 7
			y[i] = 2 + 0.8*x[i] + 0.1*random.NormFloat64()
		}
		for _, over := range [][]float64{nil, x} {
			plain, want := explain(over, y, weights, thought)
			by, got, ok := explainGroups(same, over, y, weights, thought)
			if !ok || math.Abs(got-want) > 1e-6 || math.Abs(by.scale-plain.scale) > 1e-6 {
				t.Errorf("%d observations, over x %v: evidence %v and scale %v, want %v and %v", n, over != nil, got, by.scale,
					want, plain.scale)
			}
			by.category = "model="
			with := map[string]float64{"model=": 7, "x": 10}
			if over != nil {
				by.over, plain.with = "x", "x"
			}
			level, variance := by.at(with)
			away := 0.0
			if over != nil {
				away = math.Log(10) - plain.centre
			}
			wide := 1 + 1/plain.weight
			if plain.squares > 0 {
				wide += away * away / plain.squares
			}
			if math.Abs(level-plain.at(with)) > 1e-6 || math.Abs(variance-wide) > 1e-6*wide {
				t.Errorf("%d observations, over x %v: next is %v with variance %v, want %v with %v", n, over != nil, level,
					variance, plain.at(with), wide)
			}
		}
	}
}

// TestKindsAreTold has runs of two models, of which one takes ten times as long, over inputs that differ.
func TestKindsAreTold(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	const small, large, other = 11.0, 22.0, 33.0
	var seen []Grown
	for i := range 8 {
		input, kind, factor := math.Exp(4*random.Float64()), small, 1.0
		if i%2 == 0 {
			kind, factor = large, 10
		}
		seen = append(seen, Grown{
			Value: factor * math.Pow(input, 0.7) * math.Exp(0.05*random.NormFloat64()),
			With:  map[string]float64{"model=": kind, "name=": float64(i), "input": input, "seed": random.Float64()},
		})
	}
	learned := LearnGrowth(seen, Thought{Slope: 0.5, Give: 0.5, Spread: 0.1})
	for kind, factor := range map[float64]float64{small: 1, large: 10} {
		with := map[string]float64{"model=": kind, "name=": 99, "input": 20, "seed": 0.5}
		want := factor * math.Pow(20, 0.7)
		if got := learned.Expected(with); math.Abs(got/want-1) > 0.2 {
			t.Errorf("of kind %v %v is expected, want %v", kind, got, want)
		}
	}
	within := 0
	for range 1000 {
		drawn := learned.Draw(map[string]float64{"model=": other, "name=": 99, "input": 20, "seed": 0.5}, random)
		if drawn > math.Pow(20, 0.7) && drawn < 10*math.Pow(20, 0.7) {
			within++
		}
	}
	if within > 900 || within < 300 {
		t.Errorf("of a kind that nobody has seen %d of 1000 draws are between both, want it wide", within)
	}
}

func TestFewFeaturesAreKept(t *testing.T) {
	t.Parallel()
	many := map[string]float64{"nan": math.NaN(), "inf": math.Inf(1), "a": 1, "model=": 3}
	for i := range 100 {
		many["n"+string(rune('A'+i))] = float64(i)
		many["t"+string(rune('A'+i))+"="] = float64(i)
	}
	few := Few(many)
	if len(few) != MaxFeatures+MaxCategories || few["a"] != 1 || few["model="] != 3 {
		t.Errorf("kept are %v, want the first %d numbers and %d categories", few, MaxFeatures, MaxCategories)
	}
	if Few(map[string]float64{"nan": math.NaN()}) != nil {
		t.Error("nothing is kept of a number that is none")
	}
}
