package autoscaler

import (
	"context"
	"errors"
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

func TestALeaderStopsExactlyHalfALeaseAfterTheLastRenewal(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	for name, row := range map[string]struct {
		good int // renewals before they fail
		hang bool
		fail error
		want error
		at   time.Duration
	}{
		"renewals fail at once":          {good: 3, fail: refused, want: ErrSilent, at: 2*time.Second + 5*time.Second},
		"renewals hang":                  {good: 3, hang: true, want: ErrSilent, at: 2*time.Second + 5*time.Second},
		"no renewal ever":                {good: 0, fail: refused, want: ErrSilent, at: 5 * time.Second},
		"another process took the lease": {good: 2, fail: ErrLeaseLost, want: ErrLeaseLost, at: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, began, tries := newRenewal(10*time.Second, time.Now()), time.Now(), 0
				err := r.run(t.Context(), func(ctx context.Context) error {
					if tries++; tries <= row.good {
						return nil
					}
					if row.hang {
						<-ctx.Done()
						return ctx.Err()
					}
					return row.fail
				})
				if took := time.Since(began); !errors.Is(err, row.want) || took != row.at {
					t.Errorf("run = %v after %v, want %v after %v", err, took, row.want, row.at)
				}
				if silent := r.left() <= 0; silent != errors.Is(row.want, ErrSilent) {
					t.Errorf("left = %v", r.left())
				}
			})
		})
	}
}

func TestASlowNATSDoesNotCostTheLead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRenewal(10*time.Second, time.Now())
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		err := r.run(ctx, func(ctx context.Context) error {
			if !sleep(ctx, 2*time.Second) { // each answer
				return ctx.Err()
			}
			return nil
		})
		if err != nil {
			t.Errorf("run = %v, want it to lead for the whole hour", err)
		}
	})
}

func TestASuspendedLeaderKnowsThatItIsSilentBeforeItActs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRenewal(10*time.Second, time.Now())
		time.Sleep(4 * time.Second)
		if r.left() != time.Second {
			t.Errorf("left = %v after 4 s, want 1 s", r.left())
		}
		time.Sleep(time.Hour)
		if r.left() > 0 {
			t.Errorf("left = %v after an hour, want none", r.left())
		}
	})
}

func TestBacklogsAreLookedAtInTurnAndIdleStagesEveryFourthTime(t *testing.T) {
	t.Parallel()
	named := func(name string) predictor.StageID { return predictor.StageID{App: "a", Build: "b", Name: name} }
	grants := func(names ...string) (rows []predictor.Grant) {
		for _, name := range names {
			rows = append(rows, predictor.Grant{Stage: named(name), Venue: predictor.Pool}, predictor.Grant{Stage: named(name), Venue: predictor.Function})
		}
		return rows
	}
	now := time.Unix(1000, 0)
	for name, row := range map[string]struct {
		active, heard, served []string
		want                  []string
	}{
		"nothing is known": {want: []string{"", "", "", "", ""}},
		"all are active":   {active: []string{"x", "y"}, served: []string{"x", "y"}, want: []string{"x", "y", "x", "y", "x", "y"}},
		"all are idle":     {served: []string{"p", "q"}, want: []string{"", "", "", "p", "", "", "", "q", "", "", "", "p"}},
		"some are idle":    {active: []string{"x", "y"}, served: []string{"x", "p"}, heard: []string{"q", "y"}, want: []string{"x", "y", "x", "p", "y", "x", "y", "q", "x", "y", "x", "p"}},
	} {
		var served []predictor.StageID
		for _, stage := range row.served {
			served = append(served, named(stage))
		}
		r := newRotation(func() []predictor.StageID { return served })
		for _, stage := range row.heard {
			r.hear(named(stage), now)
		}
		r.setActive(grants(row.active...), now)
		var got []string
		for range row.want {
			stage, active, ok := r.pick()
			if ok && active != slices.Contains(row.active, stage.Name) {
				t.Errorf("%s: active is %v for %s", name, active, stage.Name)
			}
			got = append(got, stage.Name)
		}
		if diff := cmp.Diff(row.want, got); diff != "" {
			t.Errorf("%s: stages looked at (-want +got):\n%s", name, diff)
		}
	}
	r := newRotation(func() []predictor.StageID { return nil })
	r.hear(named("old"), now)
	r.setActive(nil, now.Add(2*rememberFor))
	if len(r.heard) != 0 {
		t.Errorf("still remembered after two hours: %v", r.heard)
	}
}

func TestOnlyABacklogThatIsNewsIsTold(t *testing.T) {
	t.Parallel()
	l := leader(t, options(t, stream(t)))
	for name, row := range map[string]struct {
		tasks        int
		err          error
		active, want bool
	}{
		"tasks wait":                {tasks: 3, want: true},
		"an active stage ran dry":   {active: true, want: true},
		"an idle stage has nothing": {},
		"Temporal does not answer":  {tasks: 3, active: true, err: errors.New("unavailable")},
	} {
		var got []predictor.Event
		l.lookAt(t.Context(), train, true, row.active,
			func(_ context.Context, queue string) (int, error) {
				if queue != train.PoolQueue() {
					t.Errorf("looked at %q, want %q", queue, train.PoolQueue())
				}
				return row.tasks, row.err
			},
			func(event predictor.Event) { got = append(got, event) })
		if len(got) == 1 != row.want {
			t.Errorf("%s: told %v", name, got)
		}
	}
}

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
		if diff := cmp.Diff([]int{64, 128, 64}, got); diff != "" {
			t.Errorf("windows sent (-want +got):\n%s", diff)
		}
		w.forget("run-1")
		if len(w.sent) != 0 {
			t.Errorf("still remembered: %v", w.sent)
		}
		cancel()
		<-done
	})
}

// TestAWindowThatDidNotReachItsRunIsSentAgain fails the first try of each window; one that a newer replaces is not sent again.
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
		time.Sleep(awayMost)
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
			if count > 10 {
				t.Errorf("%s was tried %d times in ten minutes", run, count)
			}
		}
		if len(ids) != len(rows) {
			t.Errorf("%d names for %d tellings: a try again must be the same telling", len(ids), len(rows))
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

func TestTheJournalStoresDecisionsInOrderAndAfterItsTerm(t *testing.T) {
	t.Parallel()
	js := stream(t)
	j := newJournal(js, quietly)
	j.add(nil)
	j.add([]predictor.Decision{{ID: "1/1/a"}, {ID: "1/1/b"}})
	j.add([]predictor.Decision{{ID: "1/2/a"}, {ID: "1/1/a"}})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	j.run(ended)
	var got []string
	for _, message := range messages(t, js) {
		got = append(got, message.Decision.ID)
	}
	if diff := cmp.Diff([]string{"1/1/a", "1/1/b", "1/2/a"}, got); diff != "" {
		t.Errorf("stored (-want +got):\n%s", diff)
	}
	j.add(make([]predictor.Decision, 3*journalLimit))
	if len(j.waiting) != journalLimit {
		t.Errorf("%d decisions wait, want at most %d", len(j.waiting), journalLimit)
	}
}
