package timeline_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/predictor/timeline"
)

var epoch = time.Date(2026, 11, 20, 9, 0, 0, 0, time.UTC)

// at is a time so many nanoseconds after the epoch: small enough that an oracle can walk through all of them.
func at(nanoseconds int) time.Time { return epoch.Add(time.Duration(nanoseconds)) }

// drawRun draws a run of at most 60 ns and a now.
func drawRun(t *rapid.T) (run timeline.Run, now time.Time) {
	begin := rapid.IntRange(0, 10).Draw(t, "start")
	run.StartedAt = at(begin)
	if rapid.Bool().Draw(t, "event") {
		run.EventAt = at(rapid.IntRange(-5, 12).Draw(t, "event at"))
	}
	end := begin + rapid.IntRange(-3, 50).Draw(t, "wall")
	if rapid.Bool().Draw(t, "ended") {
		run.EndedAt = at(end)
		end += rapid.IntRange(0, 20).Draw(t, "later")
	}
	return run, at(end)
}

// drawAttempts draws attempts in the course of a run or a little beyond, numbered within their tasks.
func drawAttempts(t *rapid.T) []timeline.Attempt {
	var attempts []timeline.Attempt
	numbers := map[string]int{}
	for range rapid.IntRange(0, 8).Draw(t, "attempts") {
		when := rapid.IntRange(-5, 55).Draw(t, "scheduled")
		next := func(name string) int {
			when += rapid.IntRange(0, 12).Draw(t, name)
			return when
		}
		task := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "task")
		numbers[task]++
		a := timeline.Attempt{
			Stage: "stage of " + task, Task: task, Number: numbers[task], ScheduledAt: at(when),
			Venue: rapid.SampledFrom([]predictor.Venue{predictor.Pool, predictor.Function}).Draw(t, "venue"),
			Grant: quantity.Size{
				CPU:    quantity.Milli(rapid.IntRange(1, 4000).Draw(t, "cpu")),
				Memory: quantity.Bytes(rapid.IntRange(1, 1000).Draw(t, "memory")),
			},
		}
		switch rapid.SampledFrom([]string{"ended", "ended", "running", "told little", "waiting"}).Draw(t, "state") {
		case "ended":
			a.AdmittedAt, a.StartedAt = at(next("queue")), at(next("start"))
			a.Wall = time.Duration(rapid.IntRange(0, 15).Draw(t, "wall"))
			a.Fetch, a.Publish = time.Duration(rapid.IntRange(0, 9).Draw(t, "fetch")),
				time.Duration(rapid.IntRange(0, 9).Draw(t, "publish"))
			a.Settle = time.Duration(rapid.IntRange(0, 6).Draw(t, "settle"))
			a.EndedAt = at(next("run"))
			a.CPU, a.PeakMemory = time.Duration(rapid.IntRange(0, 30).Draw(t, "cpu time")),
				quantity.Bytes(rapid.IntRange(0, 1000).Draw(t, "peak"))
			a.Outcome = rapid.SampledFrom([]predictor.Outcome{predictor.Succeeded, predictor.Failed, predictor.OutOfMemory}).
				Draw(t, "outcome")
		case "running":
			a.StartedAt = at(next("start"))
		case "told little":
			a.EndedAt, a.Outcome = at(next("end")), predictor.Lost
		}
		attempts = append(attempts, a)
	}
	return attempts
}

// doing is what an attempt does in the nanosecond that begins at when, by the words of the doc comments; "" for
// nothing.
func doing(a timeline.Attempt, when, to time.Time) string {
	admitted, started, ended := a.AdmittedAt, a.StartedAt, a.EndedAt
	if ended.IsZero() {
		ended = to
	}
	if started.IsZero() {
		started = ended
	}
	if admitted.IsZero() {
		admitted = started
	}
	wall := a.Wall
	if a.EndedAt.IsZero() {
		wall = time.Hour
	}
	fetch := min(a.Fetch, wall)
	publish := min(a.Publish, wall-fetch)
	switch {
	case when.Before(a.ScheduledAt) || !when.Before(ended):
		return ""
	case when.Before(admitted):
		return "queue"
	case when.Before(started):
		return "start"
	case when.Before(started.Add(fetch)):
		return "fetch"
	case when.Before(started.Add(wall - publish)):
		return "compute"
	case when.Before(started.Add(wall + a.Settle)):
		return "publish"
	}
	return "unattributed"
}

