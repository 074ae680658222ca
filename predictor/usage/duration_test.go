package usage_test

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// timesOf remembers run times of attempts that are known by their input.
func timesOf(n int, attempt func(i int) (input, seconds float64)) *usage.Times {
	var times usage.Times
	times.Follow(usage.InputBytes)
	for i := range n {
		input, seconds := attempt(i)
		times.Add(seconds, usage.Features{Input: input})
	}
	return &times
}

func learnedOf(tb testing.TB, times *usage.Times) usage.Duration {
	tb.Helper()
	learned, ok := usage.LearnDuration(times, 0)
	if !ok {
		tb.Fatalf("nothing is learned of %+v", times)
	}
	return learned
}

// timeFamily is how run times come about: the input and the seconds of the i-th attempt.
type timeFamily struct {
	name    string
	attempt func(r *rand.Rand, i int) (input, seconds float64)
}

func timeFamilies() []timeFamily {
	input := func(r *rand.Rand) float64 { return 1e6 * math.Exp(3*r.Float64()) }
	noise := func(r *rand.Rand) float64 { return math.Exp(0.1 * r.NormFloat64()) }
	return []timeFamily{
		{"constant", func(r *rand.Rand, _ int) (float64, float64) { return input(r), 10 * noise(r) }},
		{"affine", func(r *rand.Rand, _ int) (float64, float64) { x := input(r); return x, (5 + x/1e6) * noise(r) }},
		{"power", func(r *rand.Rand, _ int) (float64, float64) { x := input(r); return x, math.Pow(x/1e5, 1.5) * noise(r) }},
		{"two modes", func(r *rand.Rand, _ int) (float64, float64) {
			return input(r), []float64{2, 40}[r.IntN(2)] * noise(r)
		}},
		{"heavy tail", func(r *rand.Rand, _ int) (float64, float64) {
			return input(r), math.Pow(1-r.Float64(), -1/1.5)
		}},
		{"drift", func(r *rand.Rand, i int) (float64, float64) {
			x := input(r)
			return x, x / 1e5 * math.Exp(float64(i)/100) * noise(r)
		}},
		{"step", func(r *rand.Rand, i int) (float64, float64) {
			x := input(r)
			return x, x / 1e5 * []float64{1, 10}[min(1, i/60)] * noise(r)
		}},
	}
}

// played is what came of predictions one step ahead: how many of the run times were within their interval, and the
// median of |ln(actual / expected)|.
func (f timeFamily) played(seed uint64) (covered, median float64) {
	const attempts, sequences = 120, 20
	var errors []float64
	for sequence := range sequences {
		r := rand.New(rand.NewPCG(seed, uint64(sequence))) //nolint:gosec // reproducible
		times, width := timesOf(0, nil), 0.0
		for i := range attempts {
			input, seconds := f.attempt(r, i)
			features := usage.Features{Input: input}
			learned, _ := usage.LearnDuration(times, width)
			if told, known := learned.At(features); known {
				errors = append(errors, math.Abs(math.Log(seconds/told.Mid)))
				if told.Low <= seconds && seconds <= told.High {
					covered++
				}
				width = usage.Widened(width, told, seconds)
			}
			times.Add(seconds, features)
		}
	}
	var all usage.Series
	for _, e := range errors {
		all.Push(e, len(errors))
	}
	return covered / float64(len(errors)), all.Quantile(0.5)
}

func TestFourOfFiveRunTimesAreWithinTheirInterval(t *testing.T) {
	t.Parallel()
	for i, f := range timeFamilies() {
		covered, median := f.played(uint64(i))
		most := map[string]float64{"two modes": 4, "heavy tail": 0.6, "drift": 0.15}[f.name]
		if most == 0 {
			most = 0.1 // the median of the noise is 0.067
		}
		t.Logf("%s: %.3f are within, the median error is %.3f", f.name, covered, median)
		if covered < 0.77 || covered > 0.85 {
			t.Errorf("%s: %.3f of the run times are within their interval, want 0.80", f.name, covered)
		}
		if median > most {
			t.Errorf("%s: the median error is %.3f, want at most %.3f", f.name, median, most)
		}
	}
}

