package whatif_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// second is the price of a second at an hourly price.
const second = 3600

// core is a slot of one core.
func core() quantity.Size { return quantity.Size{CPU: quantity.Core, Memory: quantity.GiB} }

// room has so many slots of a core, each for a picodollar a second.
func room(slots int, seconds float64) whatif.Room {
	return whatif.Room{Size: core(), Slots: slots, Seconds: seconds, Hour: second}
}

// class has so many functions, each task for so much.
func class(slots int, seconds, cold float64, task quantity.Money) whatif.Class {
	return whatif.Class{Memory: quantity.GiB, Slots: slots, Seconds: seconds, Cold: cold, Task: task, Begin: 3}
}

func TestAStageComesToWhatItsQueueDoes(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		stage   whatif.Stage
		given   whatif.Given
		seconds float64
		cost    quantity.Money
	}{
		{
			"eight tasks of 10 s in two waves at the pool",
			whatif.Stage{Tasks: 8, Rooms: []whatif.Room{room(4, 10)}},
			whatif.Given{Slots: 4, Size: core()},
			20, 80,
		},
		{
			"functions are paid by the task, and for their start",
			whatif.Stage{Tasks: 8, Classes: []whatif.Class{class(8, 5, 2, 100)}},
			whatif.Given{Functions: 4, Class: quantity.GiB},
			12, 8*100 + 4*3,
		},
		{
			"both take from one queue: the pool 4, functions 2",
			whatif.Stage{Tasks: 6, Rooms: []whatif.Room{room(2, 10)}, Classes: []whatif.Class{class(8, 19, 0, 100)}},
			whatif.Given{Slots: 2, Size: core(), Functions: 2, Class: quantity.GiB},
			20, 4*10 + 2*100 + 2*3,
		},
		{
			"what runs keeps its slot, and is paid on",
			whatif.Stage{
				Tasks: 2, Rooms: []whatif.Room{room(2, 10)},
				Running: []whatif.Running{{Left: 4, Cost: 4}, {Left: 30, Cost: 30}},
			},
			whatif.Given{Slots: 2, Size: core()},
			30, 34 + 20,
		},
		{
			"what runs of another run has its slot, and is not paid",
			whatif.Stage{
				Tasks: 2, Rooms: []whatif.Room{room(2, 10)},
				Running: []whatif.Running{{Left: 4, Cost: 4}, {Left: 30, Cost: 30, Other: true}},
			},
			whatif.Given{Slots: 2, Size: core()},
			24, 4 + 20,
		},
		{
			"nothing waits: others may go on for longer",
			whatif.Stage{Running: []whatif.Running{{Left: 4, Cost: 4}, {Left: 510, Cost: 510, Other: true}}},
			whatif.Given{},
			4, 4,
		},
		{
			"tasks of another run wait between these, and it pays for them",
			whatif.Stage{Tasks: 2, Others: 6, Rooms: []whatif.Room{room(4, 10)}},
			whatif.Given{Slots: 4, Size: core()},
			20, 20,
		},
		{
			"nothing waits: what runs ends",
			whatif.Stage{Running: []whatif.Running{{Left: 4, Cost: 4}, {Left: 7, Cost: 50, Function: true}}},
			whatif.Given{},
			7, 54,
		},
		{
			"a slot that starts is paid meanwhile",
			whatif.Stage{Tasks: 1, Rooms: []whatif.Room{{Size: core(), Slots: 1, Seconds: 10, Start: 3, Hour: second}}},
			whatif.Given{Slots: 1, Size: core()},
			13, 13,
		},
	} {
		row.stage.Name = "score"
		got, possible := row.stage.With(row.given)
		if want := row.cost.USD(); !possible || math.Abs(got.Seconds-row.seconds) > 1e-9 ||
			math.Abs(got.Cost-want) > 1e-9*want {
			t.Errorf("%s: %v s for %v, %v; want %v s for %v", row.name, got.Seconds, got.Cost, possible, row.seconds, want)
		}
	}
	if _, possible := (whatif.Stage{Tasks: 1}).With(whatif.Given{Slots: 1}); possible {
		t.Error("nobody takes the task, and it is done")
	}
}

