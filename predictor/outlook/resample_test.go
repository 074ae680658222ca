package outlook

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/makespan"
	"github.com/spillway-ml/spillway/predictor/memory"
	"github.com/spillway-ml/spillway/predictor/usage"
)

// always is a quantity that was the same so often that it is nearly certain.
func always(value float64) usage.Growth {
	seen := make([]usage.Grown, 40)
	for i := range seen {
		seen[i].Value = value
	}
	return usage.LearnGrowth(seen, usage.Thought{Slope: 1, Give: 0.5, Spread: 0.001})
}

func TestWhatIsLeftOfARunByHand(t *testing.T) {
	t.Parallel()
	earlier := Way{Stages: []Passed{{"map", 0, 40}, {"reduce", 45, 75}}, Seconds: 80}
	reduce := map[string]Leg{"reduce": {Count: always(1), Mean: always(30), Rate: 0.01}}
	for _, c := range []struct {
		name         string
		journey      Journey
		finish, cost float64
	}{
		{
			"ten tasks of 10 s on 5 slots, 5 s, one of 30 s, 5 s",
			Journey{
				Called: []Leg{{Waiting: 10, Mean: always(10), Slots: always(5), Rate: 0.01}}, Later: reduce, Ways: []Way{earlier},
			},
			20 + 5 + 30 + 5, 1 + 0.3,
		},
		{
			"two that have run 4 s of 10, on two slots, and four that wait",
			Journey{
				Called: []Leg{{Waiting: 4, Running: []Going{{Age: 4}, {Age: 4}}, Mean: always(10), Slots: always(2)}},
				Later:  reduce,
				Ways:   []Way{earlier},
			},
			6 + 20 + 5 + 30 + 5, 0.3,
		},
		{
			"what passed since the stage before counts",
			Journey{
				Called: []Leg{{Done: 10, Busy: 100, Mean: always(10), Quiet: 2}}, Later: reduce, Ways: []Way{earlier},
			},
			3 + 30 + 5, 0.3,
		},
		{
			"all stages are done",
			Journey{Called: []Leg{{Quiet: 30}, {Quiet: 2}}, Ways: []Way{earlier}, Elapsed: 60, Spent: 7},
			3, 7,
		},
		{
			"tasks of this run tell more than those of others",
			Journey{
				Called: []Leg{{
					Waiting: 10, Done: 100, Busy: 2000, Running: []Going{{}}, Task: 0.01, Slots: always(1),
					Mean: usage.LearnGrowth([]usage.Grown{{Value: 10}}, usage.Thought{Slope: 1, Give: 1, Spread: 0.5}),
				}},
				Ways: []Way{{Stages: []Passed{{"map", 0, 40}}, Seconds: 40}},
			},
			220, 0,
		},
	} {
		drawn, known := c.journey.Draw()
		finish, cost := drawn.Finish(), drawn.Cost()
		if !known || math.Abs(finish.Mid-c.finish) > 0.03*c.finish || math.Abs(cost.Mid-c.cost) > 0.03*c.cost {
			t.Errorf("%s: %+v s for $%+v, known %v; want %v s for $%v", c.name, finish, cost, known, c.finish, c.cost)
		}
	}
}

// TestAnAttemptThatHasRunForLongGoesOnAsTheLongerOnesDo compares with what remains of many tasks that lasted so long.
func TestAnAttemptThatHasRunForLongGoesOnAsTheLongerOnesDo(t *testing.T) {
	t.Parallel()
	leg := Leg{Running: []Going{{Age: 15}}, Mean: always(10), Task: 0.5}
	journey := Journey{Called: []Leg{leg}, Ways: []Way{{Stages: []Passed{{"map", 0, 40}}, Seconds: 40}}}
	drawn, known := journey.Draw()
	finish := drawn.Finish()
	// Log-normal with mean 10 s and s = 0.5: the median of what is longer than 15 s is 18.4 s.
	if !known || math.Abs(finish.Mid-3.4) > 0.8 {
		t.Errorf("goes on for %+v, want 3.4 s", finish)
	}
	leg.Running[0].Age = 1e6
	drawn, known = journey.Draw()
	if finish = drawn.Finish(); !known || finish.Mid < 1e5 || finish.High > 1e7 {
		t.Errorf("one that has outlived all by far goes on for %+v, want about as long again", finish)
	}
}

