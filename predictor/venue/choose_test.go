package venue

import (
	"errors"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

func usd(amount float64) quantity.Money { return quantity.USD.Times(amount) }

// lambda has LambdaML's constants: functions of up to 3 GB with 1.7 cores.
func lambda() Functions {
	return Functions{
		Classes:      []quantity.Bytes{1024 * quantity.MiB, 1769 * quantity.MiB, 3008 * quantity.MiB},
		PerGiBSecond: usd(1.66667e-5), PerRequest: usd(2e-7), MaxDuration: 15 * time.Minute,
	}
}

// ways are S3, and a cache between functions.
func ways() Ways {
	return Ways{
		Channels: []Channel{
			{Name: "S3", BytesPerSecond: 65e6, Latency: 80 * time.Millisecond, Request: usd(2.7e-6)},
			{Name: "cache", BytesPerSecond: 630e6, Shared: 630e6, Latency: 10 * time.Millisecond, Hour: usd(0.156)},
		},
		Store: Channel{BytesPerSecond: 65e6},
		Starts: []Start{
			{10, 1200 * time.Millisecond}, {50, 11 * time.Second}, {100, 18 * time.Second}, {200, 35 * time.Second},
		},
	}
}

// machines are two types that have to be started, as LambdaML measured it.
func machines() []Hosts {
	starts := []Start{{10, 132 * time.Second}, {50, 160 * time.Second}, {100, 292 * time.Second}, {200, 606 * time.Second}}
	return []Hosts{
		{
			Name: "c5.large", Cores: 2, Hour: usd(0.085), Starts: starts, Store: Channel{BytesPerSecond: 65e6},
			Network: Channel{BytesPerSecond: 120e6, Latency: 500 * time.Microsecond},
		},
		{
			Name: "c5.xlarge", Cores: 4, Hour: usd(0.17), Starts: starts, Store: Channel{BytesPerSecond: 65e6},
			Network: Channel{BytesPerSecond: 225e6, Latency: 500 * time.Microsecond},
		},
	}
}

// grid are 1,000 trainings: ten sizes of model from 10 kB to 1 GB, ten numbers of rounds from 1 to 10,000, ten
// numbers of workers from 1 to 200.
func grid(visit func(work Work, workers int)) {
	for i := range 10 {
		for j := range 10 {
			for _, workers := range []int{1, 2, 5, 10, 20, 40, 60, 100, 150, 200} {
				visit(Work{
					Model:  quantity.Bytes(math.Round(1e4 * math.Pow(1e5, float64(i)/9))),
					Rounds: int(math.Round(math.Pow(1e4, float64(j)/9))), Data: 8e9, Compute: 20 * time.Second,
				}, workers)
			}
		}
	}
}

// exhaustive goes through a training transfer by transfer and call by call, for every option, and returns the least
// that it costs in functions and on hosts. It shares no code with what it checks.
func exhaustive(work Work, workers int, f Functions, by Ways, pool []Hosts) (functions, hosts float64) {
	functions, hosts = math.Inf(1), math.Inf(1)
	n := float64(workers)
	starting := func(starts []Start) float64 {
		if len(starts) == 0 {
			return 0
		}
		at := func(s Start) (x, y float64) { return float64(s.Workers), s.Takes.Seconds() }
		x0, y0 := at(starts[0])
		if n <= x0 {
			return y0 / x0 * n
		}
		for _, s := range starts[1:] {
			x1, y1 := at(s)
			if n <= x1 {
				return y0 + (y1-y0)/(x1-x0)*(n-x0)
			}
			x0, y0 = x1, y1
		}
		return y0 / x0 * n
	}
	for _, h := range pool {
		clock := starting(h.Starts) + float64(work.Data)/n/h.Store.BytesPerSecond
		for range work.Rounds {
			clock += work.Compute.Seconds() / n / h.Cores
			// Ring: every part goes round once to be added up and once to be told.
			clock += 2 * (n - 1) * (float64(work.Model)/n/h.Network.BytesPerSecond + h.Network.Latency.Seconds())
		}
		hosts = min(hosts, clock/3600*h.Hour.USD()*n)
	}
	for _, memory := range f.Classes {
		for _, channel := range by.Channels {
			speed := channel.BytesPerSecond
			if channel.Shared > 0 && channel.Shared/n < speed {
				speed = channel.Shared / n
			}
			one := float64(work.Model)/n/speed + channel.Latency.Seconds()
			// A worker puts the parts of the others, gets its own from them, puts the sum and gets those of the others.
			round := work.Compute.Seconds()/n/(float64(memory)/(1769<<20)) + ((n-1)+(n-1)+1+(n-1))*one
			total, call, calls := 0.0, starting(by.Starts)+float64(work.Data)/n/by.Store.BytesPerSecond, 1
			requests, stuck := 0.0, false
			for range work.Rounds {
				if call+round > f.MaxDuration.Seconds()*(1+1e-12) {
					total += call
					calls++
					call = float64(work.Data)/n/by.Store.BytesPerSecond + float64(work.Model)/by.Store.BytesPerSecond
					if call+round > f.MaxDuration.Seconds()*(1+1e-12) {
						stuck = true
						break
					}
				}
				call += round
				requests += n * (3*n - 2)
			}
			if stuck || calls > 1 && starting(by.Starts)+float64(work.Data)/n/by.Store.BytesPerSecond+round > 900 {
				continue
			}
			total += call
			cost := total*n*float64(memory)/float64(1<<30)*f.PerGiBSecond.USD() + float64(calls)*n*f.PerRequest.USD() +
				requests*channel.Request.USD() + total/3600*channel.Hour.USD()
			functions = min(functions, cost)
		}
	}
	return functions, hosts
}

func TestTheCheaperSideIsChosen(t *testing.T) {
	t.Parallel()
	right, spilled, all := 0, 0, 0
	grid(func(work Work, workers int) {
		choice, err := Choose(work, workers, lambda(), ways(), machines())
		if err != nil {
			t.Fatal(err)
		}
		functions, hosts := exhaustive(work, workers, lambda(), ways(), machines())
		all++
		if choice.Spill == (functions < hosts) {
			right++
		} else {
			t.Logf("%+v by %d: %+v; exhaustive: %v in functions, %v on hosts", work, workers, choice, functions, hosts)
		}
		if choice.Spill {
			spilled++
		}
		if got := choice.Pool.Cost.USD(); math.Abs(got-hosts) > 1e-6*hosts {
			t.Errorf("%+v by %d costs %v on hosts, exhaustive %v", work, workers, got, hosts)
		}
	})
	t.Logf("%d of %d as the exhaustive evaluation has them, %d spilled", right, all, spilled)
	if float64(right) < 0.95*float64(all) {
		t.Errorf("%d of %d trainings are where they cost less, want 95%%", right, all)
	}
	if spilled < all/10 || spilled > all*9/10 {
		t.Errorf("%d of %d are spilled: the grid does not tell both sides apart", spilled, all)
	}
}

// TestSteadyTrainingThatThePoolDoesCheaperIsNeverSpilled: hosts that are held already cost less by the core, and need
// no channel.
func TestSteadyTrainingThatThePoolDoesCheaperIsNeverSpilled(t *testing.T) {
	t.Parallel()
	held := machines()
	for i := range held {
		held[i].Starts = nil
	}
	spilled := 0
	grid(func(work Work, workers int) {
		choice, err := Choose(work, workers, lambda(), ways(), held)
		if err != nil {
			t.Fatal(err)
		}
		if functions, hosts := exhaustive(work, workers, lambda(), ways(), held); choice.Spill && hosts <= functions {
			t.Errorf("%+v by %d is spilled for %v, the pool takes %v: %+v", work, workers, functions, hosts, choice)
		}
		if choice.Spill {
			spilled++
			if work.Rounds >= 100 && work.Model < 10*quantity.MiB {
				t.Errorf("%+v by %d is spilled from hosts that are held, and mostly computes: %+v", work, workers, choice)
			}
		}
	})
	t.Logf("%d of 1,000 are spilled from hosts that are held", spilled)
}

// TestSimplerRulesMissTheBar: the bar of 95 percent can be missed, and is by every rule that leaves out what the model
// is about.
func TestSimplerRulesMissTheBar(t *testing.T) {
	t.Parallel()
	free := ways()
	for i := range free.Channels {
		free.Channels[i].Latency, free.Channels[i].BytesPerSecond, free.Channels[i].Shared = 0, 1e15, 0
	}
	rules := map[string]func(work Work, workers int) bool{
		"always hosts":     func(Work, int) bool { return false },
		"always functions": func(Work, int) bool { return true },
		"few rounds":       func(work Work, _ int) bool { return work.Rounds < 100 },
		"no exchange in functions": func(work Work, workers int) bool {
			choice, err := Choose(work, workers, lambda(), free, machines())
			if err != nil {
				t.Fatal(err)
			}
			return choice.Spill
		},
	}
	for name, spills := range rules {
		right := 0
		grid(func(work Work, workers int) {
			functions, hosts := exhaustive(work, workers, lambda(), ways(), machines())
			if spills(work, workers) == (functions < hosts) {
				right++
			}
		})
		t.Logf("%s: right for %d of 1,000", name, right)
		if right >= 950 {
			t.Errorf("%s is right for %d of 1,000 trainings, as many as are asked of the model", name, right)
		}
	}
}

func TestDearerFunctionsTakeNothingMore(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		work := Work{
			Model: quantity.Bytes(rapid.IntRange(1, 1e9).Draw(t, "model")), Rounds: rapid.IntRange(1, 5000).Draw(t, "rounds"),
			Data:    quantity.Bytes(rapid.IntRange(0, 1e10).Draw(t, "data")),
			Compute: time.Duration(rapid.IntRange(0, 1e12).Draw(t, "compute")),
		}
		workers := rapid.IntRange(1, 300).Draw(t, "workers")
		before, err := Choose(work, workers, lambda(), ways(), machines())
		if err != nil {
			t.Fatal(err)
		}
		dearer := lambda()
		dearer.PerGiBSecond *= 10
		after, err := Choose(work, workers, dearer, ways(), machines())
		if err != nil {
			t.Fatal(err)
		}
		if after.Spill && !before.Spill {
			t.Fatalf("%+v by %d is spilled only where functions cost ten times as much", work, workers)
		}
	})
}

