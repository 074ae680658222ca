package enforce_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	predicted "github.com/spillway-ml/spillway/predictor/usage"
)

// round is one run of a program at each size, one directly after the other.
type round struct {
	tries []predicted.Try // in the order of speedSizes
	// taken is the part of the cores' time that others had meanwhile: other processes of this machine, and other machines
	// on the same processor (steal). It is the most that any of the runs met.
	taken float64
}

const (
	// quietRounds is how many rounds a speed rests on, mostRounds how many are made until as many were quiet.
	quietRounds, mostRounds = 15, 30
	// mostTaken is the part of the cores' time that others may have in a round that is quiet: a run that shares its core
	// for as long is that much slower.
	mostTaken = 0.05
	// knownWithin is how wide the 95 percent confidence interval of a measured speed may be, as a part of it: predictions
	// that are to be within a tenth cannot be judged by a speed that is not known to a tenth.
	knownWithin = 0.10
	// resamplings is how often rounds are drawn again for that interval: enough for its ends to a hundredth of its width.
	resamplings = 2000
)

// quietest are the rounds in which others had least, in the order in which they were made: as many as are quiet, and at
// least quietRounds. Loud is how many of them are not quiet.
func quietest(rounds []round) (kept []round, loud int) {
	order := slices.Clone(rounds)
	slices.SortStableFunc(order, func(a, b round) int { return int(math.Copysign(1, a.taken-b.taken)) })
	limit := order[min(len(order), quietRounds)-1].taken
	for _, r := range rounds {
		if r.taken <= max(limit, mostTaken) {
			kept = append(kept, r)
			if r.taken > mostTaken {
				loud++
			}
		}
	}
	return kept, loud
}

// speed is how many times as fast a program is at a size as with one core, and the 95 percent confidence interval.
type speed struct{ low, mid, high float64 }

// resolved reports whether the speed is known well enough to judge predictions by.
func (s speed) resolved() bool { return s.high-s.low <= knownWithin*s.mid }

// speedOf is the ratio of the medians of the times at one core and at another size, each by its place in a round. Its
// interval is that of the ratios of rounds that are drawn again with replacement (Efron and Tibshirani, An Introduction
// to the Bootstrap, 1993, chapter 13): whole rounds, so that what the machine did meanwhile stays with both.
func speedOf(rounds []round, one, at int) speed {
	ratio := func(rounds []round) float64 {
		times := func(place int) float64 {
			seconds := make([]float64, len(rounds))
			for i, r := range rounds {
				seconds[i] = r.tries[place].Seconds
			}
			slices.Sort(seconds)
			return (seconds[(len(seconds)-1)/2] + seconds[len(seconds)/2]) / 2
		}
		return times(one) / times(at)
	}
	draw := rand.New(rand.NewPCG(uint64(one), uint64(at)))
	ratios, again := make([]float64, resamplings), make([]round, len(rounds))
	for i := range ratios {
		for k := range again {
			again[k] = rounds[draw.IntN(len(rounds))]
		}
		ratios[i] = ratio(again)
	}
	slices.Sort(ratios)
	return speed{ratios[resamplings/40], ratio(rounds), ratios[resamplings-1-resamplings/40]}
}

// meter measures what others take of the cores.
type meter struct {
	began time.Time
	busy  time.Duration // of all cores since the machine started
	cores int
}

// readMeter reads how long all cores were busy, or taken away.
func readMeter() (m meter, err error) {
	m.began = time.Now()
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return m, err
	}
	m.busy, m.cores, err = busyOf(stat)
	return m, err
}

// busyOf reads /proc/stat: user, nice, system, idle, iowait, irq, softirq and steal of all cores, in hundredths of a
// second (proc_stat(5)); what guests take is in the first two.
func busyOf(stat []byte) (busy time.Duration, cores int, err error) {
	lines := bytes.Split(stat, []byte("\n"))
	fields := bytes.Fields(lines[0])
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return 0, 0, errors.New("/proc/stat does not begin with the times of all cores")
	}
	for i, field := range fields[1:9] {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("/proc/stat: %w", err)
		}
		if i != 3 && i != 4 { // idle, and idle while something waits for a disk
			busy += time.Duration(ticks) * time.Second / 100
		}
	}
	for _, line := range lines[1:] {
		if bytes.HasPrefix(line, []byte("cpu")) {
			cores++
		}
	}
	return busy, cores, nil
}

