package usage_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// program is an attempt that waits, computes on one core, and computes on as many as it gets of its threads, for these
// seconds with one core each.
type program struct {
	waits, serial, parallel float64
	threads                 float64
	even                    bool // waits so often that no limit above its mean holds it back
}

// run is how long it takes with so many cores, how many of them it uses, and for which part it is held back.
func (p program) run(cores float64) (seconds, rate, held float64) {
	one, many := max(1, 1/cores), 1/min(cores, p.threads)
	serial, parallel := p.serial*one, p.parallel*many
	heldFor := serial - p.serial + max(0, p.threads-cores)*parallel
	seconds = p.waits + serial + parallel
	if used := p.serial + p.parallel; p.even && cores < 1 {
		seconds = max(p.waits+used, used/cores)
		heldFor = max(0, seconds-p.waits-used)
	}
	return seconds, (p.serial + p.parallel) / seconds, heldFor / seconds
}

var programs = map[string]program{
	"one thread":               {serial: 2, threads: 1},
	"two threads":              {parallel: 2, threads: 2},
	"mostly two threads":       {serial: 0.2, parallel: 1.8, threads: 2},
	"half of it two threads":   {serial: 1, parallel: 1, threads: 2},
	"a collector of garbage":   {serial: 1.6, parallel: 0.4, threads: 2},
	"waits half of its time":   {waits: 1, serial: 1, threads: 1},
	"waits often":              {waits: 1, serial: 1, threads: 1, even: true},
	"waits most of its time":   {waits: 1.8, serial: 0.2, threads: 1},
	"reads, then two threads":  {waits: 0.5, serial: 0.2, parallel: 1.3, threads: 2},
	"waits all of its time":    {waits: 2, threads: 1},
	"one thread, a little one": {waits: 0.1, serial: 1.9, threads: 1},
}

// plain is a speed that is written with all its parts.
type plain usage.Speed

// tried adds n attempts of a program with so many cores, whose times are off by about noise.
func tried(tries *usage.Tries, p program, cores float64, n int, noise float64, draw *rand.Rand) {
	for range n {
		seconds, rate, held := p.run(cores)
		off := math.Exp(noise * draw.NormFloat64())
		tries.Add(usage.Try{Cores: cores, Seconds: seconds * off, Rate: rate / off, Held: held}, usage.Features{}, nil)
	}
}

// TestSpeedsAreKnownAfterFiveAttemptsAtOneSizeAndOneAtAnother simulates them, with times off by two percent.
func TestSpeedsAreKnownAfterFiveAttemptsAtOneSizeAndOneAtAnother(t *testing.T) {
	t.Parallel()
	sizes := []float64{0.5, 1, 2}
	for name, p := range programs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			looked, far := 0, 0
			for seed := range uint64(20) {
				draw := rand.New(rand.NewPCG(seed, 1))
				for _, five := range sizes {
					for _, one := range sizes {
						if one == five {
							continue
						}
						var tries usage.Tries
						tried(&tries, p, five, 5, 0.02, draw)
						tried(&tries, p, one, 1, 0.02, draw)
						speed := tries.Learn(usage.Duration{}, true)
						base, _, _ := p.run(1)
						for _, cores := range sizes {
							seconds, _, _ := p.run(cores)
							at, known := speed.At(cores), cores == one || cores == five
							off := math.Abs(at.Mid/(base/seconds) - 1)
							if looked++; off > 0.10 && known {
								far++
							}
							if off > 0.25 {
								t.Errorf("five at %v and one at %v: %.3f times as fast on %v cores, want %.3f\n%+v",
									five, one, at.Mid, cores, base/seconds, plain(speed))
							}
						}
					}
				}
			}
			if far > looked/50 { // noise is twice as large in a ratio, and larger at the size that no ratio is with
				t.Errorf("%d of %d speeds at a size that was seen are off by more than a tenth", far, looked)
			}
		})
	}
}

// TestShortAttemptsAreSlowedLessThanTheirRateSays compares attempts so short that what a limit leaves over in its first
// period is a part of their time.
func TestShortAttemptsAreSlowedLessThanTheirRateSays(t *testing.T) {
	t.Parallel()
	var tries usage.Tries
	for i := range 6 {
		if i < 5 {
			tries.Add(usage.Try{Cores: 1, Seconds: 0.29, Rate: 1}, usage.Features{}, nil)
			continue
		}
		tries.Add(usage.Try{Cores: 0.5, Seconds: 0.48, Rate: 0.6, Held: 0.4}, usage.Features{}, nil)
	}
	if got := tries.Learn(usage.Duration{}, true).At(0.5).Mid; math.Abs(got/0.604-1) > 0.1 {
		t.Errorf("%.3f times as fast on half a core, want 0.604 as measured", got)
	}
}

