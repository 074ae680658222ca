package spill

import (
	"math"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// drawnLogs are logarithms of run times that vary by spread.
func drawnLogs(n int, spread float64, seed uint64) []float64 {
	random := rand.New(rand.NewPCG(seed, 0))
	logs := make([]float64, n)
	for i := range logs {
		logs[i] = spread*random.NormFloat64() - spread*spread/2
	}
	return logs
}

// TestChancesAreThoseOfServingTheTasksOneByOne holds the probability against a queue whose tasks are drawn from what
// the measured ones were drawn from.
func TestChancesAreThoseOfServingTheTasksOneByOne(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name         string
		tasks        float64
		slots, n     int
		spread, cold float64
	}{
		{"few tasks on few slots", 12, 2, 2, 0.5, 0.5},
		{"many on few", 400, 2, 6, 0.8, 1},
		{"one for each slot", 30, 2, 28, 0.6, 2},
		{"more slots than are drawn", 600, 20, 180, 0.7, 0.1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			o := Offer{
				Tasks: row.tasks, Slots: row.slots, Wall: 1, Function: 1.5, Cold: row.cold, Most: 1000,
				Scatter: Scatter{Logs: drawnLogs(400, row.spread, 1), Seed: 7},
			}
			random := rand.New(rand.NewPCG(2, 0))
			ends := make([]float64, 4000)
			for i := range ends {
				one := o
				ends[i], _ = one.served(row.n, func() float64 {
					return math.Exp(row.spread*random.NormFloat64() - row.spread*row.spread/2)
				})
			}
			for _, due := range []float64{0.8, 0.9, 0.95, 1, 1.05, 1.1, 1.2, 1.4} {
				at := due * o.Duration(row.n)
				met := 0.0
				for _, end := range ends {
					if end <= at {
						met += 1 / float64(len(ends))
					}
				}
				got := Backlog{Offer: o}.draw().chances(Waiting{Due: at}, 0.9).met(row.n)
				if math.Abs(got-met) > 0.1 {
					t.Errorf("%d functions end within %.3g s with %.3f, one by one with %.3f", row.n, at, got, met)
				}
			}
		})
	}
}

// served serves the tasks one by one: whoever is free first takes the next.
func (o Offer) served(n int, draw func() float64) (finish float64, byFunctions int) {
	free := make([]float64, o.Slots+n)
	for i := range free {
		free[i] = o.Wait
		if i >= o.Slots {
			free[i] = o.Cold
		}
	}
	for range int(o.Tasks) {
		next := 0
		for i := range free {
			if free[i] < free[next] {
				next = i
			}
		}
		takes := o.Wall
		if next >= o.Slots {
			takes = o.Function
			byFunctions++
		}
		free[next] += takes * draw()
		finish = max(finish, free[next])
	}
	return finish, byFunctions
}

func TestMoreIsAskedOfMoreFunctions(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		o := anOffer(t)
		o.Most = 40
		o.Scatter = Scatter{Logs: drawnLogs(rapid.IntRange(0, 32).Draw(t, "known"), 0.5, 3), Seed: 1}
		due := rapid.Float64Range(0.1, 3).Draw(t, "due") * o.Duration(0)
		run := Waiting{Limited: true, Due: due}
		b := Backlog{Offer: o}
		usual, found := b.draw().chances(run, 0.9).least()
		sure, foundSure := b.draw().chances(run, 0.99).least()
		if foundSure && !found || foundSure && sure < usual {
			t.Fatalf("%d are enough for 90 %% (%v), %d for 99 %% (%v), for %+v", usual, found, sure, foundSure, b)
		}
		if !found {
			return
		}
		if usual > 0 && b.draw().chances(run, 0.9).met(0) >= 0.9 {
			t.Fatalf("%d functions where none are enough, for %+v", usual, b)
		}
		later := run
		later.After = []float64{due}
		if n, still := b.draw().chances(later, 0.9).least(); still && n == 0 {
			t.Fatalf("what follows takes all the time and no function is wanted, for %+v", b)
		}
	})
}

func TestAStageOfWhichNoneHasEndedIsJudgedByTheAgeOfThoseThatRun(t *testing.T) {
	t.Parallel()
	o := Offer{Tasks: 60, Slots: 2, Wall: 1, Function: 1, Cold: 1, Most: 100, Scatter: Scatter{Seed: 3}}
	run := Waiting{Limited: true, Due: 300}
	young, _ := Backlog{Offer: o}.draw().chances(run, 0.9).least()
	o.Scatter.Oldest = 10 // at two slots these take five minutes
	old, found := Backlog{Offer: o}.draw().chances(run, 0.9).least()
	if !found || old <= young || old < 5 {
		t.Errorf("%d functions where one has run for 10 s, %d where nothing is known (%v)", old, young, found)
	}
}

func BenchmarkChances(b *testing.B) {
	for _, row := range []struct {
		name string
		o    Offer
		due  float64
	}{
		{"well within", Offer{Tasks: 100, Slots: 2, Wall: 1, Function: 1, Most: 100}, 100},
		{"a hundred tasks", Offer{Tasks: 100, Slots: 2, Wall: 1, Function: 1, Most: 100}, 20},
		{"many slots", Offer{Tasks: 10_000, Slots: 8, Wall: 1, Function: 1, Most: 1000}, 30},
	} {
		b.Run(row.name, func(b *testing.B) {
			row.o.Scatter = Scatter{Logs: drawnLogs(32, 0.5, 1)}
			for b.Loop() {
				if _, found := (Backlog{Offer: row.o}).draw().chances(Waiting{Due: row.due}, 0.9).least(); !found {
					b.Fatal("nothing is enough")
				}
			}
		})
	}
}

// TestMoreFunctionsAreSeldomWorse also where the pool is busy and some tasks wait for it alone: few slots that stand
// for many are never none.
func TestMoreFunctionsAreSeldomWorse(t *testing.T) {
	t.Parallel()
	for _, busy := range []int{1, 2, 8} {
		o := Offer{
			Tasks: 1000, Slots: busy, Wall: 10, Function: 10, Most: 1000,
			Scatter: Scatter{Logs: drawnLogs(32, 0.3, 1), AtPool: make([]float64, busy), PoolOnly: 3},
		}
		for i := range o.Scatter.AtPool {
			o.Scatter.AtPool[i] = 5
		}
		c := Backlog{Offer: o}.draw().chances(Waiting{Due: 300}, 0.9)
		before := 0.0
		for n := 1; n <= 1000; n += 37 {
			met := c.met(n)
			if met < before-0.1 {
				t.Errorf("%d functions beside %d busy slots are in time with %.2f, fewer with %.2f", n, busy, met, before)
			}
			before = max(before, met)
		}
		if before < 0.9 {
			t.Errorf("beside %d busy slots at most %.2f are in time", busy, before)
		}
	}
}
