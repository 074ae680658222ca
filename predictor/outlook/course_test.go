package outlook

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/spill"
	"github.com/spillway-ml/spillway/predictor/venue"
)

// scene is a stage at work: its course, and how many attempts run at the pool.
type scene struct {
	Course
	busy int
}

// aScene has attempts at both venues; those of one venue have equally long to go.
func aScene(t *rapid.T) scene {
	c := Course{
		Offer: someOffer(t), Held: rapid.IntRange(0, 8).Draw(t, "warm"),
		Part: rapid.Float64Range(0.1, 1).Draw(t, "part"), Variation: 0.1,
	}
	c.Highest = c.Function
	c.PoolOnly = float64(rapid.IntRange(0, 5).Draw(t, "for the pool only"))
	c.Running = rapid.IntRange(0, c.Held).Draw(t, "running at functions")
	busy := rapid.IntRange(0, c.Slots).Draw(t, "running at the pool")
	atPool, atVenue := rapid.Float64Range(0, 1).Draw(t, "left of those"), rapid.Float64Range(0, 1).Draw(t, "left of them")
	c.AtPool, c.AtVenue, c.Idle = float64(busy)*atPool, float64(c.Running)*atVenue, c.Slots-busy
	c.Longest = max(atPool*c.Wall*float64(min(busy, 1)), atVenue*c.Function*float64(min(c.Running, 1)))
	c.Wait = 0
	if c.Idle > 0 {
		c.Wait = rapid.SampledFrom([]float64{0, 0, 0.5, 3, 40}).Draw(t, "without room")
		if busy > 0 { // the first of those that run gives back what one takes
			c.Wait = min(c.Wait, atPool*c.Wall)
		}
	}
	c.After = fact.Interval{Low: 1, Mid: 2, High: 3}
	return scene{c, busy}
}

func aCourse(t *rapid.T) Course { return aScene(t).Course }

// served serves the tasks one by one, as the queues do: those for the pool only, then the others, each by whoever is
// free first.
func (s scene) served(n int) (finish float64, byFunctions int) {
	type server struct {
		free, takes float64
		function    bool
	}
	var servers []server
	for i := range s.Slots {
		next := server{takes: s.Wall, free: s.Wait}
		if i < s.busy {
			next.free = s.AtPool / float64(s.busy) * s.Wall
		}
		servers = append(servers, next)
	}
	for i := range n {
		next := server{takes: s.Function, function: true}
		switch {
		case i < s.Running:
			next.free = s.AtVenue / float64(s.Running) * s.Function
		case i >= s.Held:
			next.free = s.Cold
		}
		servers = append(servers, next)
	}
	finish = s.Longest
	for task := range int(s.PoolOnly + s.Tasks) {
		first := 0
		for i, other := range servers {
			if other.free < servers[first].free && !(other.function && task < int(s.PoolOnly)) {
				first = i
			}
		}
		servers[first].free += servers[first].takes
		finish = max(finish, servers[first].free)
		if servers[first].function {
			byFunctions++
		}
	}
	return finish, byFunctions
}

func TestACourseAgreesWithServingTheTasksOneByOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := aScene(t)
		n := rapid.IntRange(0, c.Most).Draw(t, "n")
		finish, taken := c.served(n)
		// Both let tasks be split or not: off by a task of the slower venue, and its start.
		if off := math.Abs(c.duration(n) - finish); off > c.Wall+c.Function+c.Cold+1e-9 {
			t.Fatalf("T(%d) = %.3f s, one by one %.3f s, for %+v", n, c.duration(n), finish, c)
		}
		if off := math.Abs(c.spilled(n) - float64(taken)); off > float64(n)*(1+(c.Wall+c.Cold)/c.Function)+1 {
			t.Fatalf("k(%d) = %.3f, one by one %d, for %+v", n, c.spilled(n), taken, c)
		}
	})
}

