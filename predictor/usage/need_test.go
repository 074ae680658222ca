package usage_test

import (
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/usage"
)

const (
	mib    = 1 << 20
	length = "length"
	margin = 0.10
)

// usual are the stakes where nobody waits for memory.
var usual = usage.Stakes{Margin: margin}

// known makes features of values.
func known(values map[string]float64) usage.Features {
	return usage.Features{Input: values[usage.InputBytes], Named: values}
}

// following is a history that follows the input's bytes and a length.
func following() *usage.History {
	h := &usage.History{}
	h.Follow(usage.InputBytes)
	h.Follow(length)
	return h
}

// around is a factor with this spread, log-normal around 1.
func around(r *rand.Rand, spread float64) float64 { return math.Exp(spread * r.NormFloat64()) }

// given is the limit of a first attempt: in whole MiB, and at most Most.
func given(need usage.Need, features usage.Features) float64 {
	limit := need.At(features) * need.Limit
	if need.Most > 0 {
		limit = min(limit, need.Most)
	}
	return mib * math.Ceil(limit/mib)
}

// Each world draws what is known of an attempt and what it takes; the learned limits are simulated against it, attempt
// after attempt, with what runs out of memory tried again at twice the limit.
func TestLimitsAreTightAndSeldomPassed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		draw         func(r *rand.Rand) (input, length, need float64)
		under, slack float64 // the most, as ratios of the attempts
	}{
		{"constant", func(r *rand.Rand) (float64, float64, float64) {
			return 100, 0, 60 * mib * around(r, 0.01)
		}, 0.001, 0.13},
		{"constant with noise", func(r *rand.Rand) (float64, float64, float64) {
			return 100, 0, 60 * mib * around(r, 0.05)
		}, 0.003, 0.18},
		{"linear in the input", func(r *rand.Rand) (float64, float64, float64) {
			x := mib * (1 + 99*r.Float64())
			return x, 0, (50*mib + 8*x) * around(r, 0.02)
		}, 0.002, 0.15},
		{"linear over two decades, with noise", func(r *rand.Rand) (float64, float64, float64) {
			x := mib * math.Exp(5*r.Float64())
			return x, 0, (20*mib + 5*x) * around(r, 0.1)
		}, 0.015, 0.27},
		{"the square of a parameter", func(r *rand.Rand) (float64, float64, float64) {
			l := 64 * math.Exp2(float64(r.IntN(6)))
			return 1000, l, (30*mib + 100*l*l) * around(r, 0.03)
		}, 0.004, 0.17},
		{"two kinds that nothing tells apart", func(r *rand.Rand) (float64, float64, float64) {
			return 1000, 0, (100 + 50*float64(r.IntN(2))) * mib * around(r, 0.02)
		}, 0.002, 0.30},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			under, within, slack := 0, 0, 0.0
			for seed := range uint64(20) {
				r := rand.New(rand.NewPCG(seed, 1))
				h := following()
				for range 200 {
					input, l, need := c.draw(r)
					features := known(map[string]float64{usage.InputBytes: input, length: l})
					if learned, ok := usage.Learn(h, usual, usage.Term{}); ok {
						limit := given(learned, features)
						if limit < need {
							under++
							h.Add(usage.Attempt{Peak: limit, Exceeded: true, Features: features})
						} else {
							within++
							slack += (limit - need) / limit
						}
					}
					h.Add(usage.Attempt{Peak: need, Features: features})
				}
			}
			passed, spare := float64(under)/float64(under+within), slack/float64(within)
			t.Logf("%.2f%% of attempts pass their limit, %.1f%% of limits are spare", 100*passed, 100*spare)
			if passed > c.under || spare > c.slack {
				t.Errorf("%.2f%% of attempts pass their limit and %.1f%% of limits are spare, want at most %.2f%% and %.1f%%",
					100*passed, 100*spare, 100*c.under, 100*c.slack)
			}
		})
	}
}

func TestNothingIsKnownBeforeFiveAttemptsWereMeasured(t *testing.T) {
	t.Parallel()
	h := following()
	for range 4 {
		h.Add(usage.Attempt{Peak: 100})
	}
	h.Add(usage.Attempt{Peak: 50, Exceeded: true})
	if _, ok := usage.Learn(h, usual, usage.Term{}); ok {
		t.Error("four peaks and a kill are enough, want five peaks")
	}
	if h.Add(usage.Attempt{Peak: 100}); h.Known() != 5 {
		t.Fatalf("%d peaks are known, want 5", h.Known())
	}
	if _, ok := usage.Learn(h, usual, usage.Term{}); !ok {
		t.Error("five peaks are not enough")
	}
}