// twoStages are eight tasks of 10 s and one of 30 s after these, at four slots for a picodollar a second, or at
// functions that take half of the time at ten times the price.
func twoStages() whatif.Job {
	stage := func(name string, tasks int, seconds float64, start, end float64) whatif.Stage {
		return whatif.Stage{
			Name: name, Tasks: tasks, Start: start, End: end, Rooms: []whatif.Room{room(4, seconds)},
			Classes: []whatif.Class{class(8, seconds/2, 0, quantity.Money(10*seconds/2))},
			Present: whatif.Given{Slots: 4, Size: core()},
		}
	}
	return whatif.Job{
		Pipeline: "p", Stages: []whatif.Stage{stage("score", 8, 10, 0, 20), stage("report", 1, 30, 25, 55)}, After: 5,
	}
}

func TestAFrontierIsReadOff(t *testing.T) {
	t.Parallel()
	// At the pool: 20 s, 5 s between, 30 s and 5 s after, for 80 + 30. Functions alone take 5 and 15 s for 8 x 50 and 150,
	// and 3 for each that starts.
	a := whatif.Of(twoStages())
	if !a.Known || a.Present.Seconds != 60 || a.Present.Cost != (110*quantity.Money(1)).USD() {
		t.Fatalf("known %v, present %+v, want 60 s for 110", a.Known, a.Present)
	}
	first, last := a.Points[0], a.Points[len(a.Points)-1]
	if first.Seconds != 30 || last.Cost != (110*quantity.Money(1)).USD() || last.Seconds != 60 {
		t.Errorf("from %v s to %v s for %v, want 30 s to 60 s for 110", first.Seconds, last.Seconds, last.Cost)
	}
	if a.Faster == nil || a.Faster.Seconds > 30 || a.Faster.Gets == "" {
		t.Errorf("twice as fast is %+v, want at most 30 s", a.Faster)
	}
	if a.Cheaper != nil {
		t.Errorf("half the money is enough: %+v", a.Cheaper)
	}
	for i, want := range []string{"twice as fast (30 s instead of 60 s) would cost", "costs less than the $0.000000"} {
		if !strings.Contains(a.Sentences[i], want) {
			t.Errorf("sentence %q, want %q", a.Sentences[i], want)
		}
	}
}

func TestARunThatIsAsGoodAsDoneIsNotHastened(t *testing.T) {
	t.Parallel()
	job := whatif.Job{Run: "r", Pipeline: "p", Elapsed: 60, Stages: []whatif.Stage{{
		Name: "score", Running: []whatif.Running{{Left: 0.001, Cost: 5}}, Present: whatif.Given{Slots: 1, Size: core()},
	}}}
	a := whatif.Of(job)
	if a.Faster != nil || a.Sentences[0] != "nothing is left that could be done faster" {
		t.Errorf("twice as fast is %+v: %q", a.Faster, a.Sentences)
	}
}

func TestWhatAPointGetsIsToldInWords(t *testing.T) {
	t.Parallel()
	given := func(stage string, slots, functions int) whatif.Given {
		return whatif.Given{
			Stage: stage, Tasks: 9, Slots: slots, Size: core(), Functions: functions, Class: 1769 * quantity.MiB,
		}
	}
	half, device, idle := given("tell", 2, 3), given("fit", 1, 0), given("idle", 1, 0)
	half.Size.CPU, device.Size.DeviceClass, idle.Tasks = quantity.Core/2, "h100", 0
	for _, row := range []struct {
		given []whatif.Given
		want  string
	}{
		{nil, "what it has"},
		{[]whatif.Given{idle}, "what it has"},
		{
			[]whatif.Given{given("load", 1, 0), half, given("train", 1, 0), given("report", 1, 0)},
			"1 slot of 1 core for load, train and report, 2 slots of 0.5 cores and 3 functions of 1.7 GiB for tell",
		},
		{[]whatif.Given{device, given("score", 0, 1)}, "1 slot of 1 core on h100 for fit, 1 function of 1.7 GiB for score"},
	} {
		if got := whatif.Gets(row.given); got != row.want {
			t.Errorf("got %q, want %q", got, row.want)
		}
	}
	a := whatif.Of(twoStages())
	for _, p := range append(a.Points, *a.Present, *a.Faster) {
		if p.Gets != whatif.Gets(p.Stages) || p.Gets == "what it has" {
			t.Errorf("a point with %+v says that they get %q", p.Stages, p.Gets)
		}
	}
}

