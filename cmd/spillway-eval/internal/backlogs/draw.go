// Package backlogs lets drawn backlogs of tasks be done by a deadline, on a pool with functions beside it.
package backlogs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"
)

// World is how backlogs are drawn.
type World struct {
	// Seed is that from which everything is drawn.
	Seed uint64
	// Confidence is the probability with which deadlines are to be met.
	Confidence float64
}

// concurrency is how many functions may run at once.
const concurrency = 200

// backlog is one case: tasks that wait from the start on, and what was seen of their like.
type backlog struct {
	family  string
	earlier []task // of a run before
	tasks   []task
	cores   int     // slots of the pool, one for each
	slower  float64 // a task takes so many times longer at a function
	cold    time.Duration
	// deadline is that of the run, from its start on.
	deadline time.Duration
}

// task takes wall at the pool, for an input of so many bytes.
type task struct {
	input float64
	wall  time.Duration
}

// families are the ways in which run times differ, each a factor of the mean.
var families = []struct {
	name string
	draw func(*rand.Rand) func() (input, factor float64)
}{
	{"log-normal", func(r *rand.Rand) func() (float64, float64) {
		spread := 0.2 + 0.8*r.Float64()
		return func() (float64, float64) { return 1e6, math.Exp(spread*r.NormFloat64() - spread*spread/2) }
	}},
	{"pareto", func(r *rand.Rand) func() (float64, float64) {
		shape := 2.1 + 1.5*r.Float64()
		return func() (float64, float64) {
			return 1e6, (shape - 1) / shape * math.Pow(1-r.Float64(), -1/shape)
		}
	}},
	{"by input", func(r *rand.Rand) func() (float64, float64) {
		power := 0.5 + 0.5*r.Float64()
		return func() (float64, float64) {
			decades := 2*r.Float64() - 1 // a hundredfold
			return 1e8 * math.Pow(10, decades), math.Pow(10, decades*power) * math.Exp(0.15*r.NormFloat64())
		}
	}},
	{"two kinds", func(r *rand.Rand) func() (float64, float64) {
		long, part := 3+7*r.Float64(), 0.05+0.2*r.Float64()
		return func() (float64, float64) {
			factor := 1 / (1 - part + part*long)
			if r.Float64() < part {
				factor *= long
			}
			return 1e6, factor * math.Exp(0.1*r.NormFloat64())
		}
	}},
}

// draw draws a case of which hindsight says that some number of functions meets its deadline, and the pool alone does
// not.
func (w World) draw(number int) backlog {
	for try := uint64(0); ; try++ {
		r := rand.New(rand.NewPCG(w.Seed, uint64(number)<<16|try))
		family := families[r.IntN(len(families))]
		one := family.draw(r)
		mean := 0.5 * math.Pow(40, r.Float64()) // half a second to twenty
		b := backlog{
			family: family.name, cores: []int{2, 4, 8}[r.IntN(3)], slower: 0.8 + 1.2*r.Float64(),
			cold: time.Duration((0.2 + 2.8*r.Float64()) * float64(time.Second)),
		}
		drawn := func(n int) (tasks []task) {
			for range n {
				input, factor := one()
				tasks = append(tasks, task{input, time.Duration(max(mean*factor, 0.001) * float64(time.Second))})
			}
			return tasks
		}
		b.earlier = drawn([]int{5, 16, 64}[r.IntN(3)])
		b.tasks = drawn(int(20 * math.Pow(30, r.Float64())))
		alone := b.hindsight(0).took
		b.deadline = time.Duration((0.25 + 0.65*r.Float64()) * float64(alone))
		if _, met := b.cheapest(); met {
			return b
		}
	}
}

// String names the case.
func (b backlog) String() string {
	return fmt.Sprintf("%d tasks, %s, on %d cores", len(b.tasks), b.family, b.cores)
}

// Families names the ways in which run times differ.
func Families() []string {
	names := make([]string, len(families))
	for i, family := range families {
		names[i] = family.name
	}
	return names
}