func TestCoursesByHand(t *testing.T) {
	t.Parallel()
	alone := spill.Offer{
		Tasks: 100, Slots: 1, Wall: 1, Function: 1, Highest: 1, Cold: 10, Class: quantity.GiB, Venue: lambdaPrices(),
		Most: 9,
	}
	many := alone
	many.Tasks, many.Slots = 20, 20
	for _, row := range []struct {
		name   string
		course Course
		n      int
		want   float64
	}{
		{"no environment is warm: (100 + 4 x 10) / 5", Course{Offer: alone}, 4, 28},
		{"all are warm: 100 / 5", Course{Offer: alone, Held: 4}, 4, 20},
		{"one of five is not: (100 + 10) / 6", Course{Offer: alone, Held: 4}, 5, 110.0 / 6},
		{"what runs at the pool comes first: (20 + 20) / 20", Course{Offer: many, AtPool: 20, Longest: 1}, 0, 2},
		{
			"and what runs at functions: (100 + 3) / (1 + 6)",
			Course{Offer: alone, Held: 6, Running: 6, AtVenue: 3},
			6,
			103.0 / 7,
		},
		{"as far as they stay: (100 + 1) / (1 + 2)", Course{Offer: alone, Held: 6, Running: 6, AtVenue: 3}, 2, 101.0 / 3},
		{"functions do not take what is for the pool only", Course{Offer: alone, Held: 9, PoolOnly: 50}, 9, 50},
		{"an attempt that runs longer than the backlog lasts", Course{Offer: alone, Held: 9, Longest: 77}, 9, 77},
		{"nobody takes anything", Course{Offer: spill.Offer{Tasks: 5, Wall: 1, Function: 1}}, 0, spill.NoPool},
		{"nothing is left", Course{Offer: spill.Offer{Wall: 1, Function: 1}}, 0, 0},
	} {
		if got := row.course.duration(row.n); math.Abs(got-row.want) > 1e-9 {
			t.Errorf("%s: T(%d) = %v s, want %v", row.name, row.n, got, row.want)
		}
	}
	whole, half := Course{Offer: alone, Part: 1, Committed: 7}, Course{Offer: alone, Part: 0.5, Committed: 7}
	if a, b := whole.cost(5)-7, half.cost(5)-7; a <= 0 || a-2*b > 1 || 2*b-a > 1 {
		t.Errorf("a run with half of the tasks pays %s of %s", b, a)
	}
}

func TestACourseWithoutHistoryIsTheOffer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := someOffer(t)
		o.Tasks += float64(o.Slots)
		o.Wait = 0
		c := Course{Offer: o, Part: 1}
		for n := range o.Most + 1 {
			if math.Abs(c.duration(n)-o.Duration(n)) > 1e-9 || c.cost(n) != o.Price(n) {
				t.Fatalf("n = %d: %v s for %s, the offer %v s for %s", n, c.duration(n), c.cost(n), o.Duration(n), o.Price(n))
			}
		}
	})
}

func TestMoreSlotsNeverCostLess(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := aCourse(t)
		for n := range c.Most {
			if c.cost(n+1) < c.cost(n) {
				t.Fatalf("%d slots cost %s, %d cost %s, for %+v", n, c.cost(n), n+1, c.cost(n+1), c)
			}
		}
	})
}

func TestOptionsAreTheFewestSlotsForEachFinish(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := aCourse(t)
		options := c.options()
		for i, o := range options[1:] {
			if o.finish <= options[i].finish || o.slots[0] >= options[i].slots[0] || o.cost > options[i].cost {
				t.Fatalf("option %+v comes after %+v", o, options[i])
			}
		}
		for n := range c.Most + 1 {
			finish := c.duration(n) + c.After.Mid
			if !slices.ContainsFunc(options, func(o option) bool { return o.slots[0] <= n && o.finish <= finish }) {
				t.Fatalf("%d slots end after %v s, and no option with as few does", n, finish)
			}
		}
	})
}

