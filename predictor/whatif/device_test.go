package whatif_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/predictor/fact"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/whatif"
)

// on is a room of slots with a GPU of a class, each for so many picodollars a second.
func on(class string, slots int, seconds float64, price quantity.Money) whatif.Room {
	size := core()
	size.GPU, size.DeviceClass = quantity.Core, class
	return whatif.Room{Size: size, Slots: slots, Seconds: seconds, Hour: price * second, Apart: true}
}

// onDevices are eight tasks that have four slots on a100, where each takes 10 s for 30: 20 s for 240.
func onDevices(others ...whatif.Room) whatif.Job {
	mine := on("a100", 4, 10, 3)
	mine.Apart = false
	return whatif.Job{Stages: []whatif.Stage{{
		Name: "score", Tasks: 8, End: 20, Rooms: []whatif.Room{mine}, Devices: others,
		Present: whatif.Given{Slots: 4, Size: mine.Size},
	}}}
}

func TestTheBestClassOfDevicesIsTold(t *testing.T) {
	t.Parallel()
	const micro = quantity.USD / 1_000_000
	for _, row := range []struct {
		name     string
		others   []whatif.Room
		minimise fact.Objective
		hour     quantity.Money // what one is worth
		best     string
		says     string
	}{
		{
			"faster and cheaper",
			[]whatif.Room{on("h200", 4, 4, 5)},
			"", quantity.USD, "h200", "on h200 score would take 8 s for",
		},
		{"slower and dearer", []whatif.Room{on("l4", 4, 30, 2)}, "", quantity.USD, "", ""},
		{"the same but for a hundredth", []whatif.Room{on("h100", 4, 9.9, 3)}, "", quantity.USD, "", ""},
		{
			"faster and dearer where time is what counts",
			[]whatif.Room{on("h200", 4, 5, 9)},
			fact.Latency, 0, "h200", "on h200 score would take 10 s for",
		},
		{"and where money is", []whatif.Room{on("h200", 4, 5, 9)}, fact.Cost, quantity.USD, "", ""},
		{
			"the cheaper of two where money is what counts",
			[]whatif.Room{on("h200", 4, 5, 9), on("l4", 4, 20, 1)},
			fact.Cost, 0, "l4", "on l4 score would take 40 s for",
		},
		{
			"time is worth more than what it costs",
			[]whatif.Room{on("h200", 4, 5, 9)},
			"", quantity.USD, "h200", "instead of 20 s for",
		},
		{"time is worth less", []whatif.Room{on("h200", 4, 5, 9*micro)}, "", quantity.USD / 1000, "", ""},
		{
			"hosts have fewer of it",
			[]whatif.Room{on("h200", 2, 2, 5)},
			fact.Latency, 0, "h200", "on a100, with 2 slots instead of 4",
		},
		{
			"as fast with a quarter of the slots is not better",
			[]whatif.Room{on("h200", 1, 2.5, 5)},
			fact.Latency, 0, "", "",
		},
	} {
		job := onDevices(row.others...)
		job.Goal.Minimise, job.ValueOfTime = row.minimise, row.hour
		a := whatif.Of(job)
		if !a.Known || len(a.Devices) != 1 || len(a.Devices[0].Others) != len(row.others) {
			t.Errorf("%s: known %v %q, compared %+v", row.name, a.Known, a.Why, a.Devices)
			continue
		}
		if got := a.Devices[0].Best; got != row.best {
			t.Errorf("%s: the best is %q, want %q of %+v", row.name, got, row.best, a.Devices[0])
		}
		said := strings.Join(a.Sentences, "\n")
		if !strings.Contains(said, row.says) || row.best == "" && strings.Contains(said, "\non ") {
			t.Errorf("%s: said %q, want %q", row.name, said, row.says)
		}
	}
}

func TestAFrontierHasOtherClassesOfDevices(t *testing.T) {
	t.Parallel()
	a := whatif.Of(onDevices(on("h200", 4, 4, 5)))
	if p := a.Points[0]; p.Seconds != 8 || p.Gets != "4 slots of 1 core on h200 for score" {
		t.Errorf("the fastest takes %v s with %s, want 8 s on h200", p.Seconds, p.Gets)
	}
	if p := a.Present; p.Seconds != 20 || p.Gets != "4 slots of 1 core on a100 for score" {
		t.Errorf("at present %v s with %s, want 20 s on a100: nobody has asked for another", p.Seconds, p.Gets)
	}
}

// TestWhatRunsStaysOnItsDevice has two tasks that run for another 7 s on a100 while six go to two slots of h200.
func TestWhatRunsStaysOnItsDevice(t *testing.T) {
	t.Parallel()
	job := onDevices(on("h200", 2, 2, 5))
	s := job.Stages[0]
	s.Tasks, s.Running = 6, []whatif.Running{{Left: 7, Cost: 21}, {Left: 7, Cost: 21}}
	comes, possible := s.With(whatif.Given{Slots: 2, Size: s.Devices[0].Size})
	want := (2*21 + 6*2*5*quantity.Money(1)).USD()
	if !possible || comes.Seconds != 7 || math.Abs(comes.Cost-want) > 1e-9*want {
		t.Errorf("%v: %v s for %v, want 7 s for %v", possible, comes.Seconds, comes.Cost, want)
	}
}

func TestClassesOfDevicesThatWereNeverTriedAreNamed(t *testing.T) {
	t.Parallel()
	job := onDevices()
	job.Stages[0].Untried = []string{"b200", "l4"}
	a := whatif.Of(job)
	said := strings.Join(a.Sentences, "\n")
	if len(a.Devices) != 1 || a.Devices[0].Best != "" || !strings.Contains(said,
		"how long score takes on b200 and on l4 is not known: no task of it has ended there") {
		t.Errorf("compared %+v, said %q", a.Devices, said)
	}
	if a := whatif.Of(twoStages()); len(a.Devices) > 0 {
		t.Errorf("stages without GPUs are compared: %+v", a.Devices)
	}
}

// TestAPromiseIsMadeWithTheDevicesThatAreAskedFor has a deadline that only another class meets: nobody would give that.
func TestAPromiseIsMadeWithTheDevicesThatAreAskedFor(t *testing.T) {
	t.Parallel()
	for deadline, want := range map[time.Duration][2]bool{
		25 * time.Second: {true, false}, 10 * time.Second: {false, true}, 5 * time.Second: {false, false},
	} {
		job := onDevices(on("h200", 4, 4, 1))
		job.Goal.Deadline = deadline
		a := whatif.Of(job)
		if a.Promise == nil || a.Promise.Met != want[0] || (a.Elsewhere != nil) != want[1] {
			t.Errorf("%v: promised %+v, elsewhere %+v, want met %v and %v", deadline, a.Promise, a.Elsewhere, want[0], want[1])
			continue
		}
		if class := a.Promise.Plan.Stages[0].Size.DeviceClass; class != "a100" {
			t.Errorf("%v: the plan is for %s, and a100 is asked for", deadline, class)
		}
		says := "on other GPUs than it asks for the deadline of 10 s is met in 100 % of cases for $"
		if said := strings.Join(a.Sentences, "\n"); strings.Contains(said, says) != want[1] {
			t.Errorf("%v: said %q", deadline, said)
		}
	}
}