// broken is Break by walking through every nanosecond.
func broken(run timeline.Run, now time.Time, attempts []timeline.Attempt) timeline.Breakdown {
	from, to := bounds(run, now)
	var b timeline.Breakdown
	rows := map[string]*time.Duration{
		"compute": &b.Compute, "fetch": &b.Fetch, "publish": &b.Publish, "unattributed": &b.Unattributed, "start": &b.Start,
		"queue": &b.Queue, "": &b.Engine,
	}
	for when := from; when.Before(to); when = when.Add(1) {
		b.Wall++
		if when.Before(run.StartedAt) {
			b.Broker++
			continue
		}
		under := map[string]bool{}
		for _, a := range attempts {
			under[doing(a, when, to)] = true
			for _, before := range attempts {
				if before.Task == a.Task && before.Number == a.Number-1 && !before.EndedAt.IsZero() &&
					!when.Before(before.EndedAt) && when.Before(a.ScheduledAt) {
					under["queue"] = true
				}
			}
		}
		for _, row := range []string{"compute", "fetch", "publish", "unattributed", "start", "queue", ""} {
			if under[row] || row == "" {
				*rows[row]++
				break
			}
		}
	}
	return b
}

func bounds(run timeline.Run, now time.Time) (from, to time.Time) {
	from, to = run.StartedAt, run.EndedAt
	if !run.EventAt.IsZero() && run.EventAt.Before(from) {
		from = run.EventAt
	}
	if to.IsZero() {
		to = now
	}
	if to.Before(run.StartedAt) {
		to = run.StartedAt
	}
	return from, to
}

func TestEveryNanosecondOfARunIsChargedOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		run, now := drawRun(t)
		attempts := drawAttempts(t)
		got := timeline.Break(run, now, attempts)
		if diff := cmp.Diff(broken(run, now, attempts), got); diff != "" {
			t.Fatalf("the rows of %+v\nat %v of\n%+v\n(-want +got):\n%s", run, now, attempts, diff)
		}
		if sum := got.Broker + got.Engine + got.Queue + got.Start + got.Fetch + got.Compute + got.Publish +
			got.Unattributed; sum != got.Wall {
			t.Fatalf("the rows sum to %d, the wall time is %d", sum, got.Wall)
		}
		shuffled := rapid.Permutation(attempts).Draw(t, "order")
		if again := timeline.Break(run, now, shuffled); again != got {
			t.Fatalf("the order of attempts matters: %+v and %+v", got, again)
		}
	})
}