func TestNoiseIsNotExplained(t *testing.T) {
	t.Parallel()
	explained := 0
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		h := following()
		for range 10 + seed%50 {
			h.Add(usage.Attempt{
				Peak:     100 * mib * around(r, 0.05),
				Features: known(map[string]float64{usage.InputBytes: mib * (1 + r.Float64()*9), length: 1 + r.Float64()*9}),
			})
		}
		if need, _ := usage.Learn(h, usual, usage.Term{}); need.Explained != "" {
			explained++
		}
	}
	if explained > 10 {
		t.Errorf("noise was explained by a feature in %d of 200 histories, want at most 10", explained)
	}
}

// A sort over next to nothing takes a thousandth of what all others take: relative to its own peak, each error of the
// others' line would weigh as much as a million of theirs.
func TestOneTinyPeakDoesNotOutweighAllOthers(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 8))
		h := following()
		for i := range usage.MaxAttempts {
			x, peak := 1e9*math.Exp(3*r.Float64()), 5e9*around(r, 0.01)
			if i == 20 {
				x, peak = 2e7, 3e6
			}
			h.Add(usage.Attempt{Peak: peak, Features: known(map[string]float64{usage.InputBytes: x})})
		}
		need, _ := usage.Learn(h, usual, usage.Term{})
		for _, x := range []float64{1e9, 5e9, 2e10} {
			limit := need.At(known(map[string]float64{usage.InputBytes: x})) * need.Limit
			if limit < 5.1e9 || limit > 6e9 {
				t.Errorf("seed %d: the limit at an input of %g bytes is %.2g bytes, want 5.1e9 to 6e9 where peaks are 5e9",
					seed, x, limit)
			}
		}
	}
}

func TestASlopeOverTinyInputsIsNotBelieved(t *testing.T) {
	t.Parallel()
	h := following()
	for i := range 9 { // 20 kB more for each byte of input: the first input of a megabyte would be given the whole host
		h.Add(usage.Attempt{
			Peak:     69e6 + 1e5*float64(i),
			Features: known(map[string]float64{usage.InputBytes: 20 + 5*float64(i)}),
		})
	}
	if need, _ := usage.Learn(h, usual, usage.Term{}); need.Term.PerUnit != 0 {
		t.Errorf("got a slope of %g bytes a byte, want 0", need.Term.PerUnit)
	}
}

func TestAShortHistoryIsCareful(t *testing.T) {
	t.Parallel()
	h := following()
	last := math.Inf(1)
	for i := range usage.MaxAttempts {
		h.Add(usage.Attempt{Peak: 100 * mib})
		need, ok := usage.Learn(h, usual, usage.Term{})
		if !ok {
			continue
		}
		headroom := need.Base*need.Limit/(100*mib) - 1
		if headroom > last+1e-9 {
			t.Errorf("after %d equal peaks the head-room is %.1f%%, more than %.1f%% before", i+1, 100*headroom, 100*last)
		}
		switch {
		case i+1 == usage.Enough && (headroom < 0.05 || headroom > 0.20):
			t.Errorf("after %d equal peaks the head-room is %.1f%%, want 5%% to 20%%", i+1, 100*headroom)
		case i+1 == usage.MaxAttempts && (headroom < 0.01-1e-9 || headroom > 0.03):
			t.Errorf("after %d equal peaks the head-room is %.1f%%, want 1%% to 3%%", i+1, 100*headroom)
		}
		last = headroom
	}
}

func TestALineIsFollowedToTwiceWhatWasSeen(t *testing.T) {
	t.Parallel()
	h := following()
	for i := range 20 {
		x := float64(1+i) * mib
		h.Add(usage.Attempt{Peak: 3 * x, Features: known(map[string]float64{usage.InputBytes: x})})
	}
	if need, _ := usage.Learn(h, usual, usage.Term{}); need.Most != 2*60*mib {
		t.Errorf("the most is %.0f MiB after peaks up to 60 MiB, want 120", need.Most/mib)
	}
	exceeded := known(map[string]float64{usage.InputBytes: 1000 * mib})
	h.Add(usage.Attempt{Peak: 120 * mib, Exceeded: true, Features: exceeded})
	if need, _ := usage.Learn(h, usual, usage.Term{}); need.Most != 0 || need.At(exceeded)*need.Limit < 3000*mib {
		t.Errorf("120 MiB were not enough: the most is %.0f MiB, the limit of the next %.0f MiB; want the line for all",
			need.Most/mib, need.At(exceeded)*need.Limit/mib)
	}
	h.Add(usage.Attempt{Peak: 3000 * mib, Features: exceeded})
	if need, _ := usage.Learn(h, usual, usage.Term{}); need.Most != 2*3000*mib {
		t.Errorf("the most is %.0f MiB after a peak of 3000 MiB, want 6000", need.Most/mib)
	}
}

