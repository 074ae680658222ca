package usage_test

import (
	"encoding/json"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// explainedIn is in how many histories of 200 a feature is thought to explain what draw makes of attempts.
func explainedIn(attempts func(r *rand.Rand) int, draw func(r *rand.Rand, i int) (map[string]float64, float64)) int {
	explained := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 21))
		h := &usage.History{}
		h.Follow(usage.InputBytes)
		for i := range attempts(r) {
			named, peak := draw(r, i)
			for n := range len(named) {
				h.Follow("f" + strconv.Itoa(n))
			}
			h.Add(usage.Attempt{Peak: peak, Features: usage.Features{Input: 350e3, Named: named}})
		}
		if need, _ := usage.Learn(h, usual, usage.Term{}); need.Explained != "" {
			explained++
		}
	}
	return explained
}

func upTo60(r *rand.Rand) int { return 8 + r.IntN(52) }

// Peaks of a Map often change while it runs: caches fill, neighbours come. Its shards are numbered in the same order,
// and the next Map begins with shard 0 where the last one ended.
func TestTheNumberOfAShardDoesNotExplainWhatTheOrderDoes(t *testing.T) {
	t.Parallel()
	for name, peakOf := range map[string]func(r *rand.Rand, i int) float64{
		"noise":       func(r *rand.Rand, _ int) float64 { return 100 * mib * around(r, 0.05) },
		"two modes":   func(r *rand.Rand, _ int) float64 { return 23 * mib * float64(1+r.IntN(2)) * around(r, 0.01) },
		"heavy tails": func(r *rand.Rand, _ int) float64 { return 100 * mib * math.Pow(1-r.Float64(), -1.0/3) },
		"a trend": func(r *rand.Rand, i int) float64 {
			return 100 * mib * (1 + 0.01*float64(i)) * around(r, 0.02)
		},
		"a warm start": func(r *rand.Rand, i int) float64 {
			return 100 * mib * (2 - math.Exp(-float64(i)/10)) * around(r, 0.02)
		},
	} {
		got := explainedIn(upTo60, func(r *rand.Rand, i int) (map[string]float64, float64) {
			shard := float64(i + r.IntN(3)) // they do not start quite in order
			return map[string]float64{"f0": shard, "f1": 30 * shard, "f2": 30}, peakOf(r, i)
		})
		if got > 10 {
			t.Errorf("%s: a shard's number explained the peaks of %d of 200 Maps, want at most 10", name, got)
		}
	}
}

func TestTheBestOfManyFeaturesOfNoiseIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, spread := range map[string]float64{"a twentieth": 0.05, "a half": 0.5} {
		got := explainedIn(upTo60, func(r *rand.Rand, _ int) (map[string]float64, float64) {
			named := map[string]float64{}
			for n := range usage.MaxFeatures - 1 {
				named["f"+strconv.Itoa(n)] = 1 + 9*r.Float64()
			}
			return named, 100 * mib * around(r, spread)
		})
		if got > 10 {
			t.Errorf("peaks that differ by %s: noise was explained in %d of 200 histories, want at most 10", name, got)
		}
	}
}

// Where a second Map repeats what the first one took shard by shard, it is not the order.
func TestTheNumberOfAShardExplainsWhatRepeats(t *testing.T) {
	t.Parallel()
	got := explainedIn(func(*rand.Rand) int { return 60 }, func(r *rand.Rand, i int) (map[string]float64, float64) {
		shard := float64(i % 20)
		return map[string]float64{"f0": shard}, (100 + 10*shard) * mib * around(r, 0.03)
	})
	if got < 190 {
		t.Errorf("the shard's number explained the peaks of %d of 200 pairs of Maps, want nearly all", got)
	}
}