func TestARunsTimeIsToldByWhatItsAttemptsDid(t *testing.T) {
	t.Parallel()
	minute := func(m float64) time.Time { return epoch.Add(time.Duration(m * float64(time.Minute))) }
	run := timeline.Run{EventAt: minute(0), StartedAt: minute(1), EndedAt: minute(20)}
	failed := timeline.Attempt{
		Task: "a", Number: 1, ScheduledAt: minute(2), AdmittedAt: minute(3), StartedAt: minute(4), EndedAt: minute(6),
		Wall: 2 * time.Minute, Fetch: time.Minute,
	}
	again := timeline.Attempt{
		Task: "a", Number: 2, ScheduledAt: minute(8), AdmittedAt: minute(8), StartedAt: minute(8), EndedAt: minute(13),
		Wall: 3 * time.Minute, Publish: 30 * time.Second, Settle: time.Minute,
	}
	want := timeline.Breakdown{
		Wall: 20 * time.Minute, Broker: time.Minute, Engine: 8 * time.Minute, Queue: 3 * time.Minute, Start: time.Minute,
		Fetch: time.Minute, Compute: 3*time.Minute + 30*time.Second, Publish: 90 * time.Second, Unattributed: time.Minute,
	}
	if diff := cmp.Diff(want, timeline.Break(run, minute(99), []timeline.Attempt{again, failed})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// goes on: it computes all the time
	beside := timeline.Attempt{Task: "b", Number: 1, ScheduledAt: minute(1), StartedAt: minute(1)}
	want = timeline.Breakdown{Wall: 20 * time.Minute, Broker: time.Minute, Compute: 19 * time.Minute}
	if diff := cmp.Diff(want, timeline.Break(run, minute(99), []timeline.Attempt{again, failed, beside})); diff != "" {
		t.Errorf("beside an attempt that computes (-want +got):\n%s", diff)
	}
	if got := timeline.Break(timeline.Run{StartedAt: minute(1)}, minute(3), nil); got !=
		(timeline.Breakdown{Wall: 2 * time.Minute, Engine: 2 * time.Minute}) {
		t.Errorf("a run without attempts: %+v", got)
	}
}

func TestBinsHoldTheTimeThatAttemptsSpentInEachState(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		run, now := drawRun(t)
		attempts := drawAttempts(t)
		from, to := bounds(run, now)
		drawn := rapid.IntRange(0, 7).Draw(t, "marks")
		view := timeline.Lay(run, now, attempts, drawn)
		count, marks := 0, 0
		for _, lane := range view.Lanes {
			count += lane.Count
			marks += len(lane.Attempts) + len(lane.Bins)
			if len(lane.Attempts) > 0 {
				if len(lane.Attempts) != lane.Count || len(lane.Bins) > 0 {
					t.Fatalf("lane %+v is neither drawn nor binned", lane)
				}
				continue
			}
			var want, got timeline.Bin
			for _, a := range attempts {
				if a.Stage != lane.Stage {
					continue
				}
				if !a.EndedAt.IsZero() {
					want.Ended++
				}
				for when := from; when.Before(to); when = when.Add(1) {
					switch what := doing(a, when, to); {
					case what == "":
					case what == "queue":
						want.Queued++
					case what == "start":
						want.Starting++
					case a.Venue == predictor.Pool:
						want.Pool++
					default:
						want.Function++
					}
				}
			}
			span := int(to.Sub(from))
			for i, bin := range lane.Bins {
				width := float64((i+1)*span/len(lane.Bins) - i*span/len(lane.Bins))
				got.Queued += bin.Queued * width
				got.Starting += bin.Starting * width
				got.Pool += bin.Pool * width
				got.Function += bin.Function * width
				got.Ended += bin.Ended
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 1e-4)); diff != "" {
				t.Fatalf("%d bins of %+v (-want +got):\n%s", len(lane.Bins), attempts, diff)
			}
		}
		if count != len(attempts) {
			t.Fatalf("%d attempts are counted, want %d", count, len(attempts))
		}
		if marks > max(drawn, len(view.Lanes)) {
			t.Fatalf("%d marks, want at most %d in %d lanes", marks, drawn, len(view.Lanes))
		}
		if diff := cmp.Diff(view, timeline.Lay(run, now, rapid.Permutation(attempts).Draw(t, "order"), drawn)); diff != "" {
			t.Fatalf("the order of attempts matters:\n%s", diff)
		}
	})
}

func TestLanesShareTheMarks(t *testing.T) {
	t.Parallel()
	var attempts []timeline.Attempt
	for stage, count := range []int{3, 100, 400} {
		for task := range count {
			attempts = append(attempts, timeline.Attempt{
				Stage: fmt.Sprint("s", stage), Task: strconv.Itoa(task), Number: 1, ScheduledAt: at(1000*stage + task),
				EndedAt: at(1000*stage + task + 500),
				Outcome: predictor.OutOfMemory,
			})
		}
	}
	run := timeline.Run{StartedAt: at(0), EndedAt: at(4000)}
	for _, c := range []struct {
		marks int
		want  []int // marks of each lane; negative for bins
	}{
		{503, []int{3, 100, 400}},
		{502, []int{3, 100, -399}},
		{203, []int{3, 100, -100}},
		{200, []int{3, -98, -98}},
		{6, []int{-2, -2, -2}},
		{0, []int{-1, -1, -1}},
	} {
		view := timeline.Lay(run, at(9999), attempts, c.marks)
		var got []int
		for _, lane := range view.Lanes {
			got = append(got, len(lane.Attempts)-len(lane.Bins))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%d marks: %v, want %v", c.marks, got, c.want)
		}
	}
	last := timeline.Lay(run, at(9999), attempts, 4).Lanes[2].Bins[0]
	if last.Ended != 400 || last.Failed != 400 || last.OutOfMemory != 400 {
		t.Errorf("all 400 ended by running out of memory, the bin says %+v", last)
	}
}

// integral sums a series over its points.
func integral(points []timeline.Held, step time.Duration, value func(timeline.Held) float64) float64 {
	sum := 0.0
	for _, p := range points {
		sum += value(p) * step.Seconds()
	}
	return sum
}

