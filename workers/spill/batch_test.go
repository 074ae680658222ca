package spill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/temporal"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/slot"
	"github.com/spillway-ml/spillway/workers/slot/slottest"
)

// TestABillIsDividedToTheLastUnit: the parts are the whole, by run times, and none is less than nothing.
func TestABillIsDividedToTheLastUnit(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cost := quantity.Money(rapid.Int64Range(0, 1<<50).Draw(t, "cost"))
		billed := time.Duration(rapid.Int64Range(0, int64(15*time.Minute)).Draw(t, "billed"))
		ran := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(15*time.Minute)).Draw(t, "ran"))
		}), 1, 64).Draw(t, "run times")
		costs, bills := split(cost, billed, ran)
		var whole quantity.Money
		var all, sum time.Duration
		for i := range ran {
			whole, all, sum = whole+costs[i], all+bills[i], sum+ran[i]
		}
		if whole != cost || all != billed || len(costs) != len(ran) {
			t.Fatalf("the parts come to %d and %d, want %d and %d", whole, all, cost, billed)
		}
		for i := range ran {
			want := float64(cost) * (float64(ran[i]) / float64(max(sum, 1)))
			if sum == 0 {
				want = float64(cost) / float64(len(ran))
			}
			if costs[i] < 0 || bills[i] < 0 || float64(costs[i])-want > 1.5 || want-float64(costs[i]) > 1.5 {
				t.Errorf("part %d of %d for %s of %s: got %d, want %g", i, cost, ran[i], sum, costs[i], want)
			}
		}
	})
}

func TestWhenABatchIsReady(t *testing.T) {
	t.Parallel()
	now := time.Unix(100, 0)
	ago := func(d time.Duration, change ...func(*member)) *member {
		m := &member{call: &call{function: "f"}, since: now.Add(-d), payload: make([]byte, 100)}
		for _, one := range change {
			one(m)
		}
		return m
	}
	lonely := func(m *member) { m.alone = true }
	other := func(m *member) { m.call.function = "larger" }
	large := func(m *member) { m.payload = make([]byte, maxPayload-150) }
	long := func(m *member) { m.expected = 1 }
	row := granted{slots: 2, batch: predictor.Batch{Tasks: 3, Wait: 40 * time.Millisecond}}
	const ms = time.Millisecond
	for _, tt := range []struct {
		name    string
		row     granted
		flying  int
		waiting []*member
		take    []int
		again   time.Duration
	}{
		{"nobody", row, 0, nil, nil, 0},
		{"without a batch each has an invoke", granted{slots: 2}, 1, []*member{ago(0), ago(0)}, []int{0}, 0},
		{"as many as there are slots", granted{slots: 2}, 2, []*member{ago(0), ago(0)}, nil, 0},
		{"also where a plan ends batches", granted{slots: 2, batch: predictor.Batch{Tasks: 1}}, 2, []*member{ago(0)}, nil, 0},
		{"one waits for others", row, 0, []*member{ago(2 * ms)}, nil, 8 * ms},
		{"but not for as long as its wait if none comes", row, 0, []*member{ago(10 * ms)}, []int{0}, 0},
		{"and no longer than its wait if some do", row, 0, []*member{ago(39 * ms), ago(1 * ms)}, nil, 1 * ms},
		{"they go when it is over", row, 0, []*member{ago(40 * ms), ago(1 * ms)}, []int{0, 1}, 0},
		{"a full one goes at once", row, 1, []*member{ago(0), ago(0), ago(0), ago(0)}, []int{0, 1, 2}, 0},
		{"unless no slot is free", row, 2, []*member{ago(0), ago(0), ago(0)}, nil, 0},
		{"also where the grant is gone, one goes on", granted{batch: row.batch}, 0, []*member{ago(time.Second)}, []int{0}, 0},
		{"one that is to be alone is", row, 0, []*member{ago(0, lonely), ago(0), ago(0), ago(0)}, []int{0}, 0},
		{"and is left out of others", row, 0, []*member{ago(50 * ms), ago(0, lonely), ago(0)}, []int{0, 2}, 0},
		{"one that takes long is alone", row, 0, []*member{ago(0, long), ago(0)}, []int{0}, 0},
		{"those of another class are left out", row, 0, []*member{ago(50 * ms), ago(0, other), ago(0)}, []int{0, 2}, 0},
		{"what does not fit any more goes later", row, 0, []*member{ago(0, large), ago(0), ago(0)}, []int{0, 1}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, again := ready(tt.waiting, tt.flying, tt.row, now)
			var take []int
			for _, m := range got {
				take = append(take, slices.Index(tt.waiting, m))
			}
			if !slices.Equal(take, tt.take) || again != tt.again {
				t.Errorf("got %v, and again after %s; want %v and %s", take, again, tt.take, tt.again)
			}
		})
	}
}

