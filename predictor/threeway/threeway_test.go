package threeway

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// second is a stage whose tasks take a second, with a host of two slots at 36 cents an hour, a container at 36 cents
// that starts in 30 s, and functions of a GiB at a cent a thousand GiB-seconds that start in half a second.
func second() Case {
	return Case{
		Walls: []float64{1}, Slower: 1,
		Host:      Host{Name: "h", Slots: 2, PerHour: quantity.USD * 36 / 100},
		Container: Container{Name: "c", PerHour: quantity.USD * 36 / 100, Start: 30 * time.Second, Least: time.Minute},
		Functions: Functions{
			Offered: venue.Functions{PerGiBSecond: quantity.USD / 100_000}, Class: quantity.GiB, Cold: time.Second / 2,
			Kept: 10 * time.Minute,
		},
	}
}

func near(t *testing.T, what string, got, want, part float64) {
	t.Helper()
	if math.Abs(got-want) > part*want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// TestARareTaskByHand: one task in a day. A host waits for it for 86,400 s at 0.01 cents a second; a container is
// started for it, and billed for a minute; a function starts anew each time, for a second and a half.
func TestARareTaskByHand(t *testing.T) {
	t.Parallel()
	all, err := second().Compare(1. / 86_400)
	if err != nil {
		t.Fatal(err)
	}
	hosts, containers, functions := all.At.Ways[0], all.At.Ways[1], all.At.Ways[2]
	near(t, "hosts", hosts.Million, 1e6*86_400*0.0001, 1e-9)
	if hosts.Units != 1 || hosts.P50 != 1 || hosts.P99 != 1 || hosts.Cold != 0 {
		t.Errorf("one host takes each task at once: %+v", hosts)
	}
	// Held, a container costs what a host does and is in time; a start of 30 s is not.
	near(t, "containers", containers.Million, 1e6*86_400*0.0001, 1e-9)
	near(t, "functions", functions.Million, 1e6*1.5*0.00001, 0.005) // two tasks in a while come within ten minutes
	if functions.P50 != 1.5 || functions.P99 != 1.5 || functions.Cold < 0.985 || all.At.Cheapest().Way != InFunction {
		t.Errorf("a function starts for each task: %+v", functions)
	}

	patient := second()
	patient.Within = time.Hour
	all, err = patient.Compare(1. / 86_400)
	if err != nil {
		t.Fatal(err)
	}
	containers = all.At.Ways[1]
	near(t, "a container for each task", containers.Million, 1e6*60*0.0001, 1e-9)
	if !containers.Each || containers.P50 != 31 {
		t.Errorf("a container is started for each task: %+v", containers)
	}
}

// TestABusyStageByHand: at 1,000 tasks a second of a second each, 1,000 slots are busy in the mean. 500 hosts and a few
// cost what they hold; functions cost the same for a task at any rate.
func TestABusyStageByHand(t *testing.T) {
	t.Parallel()
	all, err := second().Compare(1000)
	if err != nil {
		t.Fatal(err)
	}
	hosts, functions := all.At.Ways[0], all.At.Ways[2]
	if hosts.Units < 501 || hosts.Units > 540 || hosts.Late {
		t.Errorf("got %d hosts, want a few more than 500", hosts.Units)
	}
	near(t, "hosts", hosts.Million, float64(hosts.Units)*0.0001*1000, 1e-9) // for 1,000 s
	near(t, "functions", functions.Million, 10, 0.01)
	if all.At.Cheapest().Way != InFunction { // 50 dollars against 10
		t.Errorf("cheapest: %+v", all.At.Cheapest())
	}
}

// TestHostsAreCheaperFromTheRateOn at which they cost what functions do: a host of 64 slots at 36 cents an hour is
// worth ten functions at a time, which are ten tasks a second.
func TestHostsAreCheaperFromTheRateOn(t *testing.T) {
	t.Parallel()
	c := second()
	c.Host.Slots = 64
	all, err := c.Compare(1)
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Cheapest) != 2 || all.Cheapest[0].Way != InFunction || all.Cheapest[1].Way != Hosts {
		t.Fatalf("got %+v, want functions, then hosts", all.Cheapest)
	}
	near(t, "the rate from which hosts are cheaper", all.Cheapest[1].From, 10, 0.1)
	for i, point := range all.Over {
		if i > 0 && point.Rate <= all.Over[i-1].Rate {
			t.Errorf("rates do not rise: %v after %v", point.Rate, all.Over[i-1].Rate)
		}
	}
}