// TestPeriodsTellWhetherALimitSlowsWhatWaits learns from attempts with a core of their own that use half of it.
func TestPeriodsTellWhetherALimitSlowsWhatWaits(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name            string
		rates           []float64
		active          float64
		half, quarter   float64 // how fast they are with so much of a core
		counted, within float64
	}{
		{"a little of every period", []float64{0.5, 0.5, 0.5}, 1, 1, 0.5, 0.5, 0.03},
		{"in one piece", []float64{0.5, 0.5, 0.5}, 0.5, 1 / 1.5, 1 / 2.5, 1, 0.03},
		{"all of three quarters of the time", []float64{0.75, 0.75, 0.75}, 0.75, 1 / 1.75, 1 / 3.25, 1, 0.03},
		{"a busy host kept them waiting", []float64{0.5, 0.95, 0.5}, 1, 0.6, 0.35, 0.95, 0.15},
	} {
		var tries usage.Tries
		for _, rate := range row.rates {
			tries.Add(usage.Try{Cores: 1, Seconds: 2, Rate: rate, Active: row.active}, usage.Features{}, nil)
		}
		speed := tries.Learn(usage.Duration{}, true)
		if math.Abs(speed.Dense-row.counted) > 1e-9 {
			t.Errorf("%s: they use %v of a period, want %v", row.name, speed.Dense, row.counted)
		}
		for cores, want := range map[float64]float64{0.5: row.half, 0.25: row.quarter} {
			if got := speed.At(cores).Mid; math.Abs(got-want) > row.within {
				t.Errorf("%s: %.3f times as fast on %v of a core, want %.3f\n%+v", row.name, got, cores, want, plain(speed))
			}
		}
	}
}

// TestARunningAttemptCountsUntilOneEnds notes a limit that holds an attempt back, which no other tells.
func TestARunningAttemptCountsUntilOneEnds(t *testing.T) {
	t.Parallel()
	var tries usage.Tries
	tries.Note(1, 1, 0.5, 0)
	if got := tries.HeldBack(0.1); got != 1 {
		t.Errorf("held back by %v cores, want 1", got)
	}
	if speed := tries.Learn(usage.Duration{}, true); speed.Far != 2 {
		t.Errorf("while no attempt has ended the curve is followed to %v cores, want 2", speed.Far)
	}
	tries.Add(usage.Try{Cores: 2, Seconds: 10, Rate: 0.1}, usage.Features{}, nil)
	if got := tries.HeldBack(0.1); got != 1 {
		t.Errorf("after an attempt of another size: held back by %v cores, want 1", got)
	}
	tries.Add(usage.Try{Cores: 1, Seconds: 10, Rate: 0.1}, usage.Features{}, nil)
	if got := tries.HeldBack(0.1); got != 0 {
		t.Errorf("after one of the same size: held back by %v cores, want none", got)
	}
	without := usage.Tries{}
	without.Add(usage.Try{Cores: 1, Seconds: 10, Rate: 0.1}, usage.Features{}, nil)
	before := without.Learn(usage.Duration{}, true)
	without.Note(0.1, 0.1, 0.9, 0)
	if after := without.Learn(usage.Duration{}, true); after != before || without.Attempts != 1 {
		t.Errorf("a phase of an attempt changes what ended ones tell to %+v of %d, want %+v of 1", plain(after),
			without.Attempts, plain(before))
	}
	for range 600 {
		without.Add(usage.Try{Cores: 1, Seconds: 10, Rate: 0.1}, usage.Features{}, nil)
	}
	if got := without.HeldBack(0.1); got != 0 {
		t.Errorf("after 600 more: held back by %v cores, want none", got)
	}
}

// TestOneSizeTellsOfOthers learns from what attempts of one size tell.
func TestOneSizeTellsOfOthers(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		program   string
		at, of    float64
		low, high float64 // between which the speed must be
	}{
		{"one thread", 0.5, 1, 1, 1},
		{"one thread", 0.1, 1, 1, 1},
		{"one thread", 1, 0.5, 0.49, 0.55},
		{"one thread", 1, 2, 0.95, 1.1},
		{"one thread", 2, 0.5, 0.49, 0.55},
		{"two threads", 2, 1, 1, 1},
		{"two threads", 2, 2, 1.7, 2},
		{"two threads", 1, 2, 1.7, 2},
		{"two threads", 0.5, 2, 1.6, 2},
		{"mostly two threads", 1, 2, 1.5, 2},
		{"waits often", 1, 0.5, 0.75, 1},
		{"waits often", 0.5, 0.25, 0.4, 0.7},
		{"waits half of its time", 0.5, 1, 1, 1},
		{"waits all of its time", 1, 0.1, 0.9, 1},
	} {
		var tries usage.Tries
		tried(&tries, programs[row.program], row.at, 8, 0, rand.New(rand.NewPCG(1, 1)))
		speed := tries.Learn(usage.Duration{}, true)
		if got := speed.At(row.of); got.Mid < row.low-1e-9 || got.Mid > row.high+1e-9 {
			t.Errorf("%s, at %v cores: %.3f times as fast on %v, want %v to %v\n%+v",
				row.program, row.at, got.Mid, row.of, row.low, row.high, plain(speed))
		}
	}
}

