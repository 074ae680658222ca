package training

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/exec"
)

// priced is a candidate of so many parts and micro-batches whose fullest part holds peak bytes of capacity.
func priced(parts, microBatches int, seconds, peak, capacity float64) candidate {
	c := candidate{microBatches: microBatches, seconds: seconds}
	for i := range parts {
		c.parts = append(c.parts, part{
			ops: []int{i}, device: exec.Device{ID: strconv.Itoa(i)}, peak: peak, most: peak, capacity: capacity, busy: seconds,
		})
	}
	return c
}

// choiceOf takes a choice among candidates as choose does.
func choiceOf(candidates ...candidate) choice {
	return choice{best: fewest(candidates), fitting: candidates}
}

// names are the numbers of parts and micro-batches of candidates.
func names(candidates []candidate) (all [][2]int) {
	for _, c := range candidates {
		all = append(all, [2]int{len(c.parts), c.microBatches})
	}
	return all
}

func TestWhatComesNearTheBestIsTriedAndTheBestIsLast(t *testing.T) {
	t.Parallel()
	const far = 1 << 20 // steps
	anywhere := math.Inf(1)
	for name, c := range map[string]struct {
		fitting []candidate
		left    int64
		want    [][2]int
	}{
		"nothing comes near": {
			[]candidate{priced(1, 1, 1, 0, anywhere), priced(2, 1, 1.3, 0, anywhere)}, far, [][2]int{{1, 1}},
		},
		"other numbers of parts come before other micro-batches": {
			[]candidate{
				priced(1, 1, 1.02, 0, anywhere), priced(1, 2, 1.05, 0, anywhere), priced(2, 2, 1.2, 0, anywhere),
				priced(2, 4, 1.1, 0, anywhere),
			}, far, [][2]int{{1, 2}, {2, 4}, {1, 1}},
		},
		"other micro-batches where there is nothing else": {
			[]candidate{
				priced(2, 4, 1, 0, anywhere), priced(2, 8, 1.1, 0, anywhere), priced(2, 16, 1.26, 0, anywhere),
			}, far, [][2]int{{2, 8}, {2, 4}},
		},
		"a training that is shorter than a few trials": {[]candidate{priced(1, 1, 1, 0, anywhere)}, 24, nil},
		"one that is just long enough":                 {[]candidate{priced(1, 1, 1, 0, anywhere)}, 25, [][2]int{{1, 1}}},
		"one that is long enough for one trial": {
			[]candidate{priced(1, 1, 1, 0, anywhere), priced(2, 1, 1, 0, anywhere)}, 49, [][2]int{{1, 1}},
		},
		"one that is long enough for two": {
			[]candidate{priced(1, 1, 1, 0, anywhere), priced(2, 1, 1, 0, anywhere)}, 50, [][2]int{{2, 1}, {1, 1}},
		},
		"steps that cost nothing": {[]candidate{priced(1, 1, 0, 0, anywhere)}, far, [][2]int{{1, 1}}},
	} {
		all, _ := setup{}.contenders(choiceOf(c.fitting...), c.left)
		if got := names(all); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

func TestATrialOfALayoutThatTakesLongToLoadOrToSavePaysLater(t *testing.T) {
	t.Parallel()
	c := choiceOf(priced(1, 1, 1, 0, math.Inf(1)), priced(2, 1, 1, 0, math.Inf(1)))
	s := setup{model: model{performances: map[string]performance{"a": {small: rehearsal{load: 10 * time.Second}}}}}
	check := func(left int64, want, wantSteps int) {
		t.Helper()
		if got, steps := s.contenders(c, left); len(got) != want || steps != wantSteps {
			t.Errorf("of %d steps: %d steps of %v", left, steps, names(got))
		}
	}
	check(200, 1, 38) // 40 s for trials, of which loading two parts twice would take all
	check(249, 1, 47)
	check(250, 2, 3)
	check(270, 2, 5)
	check(1<<20, 2, mostTriedSteps)
	c.best.parts = slices.Clone(c.best.parts)
	c.best.parts[0].copied = 100 * written // for 200 s
	check(1024, 0, 0)
	check(1025, 1, leastTriedSteps)
}

// drawCandidates draws one for each of some numbers of parts and micro-batches.
func drawCandidates(t *rapid.T) []candidate {
	var all []candidate
	for parts := 1; parts <= 4; parts++ {
		for _, microBatches := range []int{1, 2, 4} {
			if rapid.Bool().Draw(t, "there") {
				seconds := float64(rapid.IntRange(1, 200).Draw(t, "seconds")) / 100
				peak := float64(rapid.IntRange(1, 100).Draw(t, "peak"))
				all = append(all, priced(parts, microBatches, seconds, peak, 100))
			}
		}
	}
	if len(all) == 0 {
		all = append(all, priced(1, 1, 1, 1, 100))
	}
	return all
}

func TestADiskThatIsFastLetsMoreBeTried(t *testing.T) {
	t.Parallel()
	directory := t.TempDir()
	if rate := writeRate(directory); rate <= 0 {
		t.Fatalf("a directory takes %v bytes a second", rate)
	}
	if left, err := os.ReadDir(directory); err != nil || len(left) > 0 {
		t.Errorf("it has %v, %v", left, err)
	}
	if got := writeRate(filepath.Join(t.TempDir(), "missing")); got != 0 {
		t.Errorf("one that is not there takes %v", got)
	}
	c := choiceOf(priced(1, 1, 1, 0, math.Inf(1)))
	c.best.parts[0].copied = 10 * written // 20 s of a budget of 20
	if tried, _ := (setup{}).contenders(c, 100); len(tried) != 0 {
		t.Errorf("on a disk of the usual rate, %v is tried", names(tried))
	}
	if tried, _ := (setup{machine: machine{written: 10 * written}}).contenders(c, 100); len(tried) != 1 {
		t.Error("on one that is ten times as fast, nothing is tried")
	}
}

func TestTrialsNeverTakeMoreThanTheirShare(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := choiceOf(drawCandidates(t)...)
		left := rapid.Int64Range(0, 1000).Draw(t, "left")
		load := time.Duration(rapid.IntRange(0, 5).Draw(t, "load")) * time.Second
		s := setup{model: model{performances: map[string]performance{"a": {large: rehearsal{load: load}}}}}
		all, steps := s.contenders(c, left)
		takes := 0.0
		for i, one := range all {
			takes += float64(steps-leastTriedSteps) * one.seconds
			if slices.ContainsFunc(all[:i], one.alike) || one.seconds > nearBest*c.best.seconds {
				t.Fatalf("%v are tried", names(all))
			}
			takes += s.trialSeconds(one)
			if i+1 < len(all) {
				takes += 2 * s.loadSeconds(one)
			}
		}
		if len(all) > 0 && (steps < leastTriedSteps || steps > mostTriedSteps) {
			t.Fatalf("each is tried for %d steps", steps)
		}
		if len(all) > mostTried || takes > triedShare*float64(left)*c.best.seconds*(1+1e-9) {
			t.Fatalf("trials of %v take %v s of %d steps of %v s", names(all), takes, left, c.best.seconds)
		}
		if len(all) > 0 && !all[len(all)-1].alike(c.best) {
			t.Fatalf("the best, %v, is not the last of %v", names([]candidate{c.best}), names(all))
		}
	})
}

