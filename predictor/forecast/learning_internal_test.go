package forecast

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"gonum.org/v1/gonum/mat"
)

// The oracle is a least-squares fit by QR of the rows as they were weighed, the penalty as further rows.
func TestTheRidgeIsTheLeastSquaresFitOfFadedRows(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	const rows = 20 * solveEvery
	var r ridge
	design := mat.NewDense(rows+predictorCount, predictorCount, nil)
	targets := mat.NewVecDense(rows+predictorCount, nil)
	for i := range rows {
		var looks [predictorCount]float32
		y := 0.3
		root := math.Sqrt((0.5 + random.Float64()) * math.Pow(ridgeFade, float64(rows-1-i)))
		for j := range looks {
			looks[j] = float32(random.NormFloat64())
			y += float64(looks[j]) * float64(j-3) / 10
			design.Set(i, j, root*float64(looks[j]))
		}
		weight := root * root / math.Pow(ridgeFade, float64(rows-1-i))
		targets.SetVec(i, root*y)
		r.observe(&looks, y, weight)
	}
	for j := range predictorCount {
		design.Set(rows+j, j, math.Sqrt(ridgePenalty))
	}
	var want mat.VecDense
	if err := want.SolveVec(design, targets); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.RawVector().Data, r.Slope[:], cmpopts.EquateApprox(1e-9, 1e-9)); diff != "" {
		t.Error(diff)
	}
	r.forget(2)
	r.solve()
	if r.Slope[2] != 0 {
		t.Errorf("the slope of a predictor that was forgotten is %v", r.Slope[2])
	}
}

func TestARidgeOfNothingKeepsItsSlopes(t *testing.T) {
	t.Parallel()
	var r ridge
	var looks [predictorCount]float32
	for range 10 * solveEvery {
		r.observe(&looks, 5, 1)
	}
	if r.Slope != ([predictorCount]float64{}) {
		t.Errorf("rows of zeros give the slopes %v", r.Slope)
	}
}

// Whatever comes, drifting, heavy-tailed or always the same, as much of it is below each tracked level as it promises,
// within what a level can be off by at the start and at the end over what it moves by (Gibbs and Candes, proposition
// 4.1).
func TestTrackedLevelsPromiseWhatComesTrueWhateverComes(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(3, 4))
	for name, score := range map[string]func(i int) float64{
		"normal":     func(int) float64 { return random.NormFloat64() },
		"too narrow": func(int) float64 { return 3 * random.NormFloat64() },
		"heavy": func(int) float64 {
			x := random.NormFloat64()
			return clamp(x*math.Abs(x), mostScore)
		},
		"drifting":      func(i int) float64 { return random.NormFloat64() + 2*math.Sin(float64(i)/5000) },
		"one of two":    func(i int) float64 { return float64(i%2) + random.Float64()/100 },
		"shifted":       func(int) float64 { return random.NormFloat64() + 2 },
		"one in twenty": func(i int) float64 { return float64(i%20/19)*4 + random.Float64()/100 },
	} {
		k := newKnot(1)
		k.Count = 1e9
		below := [len(tracked)]float64{}
		const n = 60_000
		for i := range n {
			s := score(i)
			for j := range tracked {
				if s < k.Scores[j] {
					below[j]++
				}
			}
			k.track(s)
		}
		for j, level := range tracked {
			bound := (mostScore + 4) / (trackRate * trackedSteps[j] * n)
			if share := below[j] / n; math.Abs(share-level) > math.Min(bound, 0.03) {
				t.Errorf("%s: %.4f are below the level %v, want it within %.3f", name, share, level, math.Min(bound, 0.03))
			}
		}
	}
}

