package autoscaler

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.temporal.io/api/serviceerror"

	"github.com/spillway-ml/spillway/predictor"
)

func TestARunIsToldOfItsWindowOnceForEachChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []int
		w := newWindows(func(_ context.Context, window predictor.Window, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, window.Tasks)
			return serviceerror.NewNotFound("the run has ended")
		}, quietly)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
		for _, tasks := range []int{64, 64, 128, 128, 64} {
			w.obey([]predictor.Window{{Run: "run-1", Stage: train, Tasks: tasks, Priority: 3}})
			synctest.Wait()
		}
		w.obey(nil) // a row that is gone changes nothing
		w.forget("run-2")
		w.obey([]predictor.Window{{Run: "run-1", Stage: train, Tasks: 64, Priority: 3}})
		synctest.Wait()
		mu.Lock()
		if diff := cmp.Diff([]int{64, 128, 64}, got); diff != "" {
			t.Errorf("windows sent (-want +got):\n%s", diff)
		}
		mu.Unlock()
		w.forget("run-1")
		if len(w.sent) != 0 {
			t.Errorf("still remembered: %v", w.sent)
		}
		cancel()
		<-done
	})
}

// TestAWindowThatDidNotReachItsRunIsSentAgain fails the first try of each window; one that a newer replaces is not sent
// again.
func TestAWindowThatDidNotReachItsRunIsSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []int
		failing := true
		w := newWindows(func(context.Context, predictor.Window, string) error { return nil }, quietly)
		w.send = func(_ context.Context, window predictor.Window, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			if failing {
				return context.DeadlineExceeded
			}
			got = append(got, window.Tasks)
			return nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
		obey := func(rows ...predictor.Window) {
			w.obey(rows)
			synctest.Wait()
		}
		obey(predictor.Window{Run: "run-1", Stage: train, Tasks: 64}, predictor.Window{Run: "run-2", Stage: train, Tasks: 8})
		obey(predictor.Window{Run: "run-1", Stage: train, Tasks: 128})
		mu.Lock()
		failing = false
		mu.Unlock()
		time.Sleep(mostBackoff)
		obey() // the plan has no row for them any more: they are sent all the same
		mu.Lock()
		slices.Sort(got)
		if diff := cmp.Diff([]int{8, 128}, got); diff != "" {
			t.Errorf("windows that reached their runs (-want +got):\n%s", diff)
		}
		mu.Unlock()
		cancel()
		<-done
	})
}

// TestRunsThatDoNotAnswerDelayNoOther tells forty runs whose worker is away, and once one that answers.
func TestRunsThatDoNotAnswerDelayNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		tries, ids := map[string]int{}, map[string]bool{}
		var reached time.Time
		w := newWindows(func(ctx context.Context, window predictor.Window, id string) error {
			mu.Lock()
			tries[window.Run]++
			ids[id] = true
			mu.Unlock()
			if window.Run == "here" {
				reached = time.Now()
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}, quietly)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
		var rows []predictor.Window
		for i := range 40 {
			rows = append(rows, predictor.Window{Run: fmt.Sprint("away-", i), Stage: train, Tasks: 64})
		}
		var changed time.Time
		for second := range 600 {
			if second == 300 {
				changed = time.Now()
				rows = append(rows, predictor.Window{Run: "here", Stage: train, Tasks: 8})
			}
			w.obey(rows)
			time.Sleep(time.Second)
		}
		cancel()
		<-done
		if late := reached.Sub(changed); reached.IsZero() || late > 0 {
			t.Errorf("the run that answers heard of its window after %s, want at once", late)
		}
		for run, count := range tries {
			if count > 12 {
				t.Errorf("%s was tried %d times in ten minutes", run, count)
			}
		}
		if len(ids) != len(rows) {
			t.Errorf("%d names for %d tellings: a try again must be the same telling", len(ids), len(rows))
		}
	})
}

// TestOneSlowAnswerPutsARunBehindNoOther blocks forty runs, and tells one that answers, but the first time too late,
// and later one of the forty that was unblocked.
func TestOneSlowAnswerPutsARunBehindNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		slow, blocked := true, map[string]bool{}
		reached := map[predictor.Window]time.Time{}
		w := newWindows(func(ctx context.Context, window predictor.Window, _ string) error {
			mu.Lock()
			wait := blocked[window.Run] || window.Run == "slow" && slow
			if window.Run == "slow" {
				slow = false
			}
			if !wait {
				reached[window] = time.Now()
			}
			mu.Unlock()
			if !wait {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		}, quietly)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
		var rows []predictor.Window
		for i := range 40 {
			rows = append(rows, predictor.Window{Run: fmt.Sprint("blocked-", i), Stage: train, Tasks: 64})
			blocked[rows[i].Run] = true
		}
		late := predictor.Window{Run: "slow", Stage: train, Tasks: 8, Priority: 1}
		second := predictor.Window{Run: "slow", Stage: score, Tasks: 8}
		var told, unblocked time.Time
		for tick := range 1200 {
			switch tick {
			case 300:
				rows = append(rows, late)
			case 310:
				late.Priority, told = 2, time.Now()
				rows[40] = late
				rows = append(rows, second)
			case 600:
				mu.Lock()
				blocked[rows[39].Run], unblocked = false, time.Now()
				mu.Unlock()
			}
			w.obey(rows)
			time.Sleep(time.Second)
		}
		cancel()
		<-done
		for _, row := range []predictor.Window{late, second} {
			if at, was := reached[row]; !was || at.After(told) {
				t.Errorf("%s heard of its window for %s after %s (%v), want at once",
					row.Run, row.Stage.Name, at.Sub(told), was)
			}
		}
		if at, was := reached[rows[39]]; !was || at.Sub(unblocked) > mostBackoff+40*unresponsiveWait {
			t.Errorf("a run that was unblocked heard of its window after %s (%v)", at.Sub(unblocked), was)
		}
	})
}

// TestAnOlderWindowNeverComesAfterANewerOne holds the first telling up while a newer row is due.
func TestAnOlderWindowNeverComesAfterANewerOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []int
		w := newWindows(func(_ context.Context, window predictor.Window, _ string) error {
			if window.Tasks == 64 {
				time.Sleep(time.Second)
			}
			mu.Lock()
			defer mu.Unlock()
			got = append(got, window.Tasks)
			return nil
		}, quietly)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx) }()
		for _, tasks := range []int{64, 128, 128} {
			w.obey([]predictor.Window{{Run: "run-1", Stage: train, Tasks: tasks}})
			time.Sleep(600 * time.Millisecond)
		}
		cancel()
		<-done
		if diff := cmp.Diff([]int{64, 128}, got); diff != "" {
			t.Errorf("windows in the order in which they came (-want +got):\n%s", diff)
		}
	})
}

func TestWindowsThatFindTheQueueFullAreSentLater(t *testing.T) {
	t.Parallel()
	w := newWindows(nil, quietly)
	rows := make([]predictor.Window, 2*windowQueue)
	for i := range rows {
		rows[i] = predictor.Window{Run: "run", Stage: predictor.StageID{Name: string(rune('A' + i))}, Tasks: i + 1}
	}
	w.obey(rows)
	for want := 1; want <= len(rows); want++ {
		if want == windowQueue+1 {
			w.obey(rows)
		}
		if got := <-w.jobs; got.Tasks != want {
			t.Fatalf("window %d, want %d", got.Tasks, want)
		}
	}
}