func TestWhatIsChosenAfterTrialsIsTheFastestThatWasTriedAndFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		before := choiceOf(drawCandidates(t)...)
		s := setup{}
		tried, _ := s.contenders(before, 1<<30)
		var shown []showing
		for _, one := range tried {
			came := showing{seconds: float64(rapid.IntRange(1, 300).Draw(t, "came")) / 100}
			for range one.parts {
				came.peaks = append(came.peaks, float64(rapid.IntRange(0, 150).Draw(t, "held")))
				came.busy = append(came.busy, came.seconds/2)
			}
			if rapid.IntRange(0, 3).Draw(t, "fails") == 0 {
				came = showing{err: errors.New("it fails")}
			}
			shown = append(shown, came)
		}
		after := before.after(s, tried, shown)
		least, fits := math.Inf(1), false
		for i, one := range tried {
			if shown[i].err != nil {
				continue
			}
			switch ok := s.showed(one, shown[i]).short() == 0; {
			case ok && !fits:
				least, fits = shown[i].seconds, true
			case ok == fits:
				least = min(least, shown[i].seconds)
			}
		}
		if math.IsInf(least, 1) {
			if after.trials != 0 || !after.best.alike(before.best) || after.best.seconds != before.best.seconds {
				t.Fatalf("without any trial, %+v became %+v", before.best, after.best)
			}
			return
		}
		at := slices.IndexFunc(tried, after.best.alike)
		switch {
		case at < 0 || shown[at].err != nil:
			t.Fatalf("%v is chosen of %v", names([]candidate{after.best}), names(tried))
		case after.best.seconds != shown[at].seconds || after.priced != tried[at].seconds:
			t.Fatalf("a step of %v was priced %v and took %v", tried[at].seconds, after.priced, after.best.seconds)
		case after.best.seconds > worthAPart*least || fits && after.best.short() > 0:
			t.Fatalf("one of %v s is chosen, short of %v; the fastest takes %v", after.best.seconds, after.best.short(), least)
		}
		for i, p := range after.best.parts {
			if held := shown[at].peaks[i]; held > 0 && p.peak != held || held == 0 && p.peak != tried[at].parts[i].peak {
				t.Fatalf("part %d held %v, was priced %v and is said to hold %v", i, held, tried[at].parts[i].peak, p.peak)
			}
		}
		seen := map[int]bool{len(after.best.parts): true}
		for _, other := range after.others {
			if seen[len(other.parts)] || other.seconds < after.fastest {
				t.Fatalf("beside %v there are %v", names([]candidate{after.best}), names(after.others))
			}
			seen[len(other.parts)] = true
		}
	})
}