// batched starts a worker whose invokes carry up to so many tasks, of functions that answer each with its input unless
// body says otherwise.
func batched(
	t *testing.T, tasks int, body func([]wire.StartAttempt) (activities.FunctionAnswer, error),
) (*stack, *invokes) {
	t.Helper()
	seen := &invokes{first: make(chan struct{})}
	s := start(t, nil, func(o *Options) {
		fake, ok := o.Functions.(*functions)
		if !ok {
			t.Fatal("other functions")
		}
		fake.whole = func(_ context.Context, invoke wire.Invoke) (activities.FunctionAnswer, error) {
			starts := append([]wire.StartAttempt{invoke.Start}, invoke.More...)
			answer, err := body(starts)
			seen.add(starts, answer)
			return answer, err
		}
	})
	plan := grant(1)
	plan.Grants[0].Batch = predictor.Batch{Tasks: tasks, Wait: time.Minute}
	s.plans <- plan
	s.plans <- plan // the first is obeyed when the second is taken
	return s, seen
}

// invokes are those that were made.
type invokes struct {
	first chan struct{} // closed with the first

	mu     sync.Mutex
	tasks  [][]string
	billed quantity.Money
}

func (i *invokes) add(starts []wire.StartAttempt, answer activities.FunctionAnswer) {
	i.mu.Lock()
	defer i.mu.Unlock()
	var tasks []string
	for _, start := range starts {
		tasks = append(tasks, fmt.Sprintf("%s/%d", start.Task.ID, start.Attempt))
	}
	if i.tasks = append(i.tasks, tasks); len(i.tasks) == 1 {
		close(i.first)
	}
	i.billed += venue.Price(512*quantity.MiB, answer.Billed)
}

// counted is how many invokes had so many tasks.
func (i *invokes) counted() map[int]int {
	i.mu.Lock()
	defer i.mu.Unlock()
	found := map[int]int{}
	for _, tasks := range i.tasks {
		found[len(tasks)]++
	}
	return found
}

// task is one of the stage, whose build takes batches.
func task(id string) wire.Task {
	return wire.Task{Version: wire.Version, Run: "r", Stage: stage, ID: id, MaxAttempts: 3, Batches: true}
}

func (s *stack) several(t *testing.T, n int) []*slottest.Activity {
	t.Helper()
	var submitted []*slottest.Activity
	for i := range n {
		submitted = append(submitted, s.frontend.Submit(t, stage.Queue(), task(fmt.Sprint("score-", i)), i))
	}
	return submitted
}

// each answers every attempt of an invoke with what body says of it.
func each(
	t *testing.T, starts []wire.StartAttempt, body func(wire.StartAttempt) wire.Answer,
) activities.FunctionAnswer {
	t.Helper()
	all := wire.Answers{Version: wire.Version}
	for _, start := range starts {
		all.Answers = append(all.Answers, body(start))
	}
	var payload []byte
	var err error
	if len(starts) == 1 {
		payload, err = json.Marshal(all.Answers[0])
	} else {
		payload, err = json.Marshal(all)
	}
	if err != nil {
		t.Error(err)
	}
	return activities.FunctionAnswer{
		Payload: payload, Init: 50 * time.Millisecond, Duration: 90 * time.Millisecond, Billed: 141 * time.Millisecond,
		PeakMemory: 77,
	}
}