func TestWhatIsAllocatedSumsToWhatWasHeldAndUsed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var attempts []timeline.Attempt
		var looks []timeline.Look
		var held, granted, used float64
		const seconds = 1000
		for i := range rapid.IntRange(1, 6).Draw(t, "attempts") {
			second := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
			admitted := rapid.IntRange(0, 500).Draw(t, "admitted")
			started := admitted + rapid.IntRange(0, 20).Draw(t, "start")
			wall := rapid.IntRange(1, 300).Draw(t, "wall")
			ended := started + wall + rapid.IntRange(0, 20).Draw(t, "after")
			a := timeline.Attempt{
				Stage: "s", Task: strconv.Itoa(i), Number: 1, Venue: predictor.Pool, ScheduledAt: second(admitted),
				AdmittedAt: second(admitted), StartedAt: second(started),
				EndedAt: second(ended), Wall: time.Duration(wall) * time.Second, Grant: quantity.Size{CPU: 2000, Memory: 100},
				PeakMemory: 70,
			}
			cores := 0.0
			for s := started; s < started+wall; {
				s += rapid.IntRange(1, 100).Draw(t, "look after")
				if s >= started+wall {
					break
				}
				milli := rapid.IntRange(0, 2000).Draw(t, "cpu")
				before := started
				for _, l := range looks {
					if l.Task == a.Task {
						before = int(l.At.Sub(epoch).Seconds())
					}
				}
				cores += float64(milli) / 1000 * float64(s-before)
				looks = append(looks, timeline.Look{
					Stage: "s", Task: a.Task, Attempt: 1, At: second(s), CPU: quantity.Milli(milli),
					Grant: a.Grant, Memory: 50,
				})
			}
			a.CPU = time.Duration(cores*1e9) + time.Duration(rapid.IntRange(0, 100).Draw(t, "rest"))*time.Second
			attempts = append(attempts, a)
			held += float64(ended - admitted)
			granted += 2 * float64(ended-admitted)
			used += a.CPU.Seconds()
		}
		// Points that divide the time evenly, so that Step is exact.
		points := rapid.SampledFrom([]int{1, 10, 50, 1000}).Draw(t, "points")
		shuffled := rapid.Permutation(looks).Draw(t, "order")
		stages := timeline.Allocate(rapid.Permutation(attempts).Draw(t, "order of attempts"), shuffled, epoch,
			epoch.Add(seconds*time.Second), points)
		if len(stages) != 1 || len(stages[0].Points) != points {
			t.Fatalf("%+v, want %d points of one stage", stages, points)
		}
		for _, c := range []struct {
			name  string
			want  float64
			value func(timeline.Held) float64
		}{
			{"attempts held", held, func(h timeline.Held) float64 { return h.Pool }},
			{"core seconds granted", granted, func(h timeline.Held) float64 { return h.GrantedCPU }},
			{"core seconds used", used, func(h timeline.Held) float64 { return h.UsedCPU }},
		} {
			if got := integral(stages[0].Points, stages[0].Step, c.value); math.Abs(got-c.want) > 1e-3 {
				t.Fatalf("%s: %v, want %v; %+v; %+v", c.name, got, c.want, attempts, looks)
			}
		}
	})
}

