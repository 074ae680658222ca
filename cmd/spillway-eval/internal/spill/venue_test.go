package spill

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/spillway-ml/spillway/predictor/provision"
)

// tiny is a setting with hosts of two tasks a second, alone and in batches of four.
func tiny() Setting {
	setting := Inception()
	setting.Hosts = []provision.Host{{Name: "one", Tasks: 120, Step: 1}, {Name: "batch", Tasks: 480, Step: 1}}
	setting.Batch = []int{1, 4}
	return setting
}

func total(values []float64) float64 {
	sum := 0.0
	for _, value := range values {
		sum += value
	}
	return sum
}

func TestAHostServesInTheOrderOfArrival(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 1))
	setting := tiny()
	for hosts := 1; hosts <= 4; hosts++ {
		s := newStation(setting, false)
		s.hold([]int{hosts, 0}, 0)
		free := make([]float64, hosts) // the reference: the host that is free first
		at, want := 0.0, 0.0
		for range 80 * hosts {
			at += random.ExpFloat64() / float64(2*hosts)
			i := slices.Index(free, slices.Min(free))
			free[i] = max(free[i], at) + 0.5
			want += free[i] - at
			s.arrive(at)
		}
		if math.Abs(total(s.busy)-want) > 1e-6 {
			t.Errorf("%d hosts: tasks took %v s together, want %v", hosts, total(s.busy), want)
		}
	}
}

// TestABatchTakesWhatWaits serves batch by batch: a host that is free takes up to four of those that wait.
func TestABatchTakesWhatWaits(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	s := newStation(tiny(), false)
	s.hold([]int{0, 1}, 0)
	var arrivals []float64
	at := 0.0
	for range 300 {
		at += random.ExpFloat64() / 7
		arrivals = append(arrivals, at)
		s.arrive(at)
	}
	want, free := 0.0, 0.0
	for i := 0; i < len(arrivals); {
		start := max(free, arrivals[i])
		n := 0
		for ; n < 4 && i < len(arrivals) && arrivals[i] <= start; n++ {
			want += start + 0.5 - arrivals[i]
			i++
		}
		free = start + 0.5
	}
	if math.Abs(total(s.busy)-want) > 1e-6 {
		t.Errorf("tasks took %v s together, want %v", total(s.busy), want)
	}
}

func TestWhatTheHostsWouldNotDoInTimeGoesToFunctions(t *testing.T) {
	t.Parallel()
	s := newStation(tiny(), true)
	s.hold([]int{1, 0}, 0)
	for range 5 { // the second ends in time, the others would not
		s.arrive(0)
	}
	if s.spilled != 3 || s.cold != 3 || s.missed != 3 {
		t.Errorf("%d spilled, %d cold, %d missed; want the three that find no room, all late for their start", s.spilled,
			s.cold, s.missed)
	}
	s.hold([]int{0, 0}, 60)
	for range 4 {
		s.arrive(60)
	}
	if s.spilled != 7 || s.cold != 4 || s.missed != 4 {
		t.Errorf("%d spilled, %d cold, %d missed; want three warm ones more, and one that starts", s.spilled, s.cold,
			s.missed)
	}
	s.arrive(60 + tiny().Idle.Seconds() + 3)
	if s.cold != 5 {
		t.Errorf("%d cold; want another after all environments have ended", s.cold)
	}
	price := tiny().Function.USD()
	want := 8*price + 5*price*1.2/0.38
	if math.Abs(s.spilledCost-want) > 1e-12 {
		t.Errorf("functions cost %v, want %v: starts are billed", s.spilledCost, want)
	}
}

func TestFunctionsStartNoFasterThanTheRamp(t *testing.T) {
	t.Parallel()
	setting := tiny()
	setting.Ramp = 10
	s := newStation(setting, true)
	for range 30 {
		s.arrive(0)
	}
	if s.cold != 10 || s.missed != 30 {
		t.Errorf("%d started, %d late; want ten, and all late", s.cold, s.missed)
	}
	s.arrive(2) // two more may have started, and those that ran wait
	if s.cold != 10 || s.spilled != 11 {
		t.Errorf("%d started, %d spilled; want the first to be used again", s.cold, s.spilled)
	}
}

func TestArrivalsAreUniformInTheMinute(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 3))
	seconds := make([]int, 60)
	for range 100 {
		times := uniform(nil, 600, random)
		if !slices.IsSorted(times) || times[0] < 0 || times[599] >= 60 {
			t.Fatalf("times from %v to %v", times[0], times[599])
		}
		for _, at := range times {
			seconds[int(at)]++
		}
	}
	for second, n := range seconds {
		if math.Abs(float64(n)-1000) > 5*math.Sqrt(1000) {
			t.Errorf("%d arrivals in second %d, want about 1,000", n, second)
		}
	}
}

// TestAReplayCostsWhatItsPoolAndItsFunctionsCost replays a load that one host serves half of.
func TestAReplayCostsWhatItsPoolAndItsFunctionsCost(t *testing.T) {
	t.Parallel()
	setting := Inception()
	loads := slices.Repeat([]float64{568}, 30)
	covers := NewCovers(setting.Terms, 1200)
	simple := Simple(setting.Terms, covers, 568)
	scores, err := Replay(t.Context(), setting, loads, 1, []Entrant{
		{Name: "functions_only", Policy: simple["functions_only"], Spills: true},
		{Name: "static_peak", Policy: simple["static_peak"], Spills: true},
		{Name: "ours", Policy: &Ours{Terms: setting.Terms, Forecaster: NewEmpirical(setting.Horizon())}, Spills: true},
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := 20 * 568 * 19e-6; scores[0].Functions < want || scores[0].Functions > 1.05*want || scores[0].Hosts != 0 {
		t.Errorf("functions only: %+v, want %v and a few starts", scores[0], want)
	}
	if want := 20 * 2 * 0.085 / 60; math.Abs(scores[1].Hosts-want) > 1e-9 || scores[1].Spilling() > 0.1 {
		t.Errorf("static peak: %+v, want two hosts for %v, and few tasks for which they have no room", scores[1], want)
	}
	if scores[2].Cost() > 1.2*scores[1].Cost() || scores[2].Tasks != 20*568 {
		t.Errorf("ours: %+v, want hardly more than %v for a steady load", scores[2], scores[1].Cost())
	}
}