// A retry costs less than to give all attempts room for a mode that three of a hundred take.
func TestWhatPassesTheLimitTellsWhatTheNextAttemptNeeds(t *testing.T) {
	t.Parallel()
	h := following()
	for i := range usage.MaxAttempts {
		peak := 100.0 + float64(i%5)
		if i == 20 || i == 40 {
			peak = 5000 + float64(i)
		}
		h.Add(usage.Attempt{Peak: peak * mib})
		need, ok := usage.Learn(h, usual, usage.Term{})
		switch limit, above := need.Base*need.Limit/mib, need.Base*need.Above/mib; {
		case !ok || i < usage.MaxAttempts-1:
		case limit > 200:
			t.Fatalf("the limit is %.0f MiB, want that of the most", limit)
		case above < 5040 || above > 6000:
			t.Errorf("after a kill at %.0f MiB the next attempt is given %.0f MiB, want 5040 with head-room", limit, above)
		}
	}
}

func TestAMeasuredPeakReplacesTheKillBelowIt(t *testing.T) {
	t.Parallel()
	h := following()
	for range 10 {
		h.Add(usage.Attempt{Peak: 100 * mib})
	}
	before, _ := usage.Learn(h, usual, usage.Term{})
	h.Add(usage.Attempt{Peak: 115 * mib, Exceeded: true})
	killed, _ := usage.Learn(h, usual, usage.Term{})
	if killed.Base*killed.Limit < 1.5*115*mib {
		t.Errorf("after a kill at 115 MiB the limit is %.0f MiB, want half as much again at least",
			killed.Base*killed.Limit/mib)
	}
	if h.Unmet() != 115*mib {
		t.Errorf("the unmet limit is %.0f MiB, want 115", h.Unmet()/mib)
	}
	h.Add(usage.Attempt{Peak: 120 * mib})
	after, _ := usage.Learn(h, usual, usage.Term{})
	if h.Len() != 11 || h.Unmet() != 0 || after.Base*after.Limit > 1.4*100*mib || after.Base*after.Limit < 120*mib {
		t.Errorf("once 120 MiB were measured: %d attempts, %.0f MiB unmet, a limit of %.0f MiB (%.0f before), want the "+
			"peak with head-room",
			h.Len(), h.Unmet()/mib, after.Base*after.Limit/mib, before.Base*before.Limit/mib)
	}
}

func TestPeaksAndFeaturesThatAreNoNumbersAreLeftOut(t *testing.T) {
	t.Parallel()
	h := following()
	for _, peak := range []float64{0, -1, math.NaN(), math.Inf(1), math.Inf(-1)} {
		if h.Add(usage.Attempt{Peak: peak}) {
			t.Errorf("a peak of %v was taken", peak)
		}
	}
	for i := range 20 {
		h.Add(usage.Attempt{
			Peak:     100 + float64(i%3),
			Features: known(map[string]float64{usage.InputBytes: math.NaN(), length: math.Inf(1)}),
		})
	}
	need, ok := usage.Learn(h, usual, usage.Term{})
	if !ok || need.Explained != "" || need.Base < 100 || need.Base > 102 {
		t.Errorf("got %+v, want a constant need of about 101", need)
	}
}

func TestOnlySoManyFeaturesAreFollowed(t *testing.T) {
	t.Parallel()
	var h usage.History
	for i := range usage.MaxFeatures + 3 {
		if got, want := h.Follow(string(rune('a'+i))), i < usage.MaxFeatures; got != want {
			t.Errorf("feature %d is followed: %v, want %v", i, got, want)
		}
	}
	if !h.Follow("a") || h.Follow("") {
		t.Error("a feature that is followed is refused, or one without a name is not")
	}
}

