package autoscaler

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/activities/wait"
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
		"renewals fail at once":          {good: 3, fail: refused, want: ErrLeaseExpired, at: 2*time.Second + 5*time.Second},
		"renewals hang":                  {good: 3, hang: true, want: ErrLeaseExpired, at: 2*time.Second + 5*time.Second},
		"no renewal ever":                {good: 0, fail: refused, want: ErrLeaseExpired, at: 5 * time.Second},
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
				if silent := r.left() <= 0; silent != errors.Is(row.want, ErrLeaseExpired) {
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
			if !wait.For(ctx, 2*time.Second-time.Millisecond) { // each answer, a little before its time is over
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
			rows = append(rows, predictor.Grant{Stage: named(name), Venue: predictor.Pool},
				predictor.Grant{Stage: named(name), Venue: predictor.Function})
		}
		return rows
	}
	now := time.Unix(1000, 0)
	for name, row := range map[string]struct {
		active, heard, served []string
		want                  []string
	}{
		"nothing is known": {want: []string{"", "", "", "", ""}},
		"all are active": {
			active: []string{"x", "y"}, served: []string{"x", "y"},
			want: []string{"x", "y", "x", "y", "x", "y"},
		},
		"all are idle": {served: []string{"p", "q"}, want: []string{"", "", "", "p", "", "", "", "q", "", "", "", "p"}},
		"some are idle": {
			active: []string{"x", "y"}, served: []string{"x", "p"}, heard: []string{"q", "y"},
			want: []string{"x", "y", "x", "p", "y", "x", "y", "q", "x", "y", "x", "p"},
		},
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

// TestEachTeamsQueueOfAStageIsLookedAt has one stage with a queue of each of two teams, and another stage behind it.
func TestEachTeamsQueueOfAStageIsLookedAt(t *testing.T) {
	t.Parallel()
	ours, theirs, other := train, train, train
	theirs.Team, other.Name = "vision", train.Name+"er"
	r := newRotation(func() []predictor.StageID { return nil })
	var rows []predictor.Grant
	for _, stage := range []predictor.StageID{ours, theirs, other} {
		rows = append(rows, predictor.Grant{Stage: stage, Venue: predictor.Pool})
	}
	now := time.Unix(1000, 0)
	r.setActive(rows, now)
	var got []predictor.StageID
	for range 6 {
		stage, _, _ := r.pick()
		got = append(got, stage)
	}
	if want := []predictor.StageID{ours, theirs, other, ours, theirs, other}; !slices.Equal(got, want) {
		t.Errorf("looked at %v, want %v", got, want)
	}

	r = newRotation(func() []predictor.StageID { return []predictor.StageID{ours, theirs} })
	r.setActive(rows[:1], now)
	looked := map[predictor.StageID]bool{}
	for range 2 * idleTurn {
		stage, _, _ := r.pick()
		looked[stage] = true
	}
	if !looked[theirs] {
		t.Errorf("the idle queue of a team whose stage has another that is active was not looked at: %v", looked)
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

func TestALeaderDecidesForHalfOfItsTimeAtMost(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0: leastGap, time.Millisecond: leastGap, leastGap / 2: leastGap, leastGap: 2 * leastGap, time.Second: 2 * time.Second,
	} {
		if got := gap(took); got != want {
			t.Errorf("after a tick of %s: got %s, want %s", took, got, want)
		}
	}
}
