package usage_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// world draws what is known of the i-th attempt, its peak and its run time.
type world func(r *rand.Rand, i int) (features usage.Features, peak, seconds float64)

// remembered is what is kept of attempts in a world, with other texts besides the one that counts.
func remembered(seed uint64, attempts int, draw world) (h *usage.History, times *usage.Times) {
	r := rand.New(rand.NewPCG(seed, 31))
	h, times = following(), &usage.Times{}
	times.Follow(usage.InputBytes)
	need := usage.Need{}
	for i := range attempts {
		features, peak, seconds := draw(r, i)
		h.Categorise(features.Named, need.Term.By)
		times.Categorise(h)
		h.Add(usage.Attempt{Peak: peak, Features: features})
		times.Add(seconds, features)
		if i%8 == 7 {
			need, _ = usage.Learn(h, usual, need.Term)
		}
	}
	return h, times
}

// kindsOfModels are three models, the last of which is rare; each takes as much more as it is named.
func kindsOfModels(slope, noise float64) world {
	names, factors := []string{"small", "base", "large"}, []float64{1, 3, 8}
	return func(r *rand.Rand, _ int) (usage.Features, float64, float64) {
		kind := []int{0, 0, 0, 0, 1, 1, 1, 2}[r.IntN(8)]
		input := mib * (1 + 99*r.Float64())
		needs := (60*mib + slope*input) * factors[kind]
		return usage.Features{Input: input, Named: map[string]float64{"model=": usage.Category(names[kind])}},
			needs * around(r, noise), needs / (10 * mib) * around(r, noise)
	}
}

func TestATextWithFewValuesExplainsPeaksAndTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		slope, noise float64
		by           string
	}{
		"alone":                  {0, 0.03, "model"},
		"without noise":          {0, 0, "model"},
		"beside the input":       {4, 0.03, "input_bytes and model"},
		"beside a steep line":    {40, 0.03, "input_bytes and model"},
		"beside half of a noise": {4, 0.15, "input_bytes and model"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			otherwise := 0
			for seed := range uint64(20) {
				draw := kindsOfModels(c.slope, c.noise)
				h, times := remembered(seed, 48, draw)
				need, _ := usage.Learn(h, usual, usage.Term{})
				duration, _ := usage.LearnDuration(times, 0)
				if !strings.HasSuffix(need.Explained, c.by) { // the square of a noisy input may be as good as the input
					t.Errorf("seed %d: peaks are explained by %q, want %q", seed, need.Explained, c.by)
				}
				if want := fmt.Sprintf("%d attempts, by %s", duration.Attempts, c.by); duration.String() != want {
					t.Logf("seed %d: run times rest on %q, want %q", seed, duration, want)
					otherwise++
				}
				r := rand.New(rand.NewPCG(seed, 32))
				var peaks, seconds, spare []float64
				for i := range 40 {
					features, peak, took := draw(r, i)
					peaks = append(peaks, math.Abs(math.Log(need.At(features)*need.Mid/peak)))
					spare = append(spare, given(need, features)/peak)
					expected, _ := duration.At(features)
					seconds = append(seconds, math.Abs(math.Log(expected.Mid/took)))
				}
				for _, values := range [][]float64{peaks, seconds, spare} {
					slices.Sort(values)
				}
				if most := 0.03 + c.noise; peaks[20] > most || seconds[20] > 2*most {
					t.Errorf("seed %d: the median prediction of a peak is off by %.3f, of a run time by %.3f, want at most %.3f and "+
						"%.3f", seed, peaks[20], seconds[20], most, 2*most)
				}
				if most := 1.2 + 5*c.noise; spare[20] > most {
					t.Errorf("seed %d: half of the limits are above %.2f of the peak, want %.2f", seed, spare[20], most)
				}
			}
			if otherwise > 1 { // noise explains something once in twenty times
				t.Errorf("%d of 20 run times are explained by something else than %s", otherwise, c.by)
			}
		})
	}
}

