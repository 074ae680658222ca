package usage

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var midnight = time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)

// minute is the observation of a use in the i-th minute.
func minute(i int, use float64) Observation {
	return Observation{At: midnight.Add(time.Duration(i) * time.Minute), Value: use}
}

func newSelector(tb testing.TB, options SelectorOptions) *Selector {
	tb.Helper()
	s, err := NewSelector(options)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// bursts is the use of a container: a base, noise, and a burst of up to a fifth every 47 ticks.
func bursts(random *rand.Rand, ticks int) []float64 {
	uses := make([]float64, ticks)
	for i := range uses {
		uses[i] = 100 + 2*random.Float64()
		if i%47 == 0 {
			uses[i] += 20 * random.Float64()
		}
	}
	return uses
}

func TestTheFirstLimitHoldsUntilEnoughIsKnown(t *testing.T) {
	t.Parallel()
	s := newSelector(t, SelectorOptions{First: 1000, Warm: 10})
	for i := range 9 {
		if got := s.Limit(); got.Value != 1000 || got.Model != (WindowModel{}) || got.Samples != i {
			t.Fatalf("after %d observations the limit is %+v, want the first limit of 1000", i, got)
		}
		s.Observe(minute(i, 100))
	}
	s.Observe(minute(9, 100))
	if got := s.Limit(); got.Value >= 1000 || got.Value <= 100 {
		t.Errorf("after 10 observations of 100 the limit is %v, want one between", got)
	}
}

func TestAFirstLimitThatWasTooLittleIsLeftAtOnce(t *testing.T) {
	t.Parallel()
	s := newSelector(t, SelectorOptions{First: 50})
	s.Observe(minute(0, 80))
	if got := s.Limit().Value; got != 160 {
		t.Errorf("a use of 80 above the first limit of 50 gives %v, want twice the use", got)
	}
}

func TestWithoutAFirstLimitTwiceTheLargestUseStandsIn(t *testing.T) {
	t.Parallel()
	var s Selector
	if got := s.Limit(); got != (Limit{}) {
		t.Errorf("before any use the limit is %+v, want none", got)
	}
	s.Observe(minute(0, 80))
	if got := s.Limit().Value; got != 160 {
		t.Errorf("after a use of 80 the limit is %v, want 160", got)
	}
}

func TestMarginsShrinkWithEvidence(t *testing.T) {
	t.Parallel()
	var s Selector
	margins := map[int]float64{}
	for i := range 3000 {
		s.Observe(minute(i, 100))
		margins[i+1] = s.Limit().Value/100 - 1
	}
	for _, c := range []struct {
		after       int
		least, most float64
	}{{1, 1, 1}, {30, 0.15, 0.5}, {100, 0.0099, 0.1001}, {3000, 0.0099, 0.0101}} {
		if got := margins[c.after]; got < c.least || got > c.most {
			t.Errorf("after %d ticks without a change the margin is %.3f, want %v to %v", c.after, got, c.least, c.most)
		}
	}
	for i := 2; i <= 3000; i++ {
		if margins[i] > margins[i-1]+1e-9 {
			t.Errorf("the margin grew from %.3f to %.3f at tick %d though nothing happened", margins[i-1], margins[i], i)
		}
	}
}

func TestUsesThatJumpKeepALargerMargin(t *testing.T) {
	t.Parallel()
	limitAfter := func(jump float64) float64 {
		var s Selector
		level := 100.0
		for i := range 1500 {
			if i%100 == 99 {
				level *= 1 + jump
			}
			s.Observe(minute(i, level))
		}
		return s.Limit().Value / level
	}
	if calm, jumpy := limitAfter(0.001), limitAfter(0.08); jumpy < calm+0.05 {
		t.Errorf("with jumps of 8%% the limit is %.3f of the use, with 0.1%% %.3f: want at least 0.05 more", jumpy, calm)
	}
}

func TestALimitIsFiniteAndNotNegativeWhateverIsObserved(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s Selector
		for range rapid.IntRange(0, 120).Draw(t, "observations") {
			o := Observation{
				At:       midnight.Add(time.Duration(rapid.Int64().Draw(t, "time"))),
				Value:    rapid.Float64().Draw(t, "value"),
				Exceeded: rapid.Bool().Draw(t, "exceeded"),
			}
			s.Observe(o)
			if got := s.Limit().Value; !(got >= 0) || math.IsInf(got, 0) {
				t.Fatalf("after %+v the limit is %v", o, got)
			}
		}
	})
}