// TestSpeedsAreToldApartFromInputs gives attempts with more cores larger inputs.
func TestSpeedsAreToldApartFromInputs(t *testing.T) {
	t.Parallel()
	var tries usage.Tries
	var times usage.Times
	times.Follow(usage.InputBytes)
	p := programs["two threads"]
	draw := rand.New(rand.NewPCG(1, 1))
	for i := range 32 {
		cores := 1.0
		if i%4 == 0 {
			cores = 2
		}
		input := (1 + 9*draw.Float64()) * cores
		seconds, rate, held := p.run(cores)
		features := usage.Features{Input: input}
		attempt := usage.Try{Cores: cores, Seconds: seconds * input, Rate: rate, Held: held}
		tries.Add(attempt, features, []string{usage.InputBytes})
		times.AddAt(cores, seconds*input, features)
	}
	duration, speed := usage.LearnTimes(&times, &tries, 1, true)
	if got := speed.At(2).Mid; got < 1.8 || got > 2 {
		t.Errorf("two cores are %v times as fast, want 2\n%+v\n%+v", got, plain(speed), duration)
	}
	expected, _ := duration.At(usage.Features{Input: 5})
	if got := speed.Brought(expected, duration.Cores, 2); math.Abs(got.Mid/5-1) > 0.1 {
		t.Errorf("an input of 5 takes %v s with two cores, want 5", got)
	}
}

// TestNoSpeedIsOutOfBounds draws what hosts may tell, sound or not.
func TestNoSpeedIsOutOfBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var tries usage.Tries
		number := rapid.OneOf(rapid.Float64Range(0, 4), rapid.Float64(), rapid.Just(0.0), rapid.Just(math.NaN()))
		for range rapid.IntRange(0, 40).Draw(rt, "attempts") {
			if rapid.Bool().Draw(rt, "runs") {
				tries.Note(number.Draw(rt, "cores"), number.Draw(rt, "rate"), number.Draw(rt, "held"), 0)
				continue
			}
			tries.Add(usage.Try{
				Cores: number.Draw(rt, "cores"), Seconds: number.Draw(rt, "seconds"), Rate: number.Draw(rt, "rate"),
				Held: number.Draw(rt, "held"), Active: number.Draw(rt, "active"),
			}, usage.Features{Input: number.Draw(rt, "input")}, []string{usage.InputBytes})
		}
		speed := tries.Learn(usage.Duration{}, rapid.Bool().Draw(rt, "counted"))
		if len(tries.Sizes) > 4 {
			rt.Fatalf("%d sizes are remembered", len(tries.Sizes))
		}
		before := 0.0
		for _, cores := range []float64{1e-9, 0.01, 0.1, 0.5, 0.9, 1, 1.001, 2, 3, 64, 1e5, 1e9} {
			at := speed.At(cores)
			if !(at.Low > 0) || !(at.Low <= at.Mid*(1+1e-9)) || !(at.Mid <= at.High*(1+1e-9)) || math.IsInf(at.High, 0) {
				rt.Errorf("at %v cores: %+v of %+v", cores, at, plain(speed))
			}
			if speed.Contention == 0 && at.Mid < before*(1-1e-9) {
				rt.Errorf("%v cores are slower (%v) than fewer (%v): %+v", cores, at.Mid, before, plain(speed))
			}
			if cores >= 1 && at.Mid > cores*(1+1e-9) || cores < 1 && at.Mid > 1+1e-9 {
				rt.Errorf("%v times as fast with %v cores: %+v", at.Mid, cores, plain(speed))
			}
			before = at.Mid
		}
		if far := max(1, speed.Far); far > 2*max(1, speed.Most) || speed.Known() && speed.At(far).Mid != speed.At(8*far).Mid {
			rt.Errorf("%v cores are followed, where %v were seen: %+v", 8*speed.Far, speed.Most, plain(speed))
		}
	})
}

func BenchmarkLearnSpeed(b *testing.B) {
	var tries usage.Tries
	draw := rand.New(rand.NewPCG(1, 1))
	for _, cores := range []float64{0.25, 0.5, 1, 2} {
		tried(&tries, programs["mostly two threads"], cores, 8, 0.02, draw)
	}
	b.ReportAllocs()
	for b.Loop() {
		if speed := tries.Learn(usage.Duration{}, true); !speed.Known() {
			b.Fatal("nothing was learned")
		}
	}
}