// Many texts are the identity of a task, others have nothing to do with what it takes.
func TestATextThatTellsNothingIsSeldomBelieved(t *testing.T) {
	t.Parallel()
	for name, values := range map[string]int{
		"two values": 2, "five values": 5, "thirty values": 30, "all others": 1 << 30,
	} {
		believed, timed := 0, 0
		for seed := range uint64(200) {
			h, times := remembered(seed, 40, func(r *rand.Rand, _ int) (usage.Features, float64, float64) {
				named := map[string]float64{}
				for _, name := range []string{"a=", "b=", "c="} {
					named[name] = usage.Category(strconv.Itoa(r.IntN(values)))
				}
				return usage.Features{Named: named}, 100 * mib * around(r, 0.2), 10 * around(r, 0.2)
			})
			if need, _ := usage.Learn(h, usual, usage.Term{}); need.Explained != "" {
				believed++
			}
			if duration, _ := usage.LearnDuration(times, 0); duration.Levels.Name != "" {
				timed++
			}
		}
		if believed > 10 || timed > 10 {
			t.Errorf("%s: noise explained %d of 200 needs and %d of 200 run times, want at most 10", name, believed, timed)
		}
	}
}

// What the first of a rare kind takes says less of the next than what sixty of another kind say of theirs, and nothing
// is known of a value that nobody has seen: it is given what costs the least where it is one like the others.
func TestRareAndUnseenValuesArePooled(t *testing.T) {
	t.Parallel()
	h, _ := remembered(1, 60, func(r *rand.Rand, i int) (usage.Features, float64, float64) {
		kind, factor := "often", 1.0
		switch {
		case i%3 == 0:
			kind, factor = "large", 4
		case i%10 == 1:
			kind, factor = fmt.Sprint("rare", i), 2
		}
		return usage.Features{Named: map[string]float64{"model=": usage.Category(kind)}},
			100 * mib * factor * around(r, 0.05), 1
	})
	need, _ := usage.Learn(h, usual, usage.Term{})
	level := func(kind string) float64 {
		return need.Levels.At(usage.Features{Named: map[string]float64{"model=": usage.Category(kind)}})
	}
	if large, often := level("large"), level("often"); large != 1 || often < 0.2 || often > 0.3 {
		t.Errorf("levels are %g and %g, want 1 and about 1/4: %+v", large, often, need.Levels)
	}
	if rare, unseen := level("rare1"), level("unseen"); rare != unseen || rare < 0.35 || rare > 0.65 {
		t.Errorf("what came once has level %g and what never came %g, want about 1/2 for both", rare, unseen)
	}
	if need.Unseen < level("unseen") || need.Unseen > 1 {
		t.Errorf("limits of unseen values are at a level of %g, want %g to 1", need.Unseen, level("unseen"))
	}
	var same usage.Need
	if data, err := json.Marshal(need); err != nil || json.Unmarshal(data, &same) != nil || same != need {
		t.Errorf("what was learned is not read as it was written: %s, %v", data, err)
	}
	none := usage.Levels{Name: "model=", Factors: [usage.MaxLevels]float64{math.NaN(), -1}, Other: math.Inf(1)}
	for _, value := range []float64{0, 1, math.NaN(), math.Inf(1)} {
		if got := none.At(usage.Features{Named: map[string]float64{"model=": value}}); got != 1 {
			t.Errorf("levels that are no numbers give %g, want 1", got)
		}
	}
}

// Four texts are followed at a time; tasks have dozens, most of which are identities or always the same.
func TestATextThatExplainsIsFoundAmongManyThatDoNot(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		h, times := remembered(seed, 256, func(r *rand.Rand, i int) (usage.Features, float64, float64) {
			features, peak, seconds := kindsOfModels(4, 0.03)(r, i)
			for n := range 10 {
				features.Named[fmt.Sprintf("id%d=", n)] = usage.Category(fmt.Sprint(seed, i, n))
				features.Named[fmt.Sprintf("constant%d=", n)] = usage.Category("x")
			}
			return features, peak, seconds
		})
		need, _ := usage.Learn(h, usual, usage.Term{})
		duration, _ := usage.LearnDuration(times, 0)
		if need.Explained != "input_bytes and model" || duration.Levels.Name != "model=" {
			t.Errorf("seed %d: peaks are explained by %q and run times by %q, want the model", seed, need.Explained,
				duration.String())
		}
		if len(h.Names) > usage.MaxFeatures+usage.MaxCategories {
			t.Errorf("seed %d: %v are followed", seed, h.Names)
		}
	}
}