// TestFunctionsOfAnotherClassAreSomethingElse has a stage that as many larger functions make twice as fast.
func TestFunctionsOfAnotherClassAreSomethingElse(t *testing.T) {
	t.Parallel()
	small, large := class(8, 10, 0, 100), class(8, 4, 0, 300)
	large.Memory = 3 * quantity.GiB
	a := whatif.Of(whatif.Job{Stages: []whatif.Stage{{
		Name: "score", Tasks: 8, End: 10, Classes: []whatif.Class{small, large},
		Present: whatif.Given{Functions: 8, Class: small.Memory},
	}}})
	if want := "with 8 functions of 3 GiB for score"; !strings.Contains(a.Sentences[0], want) {
		t.Errorf("%q, want %q", a.Sentences[0], want)
	}
}

func TestAGoalIsPromisedOrSaidToBeImpossible(t *testing.T) {
	t.Parallel()
	usd := func(picodollars quantity.Money) float64 { return picodollars.USD() }
	for _, row := range []struct {
		name          string
		goal          fact.Goal
		spread        float64
		met           bool
		seconds       float64 // of the plan
		leastDeadline float64
		leastBudget   float64
		says          string
	}{
		{"a deadline that the pool meets", fact.Goal{Deadline: time.Minute}, 0, true, 60, 0, 0, "is met in 100 % of cases"},
		{
			"one that functions meet",
			fact.Goal{Deadline: 30 * time.Second},
			0, true, 30, 0, 0,
			"8 functions of 1 GiB for score",
		},
		{
			"one that nothing meets",
			fact.Goal{Deadline: 20 * time.Second},
			0, false, 30, 30, 0,
			"give a deadline of 30 s, or more",
		},
		{"a budget that is enough", fact.Goal{Budget: 110}, 0, true, 60, 0, 0, "is kept"},
		{"one that is not", fact.Goal{Budget: 109}, 0, false, 60, 0, usd(110), "give a budget of"},
		{
			"both, of which one is too little",
			fact.Goal{Deadline: 30 * time.Second, Budget: 200},
			0, false, 60, 60,
			usd(8*50 + 8*3 + 150 + 3), "give a deadline of 60 s or a budget of",
		},
		{
			"both, and the cheapest plan costs more",
			fact.Goal{Deadline: 30 * time.Second, Budget: 50},
			0, false, 30, 0, usd(8*50 + 8*3 + 150 + 3), "no plan that is known keeps the budget of",
		},
		{
			"both, and nothing meets either",
			fact.Goal{Deadline: 20 * time.Second, Budget: 50},
			0, false, 30, 0, 0, "give more of both",
		},
		{"doubt asks for more", fact.Goal{Deadline: time.Minute}, 0.3, true, 45, 0, 0, "is met in"},
		{
			"and for much more", fact.Goal{Deadline: time.Minute, Confidence: 0.999}, 0.3, true, 30, 0, 0, "is met in",
		},
	} {
		job := twoStages()
		job.Goal = row.goal
		for i := range job.Stages {
			job.Stages[i].Doubt = row.spread
		}
		a := whatif.Of(job)
		p := a.Promise
		if p == nil || p.Met != row.met {
			t.Errorf("%s: got %+v, want met %v", row.name, p, row.met)
			continue
		}
		if row.seconds > 0 && math.Abs(p.Plan.Seconds-row.seconds) > 8 {
			t.Errorf("%s: the plan takes %v s, want about %v", row.name, p.Plan.Seconds, row.seconds)
		}
		if math.Abs(p.LeastDeadline-row.leastDeadline) > 1e-9 ||
			math.Abs(p.LeastBudget-row.leastBudget) > 1e-9*row.leastBudget {
			t.Errorf("%s: give %v s or %v, want %v or %v", row.name, p.LeastDeadline, p.LeastBudget, row.leastDeadline,
				row.leastBudget)
		}
		if p.Met && row.goal.Deadline > 0 && p.Probability < row.goal.Asked() {
			t.Errorf("%s: in time with %v, asked %v", row.name, p.Probability, row.goal.Asked())
		}
		if said := a.Sentences[2]; !strings.Contains(said, row.says) {
			t.Errorf("%s: %q, want %q", row.name, said, row.says)
		}
	}
}