func TestTheCopyOfACheckpointThatATrialMadeMayBeInItsPeak(t *testing.T) {
	t.Parallel()
	s := setup{copies: copiesBeside}
	c := priced(1, 1, 1, 60, 100)
	c.parts[0].copied = 30
	for name, shown := range map[string]struct {
		came showing
		most float64
	}{
		"it was there when the step had most": {showing{peaks: []float64{75}, before: []float64{45}}, 75},
		"it was written by then":              {showing{peaks: []float64{45}, before: []float64{45}}, 75},
		"there was none":                      {showing{peaks: []float64{45}}, 75},
		"it took more than is known":          {showing{peaks: []float64{80}, before: []float64{45}}, 80},
	} {
		if got := s.showed(c, shown.came).parts[0]; got.peak != shown.came.peaks[0] || got.most != shown.most {
			t.Errorf("%s: a peak of %v, and %v at most; want %v and %v", name, got.peak, got.most, shown.came.peaks[0],
				shown.most)
		}
	}
	s.model.measured = true
	if got := s.showed(c, showing{peaks: []float64{45}, before: []float64{40}}).parts[0]; !near(got.peak, 45*heapGrowth) ||
		!near(got.most, 40*heapGrowth+30) {
		t.Errorf("of a process: a peak of %v, and %v at most", got.peak, got.most)
	}
	came := showing{seconds: 1, peaks: []float64{80}}
	full, other := showing{err: exec.ErrMemory}, showing{err: errors.New("it fails")}
	if !came.exceeds(s, c) || !full.exceeds(s, c) || other.exceeds(s, c) {
		t.Error("what takes too much is what ran out of memory, and what held more than its device has")
	}
}

func TestWhereAllThatWasTriedIsTooLargeSomethingSmallerIsTried(t *testing.T) {
	t.Parallel()
	large, slow, small := priced(1, 1, 1, 50, 100), priced(2, 1, 3, 30, 100), priced(2, 4, 2, 40, 100)
	c := choiceOf(large, slow, small, priced(3, 1, 1.5, 60, 100))
	if got := names(c.smaller([]candidate{large})); !slices.Equal(got, [][2]int{{2, 4}}) {
		t.Errorf("got %v, want the fastest whose parts are smaller", got)
	}
	if got := names(c.smaller([]candidate{large, small})); !slices.Equal(got, [][2]int{{2, 1}}) {
		t.Errorf("got %v", got)
	}
	if got := c.smaller([]candidate{large, small, slow}); len(got) != 0 {
		t.Errorf("got %v, want nothing", names(got))
	}
}