// What explains peaks is found among six features of noise, and peaks at features that were not seen are predicted.
func TestWhatExplainsIsFoundWhateverItsShape(t *testing.T) {
	t.Parallel()
	flag := func(r *rand.Rand) float64 { return float64(r.IntN(2)) }
	wide := func(r *rand.Rand) float64 { return math.Exp(4 * r.Float64()) }
	for _, c := range []struct {
		name string
		draw func(r *rand.Rand) map[string]float64
		peak func(f map[string]float64) float64
		off  float64 // the most that the middle prediction of a new attempt may be off by, where peaks differ by 3%
	}{
		{"a product", func(r *rand.Rand) map[string]float64 {
			return map[string]float64{"f0": math.Exp2(float64(r.IntN(7))), "f1": 64 * math.Exp2(float64(r.IntN(5)))}
		}, func(f map[string]float64) float64 { return 200 + 0.5*f["f0"]*f["f1"] }, 0.05},
		{"a sum", func(r *rand.Rand) map[string]float64 {
			return map[string]float64{"f0": wide(r), "f1": wide(r)}
		}, func(f map[string]float64) float64 { return 50 + 10*f["f0"] + 20*f["f1"] }, 0.05},
		{"a power of 3/2", func(r *rand.Rand) map[string]float64 {
			return map[string]float64{"f0": wide(r), "f1": flag(r)}
		}, func(f map[string]float64) float64 { return 20 + 3*math.Pow(f["f0"], 1.5) }, 0.05},
		{"powers of two", func(r *rand.Rand) map[string]float64 {
			return map[string]float64{"f0": wide(r), "f1": wide(r)}
		}, func(f map[string]float64) float64 { return 7 * math.Pow(f["f0"], 0.7) * math.Pow(f["f1"], 1.2) }, 0.10},
		{"a boolean", func(r *rand.Rand) map[string]float64 {
			return map[string]float64{"f0": flag(r), "f1": wide(r)}
		}, func(f map[string]float64) float64 { return 100 + 60*f["f0"] }, 0.03},
		{"a boolean that shifts a line", func(r *rand.Rand) map[string]float64 {
			return map[string]float64{"f0": flag(r), "f1": wide(r)}
		}, func(f map[string]float64) float64 { return 100 + 200*f["f0"] + 10*f["f1"] }, 0.05},
		{"a boolean that makes it grow", func(r *rand.Rand) map[string]float64 {
			return map[string]float64{"f0": flag(r), "f1": wide(r)}
		}, func(f map[string]float64) float64 { return 100 + 20*f["f0"]*f["f1"] }, 0.05},
		{"a category of three", func(r *rand.Rand) map[string]float64 {
			kind := r.IntN(3)
			return map[string]float64{"f0": float64(kind & 1), "f1": float64(kind >> 1)}
		}, func(f map[string]float64) float64 { return 100 + 50*f["f0"] + 200*f["f1"] }, 0.03},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			off := []float64{}
			for seed := range uint64(20) {
				r := rand.New(rand.NewPCG(seed, 22))
				draw := func() (usage.Features, float64) {
					named := c.draw(r)
					peak := c.peak(named) * mib * around(r, 0.03)
					for n := 2; n < usage.MaxFeatures-1; n++ {
						named["f"+strconv.Itoa(n)] = 1 + 9*r.Float64()
					}
					return usage.Features{Input: 350e3, Named: named}, peak
				}
				h := &usage.History{}
				for n := range usage.MaxFeatures - 1 {
					h.Follow("f" + strconv.Itoa(n))
				}
				for range 50 {
					features, peak := draw()
					h.Add(usage.Attempt{Peak: peak, Features: features})
				}
				need, _ := usage.Learn(h, usual, usage.Term{})
				if seed == 0 {
					t.Logf("explained by %s", need.Explained)
				}
				for range 50 {
					features, peak := draw()
					off = append(off, math.Abs(math.Log(need.At(features)*need.Mid/peak)))
				}
			}
			slices.Sort(off)
			if got := off[len(off)/2]; got > c.off {
				t.Errorf("the median prediction is off by %.3f, want at most %.3f", got, c.off)
			}
		})
	}
}

// A host of an earlier version reads the first part of a term, of the powers that it knows.
func TestAnEarlierHostGrantsNoLessThanAProductNeeds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 23))
		h := &usage.History{}
		h.Follow("f0")
		h.Follow("f1")
		var seen []usage.Features
		for range 60 {
			f := map[string]float64{"f0": math.Exp(4 * r.Float64()), "f1": math.Exp(3 * r.Float64())}
			seen = append(seen, usage.Features{Named: f})
			h.Add(usage.Attempt{Peak: 5 * mib * math.Pow(f["f0"], 1.5) * f["f1"] * around(r, 0.02), Features: seen[len(seen)-1]})
		}
		need, _ := usage.Learn(h, usual, usage.Term{})
		data, err := json.Marshal(need.Term)
		if err != nil {
			t.Fatal(err)
		}
		var earlier struct {
			Feature string  `json:"feature"`
			Power   float64 `json:"power"`
			PerUnit float64 `json:"per_unit"`
		}
		var same usage.Term
		if err := errors.Join(json.Unmarshal(data, &earlier), json.Unmarshal(data, &same)); err != nil {
			t.Fatal(err)
		}
		if same != need.Term || need.Term.With == "" {
			t.Fatalf("%s is read as %+v, want %+v of two features", data, same, need.Term)
		}
		for _, features := range seen {
			value := features.Value(earlier.Feature)
			switch earlier.Power {
			case 0.5:
				value = math.Sqrt(value)
			case 2:
				value *= value
			}
			if got, want := earlier.PerUnit*value, need.Term.At(features); got < want*(1-1e-9) {
				t.Fatalf("%s: an earlier host grants %g at %v, want %g at least", data, got, features.Named, want)
			}
		}
	}
}
