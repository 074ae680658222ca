package policy_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/sim/policy"
)

// setting has hosts of two cores for $3.60 an hour, which is $0.001 a second, and functions for $0.01 a second.
func setting() policy.Setting {
	return policy.Setting{
		Start: time.Date(2026, time.November, 26, 0, 0, 0, 0, time.UTC), Cores: 2, Memory: 4 * quantity.GiB,
		HostPrice: 36 * quantity.USD / 10, HostStart: 30 * time.Second, KeepWarm: 5 * time.Minute,
		Functions: predictor.FunctionVenue{
			Enabled: true, Concurrency: 100, Classes: []quantity.Bytes{quantity.GiB}, MaxMemory: quantity.GiB,
			MaxDuration: 15 * time.Minute, PerGiBSecond: quantity.USD / 100, ColdStart: time.Second,
		},
	}
}

func TestTasksWaitForTheHostsThatAreHeld(t *testing.T) {
	t.Parallel()
	with := setting()
	with.Span = 20 * time.Second
	var arrivals []policy.Arrival
	for range 4 {
		arrivals = append(arrivals, policy.Arrival{At: time.Second, Work: 3 * time.Second})
	}
	got, err := policy.Replay(t.Context(), with, arrivals, policy.Entrant{Policy: policy.Fixed(1), First: 1})
	want := policy.Outcome{
		HostCost: 20 * quantity.USD / 1000, MostHosts: 1, MostOnHosts: 2,
		Latencies: []time.Duration{3 * time.Second, 3 * time.Second, 6 * time.Second, 6 * time.Second},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestFunctionsStartColdAndStayWarmForAWhile(t *testing.T) {
	t.Parallel()
	second := time.Second
	arrivals := []policy.Arrival{{0, second}, {5 * second, second}, {10 * second, second}, {400 * second, second}}
	got, err := policy.Replay(t.Context(), setting(), arrivals, policy.Entrant{Policy: policy.Fixed(0), Spills: true})
	want := policy.Outcome{
		FunctionCost: 6 * quantity.USD / 100, Spilled: 4, Cold: 2,
		Latencies: []time.Duration{2 * second, second, second, 2 * second},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// No more functions run at once than there may, and what is beyond waits.
func TestFunctionsHaveALimit(t *testing.T) {
	t.Parallel()
	with := setting()
	with.Functions.Concurrency, with.Functions.ColdStart = 1, 0
	arrivals := []policy.Arrival{{0, time.Second}, {0, time.Second}}
	got, err := policy.Replay(t.Context(), with, arrivals, policy.Entrant{Policy: policy.Fixed(0), Spills: true})
	if want := []time.Duration{time.Second, 2 * time.Second}; err != nil || !slices.Equal(got.Latencies, want) {
		t.Errorf("got %v, %v, want %v", got.Latencies, err, want)
	}
}

// steps wants so many hosts, second by second.
type steps struct{ wanted []int }

func (*steps) Every() time.Duration { return time.Second }

func (s *steps) Hosts(policy.Seen) int {
	next := s.wanted[0]
	if len(s.wanted) > 1 {
		s.wanted = s.wanted[1:]
	}
	return next
}

// A second host is wanted from 1 s on, serves from 31 s on, and is not wanted from 40 s on, when it has a task until
// 50 s: it is paid for 49 s beside the 60 s of the first.
func TestHostsThatAreLaunchedStartAndThoseThatGoEndTheirTasks(t *testing.T) {
	t.Parallel()
	with := setting()
	with.Span = time.Minute
	wanted := append(slices.Repeat([]int{2}, 39), 1)
	long := policy.Arrival{Work: time.Minute - time.Second}
	arrivals := []policy.Arrival{long, long, {At: 2 * time.Second, Work: 19 * time.Second}}
	got, err := policy.Replay(t.Context(), with, arrivals, policy.Entrant{Policy: &steps{wanted}, First: 1})
	want := policy.Outcome{
		HostCost: 109 * quantity.USD / 1000, MostHosts: 2, MostOnHosts: 3,
		Latencies: []time.Duration{59 * time.Second, 59 * time.Second, 48 * time.Second},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestAReplayEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	arrivals := []policy.Arrival{{Work: time.Second}}
	_, err := policy.Replay(ctx, setting(), arrivals, policy.Entrant{Policy: policy.Fixed(1), First: 1})
	_, ours := policy.Ours(ctx, setting(), arrivals, 1, time.Second)
	if !errors.Is(err, context.Canceled) || !errors.Is(ours, context.Canceled) {
		t.Errorf("got %v and %v", err, ours)
	}
}

func TestHostsAreThoseOfTheMeanAndOfTheBusiestMinute(t *testing.T) {
	t.Parallel()
	with := setting()
	with.Span = 2 * time.Minute
	arrivals := slices.Repeat([]policy.Arrival{{At: 61 * time.Second, Work: time.Minute}}, 7)
	if mean, peak := policy.MeanHosts(with, arrivals), policy.PeakHosts(with, arrivals); mean != 2 || peak != 4 {
		t.Errorf("7 core-minutes in the second of two minutes: got %d hosts in the mean and %d at the peak", mean, peak)
	}
	if got := policy.PodsAtPeak(with, arrivals); got != 5 {
		t.Errorf("7 cores' work on hosts that are busy for 1.4 cores: got %d", got)
	}
	if got := policy.PeakHosts(with, nil); got != 1 {
		t.Errorf("of nothing: %d", got)
	}
}

func TestPoliciesFollowHowManyTasksAreThere(t *testing.T) {
	t.Parallel()
	for name, entrant := range map[string]policy.Policy{"kpa": policy.NewKPA(1), "hpa": policy.NewHPA(1)} {
		held := 1
		after := func(d time.Duration, busy float64) int {
			for range d / entrant.Every() {
				seconds := slices.Repeat([]float64{busy}, int(entrant.Every()/time.Second))
				held = entrant.Hosts(policy.Seen{Busy: seconds, Held: held, Ready: held})
			}
			return held
		}
		got := []int{after(20*time.Minute, 7), after(20*time.Minute, 70), after(20*time.Minute, 0)}
		if want := []int{10, 100, 1}; !slices.Equal(got, want) {
			t.Errorf("%s: %v hosts for 7, 70 and no tasks at 70%%, want %v", name, got, want)
		}
	}
	if got := policy.Mean(2).Hosts(policy.Seen{Busy: []float64{4, 5}}); got != 3 {
		t.Errorf("mean: %d hosts of two cores for 4.5 tasks", got)
	}
}

// The horizontal autoscaler leaves a load alone that is off by less than a tenth.
func TestTheHorizontalAutoscalerTolerates(t *testing.T) {
	t.Parallel()
	h := policy.NewHPA(1)
	for _, busy := range []float64{7.6, 6.4} {
		if got := h.Hosts(policy.Seen{Busy: []float64{busy}, Held: 10, Ready: 10}); got != 10 {
			t.Errorf("%d hosts for %v tasks, want the 10 that are held", got, busy)
		}
	}
	if got := h.Hosts(policy.Seen{Busy: []float64{7.8}, Held: 10, Ready: 10}); got != 12 {
		t.Errorf("%d hosts for 7.8 tasks, want 12", got)
	}
}

// poisson are n tasks of 200 ms, so far apart in the mean.
func poisson(n int, apart time.Duration) []policy.Arrival {
	random := rand.New(rand.NewPCG(1, 2))
	arrivals, at := make([]policy.Arrival, n), time.Duration(0)
	for i := range arrivals {
		at += time.Duration(random.ExpFloat64() * float64(apart))
		arrivals[i] = policy.Arrival{At: at, Work: 200 * time.Millisecond}
	}
	return arrivals
}

// What is decided runs no more tasks at the pool than it has cores, spills what would be late, and pays for it.
func TestOursServesWhatItsPoolCannotInTime(t *testing.T) {
	t.Parallel()
	with, arrivals := setting(), poisson(600, 80*time.Millisecond) // two and a half cores' work for two
	with.Functions.ColdStart = 200 * time.Millisecond
	got, err := policy.Ours(t.Context(), with, arrivals, 1, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	late, end := 0, time.Duration(0)
	for i, latency := range got.Latencies {
		end = max(end, arrivals[i].At+latency)
		if latency < arrivals[i].Work {
			t.Fatalf("arrival %d of %s ends after %s", i, arrivals[i].Work, latency)
		}
		if latency > time.Second {
			late++
		}
	}
	least := 600*200*time.Millisecond - 2*end // what two cores cannot have done
	if got.Spilled < int(math.Ceil(least.Seconds()/0.2)) || got.Spilled > 300 || late > 30 {
		t.Errorf("%d of 600 spilled and %d late, in %s", got.Spilled, late, end)
	}
	if want := with.HostPrice.Times(end.Hours()); got.HostCost != want || got.FunctionCost <= 0 || got.MostHosts != 1 {
		t.Errorf("hosts cost %s, want %s; functions %s; %d hosts", got.HostCost, want, got.FunctionCost, got.MostHosts)
	}
	if got.MostOnHosts != with.Cores {
		t.Errorf("%d tasks at once on %d cores", got.MostOnHosts, with.Cores)
	}
	alone, err := policy.Replay(t.Context(), with, arrivals, policy.Entrant{Policy: policy.Fixed(1), First: 1})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Max(alone.Latencies) < 5*time.Second {
		t.Errorf("the pool alone has nothing late: %s", slices.Max(alone.Latencies))
	}
}

// Three hosts whose tasks differ fiftyfold and come half as fast again as they can be done, for which Decide might give
// each less than a core: none would be as fast.
func TestOursNeverRunsMoreTasksThanThereAreCores(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(5, 6))
	arrivals := poisson(150, 80*time.Millisecond)
	for i := range arrivals {
		arrivals[i].Work = time.Duration((0.05 + 2.45*random.Float64()*random.Float64()) * float64(time.Second))
	}
	got, err := policy.Ours(t.Context(), setting(), arrivals, 3, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if cores := 3 * setting().Cores; got.MostOnHosts > cores || got.MostOnHosts < cores-2 || got.Spilled == 0 {
		t.Errorf("%d tasks at once on %d cores, %d spilled", got.MostOnHosts, cores, got.Spilled)
	}
}

// One task at a time on a pool with room never spills.
func TestOursKeepsToItsPoolWhatFits(t *testing.T) {
	t.Parallel()
	var arrivals []policy.Arrival
	for i := range 50 {
		arrivals = append(arrivals, policy.Arrival{At: time.Duration(i) * 2 * time.Second, Work: time.Second / 2})
	}
	got, err := policy.Ours(t.Context(), setting(), arrivals, 1, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if got.Spilled != 0 || slices.Max(got.Latencies) != time.Second/2 {
		t.Errorf("%d of 50 spilled; the longest took %s", got.Spilled, slices.Max(got.Latencies))
	}
}