func TestARunTimeIsThatOfItsInput(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(x float64) float64{
		"line":                func(x float64) float64 { return 3 + x/1e6 },
		"line through 0":      func(x float64) float64 { return x / 1e6 },
		"line from below 0":   func(x float64) float64 { return (x - 9e5) / 1e4 },
		"falling line":        func(x float64) float64 { return 40 - x/1e6 },
		"square":              func(x float64) float64 { return x * x / 1e12 },
		"root":                math.Sqrt,
		"inverse":             func(x float64) float64 { return 1e8 / x },
		"constant":            func(float64) float64 { return 7 },
		"nearly proportional": func(x float64) float64 { return math.Pow(x/1e6, 1.1) },
	} {
		learned := learnedOf(t, timesOf(32, func(i int) (float64, float64) {
			x := 1e6 * float64(1+i%30)
			return x, of(x)
		}))
		for _, x := range []float64{1e6, 3.3e6, 20e6, 30e6} {
			got, known := learned.At(usage.Features{Input: x})
			if want := of(x); !known || math.Abs(got.Mid-want) > 0.01*want || got.Low > want || got.High < want {
				t.Errorf("%s at %v: got %+v, want %v (%+v)", name, x, got, want, learned)
			}
		}
	}
}

// An attempt whose input is far beyond all that were seen is told the time of the largest that a curve is followed to,
// in an interval that reaches to where the curve leads.
func TestACurveIsNotFollowedFarBeyondWhatWasSeen(t *testing.T) {
	t.Parallel()
	learned := learnedOf(t, timesOf(32, func(i int) (float64, float64) {
		x := 1e6 * float64(1+i%30)
		return x, x / 1e6
	}))
	got, _ := learned.At(usage.Features{Input: 1e9})
	if math.Abs(got.Mid-60) > 1 || got.High < 1000 || got.Low > 60 {
		t.Errorf("a thousand times the smallest input: %+v, want 60 s, that of twice the largest, and up to 1,000", got)
	}
	narrow := learnedOf(t, timesOf(32, func(i int) (float64, float64) {
		x := 1e6 + 1e4*float64(i%10)
		return x, 1 + float64(i%10)
	}))
	if got, _ := narrow.At(usage.Features{Input: 2e6}); got.Mid > 30 || got.High < 90 {
		t.Errorf("twice inputs that differ by a tenth: %+v, want about what came, and up to 100", got)
	}
}

func TestOneRunTimeIsNoPromise(t *testing.T) {
	t.Parallel()
	got, known := learnedOf(t, timesOf(1, func(int) (float64, float64) { return 1e6, 10 })).At(usage.Features{})
	if !known || math.Abs(got.Mid-10) > 1e-6 || got.Low > 5.5 || got.Low < 4 || got.High < 18 || got.High > 25 {
		t.Errorf("after one attempt of 10 s: %+v, want about half to twice", got)
	}
}

// Numbers that tell nothing of the run time, such as that of a shard, do not make predictions worse.
func TestNoiseExplainsNoRunTime(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 8, 16, 32} {
		var with, without float64
		for seed := range uint64(60) {
			r := rand.New(rand.NewPCG(seed, uint64(n))) //nolint:gosec // reproducible
			named := func(i int) map[string]float64 {
				features := map[string]float64{"shard": float64(i)}
				for name := range 6 {
					features[strconv.Itoa(name)] = r.Float64()
				}
				return features
			}
			var known, plain usage.Times
			for _, name := range []string{"shard", "0", "1", "2", "3", "4", "5"} {
				known.Follow(name)
			}
			for i := range n {
				seconds := math.Exp(0.3 * r.NormFloat64())
				known.Add(seconds, usage.Features{Named: named(i)})
				plain.Add(seconds, usage.Features{})
			}
			next, features := math.Exp(0.3*r.NormFloat64()), usage.Features{Named: named(n)}
			for sum, times := range map[*float64]*usage.Times{&with: &known, &without: &plain} {
				got, _ := learnedOf(t, times).At(features)
				*sum += math.Abs(math.Log(next / got.Mid))
			}
		}
		t.Logf("%d attempts: %.3f with, %.3f without", n, with/60, without/60)
		if with > 1.15*without {
			t.Errorf("%d attempts: an error of %.3f with seven features of noise, of %.3f without them", n, with/60, without/60)
		}
	}
}

