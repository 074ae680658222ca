package size_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/size"
)

// peaks are as many MiB.
func peaks(mebibytes ...float64) []float64 {
	bytes := make([]float64, len(mebibytes))
	for i, m := range mebibytes {
		bytes[i] = m * float64(quantity.MiB)
	}
	return bytes
}

func guessed(p size.Prior, own size.Experience, grown quantity.Bytes) quantity.Bytes {
	return size.Sizing{}.Guessed(p, own, 0, grown, quantity.MiB).Base.Memory
}

// The grant of a stage whose attempts take 40 MiB closes in on them with each that ends.
func TestAGuessClosesInWithEachAttempt(t *testing.T) {
	t.Parallel()
	prior := size.WeakPrior("python3", nil)
	before := guessed(prior, size.Experience{}, 0)
	if before != 32*quantity.MiB {
		t.Errorf("a stage of which nothing is known begins with %s, want what half of them take, 32 MiB", before)
	}
	before = quantity.TiB
	for n := 1; n <= 4; n++ {
		own := size.ExperienceOf(peaks(40, 41, 39, 40)[:n])
		got := guessed(prior, own, 0)
		if got >= before || got < 40*quantity.MiB || got > 64*quantity.MiB {
			t.Errorf("after %d attempts of 40 MiB: got %s, want less than %s, and 40 to 64 MiB", n, got, before)
		}
		before = got
	}
	wide := guessed(prior, size.ExperienceOf(peaks(10, 160, 20, 80)), 0)
	if wide < 64*quantity.MiB {
		t.Errorf("after attempts of 10 to 160 MiB: got %s, want more than for those that are alike", wide)
	}
}

// What stages that are alike take is where another begins: nearer to those that have more in common with it.
func TestAGuessBeginsWithWhatIsAlike(t *testing.T) {
	t.Parallel()
	large := []size.Experience{
		size.ExperienceOf(peaks(900, 1000)), size.ExperienceOf(peaks(1100)), size.ExperienceOf(peaks(1500, 1400, 1450)),
	}
	small := []size.Experience{
		size.ExperienceOf(peaks(10)), size.ExperienceOf(peaks(12, 11)), size.ExperienceOf(peaks(14)),
	}
	weak := size.WeakPrior("python3", nil)
	like := weak.Learn("of any app", large).Learn("of digits", small)
	if got := guessed(like, size.Experience{}, 0); got > 150*quantity.MiB {
		t.Errorf("like three small stages of its app: got %s, want less than 150 MiB", got)
	}
	got := guessed(weak.Learn("of any app", large), size.Experience{}, 0)
	if got < 400*quantity.MiB || got > 2*quantity.GiB {
		t.Errorf("like three large stages of other apps: got %s, want about what they take", got)
	}
	sizing := size.Sizing{}.Guessed(like, size.Experience{}, 0, 0, 0)
	if !strings.HasPrefix(sizing.Source, "no history; like 3 other stages of digits, and less so 3 more: ") ||
		!sizing.Guess || !sizing.Grows() || sizing.Expected.Ratio.Mid != 1 {
		t.Errorf("got %+v, want a guess that says what it rests on", sizing)
	}
}

// A size that is held above what is thought says why: "5.3 MiB" is no reason for 512 MiB.
func TestAGuessThatRanOutOfMemorySaysSo(t *testing.T) {
	t.Parallel()
	prior := size.WeakPrior(fact.GoProgram, nil)
	sizing := size.Sizing{Floor: 512 * quantity.MiB}.Guessed(prior, size.ExperienceOf(peaks(5)), 0, 0, 0)
	if want := "; but one ran out of memory, so at least 512 MiB"; !strings.HasSuffix(sizing.Source, want) {
		t.Errorf("it rests on %q, want %q at its end", sizing.Source, want)
	}
	plain := (size.Sizing{}).Guessed(prior, size.ExperienceOf(peaks(5)), 0, 0, 0)
	if strings.Contains(plain.Source, "but") {
		t.Errorf("nothing ran out of memory: %q", plain.Source)
	}
}

// An attempt that runs and has grown beyond what was thought of it tells that the next will, too.
func TestAnAttemptThatGrowsTeachesBeforeItEnds(t *testing.T) {
	t.Parallel()
	prior := size.WeakPrior(fact.GoProgram, nil)
	if got := guessed(prior, size.Experience{}, 800*quantity.MiB); got < 600*quantity.MiB || got > 2*quantity.GiB {
		t.Errorf("while one runs that has grown to 800 MiB: got %s, want about as much", got)
	}
	own := size.ExperienceOf(peaks(100, 100))
	if got, before := guessed(prior, own, 800*quantity.MiB), guessed(prior, own, 0); got <= before {
		t.Errorf("after two of 100 MiB, while one runs that has grown to 800 MiB: got %s, want more than %s", got, before)
	}
	if got, before := guessed(prior, own, 50*quantity.MiB), guessed(prior, own, 0); got != before {
		t.Errorf("an attempt that has taken less than others until now: got %s, want %s as without it", got, before)
	}
}

