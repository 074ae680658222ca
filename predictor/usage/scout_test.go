package usage_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// scouting is a stage whose attempts have so many numbers.
type scouting struct {
	scout   usage.Scout
	history usage.History
	need    usage.Need
	known   bool
}

// add takes an attempt and learns now and then, as a predictor does.
func (s *scouting) add(attempt int, features usage.Features, peak float64) {
	s.history.Add(usage.Attempt{Peak: peak, Features: features})
	expected := 100.0 * mib
	if s.known {
		expected = s.need.At(features)
	}
	if name, found := s.scout.Look(features, s.history.Names, peak/expected); found {
		s.history.Exchange(name, usage.Attempt{Peak: peak, Features: features}, s.need.Term.Names())
	}
	if attempt%16 == 0 {
		s.need, s.known = usage.Learn(&s.history, usual, s.need.Term)
	}
}

func numbers(r *rand.Rand, n int) usage.Features {
	named := make(map[string]float64, n)
	for i := range n {
		named[fmt.Sprintf("f%04d", i)] = 1 + 9*r.Float64()
	}
	return usage.Features{Input: 350e3, Named: named}
}

// Every name is looked at once in 256 attempts, and what explains is believed within the next 96.
func TestWhatExplainsIsFoundAmongTwoThousandNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"f0003", "f1000", "f1999"} {
		r := rand.New(rand.NewPCG(1, 41))
		s := &scouting{}
		s.history.Follow(usage.InputBytes)
		for n := range usage.MaxFeatures - 1 {
			s.history.Follow(fmt.Sprintf("f%04d", n+10))
		}
		for attempt := range 256 + 96 + 1 {
			features := numbers(r, 2000)
			s.add(attempt, features, 20*mib*features.Value(name)*around(r, 0.03))
		}
		if !slices.Contains(s.need.Term.Names(), name) {
			t.Errorf("352 attempts, of which %s explains the peaks, are explained by %q", name, s.need.Explained)
		}
		if n := len(s.history.Names); n > usage.MaxFeatures {
			t.Errorf("%d names are followed, want %d at most", n, usage.MaxFeatures)
		}
	}
}

func TestTheBestOfHundredsOfNamesOfNoiseIsSeldomBelieved(t *testing.T) {
	t.Parallel()
	believed, learned := 0, 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 42))
		s := &scouting{}
		s.history.Follow(usage.InputBytes)
		for attempt := range 200 {
			s.add(attempt, numbers(r, 300), 100*mib*around(r, 0.3))
			if attempt%16 == 0 && s.known {
				if learned++; s.need.Explained != "" {
					believed++
				}
			}
		}
	}
	if believed > learned/20 {
		t.Errorf("noise explained %d of %d needs, want at most one in twenty", believed, learned)
	}
}

func TestAScoutGoesOnAfterACheckpointThatWasTamperedWith(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 43))
	for _, s := range []usage.Scout{
		{Names: []string{"a"}},
		{Names: []string{"a"}, Columns: [][]float64{{1, 2}}, Ratios: []float64{1}},
		{Names: []string{"a"}, Columns: [][]float64{make([]float64, 50)}, Ratios: make([]float64, 50)},
		{After: "zzz"},
	} {
		for range 40 {
			s.Look(numbers(r, 20), nil, 1+r.Float64())
		}
		for _, ratio := range []float64{math.NaN(), math.Inf(1), 0, -1} {
			if _, found := s.Look(numbers(r, 20), nil, ratio); found {
				t.Errorf("a ratio of %g has found something", ratio)
			}
		}
		if len(s.Names) != 20 || len(s.Columns[0]) != 8 {
			t.Errorf("after 40 attempts %d names are looked at for %d attempts, want 20 for 8", len(s.Names), len(s.Columns[0]))
		}
	}
}

func TestWhatIsKeptMakesNoRoom(t *testing.T) {
	t.Parallel()
	h := &usage.History{}
	h.Follow(usage.InputBytes)
	kept := []string{"f0", "f1"}
	for n := range usage.MaxFeatures - 1 {
		h.Follow(fmt.Sprintf("f%d", n))
	}
	if !h.Exchange("new", usage.Attempt{}, kept) || !h.Exchange("newer", usage.Attempt{}, kept) {
		t.Fatal("no room was made")
	}
	want := []string{usage.InputBytes, "f0", "f1", "f4", "f5", "f6", "new", "newer"}
	if !slices.Equal(h.Names, want) {
		t.Errorf("followed are %q, want %q", h.Names, want)
	}
	if h.Exchange("newest", usage.Attempt{}, h.Names) {
		t.Error("a name that is kept made room")
	}
}