func echo(start wire.StartAttempt) wire.Answer {
	return wire.Answer{Output: start.Input, CPU: 3 * time.Millisecond, Wall: 7 * time.Millisecond}
}

// marks are the lines of a log that begin the first so many of an invoke's attempts.
func marks(starts []wire.StartAttempt, n int) string {
	var log strings.Builder
	for i, start := range starts[:n] {
		log.WriteString(wire.BatchMark(i+1, len(starts), start.Task.ID) + "\n")
	}
	return log.String()
}

// TestTasksShareAnInvokeAndItsBill: each has its own answer, usage and Record, and what they cost is what was billed.
func TestTasksShareAnInvokeAndItsBill(t *testing.T) {
	t.Parallel()
	s, seen := batched(t, 4, func(starts []wire.StartAttempt) (activities.FunctionAnswer, error) {
		return each(t, starts, func(start wire.StartAttempt) wire.Answer {
			a := echo(start)
			a.BeganAt = time.Unix(100, 0)
			if start.Task.ID == "score-2" {
				a.Output, a.Error = nil, &wire.StageFailure{Message: "boom", Permanent: true}
				a.Progress = &wire.Progress{Step: 5}
			}
			return a
		}), nil
	})
	for i, a := range s.several(t, 8) {
		result, err := a.Wait(t)
		failed := i == 2
		if (err != nil) != failed || !failed && string(result.Output) != strconv.Itoa(i) {
			t.Errorf("task %d: got %s, %v", i, result.Output, err)
		}
	}
	if got := seen.counted(); got[4] != 2 || len(got) != 1 {
		t.Errorf("invokes by their tasks: got %v, want two of four", got)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var cost quantity.Money
	var billed time.Duration
	cold := 0
	for _, record := range s.records {
		cost, billed = cost+record.Cost, billed+record.Billed
		if record.Cold {
			cold++
		}
		if record.Batch != 4 || record.Usage.Wall != 7*time.Millisecond || record.Usage.CPU != 3*time.Millisecond ||
			record.Settle != 83*time.Millisecond || (record.Step == 5) != (record.Task == "score-2") {
			t.Errorf("Record: got %+v", record)
		}
	}
	if cost != seen.billed || billed != 282*time.Millisecond || cold != 2 || len(s.records) != 8 {
		t.Errorf("%d Records come to %d for %s with %d cold, want the %d that was billed for 282ms", len(s.records), cost,
			billed, cold, seen.billed)
	}
}

// TestABatchWhoseEnvironmentDies: the one that ran has failed, those before it are lost and tried again alone, those
// behind it go with another invoke and have run once.
func TestABatchWhoseEnvironmentDies(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		marked  int // how many attempts the log tells of; 0 for none
		lost    int
		outcome predictor.Outcome
	}{
		"the log tells at which task": {marked: 3, lost: 2, outcome: predictor.OutOfMemory},
		"the log does not":            {marked: 0, lost: 4, outcome: predictor.Lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, seen := batched(t, 4, func(starts []wire.StartAttempt) (activities.FunctionAnswer, error) {
				if len(starts) < 4 {
					return each(t, starts, echo), nil
				}
				return activities.FunctionAnswer{
					Error: "Unhandled", ErrorType: "Runtime.OutOfMemory", Payload: []byte(`{"errorMessage":"killed"}`),
					Log: "START\n" + marks(starts, tt.marked), Billed: 100 * time.Millisecond,
				}, nil
			})
			submitted := s.several(t, 4)
			<-seen.first
			s.plans <- grant(1) // no task is to wait for another any more once these are on their way
			for i, a := range submitted {
				if result, err := a.Wait(t); err != nil || string(result.Output) != strconv.Itoa(i) {
					t.Errorf("task %d: got %s, %v", i, result.Output, err)
				}
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			found := map[predictor.Outcome]int{}
			var cost quantity.Money
			for _, record := range s.records {
				found[record.Outcome]++
				cost += record.Cost
			}
			if found[predictor.Lost] != tt.lost || found[predictor.Succeeded] != 4 || tt.marked > 0 && found[tt.outcome] != 1 {
				t.Errorf("outcomes: got %v, want %d lost", found, tt.lost)
			}
			seen.mu.Lock()
			defer seen.mu.Unlock()
			if cost != seen.billedWith(s.records) {
				t.Errorf("Records come to %d, want the %d that was billed", cost, seen.billedWith(s.records))
			}
			runs := 0
			for _, tasks := range seen.tasks[1:] {
				runs += len(tasks)
			}
			if runs != 4 {
				t.Errorf("after the first invoke: %v, want each task once more", seen.tasks[1:])
			}
		})
	}
}