func TestAllocationFollowsWhatWasSeen(t *testing.T) {
	t.Parallel()
	second := func(s int) time.Time { return epoch.Add(time.Duration(s) * time.Second) }
	running := timeline.Attempt{
		Stage: "train", Task: "t", Number: 1, Venue: predictor.Pool, ScheduledAt: epoch, StartedAt: second(1),
		Grant: quantity.Size{CPU: 4000, Memory: 400},
	}
	looks := []timeline.Look{
		{
			Stage: "train", Task: "t", Attempt: 1, At: second(3), CPU: 1500, Memory: 150,
			Grant: quantity.Size{CPU: 2000, Memory: 200},
		},
		{
			Stage: "train", Task: "t", Attempt: 1, At: second(2), CPU: 500, Memory: 50,
			Grant: quantity.Size{CPU: 1000, Memory: 100},
		},
		{Stage: "train", Task: "nobody", Attempt: 1, At: second(2), CPU: 500},
	}
	blind := timeline.Attempt{
		Stage: "score", Task: "u", Number: 1, Venue: predictor.Function, ScheduledAt: second(1), AdmittedAt: second(1),
		StartedAt: second(2), EndedAt: second(4),
		Wall: time.Second, CPU: time.Second / 2, PeakMemory: 30, Grant: quantity.Size{CPU: 1000, Memory: 64},
	}
	want := []timeline.Allocation{
		{Stage: "train", From: epoch, Step: time.Second, Points: []timeline.Held{
			{},
			{Pool: 1, GrantedCPU: 1, UsedCPU: 0.5, GrantedMemory: 100, UsedMemory: 50},
			{Pool: 1, GrantedCPU: 2, UsedCPU: 1.5, GrantedMemory: 200, UsedMemory: 150},
			{Pool: 1, GrantedCPU: 2, UsedCPU: 1.5, GrantedMemory: 200, UsedMemory: 150}, // not what it was admitted with
		}},
		{Stage: "score", From: epoch, Step: time.Second, Points: []timeline.Held{
			{},
			{Function: 1, GrantedCPU: 1, GrantedMemory: 64},
			{Function: 1, GrantedCPU: 1, UsedCPU: 0.5, GrantedMemory: 64, UsedMemory: 30},
			{Function: 1, GrantedCPU: 1, GrantedMemory: 64},
		}},
	}
	got := timeline.Allocate([]timeline.Attempt{blind, running}, looks, epoch, second(4), 4)
	if diff := cmp.Diff(want, got, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNothingAtAllIsLaidOut(t *testing.T) {
	t.Parallel()
	for _, run := range []timeline.Run{
		{},
		{StartedAt: epoch},
		{StartedAt: epoch, EndedAt: epoch},
		{StartedAt: epoch, EndedAt: epoch.Add(-1)},
	} {
		attempts := []timeline.Attempt{
			{Stage: "s", Number: 1},
			{Stage: "s", Number: 2, StartedAt: epoch, EndedAt: epoch.AddDate(400, 0, 0)},
		}
		view := timeline.Lay(run, epoch, attempts, 1)
		if len(view.Lanes) != 1 || view.Lanes[0].Count != 2 {
			t.Errorf("%+v: %+v, want both attempts in one lane", run, view)
		}
		if got := timeline.Allocate(attempts, nil, epoch, epoch, 0); len(got) != 1 || len(got[0].Points) != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// many are n attempts of 5 stages over an hour, with looks at some.
func many(n int) (attempts []timeline.Attempt, looks []timeline.Look) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		scheduled := epoch.Add(time.Duration(random.Int64N(int64(time.Hour))))
		admitted := scheduled.Add(time.Duration(random.Int64N(int64(time.Minute))))
		wall := time.Duration(random.Int64N(int64(time.Minute)))
		a := timeline.Attempt{
			Stage: fmt.Sprint("s", i%5), Task: fmt.Sprint("t", i), Number: 1, Venue: predictor.Pool,
			Outcome: predictor.Succeeded, ScheduledAt: scheduled, AdmittedAt: admitted,
			StartedAt: admitted.Add(time.Second), Wall: wall, EndedAt: admitted.Add(wall + 2*time.Second),
			Grant: quantity.Size{CPU: 1000, Memory: quantity.GiB},
			CPU:   wall / 2, PeakMemory: quantity.GiB / 2, Fetch: wall / 10, Publish: wall / 10,
		}
		attempts = append(attempts, a)
		looks = append(looks, timeline.Look{
			Stage: a.Stage, Task: a.Task, Attempt: 1, At: a.StartedAt.Add(wall / 2), CPU: 500,
			Memory: quantity.GiB / 3, Grant: a.Grant,
		})
	}
	return attempts, looks
}

func BenchmarkTimeline(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		attempts, looks := many(n)
		run := timeline.Run{StartedAt: epoch, EndedAt: epoch.Add(time.Hour)}
		b.Run(fmt.Sprintf("Lay/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				timeline.Lay(run, run.EndedAt, attempts, 2000)
			}
		})
		b.Run(fmt.Sprintf("Break/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				timeline.Break(run, run.EndedAt, attempts)
			}
		})
		b.Run(fmt.Sprintf("Allocate/%d", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				timeline.Allocate(attempts, looks, run.StartedAt, run.EndedAt, 300)
			}
		})
	}
}

func ExampleBreak() {
	run := timeline.Run{EventAt: epoch, StartedAt: epoch.Add(200 * time.Millisecond), EndedAt: epoch.Add(10 * time.Second)}
	b := timeline.Break(run, run.EndedAt, []timeline.Attempt{{
		Stage: "score", Task: "t0", Number: 1, ScheduledAt: epoch.Add(time.Second), AdmittedAt: epoch.Add(3 * time.Second),
		StartedAt: epoch.Add(4 * time.Second),
		EndedAt:   epoch.Add(9 * time.Second), Wall: 5 * time.Second, Fetch: time.Second,
	}})
	fmt.Printf("broker %s, engine %s, queue %s, start %s, fetch %s, compute %s of %s\n", b.Broker, b.Engine, b.Queue,
		b.Start, b.Fetch, b.Compute, b.Wall)
	// Output: broker 200ms, engine 1.8s, queue 2s, start 1s, fetch 1s, compute 4s of 10s
}