// An input that is larger than those that were measured is given more, by what it has beyond them.
func TestAGuessGrowsWithWhatAnInputHasBeyondTheLargestMeasured(t *testing.T) {
	t.Parallel()
	host := quantity.Size{CPU: quantity.Core, Memory: quantity.TiB}
	own := size.ExperienceOf(peaks(40))
	at := func(largest, input quantity.Bytes) quantity.Bytes {
		s := size.Sizing{}.Guessed(size.WeakPrior("python3", nil), own, largest, 0, 16*quantity.MiB)
		got, expected, _ := s.For(size.Need{Input: input}, host)
		if !(expected.Memory.Low > 0 && expected.Memory.Low <= expected.Memory.Mid &&
			expected.Memory.Mid <= expected.Memory.High) {
			t.Errorf("with an input of %s: %+v is expected", input, expected.Memory)
		}
		return got.Memory
	}
	usual := at(quantity.MiB, quantity.MiB)
	if got := at(quantity.MiB, 0); got != usual || got < 40*quantity.MiB || got > 80*quantity.MiB {
		t.Errorf("after one of 40 MiB at 1 MiB: got %s without an input and %s with the same, want 40 to 80 MiB", got, usual)
	}
	if got, want := at(quantity.MiB, 2*quantity.GiB), usual+2*quantity.GiB-quantity.MiB; got != want {
		t.Errorf("after one of 40 MiB at 1 MiB: got %s for 2 GiB, want %s", got, want)
	}
	if got := at(quantity.GiB, quantity.GiB); got != usual {
		t.Errorf("after one of 40 MiB at 1 GiB: got %s for as much, want %s", got, usual)
	}
	if got := at(quantity.GiB, 2*quantity.GiB); got <= usual || got > 2*usual {
		t.Errorf("after one of 40 MiB at 1 GiB: got %s for twice that, want more than %s, and not twice that", got, usual)
	}
}

// Half of the attempts of stages that are drawn as the model says, and of which nothing is known, have enough from the
// start, and three of four once one has ended.
func TestThreeOfFourFirstAttemptsHaveEnough(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	for known := range 5 {
		enough, stages := 0, 4000
		for range stages {
			prior := size.WeakPrior("", nil)
			mean := prior.Mean + math.Sqrt(prior.Between)*r.NormFloat64()
			draw := func() float64 { return math.Exp(mean + math.Sqrt(prior.Within)*r.NormFloat64()) }
			own := make([]float64, known)
			for i := range own {
				own[i] = draw()
			}
			if float64(guessed(prior, size.ExperienceOf(own), 0)) >= draw() {
				enough++
			}
		}
		want := 0.75
		if known == 0 {
			want = 0.5
		}
		if share := float64(enough) / float64(stages); share < want-0.04 || share > want+0.05 {
			t.Errorf("after %d attempts: %.3f have enough, want about %.2f", known, share, want)
		}
	}
}

// What a program imports tells what it takes before anything was measured.
func TestAStageOfWhichNothingIsKnownBeginsWithWhatItsProgramAndItsModulesTake(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		program string
		imports []string
		want    quantity.Bytes
	}{
		{"python3", nil, 32},
		{"python3", []string{}, 12},
		{"python3", []string{"requests"}, 32},
		{"python3", []string{"numpy", "requests"}, 64},
		{"python3", []string{"numpy", "torch"}, 300},
		{"sh", nil, 4},
		{"java", nil, 32},
		{fact.GoProgram, nil, 12},
	} {
		got := guessed(size.WeakPrior(test.program, test.imports), size.Experience{}, 0)
		if got/quantity.MiB != test.want && got/quantity.MiB != test.want+1 { // rounded up
			t.Errorf("%s that imports %q: got %s, want %d MiB", test.program, test.imports, got, test.want)
		}
	}
}

func TestTheLeastLimitIsHalfAsMuchAgainAsSmallAttemptsTake(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		largest float64
		fixed   bool
		want    quantity.Bytes
	}{{0, false, 16}, {0.6, false, 1}, {0.9, false, 2}, {1.4, false, 3}, {6, false, 9}, {11, false, 16}, {1, true, 16}} {
		largest := quantity.Bytes(test.largest * float64(quantity.MiB))
		if got := size.Least(largest, test.fixed); got != test.want*quantity.MiB {
			t.Errorf("%s at most, fixed %v: got %s, want %d MiB", largest, test.fixed, got, test.want)
		}
	}
}

func TestAnyExperienceGivesAGuess(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		value := rapid.SampledFrom([]float64{0, -1, 1, 1e7, 1e15, 1e300, math.Inf(1), math.NaN()})
		experience := rapid.Custom(func(t *rapid.T) size.Experience {
			return size.ExperienceOf(rapid.SliceOfN(value, 0, 6).Draw(t, "peaks"))
		})
		prior := size.WeakPrior(rapid.SampledFrom([]string{"", "go", "python3"}).Draw(t, "program"), nil).
			Learn("of any app", rapid.SliceOfN(experience, 0, 6).Draw(t, "any")).
			Learn("of app", rapid.SliceOfN(experience, 0, 6).Draw(t, "app"))
		grown := quantity.Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "grown"))
		largest := quantity.Bytes(rapid.Int64Range(0, 1<<50).Draw(t, "largest input"))
		got := size.Sizing{}.Guessed(prior, experience.Draw(t, "own"), largest, grown,
			16*quantity.MiB)
		at := got.Expected.At(size.Need{}.Values())
		if got.Base.Memory < 16*quantity.MiB || float64(got.Base.Memory) > 2*size.MostMemory ||
			!(at.Low <= at.Mid && at.Mid <= at.High) || math.IsInf(at.High, 0) {
			t.Fatalf("got %+v, expected %+v", got, at)
		}
	})
}