// What was stored before inputs were remembered is a Series: run times of attempts of which nothing is known. They
// count until enough are known.
func TestASeriesIsReadAsTimesOfUnknownInputs(t *testing.T) {
	t.Parallel()
	var before usage.Series
	for range 32 {
		before.Push(100, 32)
	}
	stored, err := json.Marshal(before)
	if err != nil {
		t.Fatal(err)
	}
	var times usage.Times
	if err := json.Unmarshal(stored, &times); err != nil {
		t.Fatal(err)
	}
	times.Follow(usage.InputBytes)
	if got, _ := learnedOf(t, &times).At(usage.Features{Input: 5}); math.Abs(got.Mid-100) > 1e-6 {
		t.Errorf("got %+v, want the 100 s that came", got)
	}
	for i := range 16 {
		times.Add(float64(1+i), usage.Features{Input: float64(1 + i)})
	}
	if got, _ := learnedOf(t, &times).At(usage.Features{Input: 5}); math.Abs(got.Mid-5) > 0.1 {
		t.Errorf("after sixteen attempts of known inputs: %+v, want 5 s", got)
	}
	again, err := json.Marshal(times)
	if err != nil {
		t.Fatal(err)
	}
	var read usage.Times
	if err := json.Unmarshal(again, &read); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(times, read); diff != "" {
		t.Error(diff)
	}
}

func TestTimesStayWithinTheirBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		number := rapid.OneOf(rapid.Float64(), rapid.Float64Range(0, 1e9), rapid.SampledFrom([]float64{
			0, 1, 5e-324, 1e-300, 1e300, math.MaxFloat64, math.Inf(1), math.Inf(-1), math.NaN(), -1,
		}))
		names := rapid.SampledFrom([]string{"", usage.InputBytes, "a", "b", "c", "d", "e", "f", "g", "h", "i"})
		var times usage.Times
		features := func() usage.Features {
			return usage.Features{
				Input: number.Draw(rt, "input"), Named: rapid.MapOf(names, number).Draw(rt, "features"),
			}
		}
		for range rapid.IntRange(0, 80).Draw(rt, "attempts") {
			times.Follow(names.Draw(rt, "name"))
			times.Add(number.Draw(rt, "seconds"), features())
		}
		if len(times.Values) > usage.MaxTimes || len(times.Names) > usage.MaxFeatures {
			rt.Fatalf("%d run times of %d features are remembered", len(times.Values), len(times.Names))
		}
		learned, ok := usage.LearnDuration(&times, rapid.Float64Range(0, 4).Draw(rt, "width"))
		if ok != (len(times.Values) > 0) {
			rt.Fatalf("%d run times: learned is %t", len(times.Values), ok)
		}
		if _, err := json.Marshal(learned); err != nil {
			rt.Fatalf("%+v cannot travel: %v", learned, err)
		}
		for range 5 {
			got, known := learned.At(features())
			if known && !(0 < got.Low && got.Low <= got.Mid && got.Mid <= got.High && got.High < math.MaxFloat64) {
				rt.Fatalf("%+v expects %+v", learned, got)
			}
		}
	})
}

func TestAddingARunTimeAllocatesNothingOnceFull(t *testing.T) {
	times := timesOf(usage.MaxTimes, func(i int) (float64, float64) { return 1, float64(i) })
	if got := testing.AllocsPerRun(100, func() { times.Add(3, usage.Features{Input: 4}) }); got > 0 {
		t.Errorf("adding allocates %v times", got)
	}
}