// A random walk comes back to where it was now and then, and nobody can tell.
func TestWithoutAPeriodSeldomOneIsFound(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]func(*rand.Rand, float64) float64{
		"noise":           func(random *rand.Rand, _ float64) float64 { return random.NormFloat64() },
		"a random walk":   func(random *rand.Rand, before float64) float64 { return before + random.NormFloat64() },
		"a constant":      func(*rand.Rand, float64) float64 { return 7 },
		"a mean it seeks": func(random *rand.Rand, before float64) float64 { return 0.9*before + random.NormFloat64() },
	} {
		found := 0
		const series = 100
		for seed := range uint64(series) {
			random := rand.New(rand.NewPCG(seed, 1))
			h, value := newHistory(1, fineRoom), 0.0
			for i := range int64(fineRoom) {
				value = next(random, value)
				h.observe(i, value)
			}
			if period, _ := h.periods(0); period > 0 {
				found++
			}
		}
		if most := map[string]int{"a mean it seeks": 10, "a random walk": 35}[name]; found > most {
			t.Errorf("%s has a period in %d of %d series, want %d at most", name, found, series, most)
		}
	}
}

func TestPeriodsAreFound(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct {
		name           string
		width, buckets int64
		value          func(at float64) float64
		want, longer   float64
	}{
		{"a sine of 60", 1, 1024, func(at float64) float64 { return math.Sin(2 * math.Pi * at / 60) }, 60, 0},
		{"one in 30", 1, 1024, func(at float64) float64 { return float64(int(at) % 30 / 29) }, 30, 0},
		{"no whole number", 1, 1024, func(at float64) float64 { return math.Sin(2 * math.Pi * at / 47.3) }, 47.3, 0},
		{"a day of minutes", 20, 20_160, func(at float64) float64 { return math.Sin(2 * math.Pi * at / 1440) }, 1440, 0},
		{"two days and a half", 20, 3600, func(at float64) float64 { return math.Sin(2 * math.Pi * at / 1440) }, 1440, 0},
		{"a day and a week", 20, 40_320, func(at float64) float64 {
			weekend := float64(int(at) / 1440 % 7 / 5)
			return math.Sin(2*math.Pi*at/1440) * (1 - 0.7*weekend)
		}, 1440, 10_080},
	} {
		h := newHistory(c.width, coarseRoom)
		for i := range c.buckets {
			if i%1440 < 30 && c.width > 1 { // and gaps
				continue
			}
			h.observe(i, c.value(float64(i))+0.2*random.NormFloat64())
		}
		period, longer := h.periods(0)
		if math.Abs(period-c.want) > 0.02*c.want || math.Abs(longer-c.longer) > 0.01*c.longer {
			t.Errorf("%s: found %.1f and %.1f, want %.1f and %.1f", c.name, period, longer, c.want, c.longer)
		}
	}
}

// Where the top is broad, the top near twice a lag is the same one again, and half as far each time.
func TestAPeriodIsNoSmallerThanItsLagByMoreThanABlock(t *testing.T) {
	t.Parallel()
	r := []float64{1, 1.2218, 1.2231}
	for i := range 100 {
		r = append(r, 1.2125-float64(i)/50)
	}
	if got := precise(r, 2); got < 1.5 || got > 2.5 {
		t.Errorf("a top at a lag of 2 gives the period %v", got)
	}
}

func TestAHistoryIsTheMeanOfItsBlocks(t *testing.T) {
	t.Parallel()
	h := newHistory(4, 3)
	for i := range int64(9) { // blocks 0 to 1, and a bucket of the third
		h.observe(i-4, float64(i))
	}
	nan := math.NaN()
	for _, c := range []struct {
		name string
		skip int64
		want []float64 // of blocks -1 to 5
	}{
		{"as it is", 0, []float64{1.5, 5.5, nan, nan, nan, nan, nan}},
		{"a bucket more, too few for the block", 8, []float64{1.5, 5.5, nan, nan, nan, nan, nan}},
		{"after all that is remembered", 4000, []float64{nan, nan, nan, nan, nan, nan, nan}},
	} {
		g := h.clone()
		if c.skip > 0 {
			g.observe(c.skip, 1)
		}
		var got []float64
		for block := int64(-1); block < 6; block++ {
			got = append(got, g.block(block))
		}
		if diff := cmp.Diff(c.want, got, cmpopts.EquateNaNs()); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
	}
	// The middles of the blocks are at -2.5 and 1.5.
	if got := h.at(-0.5); math.Abs(got-3.5) > 1e-9 {
		t.Errorf("half way between blocks of 1.5 and 5.5 it is %v", got)
	}
	h.fill(-4, 3, 9)
	if h.block(-1) != 9 || h.block(0) != 9 {
		t.Errorf("filled blocks are %v and %v", h.block(-1), h.block(0))
	}
}