func TestMergedStagesAgreeWithBruteForce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		courses := rapid.SliceOfN(rapid.Custom(aCourse), 1, 3).Draw(t, "stages")
		limit := rapid.IntRange(0, 16).Draw(t, "slots of the venue")
		fits := func(slots []int) bool {
			sum := 0
			for _, n := range slots {
				sum += n
			}
			return sum <= limit
		}
		stages, all := make([][]option, len(courses)), []option{{}}
		for i, c := range courses {
			stages[i] = c.options()
			var longer []option
			for _, before := range all {
				for n := range c.Most + 1 {
					longer = append(longer, option{
						slots: append(slices.Clone(before.slots), n), finish: max(before.finish, c.duration(n)+c.After.Mid),
						cost: before.cost + c.cost(n),
					})
				}
			}
			all = longer
		}
		got := merge(stages, fits)
		want := front(slices.DeleteFunc(all, func(o option) bool { return !fits(o.slots) }))
		same := slices.EqualFunc(got, want, func(a, b option) bool { return a.finish == b.finish && a.cost == b.cost })
		if !same {
			t.Fatalf("merged %+v\nbrute  %+v", got, want)
		}
	})
}

func TestFrontsAreThinnedEvenlyAndKeepWhatMatters(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 2000).Draw(t, "options")
		options := make([]option, n)
		finish, cost := 1.0, quantity.Money(n)*quantity.USD
		for i := range options {
			finish += rapid.Float64Range(0.001, 10).Draw(t, "later")
			cost -= quantity.Money(rapid.IntRange(1, 1000).Draw(t, "cheaper"))
			options[i] = option{slots: []int{n - i}, finish: finish, cost: cost}
		}
		wanted := rapid.IntRange(1, n).Draw(t, "wanted")
		got := thin(options, func(o option) bool { return o.slots[0] == wanted })
		if len(got) > maxAlternatives || n <= maxAlternatives && len(got) != n {
			t.Fatalf("%d options thinned to %d", n, len(got))
		}
		has := func(slots int) bool {
			return slices.ContainsFunc(got, func(o option) bool { return o.slots[0] == slots })
		}
		if !has(1) || !has(n) || !has(wanted) {
			t.Fatalf("the ends and %d are not all kept of %d", wanted, n)
		}
		if !slices.IsSortedFunc(got, func(a, b option) int { return b.slots[0] - a.slots[0] }) {
			t.Fatalf("out of order: %+v", got)
		}
		if n > 1000 && len(got) < maxAlternatives/3 {
			t.Fatalf("only %d of %d are kept", len(got), n)
		}
	})
}

func someOffer(t *rapid.T) spill.Offer {
	offered := lambdaPrices()
	offered.PerGiBSecond = offered.PerGiBSecond.Times(math.Pow(10, rapid.Float64Range(-1, 2).Draw(t, "price factor")))
	wall := math.Pow(10, rapid.Float64Range(-1, 1.5).Draw(t, "wall"))
	return spill.Offer{
		Tasks: float64(rapid.IntRange(1, 60).Draw(t, "tasks")), Slots: rapid.IntRange(1, 4).Draw(t, "pool slots"), Wall: wall,
		Function: wall * rapid.Float64Range(0.5, 4).Draw(t, "slowdown"), Cold: rapid.Float64Range(0, 3).Draw(t, "cold"),
		Wait:  rapid.SampledFrom([]float64{0, 0, 1, 30}).Draw(t, "without room"),
		Class: quantity.GiB, Venue: offered, Most: 8,
	}
}

// lambdaPrices is Lambda's price list (us-east-1, x86).
func lambdaPrices() venue.Functions {
	return venue.Functions{
		Enabled: true, Concurrency: 100, MaxMemory: 10 * quantity.GiB, MaxDuration: 15 * time.Minute,
		PerGiBSecond: 16_666_700, PerRequest: 200_000,
	}
}