// billedWith is what all invokes were billed; those of an attempt that ran out of memory have a larger class.
func (i *invokes) billedWith(records []predictor.Record) quantity.Money {
	larger := quantity.Money(0)
	for _, record := range records {
		if record.Grant.Memory > 512*quantity.MiB {
			larger += venue.Price(record.Grant.Memory, record.Billed) - venue.Price(512*quantity.MiB, record.Billed)
		}
	}
	return i.billed + larger
}

// TestALimitOfWhichOthersHadAPartIsNoFailure: one that began late did not have the time of a function, and what its own
// timeout or its run's money ended is its own.
func TestALimitOfWhichOthersHadAPartIsNoFailure(t *testing.T) {
	t.Parallel()
	const limit = "id Task timed out after 900.00 seconds"
	for name, tt := range map[string]struct {
		said string
		at   int // which ran then, from 0
		want []predictor.Outcome
	}{
		"the first": {limit, 0, []predictor.Outcome{predictor.TimedOut, "", ""}},
		"the last":  {limit, 2, []predictor.Outcome{predictor.Lost, predictor.Lost, predictor.Lost}},
		"its own": {wire.TimeoutPassed + ": " + limit, 1, []predictor.Outcome{
			predictor.Lost, predictor.TimedOut, "",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var members []*member
			var starts []wire.StartAttempt
			for i := range 3 {
				starts = append(starts, wire.StartAttempt{Task: task(fmt.Sprint("score-", i))})
				members = append(members, &member{call: &call{part: part{tasks: 3}}, start: starts[i]})
			}
			found := fates(venue, members, activities.FunctionAnswer{
				Error: "Unhandled", Payload: fmt.Appendf(nil, `{"errorMessage":%q}`, tt.said), Log: marks(starts, tt.at+1),
			})
			for i, want := range tt.want {
				if got := found[i].ending; got.Outcome != want || found[i].again != (want == "") {
					t.Errorf("task %d: got %q (%s), again %t; want %q", i, got.Outcome, got.Message, found[i].again, want)
				}
			}
		})
	}
}