func TestSeriesInOtherUnitsGetTheSameLimitsInThem(t *testing.T) {
	t.Parallel()
	for _, options := range []SelectorOptions{{First: 200}, {First: 200, OverCost: CPUOverCost}} {
		scaled := options
		const unit = 1 << 20 // a power of two, so that rounding is the same
		scaled.First *= unit
		a, b := newSelector(t, options), newSelector(t, scaled)
		for i, use := range bursts(rand.New(rand.NewPCG(3, 4)), 2000) {
			a.Observe(minute(i, use))
			b.Observe(minute(i, use*unit))
			if got, want := b.Limit().Value, a.Limit().Value*unit; math.Abs(got-want) > 1e-6*want {
				t.Fatalf("at tick %d the limit in MiB is %v, in bytes %v", i, want/unit, got)
			}
		}
	}
}

func TestAnExceededLimitRaisesAndNeverLowers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := Selector{options: SelectorOptions{OverCost: rapid.SampledFrom([]float64{0, CPUOverCost}).Draw(t, "price")}}
		for i, use := range rapid.SliceOfN(rapid.Float64Range(0, 100), 1, 80).Draw(t, "uses") {
			s.Observe(minute(i, use))
		}
		before, at := s.Limit().Value, rapid.Float64Range(0, 200).Draw(t, "exceeded")
		when := minute(rapid.IntRange(0, 200).Draw(t, "minute"), at) // it may come late
		when.Exceeded = true
		if !s.Observe(when) {
			t.Fatalf("an exceeded limit of %v was left out", at)
		}
		if got := s.Limit().Value; got < before || got < at*raised {
			t.Fatalf("after %v was exceeded the limit went from %v to %v, want at least %v", at, before, got, at*raised)
		}
	})
}

func TestAMaximumIsNeverAdvisedBelowTheNewestUse(t *testing.T) {
	t.Parallel()
	var s Selector
	for i, use := range bursts(rand.New(rand.NewPCG(5, 6)), 3000) {
		s.Observe(minute(i, use))
		if limit := s.Limit(); limit.Model.Percentile == 1 && limit.Value < use {
			t.Fatalf("at tick %d the use is %v and the limit %+v", i, use, limit)
		}
	}
}

func TestAHigherPriceOfTicksOverMeansFewerOfThem(t *testing.T) {
	t.Parallel()
	uses := bursts(rand.New(rand.NewPCG(7, 8)), 6000)
	var overs []int
	for _, price := range []float64{1, 10, 100, 1000} {
		s, over := newSelector(t, SelectorOptions{OverCost: price}), 0
		for i, use := range uses {
			if i >= 30 && use > s.Limit().Value {
				over++
			}
			s.Observe(minute(i, use))
		}
		if len(overs) > 0 && over > overs[len(overs)-1] {
			t.Errorf("price %v: %d ticks over, with the price before %d", price, over, overs[len(overs)-1])
		}
		overs = append(overs, over)
	}
	if overs[0] <= overs[3] {
		t.Errorf("ticks over at rising prices: %v, want fewer at the highest", overs)
	}
}

func TestASmallGainIsWaitedForAndALargeOneTaken(t *testing.T) {
	t.Parallel()
	resizes := func(next func(i int) float64) (count int) {
		var s Selector
		var held float64
		for i := range 24 * 60 {
			s.Observe(minute(i, next(i)))
			if limit := s.Limit().Value; i >= 120 && math.Abs(limit-held) > 0.01*held {
				held = limit
				count++
			}
		}
		return count
	}
	random := rand.New(rand.NewPCG(9, 10))
	if got := resizes(func(int) float64 { return 100 + 5*random.Float64() }); got > 20 {
		t.Errorf("noise of 5%% made %d resizes in a day, want at most 20", got)
	}
	var s Selector
	fallen := 0
	for i := range 600 {
		use := 100.0
		if i >= 300 {
			use = 10
		}
		s.Observe(minute(i, use))
		if fallen == 0 && i >= 300 && s.Limit().Value < 20 {
			fallen = i - 300
		}
	}
	if fallen == 0 || fallen > 180 {
		t.Errorf("after the use fell to a tenth the limit followed in %d minutes, want within 180", fallen)
	}
}

