package usage_test

import (
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor/usage"
)

// night is a job of so many small tasks, by their inputs, and then a few large ones: what each takes is scaled.
type night struct {
	history *usage.History
	r       *rand.Rand
	need    usage.Need
	known   bool
	small   int
	killed  int // of the large ones
	slack   float64
	limits  int
}

const largeTasks = 4

func (n *night) run(scale float64) {
	for i := range n.small + largeTasks {
		x := mib * (1 + n.r.Float64())
		large := i >= n.small
		if large {
			x = mib * (200 + 100*n.r.Float64())
		}
		features := known(map[string]float64{usage.InputBytes: x})
		peak := scale * (50*mib + 8*x) * around(n.r, 0.03)
		if large || i%16 == 0 {
			n.need, n.known = usage.Learn(n.history, usual, n.need.Term)
		}
		need, ok := n.need, n.known
		if limit := given(need, features); ok && limit < peak {
			if large {
				n.killed++
			}
			n.history.AddTo(usage.Attempt{Peak: limit, Exceeded: true, Features: features}, n.need.Term)
		} else if ok {
			n.slack += (limit - peak) / limit
			n.limits++
		}
		n.history.AddTo(usage.Attempt{Peak: peak, Features: features}, n.need.Term)
	}
}

// A job of each night has many small tasks and a few large ones at its end: what these took is known in the next.
func TestANightOfSmallTasksForgetsNoLargeOne(t *testing.T) {
	t.Parallel()
	for _, small := range []int{usage.MaxAttempts, 5 * usage.MaxAttempts} {
		killed := 0
		for seed := range uint64(10) {
			n := &night{history: following(), r: rand.New(rand.NewPCG(seed, 51)), small: small}
			for range 3 {
				n.run(1)
			}
			n.killed, n.slack, n.limits = 0, 0, 0
			for range 5 {
				n.run(1)
			}
			killed += n.killed
			if slack := n.slack / float64(n.limits); slack > 0.2 {
				t.Errorf("%.0f%% of limits are spare in nights of %d small tasks, want at most 20%%", 100*slack, small)
			}
			if got := n.history.LargestPeak(); got < 1600*mib {
				t.Errorf("the largest peak is %.0f MiB, want that of a large task", got/mib)
			}
		}
		if killed > 5 {
			t.Errorf("%d of 200 large tasks ran out of memory in nights of %d small ones, want at most 5", killed, small)
		}
	}
}

// What is remembered of old large tasks neither hides that the need has changed nor outlives what new ones took.
func TestWhatIsRareIsForgottenOnceItsLikeTakesLess(t *testing.T) {
	t.Parallel()
	n := &night{history: following(), r: rand.New(rand.NewPCG(1, 52)), small: usage.MaxAttempts}
	for range 3 {
		n.run(1)
	}
	for range 3 {
		n.run(0.1)
	}
	n.slack, n.limits = 0, 0
	n.run(0.1)
	if slack := n.slack / float64(n.limits); slack > 0.3 {
		t.Errorf("%.0f%% of limits are spare three nights after the need fell to a tenth, want at most 30%%", 100*slack)
	}
	if got := n.history.LargestPeak(); got > 500*mib {
		t.Errorf("the largest peak is %.0f MiB three nights after the need fell to a tenth of 2 GiB", got/mib)
	}
}

// A peak that nothing known tells from others is not rare: the limit leaves it out or not, as its weight says.
func TestAPeakOfAnOrdinaryInputIsNoRareOne(t *testing.T) {
	t.Parallel()
	h := following()
	for i := range 3 * usage.MaxAttempts {
		peak := 100.0 * mib
		if i == 10 {
			peak *= 20
		}
		h.AddTo(usage.Attempt{Peak: peak, Features: usage.Features{Input: mib}}, usage.Term{Feature: usage.InputBytes})
	}
	if got := h.LargestPeak(); got != 100*mib {
		t.Errorf("the largest peak is %.0f MiB, want 100", got/mib)
	}
}

func TestWhatIsRareIsBoundedAndStored(t *testing.T) {
	t.Parallel()
	h := following()
	h.Follow(usage.CategoryName("model"))
	for i := range 40 * usage.MaxAttempts {
		features := usage.Features{Input: mib, Named: map[string]float64{"model=": 1}}
		if i%usage.MaxAttempts == 3 { // another model, which takes more
			features.Named["model="] = float64(1 + i)
		}
		h.AddTo(usage.Attempt{Peak: mib * (1 + features.Named["model="]), Features: features}, usage.Term{By: "model="})
	}
	if got := h.Known() - usage.MaxAttempts; got < 1 || got > usage.MaxRare {
		t.Errorf("%d rare attempts are remembered, want 1 to %d", got, usage.MaxRare)
	}
	data, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var again usage.History
	if err := json.Unmarshal(data, &again); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*h, again); diff != "" {
		t.Errorf("a history that was stored (-as it was +as it is read):\n%s", diff)
	}
	h.KeepLatest(3)
	if h.Known() != 3 {
		t.Errorf("%d attempts are remembered, want the latest 3", h.Known())
	}
}
