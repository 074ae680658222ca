package curve_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/curve"
)

// said is what a prediction comes to at a level.
func said(s curve.Steps) [5]float64 {
	return [5]float64{s.Expected(), s.Never(), s.Quantile(0.1), s.Quantile(0.5), s.Quantile(0.9)}
}

// same says whether two are the same but for rounding, the steps of the second in units of unit.
func same(a, b [5]float64, unit float64) bool {
	for i := range a {
		want := a[i] * unit
		if i == 1 {
			want = a[i]
		}
		if math.IsInf(want, 1) != math.IsInf(b[i], 1) || !math.IsInf(want, 1) && math.Abs(b[i]-want) > 1e-6*(1+want) {
			return false
		}
	}
	return true
}

// drawn is runs of one workload, and a level.
func drawn(seed uint64) (runs [][]curve.Point, level float64) {
	random := rand.New(rand.NewPCG(seed, 3))
	for range 6 {
		points, of, _ := noisy(random, 30+random.IntN(30))
		runs, level = append(runs, points), of
	}
	return runs, level
}

func changed(runs [][]curve.Point, change func(curve.Point) curve.Point) [][]curve.Point {
	all := make([][]curve.Point, len(runs))
	for i, run := range runs {
		for _, point := range run {
			all[i] = append(all[i], change(point))
		}
	}
	return all
}

func TestNeitherUnitsNorDirectionsMatter(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		runs, level := drawn(seed)
		for _, warm := range []bool{false, true} {
			ask := func(runs [][]curve.Point, level float64, direction curve.Direction) [5]float64 {
				options := curve.Options{Direction: direction}
				if warm {
					options.Earlier = learned(t, direction, runs[1:]...)
				}
				return said(fitted(t, runs[0], options).Reaches(level))
			}
			want := ask(runs, level, curve.Minimise)
			if got := ask(runs, level, curve.Minimise); got != want {
				t.Errorf("seed %d, warm %v: %v, and then %v", seed, warm, want, got)
			}
			steps := changed(runs, func(p curve.Point) curve.Point { return curve.Point{Step: p.Step * 1000, Value: p.Value} })
			if got := ask(steps, level, curve.Minimise); !same(want, got, 1000) {
				t.Errorf("seed %d, warm %v, steps in thousandths: got %v, want %v", seed, warm, got, want)
			}
			scaled := changed(runs, func(p curve.Point) curve.Point { return curve.Point{Step: p.Step, Value: 7*p.Value + 3} })
			if got := ask(scaled, 7*level+3, curve.Minimise); !same(want, got, 1) {
				t.Errorf("seed %d, warm %v, another unit of the loss: got %v, want %v", seed, warm, got, want)
			}
			turned := changed(runs, func(p curve.Point) curve.Point { return curve.Point{Step: p.Step, Value: 1 - p.Value} })
			if got := ask(turned, 1-level, curve.Maximise); !same(want, got, 1) {
				t.Errorf("seed %d, warm %v, maximised: got %v, want %v", seed, warm, got, want)
			}
		}
	}
}

func TestTheOrderOfTiesAndOfEarlierRunsDoesNotMatter(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		runs, level := drawn(seed)
		random := rand.New(rand.NewPCG(seed, 4))
		var tied []curve.Point
		for _, p := range runs[0] {
			for _, times := range []float64{1, 1.1, 1.2} {
				tied = append(tied, curve.Point{Step: p.Step, Value: p.Value * times})
			}
		}
		want := said(fitted(t, tied, curve.Options{Earlier: learned(t, curve.Minimise, runs[1:]...)}).Reaches(level))
		for i := 0; i+2 < len(tied); i += 3 {
			random.Shuffle(3, func(a, b int) { tied[i+a], tied[i+b] = tied[i+b], tied[i+a] })
		}
		others := slices.Clone(runs[1:])
		random.Shuffle(len(others), func(a, b int) { others[a], others[b] = others[b], others[a] })
		got := said(fitted(t, tied, curve.Options{Earlier: learned(t, curve.Minimise, others...)}).Reaches(level))
		if !same(want, got, 1) {
			t.Errorf("seed %d: got %v, want %v", seed, got, want)
		}
	}
}

func TestABetterLevelIsReachedLater(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		runs, level := drawn(seed)
		p := fitted(t, runs[0], curve.Options{})
		previous := [5]float64{}
		for i := range 20 {
			got := said(p.Reaches(level + 0.1 - 0.02*float64(i)))
			for j := 1; j < len(got); j++ { // what is expected leaps between levels that are reached with little chance
				if got[j] < previous[j]*(1-1e-6)-1e-9 {
					t.Errorf("seed %d, level %d: %v after %v", seed, i, got, previous)
				}
			}
			previous = got
		}
	}
}

func TestMoreOfARunNarrowsTheInterval(t *testing.T) {
	t.Parallel()
	level := power(400)
	previous := math.Inf(1)
	for _, seen := range []int{50, 100, 200, 300, 380} {
		steps := fitted(t, measured(seen, 1, power), curve.Options{Planned: 5000}).Reaches(level)
		width := math.Log(steps.Quantile(0.6) / steps.Quantile(0.1))
		if !(width < previous) {
			t.Errorf("after %d steps the interval is %v wide, %v before", seen, width, previous)
		}
		previous = width
	}
}

// A fit per epoch with its answer, alone and beside 64 earlier runs, of runs of three lengths.
func BenchmarkRefit(b *testing.B) {
	random := rand.New(rand.NewPCG(5, 6))
	var runs [][]curve.Point
	for range 64 {
		points, _, _ := noisy(random, 100)
		runs = append(runs, points)
	}
	for _, n := range []int{10, 100, 1000} {
		for name, earlier := range map[string]*curve.Workload{"cold": nil, "warm": learned(b, curve.Minimise, runs...)} {
			b.Run(fmt.Sprintf("%s/points=%d", name, n), func(b *testing.B) {
				points := measured(n, 90/float64(n), func(step float64) float64 { return 0.5 + math.Pow(step/5+1, -0.6) })
				b.ReportAllocs()
				for b.Loop() {
					steps := fitted(b, points, curve.Options{Earlier: earlier}).Reaches(0.6)
					if !(steps.Quantile(0.5) > 0) {
						b.Fatal("no answer")
					}
				}
			})
		}
	}
}