func TestAGapAgesNothing(t *testing.T) {
	t.Parallel()
	var without, with Selector
	for i, use := range bursts(rand.New(rand.NewPCG(11, 12)), 500) {
		late := minute(i, use)
		if i >= 250 {
			late.At = late.At.Add(24 * time.Hour)
		}
		without.Observe(minute(i, use))
		with.Observe(late)
	}
	if a, b := without.Limit().Value, with.Limit().Value; math.Abs(a-b) > 0.02*a {
		t.Errorf("with a gap of a day the limit is %v, without %v", b, a)
	}
	if with.clock-without.clock > pace {
		t.Errorf("the gap counted as %v, want at most %v", with.clock-without.clock, pace)
	}
}

func TestAttemptsDaysApartAreJudgedOnTheirNumber(t *testing.T) {
	t.Parallel()
	days, ordered := newSelector(t, SelectorOptions{Warm: 4}), newSelector(t, SelectorOptions{Warm: 4})
	for i, peak := range bursts(rand.New(rand.NewPCG(13, 14)), 120) {
		days.Observe(Observation{At: midnight.Add(time.Duration(i) * 24 * time.Hour), Value: peak})
		ordered.Observe(Observation{Value: peak}) // no time at all
		if diff := cmp.Diff(days.Limit(), ordered.Limit()); diff != "" {
			t.Fatalf("attempt %d: times of days (-) and no times (+) give different limits:\n%s", i, diff)
		}
	}
	if got := days.Limit().Value; got < 120 || got > 160 {
		t.Errorf("after 120 attempts of 100 to 122 the limit is %v, want 120 to 160", got)
	}
}

func TestWhatIsNoObservationIsLeftOut(t *testing.T) {
	t.Parallel()
	var s Selector
	for i := range 100 {
		s.Observe(minute(i, 100))
	}
	before := encode(t, &s)
	for name, o := range map[string]Observation{
		"not a number": minute(200, math.NaN()), "infinite": minute(200, math.Inf(1)), "negative": minute(200, -1),
		"beyond 1e300": minute(200, 1e301), "the same time": minute(99, 500),
		"before times that can be counted": {At: time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC), Value: 500},
		"after times that can be counted":  {At: time.Date(3000, 1, 1, 0, 0, 0, 0, time.UTC), Value: 500},
	} {
		if s.Observe(o) {
			t.Errorf("%s: %+v was taken in", name, o)
		}
	}
	if s.Observe(minute(50, 500)) {
		t.Error("an observation that came late was taken in")
	}
	s.stale = 0 // that one came late is remembered
	if diff := cmp.Diff(before, encode(t, &s)); diff != "" {
		t.Errorf("what was left out left a trace:\n%s", diff)
	}
}

func TestAClockThatWasSetBackIsBelievedAfterAWhile(t *testing.T) {
	t.Parallel()
	var s Selector
	for i := range 100 {
		s.Observe(minute(1_000_000+i, 100))
	}
	taken := 0
	for i := range 100 {
		if s.Observe(minute(i, 100)) {
			taken++
		}
	}
	if want := 100 - setBack + 1; taken != want {
		t.Errorf("%d of 100 observations by the new clock were taken in, want %d", taken, want)
	}
}

func encode(tb testing.TB, s *Selector) string {
	tb.Helper()
	data, err := json.Marshal(s)
	if err != nil {
		tb.Fatal(err)
	}
	return string(data)
}

func TestAStoredSelectorGoesOnInTheSameWay(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(15, 16))
	s := newSelector(t, SelectorOptions{First: 300, OverCost: 7})
	for i, use := range bursts(random, 1500) {
		s.Observe(minute(i, use))
		if i%211 != 0 {
			continue
		}
		var read Selector
		if err := json.Unmarshal([]byte(encode(t, s)), &read); err != nil {
			t.Fatalf("tick %d: %v", i, err)
		}
		original := *s
		original.maxima.peaks = append([]peak(nil), s.maxima.peaks...)
		for j, later := range bursts(random, 100) {
			read.Observe(minute(i+1+j, later))
			original.Observe(minute(i+1+j, later))
			if diff := cmp.Diff(original.Limit(), read.Limit()); diff != "" {
				t.Fatalf("%d ticks after it was read at tick %d:\n%s", j, i, diff)
			}
		}
		if diff := cmp.Diff(encode(t, &original), encode(t, &read)); diff != "" {
			t.Fatalf("stored again after being read at tick %d:\n%s", i, diff)
		}
	}
}

