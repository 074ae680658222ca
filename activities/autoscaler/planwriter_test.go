package autoscaler

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

var quietly = slog.New(slog.DiscardHandler)

func take(t *testing.T, js jetstream.JetStream, plans PlanStore) *planWriter {
	t.Helper()
	o, err := claimPlan(t.Context(), js, plans, 0, quietly)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func planOf(term, tick uint64, slots int) predictor.Plan {
	return predictor.Plan{
		Term: term, Tick: tick,
		Grants: []predictor.Grant{{Stage: train, Venue: predictor.Pool, Slots: slots}},
	}
}

// inForce checks the plan in force.
func inForce(t *testing.T, plans PlanStore, want predictor.Plan) {
	t.Helper()
	got, _, err := plans.Current(t.Context())
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("plan in force: %v (-want +got):\n%s", err, diff)
	}
}

func TestATermIsTakenByOneLeaderOnly(t *testing.T) {
	t.Parallel()
	js := stream(t)
	bucket, err := js.KeyValue(t.Context(), wire.PlanBucket)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var terms []uint64
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			for range 5 {
				term, err := takeTerm(t.Context(), bucket, 0, quietly)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				terms = append(terms, term)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	slices.Sort(terms)
	for i, term := range terms {
		if term != uint64(i)+1 {
			t.Fatalf("terms = %d, want 1 to 50, each once", terms)
		}
	}
}

func TestALeaderTakesOverThePlanInForce(t *testing.T) {
	t.Parallel()
	js := stream(t)
	plans := newPlans(t, js)
	first := take(t, js, plans)
	inForce(t, plans, predictor.Plan{Term: 1})
	want := planOf(1, 7, 3)
	if err := first.post(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	second := take(t, js, plans)
	if second.term != 2 {
		t.Errorf("term = %d, want 2", second.term)
	}
	want.Term, want.Tick = 2, 0
	inForce(t, plans, want)
}

func TestADeposedLeaderThatWasHeldUpInTheMiddleOfATickChangesNothing(t *testing.T) {
	t.Parallel()
	js := stream(t)
	plans := newPlans(t, js)
	reached, resume := make(chan struct{}), make(chan struct{})
	held := false
	slow := &wrapped{PlanStore: plans}
	slow.replace = func(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error) {
		if held {
			close(reached) // it has decided and is about to write
			<-resume
		}
		return plans.Replace(ctx, plan, revision)
	}
	old := take(t, js, slow)
	held = true
	posted := make(chan error, 1)
	go func() { posted <- old.post(t.Context(), planOf(old.term, 1, 99)) }()
	<-reached
	fresh := take(t, js, plans)
	want := planOf(fresh.term, 1, 2)
	if err := fresh.post(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	close(resume)
	if err := <-posted; !errors.Is(err, ErrSuperseded) {
		t.Errorf("the old leader's post: %v, want %v", err, ErrSuperseded)
	}
	inForce(t, plans, want)
	if err := fresh.post(t.Context(), planOf(fresh.term, 2, 3)); err != nil {
		t.Errorf("the new leader cannot go on: %v", err)
	}
}

func TestALeaderThatClaimsTooLateNeverPosts(t *testing.T) {
	t.Parallel()
	js := stream(t)
	plans := newPlans(t, js)
	var newer *planWriter
	late := &wrapped{PlanStore: plans}
	late.replace = func(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error) {
		if newer == nil { // the term is taken, the plan not yet claimed
			var err error
			if newer, err = claimPlan(ctx, js, plans, 0, quietly); err != nil {
				t.Error(err)
			}
		}
		return plans.Replace(ctx, plan, revision)
	}
	if _, err := claimPlan(t.Context(), js, late, 0, quietly); !errors.Is(err, ErrSuperseded) {
		t.Errorf("claimPlan: %v, want %v", err, ErrSuperseded)
	}
	inForce(t, plans, predictor.Plan{Term: 2})
}

func TestWhatIsInForceIsKnownAlsoAfterALostAnswer(t *testing.T) {
	t.Parallel()
	lost := errors.New("no answer")
	for name, row := range map[string]struct {
		arrives bool
		want    error
	}{
		"the plan arrived, its answer did not": {true, nil},
		"the plan did not arrive":              {false, lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := stream(t)
			plans := newPlans(t, js)
			spoil := false
			flaky := &wrapped{PlanStore: plans}
			flaky.replace = func(ctx context.Context, plan predictor.Plan, revision uint64) (uint64, error) {
				if !spoil {
					return plans.Replace(ctx, plan, revision)
				}
				if row.arrives {
					if _, err := plans.Replace(ctx, plan, revision); err != nil {
						t.Error(err)
					}
				}
				return 0, lost
			}
			o := take(t, js, flaky)
			spoil = true
			if err := o.post(t.Context(), planOf(1, 1, 5)); !errors.Is(err, row.want) {
				t.Errorf("post: %v, want %v", err, row.want)
			}
			spoil = false
			want := planOf(1, 2, 6)
			if err := o.post(t.Context(), want); err != nil {
				t.Errorf("the next post: %v", err)
			}
			inForce(t, plans, want)
		})
	}
}

func TestAttackClaimingThePlanSurvivesWhatPeopleDoToTheBucket(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		harm func(ctx context.Context, bucket jetstream.KeyValue) error
		want uint64 // term
		fail string // or the error
	}{
		"the term was deleted": {
			harm: func(ctx context.Context, bucket jetstream.KeyValue) error {
				return bucket.Delete(ctx, wire.TermKey)
			}, want: 3,
		},
		"the plan was deleted": {
			harm: func(ctx context.Context, bucket jetstream.KeyValue) error {
				return bucket.Delete(ctx, wire.PlanKey)
			}, want: 3,
		},
		"the plan is damaged": {
			harm: func(ctx context.Context, bucket jetstream.KeyValue) error {
				_, err := bucket.PutString(ctx, wire.PlanKey, "{")
				return err
			}, want: 3,
		},
		"the plan is of a newer build": {
			harm: func(ctx context.Context, bucket jetstream.KeyValue) error {
				_, err := bucket.PutString(ctx, wire.PlanKey, `{"v":99}`)
				return err
			}, fail: "unknown message version",
		},
		"the term is not a number": {
			harm: func(ctx context.Context, bucket jetstream.KeyValue) error {
				_, err := bucket.PutString(ctx, wire.TermKey, "two")
				return err
			}, want: 3,
		},
		"the term is the largest number": {
			harm: func(ctx context.Context, bucket jetstream.KeyValue) error {
				_, err := bucket.PutString(ctx, wire.TermKey, "18446744073709551615")
				return err
			}, want: 3,
		},
		"the plan is of the largest term": {
			harm: func(ctx context.Context, bucket jetstream.KeyValue) error {
				_, err := bucket.PutString(ctx, wire.PlanKey, `{"v":1,"plan":{"term":18446744073709551615}}`)
				return err
			}, want: 3,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js := stream(t)
			plans := newPlans(t, js)
			take(t, js, plans)
			take(t, js, plans)
			bucket, err := js.KeyValue(t.Context(), wire.PlanBucket)
			if err != nil {
				t.Fatal(err)
			}
			if err := row.harm(t.Context(), bucket); err != nil {
				t.Fatal(err)
			}
			o, err := claimPlan(t.Context(), js, plans, 0, quietly)
			switch {
			case row.fail != "":
				if err == nil || !strings.Contains(err.Error(), row.fail) {
					t.Errorf("claimPlan: %v, want an error with %q", err, row.fail)
				}
			case err != nil:
				t.Error(err)
			case o.term != row.want:
				t.Errorf("term = %d, want %d", o.term, row.want)
			}
		})
	}
}