func TestWhatIsUnknownHasNoFrontier(t *testing.T) {
	t.Parallel()
	job := twoStages()
	job.Missing, job.Unknown = "how long a task takes is not known of train", []string{"train"}
	a := whatif.Of(job)
	if a.Known || len(a.Points) > 0 || a.Promise != nil || a.Unknown[0] != "train" ||
		!strings.Contains(strings.Join(a.Sentences, ""), "not known of train") {
		t.Errorf("got %+v", a)
	}
}

func TestStagesBesideEachOtherShareTheRoom(t *testing.T) {
	t.Parallel()
	job := twoStages()
	job.Stages[1].Start, job.Stages[1].End = 0, 30 // 80 and 30 s of work on four slots: three and one
	for i := range job.Stages {
		job.Stages[i].Classes = nil
	}
	a := whatif.Of(job)
	if got := a.Points[0]; got.Seconds != 35 || got.Stages[0].Slots != 3 || got.Stages[1].Slots != 1 {
		t.Errorf("got %+v, want 35 s with 3 slots and 1", got)
	}
}

// jobs are drawn.
func jobs(rt *rapid.T) whatif.Job {
	job := whatif.Job{
		Run: "r", Elapsed: rapid.Float64Range(0, 100).Draw(rt, "elapsed"),
		Spent: quantity.Money(rapid.Int64Range(0, 1e9).Draw(rt, "spent")), After: rapid.Float64Range(0, 9).Draw(rt, "after"),
	}
	at := 0.0
	for range rapid.IntRange(1, 4).Draw(rt, "stages") {
		s := whatif.Stage{
			Name: "s", Tasks: rapid.IntRange(0, 600).Draw(rt, "tasks"), Spread: rapid.Float64Range(0, 1).Draw(rt, "spread"),
			Doubt: rapid.Float64Range(0, 1).Draw(rt, "doubt"), Start: at + rapid.Float64Range(-3, 3).Draw(rt, "start"),
		}
		s.End = s.Start + rapid.Float64Range(0, 10).Draw(rt, "lasts")
		at = s.End
		for range rapid.IntRange(1, 3).Draw(rt, "rooms") {
			one := room(rapid.IntRange(1, 40).Draw(rt, "slots"), rapid.Float64Range(0.001, 100).Draw(rt, "takes"))
			one.Size.CPU = quantity.Milli(rapid.Int64Range(100, 8000).Draw(rt, "cpu"))
			one.Hour = quantity.Money(rapid.Int64Range(0, 1e12).Draw(rt, "hour"))
			s.Rooms = append(s.Rooms, one)
		}
		for _, class := range rapid.SliceOfNDistinct(rapid.SampledFrom([]string{"a100", "h200"}), 0, 2, rapid.ID).
			Draw(rt, "devices") {
			s.Devices = append(s.Devices, on(class, rapid.IntRange(1, 40).Draw(rt, "there are"),
				rapid.Float64Range(0.001, 100).Draw(rt, "on it"), quantity.Money(rapid.Int64Range(0, 1e8).Draw(rt, "for"))))
		}
		for range rapid.IntRange(0, 2).Draw(rt, "classes") {
			s.Classes = append(s.Classes, class(rapid.IntRange(1, 900).Draw(rt, "functions"),
				rapid.Float64Range(0.001, 100).Draw(rt, "there"), rapid.Float64Range(0, 3).Draw(rt, "cold"),
				quantity.Money(rapid.Int64Range(0, 1e9).Draw(rt, "task"))))
		}
		for range rapid.IntRange(0, 3).Draw(rt, "running") {
			s.Running = append(s.Running, whatif.Running{
				Left: rapid.Float64Range(0, 50).Draw(rt, "left"), Cost: quantity.Money(rapid.Int64Range(0, 1e6).Draw(rt, "on")),
				Function: rapid.Bool().Draw(rt, "function"),
			})
		}
		s.Present = whatif.Given{Slots: 1, Size: s.Rooms[0].Size}
		job.Stages = append(job.Stages, s)
	}
	job.Goal = fact.Goal{
		Deadline:   time.Duration(rapid.Int64Range(0, 5e11).Draw(rt, "deadline")),
		Budget:     quantity.Money(rapid.Int64Range(0, 1e11).Draw(rt, "budget")),
		Confidence: rapid.Float64Range(fact.LeastConfidence, fact.MostConfidence).Draw(rt, "confidence"),
	}
	return job
}