func TestTimesThatWereTamperedWithTeachNothing(t *testing.T) {
	t.Parallel()
	for _, stored := range []string{
		`{"values":[1,2],"names":["a"]}`, `{"values":[1,2],"names":["a"],"columns":[[1]]}`, `{"values":[1],"next":7}`,
		`{"values":[1],"next":-1}`,
	} {
		var times usage.Times
		if err := json.Unmarshal([]byte(stored), &times); err != nil {
			t.Fatal(err)
		}
		times.Follow("b")
		times.Add(3, usage.Features{})
		if got, ok := usage.LearnDuration(&times, 1); ok {
			t.Errorf("%s teaches %+v", stored, got)
		}
	}
}

func BenchmarkLearnDuration(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible
	var times usage.Times
	features := usage.Features{Named: map[string]float64{}}
	for range usage.MaxTimes {
		for name := range usage.MaxFeatures {
			times.Follow(strconv.Itoa(name))
			features.Named[strconv.Itoa(name)] = 1 + r.Float64()
		}
		times.Add(1+r.Float64(), features)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := usage.LearnDuration(&times, 1); !ok {
			b.Fatal("nothing is learned")
		}
	}
}

// What is learned travels in plans: no input makes it a number that JSON has no word for.
func TestWhatIsLearnedOfAnyFeatureIsJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var times usage.Times
		var history usage.History
		times.Follow("rows")
		history.Follow("rows")
		times.Follow("kind=")
		history.Follow("kind=")
		anyOf := rapid.OneOf(rapid.Float64(), rapid.Float64Range(1e300, math.MaxFloat64), rapid.Float64Range(1, 1e3))
		for range rapid.IntRange(1, 20).Draw(t, "attempts") {
			rows := anyOf.Draw(t, "rows")
			kind := rapid.SampledFrom([]float64{0, 1, 2, rows}).Draw(t, "kind")
			features := usage.Features{Named: map[string]float64{"rows": rows, "kind=": kind}}
			times.Add(rapid.OneOf(rapid.Just(math.Log(max(rows, 1))), rapid.Float64()).Draw(t, "seconds"), features)
			peak := rapid.Float64Range(1, 1<<50).Draw(t, "peak") // what is believed of any
			history.Add(usage.Attempt{Peak: peak, Features: features})
		}
		duration, _ := usage.LearnDuration(&times, 0)
		need, _ := usage.Learn(&history, usual, usage.Term{})
		expected, _ := duration.At(usage.Features{Named: map[string]float64{"rows": anyOf.Draw(t, "next")}})
		if _, err := json.Marshal([]any{duration, need, expected}); err != nil {
			t.Fatalf("%v: %+v %+v %+v", err, duration, need, expected)
		}
	})
}

// What inputs take in the mean that differ is not what their mean takes: of the square roots of log-normal inputs it is
// less by exp(-s^2/8).
func TestRunTimesOfInputsThatDifferAreTheMeanOfTheCurve(t *testing.T) {
	t.Parallel()
	root := usage.Duration{Attempts: 9, Feature: usage.InputBytes, Power: true, Level: 1, Slope: 0.5, From: 1e-9, To: 1e18}
	line := usage.Duration{Attempts: 9, Feature: usage.InputBytes, Level: 1, Slope: 1e-3, Centre: 1e3, To: 1e18}
	var times usage.Times
	times.Follow(usage.InputBytes)
	times.Add(1, usage.Features{Input: 1e6})
	for _, spread := range []float64{0, 0.3, 1, 1.5} {
		if got, want := root.RelativeOf(times, 4e6, spread), 2*math.Exp(-spread*spread/8); math.Abs(got/want-1) > 0.005 {
			t.Errorf("inputs that vary by %g take %.4g times as long, want %.4g", spread, got, want)
		}
		if got, want := line.RelativeOf(times, 4e6, spread), line.Relative(times, 4e6); math.Abs(got/want-1) > 0.06 {
			t.Errorf("on a line inputs that vary by %g take %.4g times as long, want %.4g", spread, got, want)
		}
	}
}