func TestTheChanceOfABurstIsThatOfItsIntervals(t *testing.T) {
	t.Parallel()
	var b bursts
	for i := range int64(41) { // every 100 buckets, ten long
		b.add(burst{Start: 100 * i, Length: 10})
	}
	for _, c := range []struct {
		ahead     int64
		low, most float64
	}{
		{1, 0, 0.1}, {49, 0, 0.1}, {50, 0.9, 1}, {59, 0.9, 1}, {60, 0, 0.1},
	} {
		if got := b.comes(4050, c.ahead); got < c.low || got > c.most {
			t.Errorf("%d buckets ahead, 50 after a burst, the chance is %.2f, want %v to %v", c.ahead, got, c.low, c.most)
		}
	}
	if got := b.lasts(5, 4); got < 0.9 {
		t.Errorf("a burst of 5 buckets lasts 4 more with a chance of %.2f where all were of 10", got)
	}
	if got := b.lasts(5, 5); got > 0.1 {
		t.Errorf("a burst of 5 buckets lasts 5 more with a chance of %.2f where all were of 10", got)
	}
	if got := (&bursts{}).lasts(6, 3); got != 2.0/3 {
		t.Errorf("the first burst, 6 buckets long, lasts 3 more with a chance of %v, want two thirds", got)
	}
	for _, bucket := range []int64{0, 9, 100, 4009} {
		if !b.in(bucket) {
			t.Errorf("bucket %d is in no burst", bucket)
		}
	}
	for _, bucket := range []int64{-1, 10, 99, 4010} {
		if b.in(bucket) {
			t.Errorf("bucket %d is in a burst", bucket)
		}
	}
	for range 2 * burstRoom {
		b.add(burst{Start: b.List[len(b.List)-1].Start + 100, Length: 1})
	}
	if len(b.List) != burstRoom {
		t.Errorf("%d bursts are remembered", len(b.List))
	}
}

func TestThePoolLearnsWhichSignIsRight(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(7, 8))
	var p pool
	p.start()
	ours, least := 0.0, 0.0
	for i := range 4000 {
		truth := 0.02
		if i%20 == 0 {
			truth = 0.9
		}
		signs := [signCount]float32{
			stateSign: float32(logOdds(random.Float64())), // says nothing
			hourSign:  float32(logOdds(truth)), daySign: float32(logOdds(0.064)), weekSign: float32(logOdds(0.064)),
		}
		inside := random.Float64() < truth
		if i >= 2000 {
			ours += logLoss(p.chance(&signs), inside)
			least += logLoss(truth, inside)
		}
		p.observe(&signs, inside)
	}
	if ours > 1.1*least {
		t.Errorf("the logarithmic loss is %.3f times the least", ours/least)
	}
}

func logLoss(chance float64, inside bool) float64 {
	if inside {
		return -math.Log(chance)
	}
	return -math.Log(1 - chance)
}

func TestLeadsAreAtMostFourTimesTheOneBefore(t *testing.T) {
	t.Parallel()
	for horizon := 1; horizon <= longestHorizon; horizon++ {
		leads := Options{Horizon: horizon}.leads()
		text := fmt.Sprintf("a horizon of %d has the leads %v", horizon, leads)
		if leads[0] != 1 || leads[len(leads)-1] != int64(horizon) {
			t.Error(text)
		}
		for i := 1; i < len(leads); i++ {
			if leads[i] <= leads[i-1] || leads[i] > 5*leads[i-1] {
				t.Error(text)
			}
		}
	}
}