// TestWhatIsLostTogetherTookTogetherWhatTheInvokeTook: nothing tells how long each ran, and none ran for all of it.
func TestWhatIsLostTogetherTookTogetherWhatTheInvokeTook(t *testing.T) {
	t.Parallel()
	s, seen := batched(t, 4, func(starts []wire.StartAttempt) (activities.FunctionAnswer, error) {
		if len(starts) < 4 {
			return each(t, starts, echo), nil
		}
		return activities.FunctionAnswer{
			Error: "Unhandled", Payload: []byte(`{"errorMessage":"exit status 2"}`), Log: marks(starts, 3),
			Duration: 90 * time.Millisecond, Billed: 100 * time.Millisecond,
		}, nil
	})
	submitted := s.several(t, 4)
	<-seen.first
	s.plans <- grant(1)
	for _, a := range submitted {
		if _, err := a.Wait(t); err != nil {
			t.Error(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	ended := 0
	for _, record := range s.records {
		if record.Outcome == predictor.Succeeded {
			continue
		}
		if ended++; record.Usage.Wall != 30*time.Millisecond || record.Batch != 4 || record.Settle != 0 {
			t.Errorf("%s: took %s, and %s to settle, in a batch of %d; want a third of 90ms, and none, in one of 4",
				record.Outcome, record.Usage.Wall, record.Settle, record.Batch)
		}
	}
	if ended != 3 {
		t.Errorf("%d attempts came to nothing, want 3", ended)
	}
}

// TestWhatIsNotBegunHasCostNothing: it keeps neither what it risked nor a place in its batch, whether it goes again or
// nobody needs it any more.
func TestWhatIsNotBegunHasCostNothing(t *testing.T) {
	t.Parallel()
	w := waiting()
	rested := 0
	f := &flight{}
	for i := range 3 {
		f.members = append(f.members, &member{
			call: &call{function: "f"}, start: wire.StartAttempt{Task: task(fmt.Sprint("score-", i))},
			landed: make(chan landing, 1), flight: f, rest: func() { rested++ },
		})
	}
	first, goes, left := f.members[0], f.members[1], f.members[2]
	left.left = true
	at := &line{flying: 2} // of one slot, so that nothing begins
	w.lines[stage] = at
	invoked := time.Unix(100, 0)
	w.land(stage, at, f, call{
		function: "f", class: 512 * quantity.MiB, invoked: invoked, ended: invoked.Add(time.Second),
		answer: activities.FunctionAnswer{
			Payload: fmt.Appendf(nil, `{"v":%d,"answers":[{"wall_ns":7}]}`, wire.Version), PeakMemory: quantity.GiB,
			Init: time.Millisecond, Duration: 90 * time.Millisecond, Billed: 100 * time.Millisecond,
		},
	})
	if rested != 2 || len(at.waiting) != 1 || at.waiting[0] != goes || goes.call.part != (part{}) {
		t.Errorf("%d rest, %d wait, and what goes again was %+v of its invoke; want two and it, and nothing", rested,
			len(at.waiting), goes.call.part)
	}
	<-first.landed
	<-left.landed
	if c := left.call; c.part.tasks != 0 || c.part.cost != 0 || !c.invoked.IsZero() || c.answer.PeakMemory != 0 ||
		usageOf(*c, wire.Answer{}, left.start.Task).Wall != 0 {
		t.Errorf("one that never began: got %+v", *c)
	}
	if c := first.call; c.part.tasks != 3 || c.part.cost == 0 || c.part.ran != 90*time.Millisecond {
		t.Errorf("the one that ran: got %+v", *c)
	}
}

// waiting is a worker of which nothing runs yet, with one slot for its stage.
func waiting() *Worker {
	return &Worker{
		now: time.Now, venue: venue, granted: map[predictor.StageID]granted{stage: {slots: 1}},
		lines: map[predictor.StageID]*line{},
	}
}

// TestNothingBeginsInAProcessThatEnds: its tasks leave one after the other, and one that leaves makes no room for the
// next.
func TestNothingBeginsInAProcessThatEnds(t *testing.T) {
	t.Parallel()
	w := waiting()
	f := &flight{cancel: func(error) {}}
	flies := &member{
		start: wire.StartAttempt{Task: task("flies")}, call: &call{}, flight: f, landed: make(chan landing, 1),
	}
	f.members = []*member{flies}
	at := &line{flying: 1}
	for i := range 2 {
		at.waiting = append(at.waiting, &member{
			start: wire.StartAttempt{Task: task(fmt.Sprint("waits-", i))}, call: &call{}, landed: make(chan landing, 1),
		})
	}
	first, second := at.waiting[0], at.waiting[1]
	w.lines[stage] = at
	w.leave(flies, slot.ErrInterrupted)
	w.land(stage, at, f, call{err: errors.New("abandoned")})
	<-flies.landed
	if w.leave(first, slot.ErrInterrupted); at.flying != 0 || len(at.waiting) != 1 || second.flight != nil {
		t.Errorf("%d fly and %d wait, want only the last that has not left yet", at.flying, len(at.waiting))
	}
	w.leave(second, slot.ErrInterrupted)
	<-first.landed
	<-second.landed
	if len(w.lines) != 0 {
		t.Errorf("lines: got %v, want none", w.lines)
	}
}

func TestWhatIsNotBegunGoesWithTheNextInvoke(t *testing.T) {
	t.Parallel()
	s, seen := batched(t, 4, func(starts []wire.StartAttempt) (activities.FunctionAnswer, error) {
		answer := each(t, starts[:max(1, len(starts)/2)], echo)
		if len(starts) > 1 && len(starts)/2 == 1 { // one answer to two tasks
			answer.Payload = fmt.Appendf(nil, `{"v":%d,"answers":[%s]}`, wire.Version, answer.Payload)
		}
		return answer, nil
	})
	for i, a := range s.several(t, 4) {
		if result, err := a.Wait(t); err != nil || string(result.Output) != strconv.Itoa(i) {
			t.Errorf("task %d: got %s, %v", i, result.Output, err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if got := seen.counted(); len(s.records) != 4 || got[4] != 1 || got[2] != 1 || got[1] != 1 {
		t.Errorf("%d Records of invokes %v, want 4 of one with four, one with two and one with one", len(s.records), got)
	}
}

// TestTasksOfBuildsWithoutBatchesGoAlone: a build of before would run the first and leave the others out.
func TestTasksOfBuildsWithoutBatchesGoAlone(t *testing.T) {
	t.Parallel()
	s, seen := batched(t, 4, func(starts []wire.StartAttempt) (activities.FunctionAnswer, error) {
		return each(t, starts, echo), nil
	})
	var submitted []*slottest.Activity
	for i := range 6 {
		before := task(fmt.Sprint("score-", i))
		before.Batches = false
		submitted = append(submitted, s.frontend.Submit(t, stage.Queue(), before, i))
	}
	for _, a := range submitted {
		if _, err := a.Wait(t); err != nil {
			t.Error(err)
		}
	}
	if got := seen.counted(); got[1] != 6 || len(got) != 1 {
		t.Errorf("invokes by their tasks: got %v, want six of one", got)
	}
}

// TestACancelledTaskOfABatchLetsTheOthersGoOn: one that waits leaves; one that was sent is answered with the others.
func TestACancelledTaskOfABatchLetsTheOthersGoOn(t *testing.T) {
	t.Parallel()
	invoked, end := make(chan struct{}), make(chan struct{})
	s, seen := batched(t, 3, func(starts []wire.StartAttempt) (activities.FunctionAnswer, error) {
		close(invoked)
		<-end
		return each(t, starts, echo), nil
	})
	waits := s.frontend.Submit(t, stage.Queue(), task("waits"), 9)
	for !s.worker.waits() {
		time.Sleep(time.Millisecond)
	}
	waits.Cancel()
	var cancelled *temporal.CanceledError
	if _, err := waits.Wait(t); !errors.As(err, &cancelled) {
		t.Errorf("one that waits: got %v, want a cancellation", err)
	}
	submitted := s.several(t, 3)
	<-invoked
	submitted[0].Cancel()
	close(end)
	for i, a := range submitted[1:] {
		if result, err := a.Wait(t); err != nil || string(result.Output) != strconv.Itoa(i+1) {
			t.Errorf("task %d: got %s, %v", i+1, result.Output, err)
		}
	}
	_, _ = submitted[0].Wait(t)
	if got := seen.counted(); got[3] != 1 || len(got) != 1 {
		t.Errorf("invokes by their tasks: got %v, want one of three", got)
	}
}

// waits reports whether a task waits for others.
func (w *Worker) waits() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	at := w.lines[stage]
	return at != nil && len(at.waiting) > 0
}