func TestAStoredSelectorIsSmall(t *testing.T) {
	t.Parallel()
	var s Selector
	value := 1e17
	for i := range 5000 { // ever falling: the most that maxima keep
		value *= 0.9991234567
		s.Observe(minute(i, value))
	}
	if size := len(encode(t, &s)); size > 40<<10 {
		t.Errorf("it takes %d bytes, want at most 40 KiB", size)
	}
}

func TestAStateThatNoSelectorWritesIsRefused(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"negative price":            `{"options":{"over_cost":-1}}`,
		"a limit without a past":    `{"options":{},"limit":3}`,
		"a past without models":     `{"options":{},"samples":3,"limit":3}`,
		"a past that ends too soon": `{"options":{},"samples":1,"charges":[],"weights":[],"maxima":[{"at_ns":1,"value":1}]}`,
	} {
		s := Selector{samples: 7}
		if err := json.Unmarshal([]byte(text), &s); !errors.Is(err, ErrSelectorState) {
			t.Errorf("%s: %v, want an error of ErrSelectorState", name, err)
		}
		if s.samples != 7 {
			t.Errorf("%s: the selector was changed", name)
		}
	}
}

func TestOptionsThatCannotBeMeantAreRefused(t *testing.T) {
	t.Parallel()
	for _, options := range []SelectorOptions{
		{First: math.NaN()},
		{First: -1},
		{First: math.Inf(1)},
		{Warm: -1},
		{OverCost: math.NaN()},
		{OverCost: 1e10},
		{ChangeCost: -0.1},
	} {
		if _, err := NewSelector(options); err == nil {
			t.Errorf("%+v was accepted", options)
		}
	}
}

// TestTheChargesAreThoseOfAReplayOfEachModel replays every model by itself over the whole history: statistics from all
// values, charges as sums of faded terms.
func TestTheChargesAreThoseOfAReplayOfEachModel(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(17, 18))
	uses := bursts(random, 400)
	options := SelectorOptions{First: 500, OverCost: 12, ChangeCost: 0.3, Warm: 20}
	s := newSelector(t, options)
	times, clock := make([]time.Duration, len(uses)), time.Duration(0)
	for i, at := 0, midnight; i < len(uses); i++ {
		step := time.Duration(random.IntN(int(2 * pace)))
		at = at.Add(step)
		if i == 0 {
			step = pace
		}
		clock += min(step, pace)
		times[i] = clock
		if !s.Observe(Observation{At: at, Value: uses[i]}) {
			t.Fatalf("observation %d was left out", i)
		}
	}
	for model := range modelCount {
		var want, held float64
		for i := options.Warm / 2; i < len(uses); i++ {
			base := replayed(windowModel(model), uses[:i], times[:i])
			limit := base * (1 + marginOf(model))
			var cost float64
			switch use := uses[i]; {
			case use > limit:
				cost = options.OverCost
			case use > base:
				cost = (limit-use)/limit + options.OverCost*(use-base)*(use-base)/(limit-base)/(limit-base)
			default:
				cost = (limit - use) / limit
			}
			if math.Abs(limit-held) > changed*held {
				cost += options.ChangeCost
				held = limit
			}
			want += cost * math.Exp2(-float64(clock-times[i])/float64(fading))
		}
		if got := s.charges[model].Cost; math.Abs(got-want) > 1e-6*want {
			t.Errorf("%v was charged %v, want %v", windowModel(model), got, want)
		}
	}
}

// replayed is a model's statistic of a whole history; a percentile is rounded up to its bucket.
func replayed(model WindowModel, uses []float64, times []time.Duration) float64 {
	now, largest := times[len(times)-1], 0.0
	all := make([]weighted, len(uses))
	for i, use := range uses {
		if times[i] > now-model.Window {
			largest = max(largest, use)
		}
		all[i] = weighted{use, math.Exp2(-float64(now-times[i]) / float64(model.Window))}
	}
	if model.Percentile == 1 {
		return largest
	}
	exponent := math.Ceil(math.Log(exactPercentile(all, model.Percentile)/uses[0])/math.Log(bucketGrowth) - 1e-9)
	return uses[0] * math.Pow(bucketGrowth, exponent)
}

