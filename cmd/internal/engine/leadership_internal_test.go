package engine

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/predictor"
)

func TestWhatTheLeaderDoesIsDoneWhileItLeadsOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &base{lifecycle: newLifecycle(ctx, slog.New(slog.DiscardHandler))}
		var told []string
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.whileLeading(ctx, "tell", func(ctx context.Context) {
				told = append(told, "begin")
				<-ctx.Done()
				told = append(told, "end")
			})
		}()
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			if !slices.Equal(told, want) {
				t.Errorf("%s: got %q, want %q", when, told, want)
			}
			told = nil
		}
		expect("before it leads")
		b.lead.set(3)
		expect("when it leads", "begin")
		b.lead.set(3)
		expect("when it is told so again")
		b.lead.set(0)
		expect("when it leads no more", "end")
		b.lead.set(4)
		expect("when it leads again", "begin")
		b.lead.set(5)
		expect("when it leads in a later term", "end", "begin")
		cancel()
		<-ended
		expect("at the end", "end")
	})
}

func TestWorkThatReturnsIsDoneForItsTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &base{lifecycle: newLifecycle(ctx, slog.New(slog.DiscardHandler))}
		calls := 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			b.whileLeading(ctx, "count", func(context.Context) { calls++ })
		}()
		for _, step := range []struct {
			term  uint64
			calls int
		}{{0, 0}, {1, 1}, {0, 1}, {2, 2}} {
			b.lead.set(step.term)
			synctest.Wait()
			if calls != step.calls {
				t.Errorf("term %d: %d calls, want %d", step.term, calls, step.calls)
			}
		}
		cancel()
		<-ended
	})
}

// handedPlans are plans as a test hands them on.
type handedPlans chan predictor.Plan

func (p handedPlans) Watch(ctx context.Context, obey func(predictor.Plan)) error {
	for {
		select {
		case plan := <-p:
			obey(plan)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// TestFunctionsAreInvokedByTheServerWhosePlanIsInForce has a plan seen before and after its server is told that it
// leads, and then that of another.
func TestFunctionsAreInvokedByTheServerWhosePlanIsInForce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var lead leadership
		plans := make(handedPlans)
		var obeyed []string
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = ownPlans{plans, &lead}.Watch(ctx, func(plan predictor.Plan) {
				var venues strings.Builder
				for _, grant := range plan.Grants {
					venues.WriteString(string(grant.Venue) + " ")
				}
				obeyed = append(obeyed, venues.String())
			})
		}()
		plan := func(term uint64) predictor.Plan {
			return predictor.Plan{
				Term: term, Grants: []predictor.Grant{{Venue: predictor.Pool, Slots: 1}, {Venue: predictor.Function, Slots: 2}},
			}
		}
		const pool, both = "pool ", "pool function "
		for _, step := range []struct {
			name string
			do   func()
			want []string
		}{
			{"a plan before it leads", func() { plans <- plan(4) }, []string{pool}},
			{"it leads in its term", func() { lead.set(4) }, []string{both}},
			{"the next plan", func() { plans <- plan(4) }, []string{both}},
			{"it leads no more, and nobody else does", func() { lead.set(0) }, []string{both}},
			{"another leads", func() { plans <- plan(5) }, []string{pool}},
			{"it leads again, and has not decided yet", func() { lead.set(6) }, []string{pool}},
			{"its own plan", func() { plans <- plan(6) }, []string{both}},
		} {
			obeyed = nil
			step.do()
			synctest.Wait()
			if diff := cmp.Diff(step.want, obeyed); diff != "" {
				t.Errorf("%s (-want +got):\n%s", step.name, diff)
			}
		}
		cancel()
		<-ended
	})
}