func TestWhatIsReadOffIsOfTheFrontier(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		job := jobs(rt)
		a := whatif.Of(job)
		if !a.Known || len(a.Points) == 0 {
			rt.Fatalf("not known: %s", a.Why)
		}
		for i, p := range a.Points[1:] { // faster is never cheaper; what has elapsed may round two times to one
			if before := a.Points[i]; !(p.Seconds >= before.Seconds && p.Cost < before.Cost) {
				rt.Fatalf("point %d of %v s for %v after %v s for %v", i+1, p.Seconds, p.Cost, before.Seconds, before.Cost)
			}
		}
		first, last := a.Points[0], a.Points[len(a.Points)-1]
		read := map[string]*whatif.Point{"faster": a.Faster, "cheaper": a.Cheaper}
		others := slices.ContainsFunc(job.Stages, func(s whatif.Stage) bool { return len(s.Devices) > 0 })
		if a.Promise != nil && !others { // it is made without these
			read["promise"] = &a.Promise.Plan
		}
		for name, p := range read {
			if p == nil {
				continue
			}
			// A promise may lie on the fiftieth of the frontier that is not told.
			least := (first.Seconds - job.Elapsed) / 1.021
			if p.Seconds-job.Elapsed < least-1e-9 || p.Cost < last.Cost/1.021-1e-12 { // money is whole picodollars
				rt.Fatalf("%s of %v s for %v lies beyond the frontier from %v s to %v", name, p.Seconds, p.Cost, first.Seconds,
					last.Cost)
			}
			for _, other := range a.Points { // no point of the frontier beats it
				if other.Seconds < p.Seconds*(1-1e-9) && other.Cost < p.Cost*(1-1e-9) {
					rt.Fatalf("%s of %v s for %v is beaten by %v s for %v", name, p.Seconds, p.Cost, other.Seconds, other.Cost)
				}
			}
		}
		if a.Faster != nil && a.Faster.Seconds-job.Elapsed > (a.Present.Seconds-job.Elapsed)/2*(1+1e-9)+1e-9 {
			rt.Fatalf("twice as fast takes %v s of %v s", a.Faster.Seconds, a.Present.Seconds)
		}
		p := a.Promise
		if p == nil {
			return
		}
		if p.Met && (job.Goal.Deadline > 0 && p.Probability < job.Goal.Confidence ||
			job.Goal.Budget > 0 && p.Plan.Cost > job.Goal.Budget.USD()*(1+1e-9)) {
			rt.Fatalf("a promise is none: %+v for %+v", p, job.Goal)
		}
		if p.Met || p.LeastDeadline == 0 {
			return
		}
		job.Goal.Deadline = time.Duration(math.Ceil(p.LeastDeadline*1e9)) + 1000
		if again := whatif.Of(job); !again.Promise.Met {
			rt.Fatalf("what was said to be enough is not: %v s, %+v", p.LeastDeadline, again.Promise)
		}
	})
}

func BenchmarkAFrontierOfFourStages(b *testing.B) {
	job := twoStages()
	for i := range 2 {
		stage := job.Stages[i]
		stage.Start, stage.End = stage.Start+100, stage.End+100
		job.Stages = append(job.Stages, stage)
	}
	for i := range job.Stages {
		job.Stages[i].Tasks, job.Stages[i].Spread = 500, 0.4
		job.Stages[i].Classes[0].Slots = 1000
	}
	if a := whatif.Of(job); !a.Known {
		b.Fatal(a.Why)
	}
	b.ReportAllocs()
	for b.Loop() {
		whatif.Of(job)
	}
}