// taken is the part of the cores' time since then that was not idle and that own does not account for.
func (m meter) taken(now meter, own time.Duration) float64 {
	all := now.began.Sub(m.began).Seconds() * float64(m.cores)
	if all <= 0 {
		return 0
	}
	return min(max(0, (now.busy-m.busy-own).Seconds()/all), 1)
}

// madeUp are rounds of a program that is so many times as fast on two cores, in which others slow runs down.
func madeUp(draw *rand.Rand, count int, faster, noise float64, every int) []round {
	rounds := make([]round, count)
	for i := range rounds {
		r := round{taken: 0.01}
		slower := 1.0
		if every > 0 && i%every == 0 {
			slower, r.taken = 1.5, 0.3
		}
		for _, alone := range []float64{2, 1, 1 / faster} {
			r.tries = append(r.tries, predicted.Try{Seconds: alone * slower * math.Exp(noise*draw.NormFloat64())})
			slower = 1 // others met the first of the runs only
		}
		rounds[i] = r
	}
	return rounds
}

// The interval of a speed holds it nineteen times of twenty, and says by how much a noisy machine leaves it unknown.
func TestASpeedIsKnownAsWellAsItsRoundsTell(t *testing.T) {
	t.Parallel()
	draw := rand.New(rand.NewPCG(1, 2))
	for _, test := range []struct {
		noise    float64
		resolved bool
	}{{0.01, true}, {0.30, false}} {
		within, resolved := 0, 0
		const times = 100
		for range times {
			got := speedOf(madeUp(draw, quietRounds, 1.8, test.noise, 0), 1, 2)
			if got.low <= 1.8 && got.high >= 1.8 {
				within++
			}
			if got.resolved() {
				resolved++
			}
		}
		if within < 85 {
			t.Errorf("noise of %g: %d of %d intervals hold the speed, want about 95", test.noise, within, times)
		}
		if test.resolved != (resolved > times/2) {
			t.Errorf("noise of %g: %d of %d speeds are known within a tenth, want most: %v", test.noise, resolved, times,
				test.resolved)
		}
	}
}

// Rounds in which others took the cores are made again, and left out where there are enough quiet ones.
func TestASpeedRestsOnQuietRounds(t *testing.T) {
	t.Parallel()
	draw := rand.New(rand.NewPCG(3, 4))
	rounds := madeUp(draw, 24, 1.8, 0.01, 3)
	kept, loud := quietest(rounds)
	if len(kept) != 16 || loud != 0 {
		t.Errorf("of 24 rounds, 8 of which are loud: %d are kept and %d of them loud, want the 16 that are quiet", len(kept),
			loud)
	}
	if got := speedOf(kept, 1, 0); math.Abs(got.mid-0.5) > 0.01 {
		t.Errorf("at half a core: %.3f times as fast, want 0.5, as nobody else was there", got.mid)
	}
	if kept, loud = quietest(madeUp(draw, quietRounds, 1.8, 0.01, 1)); len(kept) != quietRounds || loud != quietRounds {
		t.Errorf("where all are loud: %d kept, %d loud, want all %d", len(kept), loud, quietRounds)
	}
}

func TestWhatOthersTakeIsReadFromTheTimesOfTheCores(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 24, 0, 0, 0, 0, time.UTC)
	read := func(line string, after time.Duration) meter {
		busy, cores, err := busyOf([]byte(line + "\ncpu0 1 1 1 1\ncpu1 1 1 1 1\nintr 5\n"))
		if err != nil {
			t.Fatal(err)
		}
		return meter{at.Add(after), busy, cores}
	}
	before := read("cpu  100 0 50 1000 20 1 1 10 0 0", 0)
	// In two seconds of two cores: 1.5 s of the program, 0.3 s of others and 0.2 s of other machines.
	after := read("cpu  260 10 60 1150 40 1 1 30 0 0", 2*time.Second)
	if got := before.taken(after, 1500*time.Millisecond); math.Abs(got-0.125) > 1e-9 {
		t.Errorf("others took %.3f of the cores, want 0.125", got)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 x 4 5 6 7 8"} {
		if _, _, err := busyOf([]byte(bad)); err == nil {
			t.Errorf("%q is taken for the times of the cores", bad)
		}
	}
}