// TestWaitingIsThatOfTheoryForOneSlot: with one slot and exponential run times the time from arrival to end is
// exponential with the mean 1/(1/m - rate) (M/M/1).
func TestWaitingIsThatOfTheoryForOneSlot(t *testing.T) {
	t.Parallel()
	c := second()
	c.Walls = nil
	for i := range 1000 {
		c.Walls = append(c.Walls, -math.Log(1-(float64(i)+0.5)/1000))
	}
	e := c.draw().serve(0.5, 1)
	near(t, "p50", e.P50, 2*math.Ln2, 0.1)
	near(t, "p99", e.P99, 2*math.Log(100), 0.15)
}

// bruteForce looks at every slot for every task.
func bruteForce(arrivals, walls []float64, slots int) (latencies []float64) {
	defer func() { slices.Sort(latencies) }()
	free := make([]float64, slots)
	for i, at := range arrivals {
		first := 0
		for j := range free {
			if free[j] < free[first] {
				first = j
			}
		}
		free[first] = max(free[first], at) + walls[i]
		if i >= warming {
			latencies = append(latencies, free[first]-at)
		}
	}
	return latencies
}

// bruteFunctions looks at every environment for every task.
func bruteFunctions(d *drawn, rate float64) (cold int, latencies []float64) {
	type environment struct{ until float64 }
	var all []environment
	for i := -d.warm(rate); i < len(d.walls); i++ {
		now, wall := d.task(i, rate)
		takes, warm := wall*d.Slower, -1
		for j, e := range all {
			if e.until <= now && e.until+d.Functions.Kept.Seconds() >= now && (warm < 0 || e.until > all[warm].until) {
				warm = j
			}
		}
		if warm < 0 {
			takes += d.Functions.Cold.Seconds()
			if i >= warming {
				cold++
			}
			all, warm = append(all, environment{}), len(all)
		}
		all[warm].until = now + takes
		if i >= warming {
			latencies = append(latencies, takes)
		}
	}
	slices.Sort(latencies)
	return cold, latencies
}

// TestTheSameArrivalsByBruteForce holds waiting, the number of what is held, and cold starts against simulations that
// look at everything for every task.
func TestTheSameArrivalsByBruteForce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := second()
		c.Seed = rapid.Uint64().Draw(t, "seed")
		c.Walls = rapid.SliceOfN(rapid.Float64Range(0.01, 10), 1, 8).Draw(t, "walls")
		c.Slower = rapid.Float64Range(0.3, 4).Draw(t, "slower")
		c.Functions.Kept = time.Duration(rapid.IntRange(0, 60).Draw(t, "kept")) * time.Second
		d := c.draw()
		busy := rapid.Float64Range(0.05, 6).Draw(t, "slots busy")
		rate := busy / d.mean
		arrivals := make([]float64, len(d.arrivals))
		for i, at := range d.arrivals {
			arrivals[i] = at / rate
		}
		held := d.held(rate, 1)
		latencies := bruteForce(arrivals, d.walls, held.Units)
		if got, want := held.P99, latencies[9899]; math.Abs(got-want) > 1e-9*want {
			t.Fatalf("p99 of %d slots: got %v, want %v", held.Units, got, want)
		}
		if held.Units-1 > int(rate*d.mean) {
			if fewer := bruteForce(arrivals, d.walls, held.Units-1)[9899]; fewer <= max(d.within, 1.01*d.longest) {
				t.Fatalf("%d slots are held, and one less has its p99 at %v of %v", held.Units, fewer, d.within)
			}
		}
		functions := d.functions(rate)
		cold, ends := bruteFunctions(d, rate)
		if math.Abs(functions.Cold-float64(cold)/tasks) > 1e-9 || functions.P99 != ends[9899] {
			t.Fatalf("functions: got %+v, want %d cold and a p99 of %v", functions, cold, ends[9899])
		}
	})
}