func FuzzObserve(f *testing.F) {
	f.Add([]byte{}, 0.0)
	seed := make([]byte, 0, 17*40)
	for i := range 40 {
		seed = binary.LittleEndian.AppendUint64(seed, uint64(i)*uint64(time.Minute))
		seed = binary.LittleEndian.AppendUint64(seed, math.Float64bits(float64(i%7)))
		seed = append(seed, byte(i%13/12))
	}
	f.Add(seed, 10.0)
	f.Fuzz(func(t *testing.T, data []byte, first float64) {
		s, err := NewSelector(SelectorOptions{First: first})
		if err != nil {
			return
		}
		for ; len(data) >= 17; data = data[17:] {
			at, value := binary.LittleEndian.Uint64(data), math.Float64frombits(binary.LittleEndian.Uint64(data[8:]))
			before := s.Limit().Value
			o := Observation{At: time.Unix(0, int64(at)), Value: value, Exceeded: data[16]&1 == 1}
			taken := s.Observe(o)
			switch got := s.Limit().Value; {
			case !(got >= 0) || math.IsInf(got, 0):
				t.Fatalf("after %+v the limit is %v", o, got)
			case !taken && got != before:
				t.Fatalf("%+v was left out, and the limit went from %v to %v", o, before, got)
			case taken && o.Exceeded && got < before:
				t.Fatalf("%+v lowered the limit from %v to %v", o, before, got)
			}
		}
		var read Selector
		if err := json.Unmarshal([]byte(encode(t, s)), &read); err != nil {
			t.Fatalf("what was stored cannot be read: %v", err)
		}
		if diff := cmp.Diff(s.Limit(), read.Limit()); diff != "" {
			t.Fatalf("stored and read:\n%s", diff)
		}
	})
}

func FuzzUnmarshalSelector(f *testing.F) {
	var s Selector
	f.Add([]byte(encode(f, &s)))
	for i := range 50 {
		s.Observe(minute(i, float64(i%5)))
	}
	f.Add([]byte(encode(f, &s)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var s Selector
		if s.UnmarshalJSON(data) != nil {
			return
		}
		for i := range 100 {
			s.Observe(Observation{Value: float64(i)})
			if got := s.Limit().Value; !(got >= 0) || math.IsInf(got, 0) {
				t.Fatalf("after %d observations the limit is %v", i, got)
			}
		}
		encode(t, &s)
	})
}

func TestATickAllocatesNothingInSteadyState(t *testing.T) { // not in parallel: the count is that of the whole process
	var s Selector
	uses, i := bursts(rand.New(rand.NewPCG(19, 20)), 20_000), 0
	for ; i < 15_000; i++ {
		s.Observe(minute(i, uses[i]))
	}
	if got := testing.AllocsPerRun(1000, func() { s.Observe(minute(i, uses[i])); i++; _ = s.Limit() }); got != 0 {
		t.Errorf("a tick allocates %v times", got)
	}
}

func BenchmarkObserve(b *testing.B) {
	var s Selector
	uses, i := bursts(rand.New(rand.NewPCG(21, 22)), 10_000), 0
	b.ReportAllocs()
	for b.Loop() {
		s.Observe(minute(i, uses[i%len(uses)]))
		i++
	}
	if s.Limit().Value < 100 {
		b.Fatalf("the limit is %+v", s.Limit())
	}
}

func ExampleSelector() {
	memory, err := NewSelector(SelectorOptions{First: 4096}) // MiB, as declared
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 1000 {
		memory.Observe(minute(i, 1000+float64(i%10)))
	}
	limit := memory.Limit()
	fmt.Printf("%.0f MiB: %v after %d samples\n", limit.Value, limit.Model, limit.Samples)

	memory.Observe(Observation{At: minute(1000, 0).At, Value: limit.Value, Exceeded: true}) // killed
	fmt.Printf("%.0f MiB after a kill\n", memory.Limit().Value)
	// Output:
	// 1019 MiB: 2h maximum +1% after 1000 samples
	// 1235 MiB after a kill
}