func TestAttackALeaderWhoseTermAndPlanWereDeletedTakesALaterTerm(t *testing.T) {
	t.Parallel()
	js := stream(t)
	l := leader(t, options(t, js))
	first := serve(t, l, new(fakePorts).ports())
	reaches := func(term uint64) {
		t.Helper()
		eventually(t, "a plan of this leader is in force", func() bool {
			plan, _, err := l.options.Plans.Current(t.Context())
			return err == nil && plan.Term == term
		})
	}
	reaches(1)
	first.stop()
	_ = first.wait(t)
	bucket, err := js.KeyValue(t.Context(), wire.PlanBucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{wire.PlanKey, wire.TermKey} {
		if err := bucket.Purge(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	serve(t, l, new(fakePorts).ports())
	reaches(2)
}

func TestOnlyWhatActuatorsObeyMakesAPlanDifferent(t *testing.T) {
	t.Parallel()
	base := predictor.Plan{
		Term: 1, Tick: 1,
		Grants:     []predictor.Grant{{Stage: train, Venue: predictor.Pool, Slots: 1}},
		Placements: []predictor.Placement{{Stage: train, Host: "laptop", Slots: 1}},
		Windows:    []predictor.Window{{Run: "run-1", Stage: train, Tasks: 64, Priority: 3}},
		Sizings:    []predictor.Sizing{{Stage: train, Attempts: 1}},
	}
	for name, row := range map[string]struct {
		edit func(p *predictor.Plan)
		want change
	}{
		"nothing": {func(*predictor.Plan) {}, unchanged},
		"term, tick, decisions": {func(p *predictor.Plan) {
			p.Term, p.Tick, p.Decisions = 2, 9, []predictor.Decision{{}}
		}, unchanged},
		"slots":         {func(p *predictor.Plan) { p.Grants[0].Slots = 2 }, holdings},
		"size":          {func(p *predictor.Plan) { p.Grants[0].Size.CPU = 1 }, holdings},
		"a grant fewer": {func(p *predictor.Plan) { p.Grants = nil }, holdings},
		"a placement":   {func(p *predictor.Plan) { p.Placements[0].Host = "other" }, holdings},
		"a window":      {func(p *predictor.Plan) { p.Windows[0].Tasks = 128 }, holdings},
		"a sizing":      {func(p *predictor.Plan) { p.Sizings[0].Attempts = 2 }, sizings},
	} {
		next := base
		next.Grants, next.Placements = slices.Clone(base.Grants), slices.Clone(base.Placements)
		next.Windows, next.Sizings = slices.Clone(base.Windows), slices.Clone(base.Sizings)
		row.edit(&next)
		if got := compare(base, next); got != row.want {
			t.Errorf("%s: compare = %d, want %d", name, got, row.want)
		}
	}
}