// TestFunctionsAreNoMoreThanThereAre: 1,000 tasks at a time need 1,000 environments, of which there are 900.
func TestFunctionsAreNoMoreThanThereAre(t *testing.T) {
	t.Parallel()
	c := second()
	c.Functions.Offered.Concurrency = 900
	all, err := c.Compare(1000)
	if err != nil {
		t.Fatal(err)
	}
	if functions := all.At.Ways[2]; !functions.Beyond || functions.Units < 950 || all.At.Cheapest().Way == InFunction {
		t.Errorf("of 900 environments: %+v, cheapest %+v", functions, all.At.Cheapest())
	}
	if last := all.Cheapest[len(all.Cheapest)-1]; last.Way == InFunction {
		t.Errorf("from %v a second on, %s", last.From, last.Way)
	}
	c.Functions.Offered.Concurrency = 2000
	if all, err = c.Compare(1000); err != nil || all.At.Ways[2].Beyond || all.At.Cheapest().Way != InFunction {
		t.Errorf("of 2,000 environments: %+v, %v", all.At, err)
	}
}

// TestEnvironmentsAreWarmAtAHighRate: 10,000 tasks a second of a second each come to 10,000 warm environments, though
// the tasks that are counted arrive within one second.
func TestEnvironmentsAreWarmAtAHighRate(t *testing.T) {
	t.Parallel()
	all, err := second().Compare(10_000)
	if err != nil {
		t.Fatal(err)
	}
	functions, each := all.At.Ways[2], second()
	if functions.Cold > 0.05 || functions.P99 > 1.5 || functions.Units < 9_500 || functions.Units > 11_500 {
		t.Errorf("functions: %+v, want about 10,000 warm ones", functions)
	}
	each.Walls, each.Container.Start, each.Container.Least = []float64{31}, 0, 0 // so that none need be held
	if all, err = each.Compare(10_000); err != nil {
		t.Fatal(err)
	}
	if e := all.At.Ways[1]; !e.Each || e.Units < 310_000 {
		t.Errorf("a container for each of 10,000 tasks a second, of 31 s each: %+v", e)
	}
}

// TestContainersAreStartedForEachTaskOnlyInTime: where neither is in time, what is held is nearer to it.
func TestContainersAreStartedForEachTaskOnlyInTime(t *testing.T) {
	t.Parallel()
	c := second()
	c.Within = time.Second / 2
	all, err := c.Compare(1. / 86_400)
	if err != nil {
		t.Fatal(err)
	}
	if e := all.At.Ways[1]; e.Each || !e.Late || e.P99 != 1 {
		t.Errorf("containers: %+v, want held ones that are late", e)
	}
	for _, span := range all.Cheapest {
		if !span.Late {
			t.Errorf("nothing is in half a second: %+v", span)
		}
	}
}

func TestWhatCannotBeComparedIsRefused(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Case){
		"no attempt":            func(c *Case) { c.Walls = nil },
		"a run time of nothing": func(c *Case) { c.Walls = []float64{0} },
		"a host without room":   func(c *Case) { c.Host.Slots = 0 },
		"a host without price":  func(c *Case) { c.Host.PerHour = 0 },
		"functions for nothing": func(c *Case) { c.Functions.Offered.PerGiBSecond = 0 },
		"a negative start":      func(c *Case) { c.Container.Start = -1 },
		"no slowdown":           func(c *Case) { c.Slower = math.NaN() },
	} {
		c := second()
		change(&c)
		if _, err := c.Compare(1); !errors.Is(err, ErrCase) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := second().Compare(rate); !errors.Is(err, ErrCase) {
			t.Errorf("rate %v: got %v", rate, err)
		}
	}
}