func TestFeaturesThatAreGoneMakeRoomForOthers(t *testing.T) {
	t.Parallel()
	h := following()
	all := map[string]float64{length: 1}
	for i := range usage.MaxFeatures {
		all[string(rune('a'+i))] = 1
		h.Follow(string(rune('a' + i)))
	}
	h.Add(usage.Attempt{Peak: 100 * mib, Features: known(all)})
	add := func(name string, attempts int) {
		for i := range attempts {
			h.Forget()
			h.Follow(name)
			x := float64(1 + i%10)
			h.Add(usage.Attempt{Peak: 100 * mib * x, Features: known(map[string]float64{usage.InputBytes: 5, name: x})})
		}
	}
	add("a", usage.MaxAttempts)
	if h.Follow("rows") {
		t.Errorf("%v are followed, want no more than %d", h.Names, usage.MaxFeatures)
	}
	add("rows", 1)
	if want := []string{usage.InputBytes, "a", "rows"}; !slices.Equal(h.Names, want) {
		t.Errorf("%v are followed, want %v: nothing is known of the others", h.Names, want)
	}
	add("rows", 2*usage.MaxAttempts)
	if need, _ := usage.Learn(h, usual, usage.Term{}); need.Explained != "rows" {
		t.Errorf("the need is explained by %q, want rows", need.Explained)
	}
}

// Parameters may be anything, and there may be thousands of them.
func TestFeaturesOfAnyNumberAndValueLeadToALimit(t *testing.T) {
	t.Parallel()
	h := following()
	for i := range 2 * usage.MaxAttempts {
		named := map[string]float64{length: 7}
		for n, value := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, 0, 1e300, math.MaxFloat64, 5e-324} {
			named[string(rune('a'+n))] = value
		}
		for n := range 2000 {
			named["p"+strconv.Itoa(n)] = float64(n * i)
		}
		h.Forget()
		for _, name := range slices.Sorted(maps.Keys(named)) {
			h.Follow(name)
		}
		h.Add(usage.Attempt{Peak: 100 * mib, Features: usage.Features{Input: 1e300, Named: named}})
	}
	need, ok := usage.Learn(h, usual, usage.Term{})
	limit := need.At(usage.Features{Input: 1e300}) * need.Limit
	if !ok || limit < 100*mib || limit > 110*mib || need.Most != 200*mib {
		t.Errorf("got %+v and a limit of %g MiB where every peak is 100 MiB", need, limit/mib)
	}
}

// attempts draws a sequence of anything that may be measured.
func attempts(t *rapid.T) []usage.Attempt {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) usage.Attempt {
		features := map[string]float64{
			usage.InputBytes: rapid.Float64Range(0, 1e12).Draw(t, "input"),
			length:           rapid.SampledFrom([]float64{0, 1, 7, 1e9}).Draw(t, "length"),
		}
		return usage.Attempt{
			Peak: rapid.Float64Range(1, 1e15).Draw(t, "peak"), Exceeded: rapid.Bool().Draw(t, "exceeded"),
			Features: known(features),
		}
	}), 0, 150).Draw(t, "attempts")
}

func TestANeedIsAlwaysANumberAndCoversMostOfWhatWasSeen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := following()
		for _, a := range attempts(t) {
			h.Add(a)
		}
		need, ok := usage.Learn(h, usual, usage.Term{})
		if !ok {
			return
		}
		for _, value := range []float64{need.Base, need.Term.PerUnit, need.Low, need.Mid, need.High, need.Bound, need.Limit} {
			if math.IsNaN(value) || math.IsInf(value, 0) || value < 0 {
				t.Fatalf("got %+v, want finite numbers of 0 or more", need)
			}
		}
		if need.Base+need.Term.PerUnit <= 0 || need.Limit < need.Bound {
			t.Fatalf("got %+v, want a need of something and a limit above its bound", need)
		}
	})
}

func TestTwiceThePeaksNeedTwiceTheLimit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		one, two := following(), following()
		for _, a := range attempts(t) {
			one.Add(a)
			a.Peak *= 2
			two.Add(a)
		}
		a, ok := usage.Learn(one, usual, usage.Term{})
		b, _ := usage.Learn(two, usual, usage.Term{})
		if ok && a.Term == (usage.Term{}) && b.Term == (usage.Term{}) &&
			math.Abs(b.Base*b.Limit-2*a.Base*a.Limit) > 1e-6*b.Base*b.Limit {
			t.Fatalf("limits of %g and %g, want the second to be twice the first", a.Base*a.Limit, b.Base*b.Limit)
		}
	})
}

func TestAHistorySurvivesJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		h := following()
		for _, a := range attempts(t) {
			h.Add(a)
		}
		data, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		var twin usage.History
		if err := json.Unmarshal(data, &twin); err != nil {
			t.Fatal(err)
		}
		next := usage.Attempt{Peak: 12345}
		h.Add(next)
		twin.Add(next)
		a, _ := usage.Learn(h, usual, usage.Term{})
		b, _ := usage.Learn(&twin, usual, usage.Term{})
		if diff := cmp.Diff(a, b); diff != "" {
			t.Fatalf("a history that was stored and read learns something else:\n%s", diff)
		}
	})
}

func TestAddingToAFullHistoryAllocatesNothing(t *testing.T) {
	h := following()
	features := known(map[string]float64{usage.InputBytes: 1, length: 2})
	add := func() { h.Add(usage.Attempt{Peak: 100, Features: features}) }
	for range 2 * usage.MaxAttempts {
		add()
	}
	if got := testing.AllocsPerRun(100, add); got > 0 {
		t.Errorf("adding an attempt allocates %v times, want 0", got)
	}
}

func BenchmarkLearn(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	h := following()
	for range usage.MaxAttempts {
		x := mib * (1 + 99*r.Float64())
		h.Add(usage.Attempt{
			Peak:     (50*mib + 8*x) * around(r, 0.02),
			Features: known(map[string]float64{usage.InputBytes: x, length: r.Float64()}),
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		if need, _ := usage.Learn(h, usual, usage.Term{}); need.Explained != usage.InputBytes {
			b.Fatalf("got %+v, want the input", need)
		}
	}
}

func BenchmarkLearnOfManyFeatures(b *testing.B) {
	benchmarkLearn(b, 2, func(f map[string]float64) float64 { return 50 + f["f1"]*f["f2"] + 10*f["f3"] })
}

func BenchmarkLearnOfThreeParts(b *testing.B) {
	benchmarkLearn(b, 3, func(f map[string]float64) float64 {
		return 50 + f["f1"]*f["f2"] + 10*f["f3"] + 5*math.Pow(f["f4"], 1.5)
	})
}

// benchmarkLearn learns what MaxFeatures features, of which so many parts explain peaks in MiB, lead to.
func benchmarkLearn(b *testing.B, parts int, peakOf func(map[string]float64) float64) {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	h := &usage.History{}
	named := map[string]float64{}
	for i := range usage.MaxAttempts {
		for n := range usage.MaxFeatures {
			name := "f" + strconv.Itoa(n)
			named[name] = math.Exp(3 * r.Float64())
			h.Follow(name)
		}
		peak := peakOf(named) * mib * around(r, 0.05)
		h.Add(usage.Attempt{Peak: peak, Exceeded: i%9 == 3, Features: known(named)})
	}
	b.ReportAllocs()
	for b.Loop() {
		need, _ := usage.Learn(h, usual, usage.Term{})
		if got := strings.Count(need.Explained, "f"); got < parts {
			b.Fatalf("got %+v, want an explanation by %d features", need, parts)
		}
	}
}

// A task ran out of memory before anybody followed what its input says; its retry shows what it took.
func TestAKillIsExplainedByARetryThatTellsMore(t *testing.T) {
	t.Parallel()
	h := following()
	for i := range usage.MaxAttempts + 7 {
		h.Add(usage.Attempt{Peak: 100 * mib, Features: usage.Features{Input: float64(i)}})
	}
	h.Add(usage.Attempt{Peak: 200 * mib, Exceeded: true, Features: usage.Features{Input: 1e6}})
	h.Add(usage.Attempt{Peak: 100 * mib, Features: usage.Features{Input: 1e6}})
	h.Follow("rows")
	retry := usage.Features{Input: 1e6, Named: map[string]float64{"rows": 5}}
	h.Add(usage.Attempt{Peak: 300 * mib, Features: retry})
	if h.Exceeded != 0 || h.Unmet() != 0 {
		t.Errorf("the limit that was not enough is still one that nothing has passed: %b", h.Exceeded)
	}
	h.Add(usage.Attempt{Peak: 310 * mib, Exceeded: true, Features: usage.Features{Input: 1e6}})
	h.Add(usage.Attempt{Peak: 320 * mib, Features: retry})
	if h.Exceeded == 0 {
		t.Error("an attempt of a task with rows is taken for the retry of one without")
	}
}