func TestWhatDoesNotFitIntoACallIsNeverSpilled(t *testing.T) {
	t.Parallel()
	work := Work{Model: quantity.MiB, Rounds: 1, Compute: 3000 * time.Second}
	choice, err := Choose(work, 1, lambda(), ways(), machines())
	if err != nil || choice.Spill || choice.Possible {
		t.Errorf("%+v, %v", choice, err)
	}
	work.Rounds, work.Compute = 10, 1000*time.Second // at 1.7 cores a round takes 588 s: a call each
	choice, err = Choose(work, 1, lambda(), ways(), machines())
	if err != nil || choice.Functions.Calls != 10 {
		t.Errorf("%d calls for ten rounds that fit one by one: %v", choice.Functions.Calls, err)
	}
	for _, wrong := range []Work{{}, {Rounds: 1, Model: -1}, {Rounds: 1, Compute: -1}} {
		if _, err := Choose(wrong, 1, lambda(), ways(), machines()); !errors.Is(err, ErrWork) {
			t.Errorf("%+v: got %v", wrong, err)
		}
	}
	if _, err := Choose(work, 1, lambda(), ways(), nil); !errors.Is(err, ErrWork) {
		t.Errorf("no hosts: got %v", err)
	}
	if _, err := Choose(work, 0, lambda(), ways(), machines()); !errors.Is(err, ErrWork) {
		t.Errorf("no workers: got %v", err)
	}
}