func TestForecastsStayInOrderWhateverIsKnown(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		positive := rapid.Float64Range(1e-3, 1e9)
		grown := func(name string) usage.Growth {
			var seen []usage.Grown
			for range rapid.IntRange(0, 3).Draw(t, name) {
				seen = append(seen, usage.Grown{
					Value: positive.Draw(t, name), With: map[string]float64{RunInput: positive.Draw(t, "input")},
				})
			}
			return usage.LearnGrowth(seen, usage.Thought{Slope: 0.5, Give: 0.5, Spread: 0.1})
		}
		going := rapid.Custom(func(t *rapid.T) Going {
			one := Going{Age: rapid.OneOf(rapid.Just(0.0), positive).Draw(t, "age")}
			part := rapid.Float64Range(0, 3)
			if rapid.Bool().Draw(t, "its input is known") {
				one.Lasts = memory.Lasting{Median: positive.Draw(t, "lasts"), Spread: part.Draw(t, "spread")}
				one.Relative = rapid.OneOf(rapid.Just(0.0), positive).Draw(t, "relative")
			}
			if rapid.Bool().Draw(t, "it tells its progress") {
				one.Told.Now = memory.Left{Mean: positive.Draw(t, "left"), Variation: part.Draw(t, "variation")}
				one.Told.Then = memory.Left{Mean: positive.Draw(t, "was left"), Variation: part.Draw(t, "variation then")}
				one.Told.Ago = rapid.Float64Range(0, max(one.Age, 1)).Draw(t, "ago")
			}
			return one
		})
		leg := func() Leg {
			return Leg{
				Waiting: rapid.SampledFrom([]int{0, 1, 7, 1000, 10_000_000}).Draw(t, "waiting"),
				Running: rapid.SliceOfN(going, 0, 5).Draw(t, "running"), Since: positive.Draw(t, "since"),
				Own:     rapid.Float64Range(0, 3).Draw(t, "own"),
				Smaller: rapid.SampledFrom([]float64{0, 1e-3, 1, 9}).Draw(t, "smaller"),
				Quiet:   positive.Draw(t, "quiet"), Mean: grown("mean"), Task: rapid.Float64Range(0, 3).Draw(t, "task"),
				Count: grown("count"), Whole: grown("whole"), Slots: grown("slots"),
				Besides: rapid.SliceOfN(positive, 0, 2).Draw(t, "besides"), Rate: rapid.Float64Range(0, 1).Draw(t, "rate"),
			}
		}
		j := Journey{
			Called: []Leg{leg()}, Later: map[string]Leg{"b": leg()}, With: map[string]float64{RunInput: positive.Draw(t, "x")},
			Ways:  []Way{{Stages: []Passed{{"a", 0, 5}, {"b", 3, 9}}, Seconds: 10}},
			Width: rapid.Float64Range(0, 4).Draw(t, "width"), Elapsed: positive.Draw(t, "elapsed"),
		}
		drawn, _ := j.Draw()
		finish, cost := drawn.Finish(), drawn.Cost()
		again, _ := j.Draw()
		switch {
		case finish != again.Finish():
			t.Fatalf("%+v and then %+v", finish, again.Finish())
		case drawn.Later(finish.Mid) > 0.5 || drawn.Dearer(cost.Mid) > 0.5:
			t.Fatalf("later than the middle with %v, dearer with %v", drawn.Later(finish.Mid), drawn.Dearer(cost.Mid))
		case !(0 <= finish.Low && finish.Low <= finish.Mid && finish.Mid <= finish.High):
			t.Fatalf("ends in %+v", finish)
		case !(0 <= cost.Low && cost.Low <= cost.Mid && cost.Mid <= cost.High):
			t.Fatalf("costs %+v", cost)
		}
	})
}

// TestManySlotsAreFreeWhenTheirAttemptsEnd compares with list scheduling on all of the slots.
func TestManySlotsAreFreeWhenTheirAttemptsEnd(t *testing.T) {
	t.Parallel()
	const slots, seconds = 1000, 100.0
	leg := Leg{Waiting: slots}
	for _, busy := range []int{1000, 500, 30} {
		running := make([]float64, busy)
		for i := range running {
			running[i] = seconds * float64(i*7%busy) / float64(busy)
		}
		free := append(make([]float64, slots-busy), running...)
		want := 0.0
		for range leg.Waiting {
			first := slices.Index(free, slices.Min(free))
			free[first] += seconds
			want = max(want, free[first])
		}
		got, work := leg.schedule(running, seconds, slots, rand.New(rand.NewPCG(1, 1)))
		if math.Abs(got-want) > 0.15*want || math.Abs(work-seconds*float64(leg.Waiting)) > 0.05*work {
			t.Errorf("with %d of %d slots busy: done in %v s after %v s of work, want %v s", busy, slots, got, work, want)
		}
	}
}

// What is far from all that was seen has a wide interval, but none that wraps when it is written as a time.
func TestNoForecastIsLongerThanATimeCanBe(t *testing.T) {
	t.Parallel()
	mean := usage.LearnGrowth([]usage.Grown{{Value: 10, With: map[string]float64{RunInput: 1e3}}}, timing())
	journey := Journey{
		Called: []Leg{{Waiting: 1, Mean: mean}}, With: map[string]float64{RunInput: 1e12}, Width: 4,
		Ways: []Way{{Stages: []Passed{{"map", 0, 10}}, Seconds: 10}},
	}
	drawn, known := journey.Draw()
	finish := drawn.Finish()
	if !known || finish.High > float64(math.MaxInt64/time.Second) || finish.Low >= finish.High {
		t.Errorf("ends in %+v s, known %v: want a wide interval that is a time.Duration", finish, known)
	}
}

// TestManySlotsWaitForTheLongestOfTheirTasks holds what is drawn of more slots than are scheduled against all of them.
func TestManySlotsWaitForTheLongestOfTheirTasks(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		slots, tasks int
		spread       float64
	}{{200, 600, 0.5}, {1000, 2000, 0.5}, {1000, 5000, 0.8}} {
		leg := Leg{Waiting: row.tasks, Task: row.spread}
		random := rand.New(rand.NewPCG(1, 2))
		drawn, served := make([]float64, 101), make([]float64, 101)
		for i := range drawn {
			drawn[i], _ = leg.schedule(nil, 1, float64(row.slots), random)
			var all makespan.Slots
			all.Add(row.slots, makespan.Slot{Takes: 1})
			for range row.tasks {
				served[i] = max(served[i], all.Take(leg.drawn(1, random.NormFloat64())))
			}
		}
		slices.Sort(drawn)
		slices.Sort(served)
		if got, want := drawn[50], served[50]; math.Abs(got/want-1) > 0.15 {
			t.Errorf("%d tasks on %d slots: half of the draws end within %.3g s, served one by one %.3g", row.tasks, row.slots,
				got, want)
		}
	}
}
