package predictor

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/quantity"
)

// scene is a stage at work: its course, and how many attempts run at the pool.
type scene struct {
	course
	busy int
}

// aScene has attempts at both venues; those of one venue have equally long to go.
func aScene(t *rapid.T) scene {
	c := course{
		offer: anOffer(t), held: rapid.IntRange(0, 8).Draw(t, "warm"),
		part: rapid.Float64Range(0.1, 1).Draw(t, "part"), variation: 0.1,
	}
	c.highest = c.function
	c.poolOnly = float64(rapid.IntRange(0, 5).Draw(t, "for the pool only"))
	c.running = rapid.IntRange(0, c.held).Draw(t, "running at functions")
	busy := rapid.IntRange(0, c.slots).Draw(t, "running at the pool")
	atPool, atVenue := rapid.Float64Range(0, 1).Draw(t, "left of those"), rapid.Float64Range(0, 1).Draw(t, "left of them")
	c.atPool, c.atVenue, c.idle = float64(busy)*atPool, float64(c.running)*atVenue, c.slots-busy
	c.longest = max(atPool*c.wall*float64(min(busy, 1)), atVenue*c.function*float64(min(c.running, 1)))
	c.wait = 0
	if c.idle > 0 {
		c.wait = rapid.SampledFrom([]float64{0, 0, 0.5, 3, 40}).Draw(t, "without room")
		if busy > 0 { // the first of those that run gives back what one takes
			c.wait = min(c.wait, atPool*c.wall)
		}
	}
	c.after = Interval{Low: 1, Mid: 2, High: 3}
	return scene{c, busy}
}

func aCourse(t *rapid.T) course { return aScene(t).course }

// served serves the tasks one by one, as the queues do: those for the pool only, then the others, each by whoever is
// free first.
func (s scene) served(n int) (finish float64, byFunctions int) {
	type server struct {
		free, takes float64
		function    bool
	}
	var servers []server
	for i := range s.slots {
		next := server{takes: s.wall, free: s.wait}
		if i < s.busy {
			next.free = s.atPool / float64(s.busy) * s.wall
		}
		servers = append(servers, next)
	}
	for i := range n {
		next := server{takes: s.function, function: true}
		switch {
		case i < s.running:
			next.free = s.atVenue / float64(s.running) * s.function
		case i >= s.held:
			next.free = s.cold
		}
		servers = append(servers, next)
	}
	finish = s.longest
	for task := range int(s.poolOnly + s.tasks) {
		first := 0
		for i, other := range servers {
			if other.free < servers[first].free && !(other.function && task < int(s.poolOnly)) {
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
		n := rapid.IntRange(0, c.most).Draw(t, "n")
		finish, taken := c.served(n)
		// Both let tasks be split or not: off by a task of the slower venue, and its start.
		if off := math.Abs(c.duration(n) - finish); off > c.wall+c.function+c.cold+1e-9 {
			t.Fatalf("T(%d) = %.3f s, one by one %.3f s, for %+v", n, c.duration(n), finish, c)
		}
		if off := math.Abs(c.spilled(n) - float64(taken)); off > float64(n)*(1+(c.wall+c.cold)/c.function)+1 {
			t.Fatalf("k(%d) = %.3f, one by one %d, for %+v", n, c.spilled(n), taken, c)
		}
	})
}

func TestCoursesByHand(t *testing.T) {
	t.Parallel()
	alone := offer{
		tasks: 100, slots: 1, wall: 1, function: 1, highest: 1, cold: 10, class: quantity.GiB, venue: lambda(),
		most: 9,
	}
	many := alone
	many.tasks, many.slots = 20, 20
	for _, row := range []struct {
		name   string
		course course
		n      int
		want   float64
	}{
		{"no environment is warm: (100 + 4 x 10) / 5", course{offer: alone}, 4, 28},
		{"all are warm: 100 / 5", course{offer: alone, held: 4}, 4, 20},
		{"one of five is not: (100 + 10) / 6", course{offer: alone, held: 4}, 5, 110.0 / 6},
		{"what runs at the pool comes first: (20 + 20) / 20", course{offer: many, atPool: 20, longest: 1}, 0, 2},
		{
			"and what runs at functions: (100 + 3) / (1 + 6)",
			course{offer: alone, held: 6, running: 6, atVenue: 3},
			6,
			103.0 / 7,
		},
		{"as far as they stay: (100 + 1) / (1 + 2)", course{offer: alone, held: 6, running: 6, atVenue: 3}, 2, 101.0 / 3},
		{"functions do not take what is for the pool only", course{offer: alone, held: 9, poolOnly: 50}, 9, 50},
		{"an attempt that runs longer than the backlog lasts", course{offer: alone, held: 9, longest: 77}, 9, 77},
		{"nobody takes anything", course{offer: offer{tasks: 5, wall: 1, function: 1}}, 0, noPool},
		{"nothing is left", course{offer: offer{wall: 1, function: 1}}, 0, 0},
	} {
		if got := row.course.duration(row.n); math.Abs(got-row.want) > 1e-9 {
			t.Errorf("%s: T(%d) = %v s, want %v", row.name, row.n, got, row.want)
		}
	}
	whole, half := course{offer: alone, part: 1, committed: 7}, course{offer: alone, part: 0.5, committed: 7}
	if a, b := whole.cost(5)-7, half.cost(5)-7; a <= 0 || a-2*b > 1 || 2*b-a > 1 {
		t.Errorf("a run with half of the tasks pays %s of %s", b, a)
	}
}

func TestACourseWithoutHistoryIsTheOffer(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := anOffer(t)
		o.tasks += float64(o.slots)
		o.wait = 0
		c := course{offer: o, part: 1}
		for n := range o.most + 1 {
			if math.Abs(c.duration(n)-o.duration(n)) > 1e-9 || c.cost(n) != o.price(n) {
				t.Fatalf("n = %d: %v s for %s, the offer %v s for %s", n, c.duration(n), c.cost(n), o.duration(n), o.price(n))
			}
		}
	})
}

func TestMoreSlotsNeverCostLess(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		c := aCourse(t)
		for n := range c.most {
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
		for n := range c.most + 1 {
			finish := c.duration(n) + c.after.Mid
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
				for n := range c.most + 1 {
					longer = append(longer, option{
						slots: append(slices.Clone(before.slots), n), finish: max(before.finish, c.duration(n)+c.after.Mid),
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

func TestTheResidualIsTheMeanOfWhatLongerAttemptsTookMore(t *testing.T) {
	t.Parallel()
	var walls series
	if got := walls.residual(3, 10); got != 7 {
		t.Errorf("without values: %v, want 7", got)
	}
	for _, wall := range []float64{2, 4, 8} {
		walls.push(wall, 8)
	}
	for age, want := range map[float64]float64{0: 14.0 / 3, 3: 3, 4: 4, 8: 0, 99: 0} {
		if got := walls.residual(age, 10); math.Abs(got-want) > 1e-9 {
			t.Errorf("at the age of %v: %v, want %v", age, got, want)
		}
	}
}
