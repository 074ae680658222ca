package loop_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/loop"
	"github.com/spillway-ml/spillway/activities/natstest"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor"
)

func plans(t *testing.T, js jetstream.JetStream) *loop.Plans {
	t.Helper()
	p, err := loop.NewPlans(t.Context(), js, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// watch collects the plans that Watch hands out.
func watch(t *testing.T, p *loop.Plans) <-chan predictor.Plan {
	t.Helper()
	obeyed := make(chan predictor.Plan, 64)
	background(t, func(ctx context.Context) error {
		return p.Watch(ctx, func(plan predictor.Plan) { obeyed <- plan })
	})
	return obeyed
}

func plan(term, tick uint64, slots int) predictor.Plan {
	return predictor.Plan{
		Term: term, Tick: tick,
		Grants: []predictor.Grant{{Stage: stage, Venue: predictor.Pool, Slots: slots}},
	}
}

// post puts a plan in force whatever is there. A server that has just been started may need a second try.
func post(t *testing.T, p *loop.Plans, next predictor.Plan) {
	t.Helper()
	var err error
	for range 3 {
		var revision uint64
		if _, revision, err = p.Current(t.Context()); err != nil {
			continue
		}
		if _, err = p.Replace(t.Context(), next, revision); err == nil {
			return
		}
	}
	t.Fatal(err)
}

func TestWatchHandsOutTheCurrentPlanAndOnlyNewerOnes(t *testing.T) {
	t.Parallel()
	js := stream(t)
	p := plans(t, js)
	post(t, p, plan(2, 1, 1))
	post(t, p, plan(2, 2, 2))
	obeyed := watch(t, p)
	if diff := cmp.Diff(plan(2, 2, 2), natstest.Receive(t, obeyed, "current plan")); diff != "" {
		t.Fatalf("current plan (-want +got):\n%s", diff)
	}
	for _, stale := range []predictor.Plan{plan(1, 99, 9), plan(2, 1, 9), plan(2, 2, 9)} {
		post(t, p, stale)
	}
	if _, err := js.Publish(t.Context(), "$KV."+wire.PlanBucket+"."+wire.PlanKey, []byte(`{"v":99}`)); err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(t.Context(), wire.PlanBucket)
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Delete(t.Context(), wire.PlanKey); err != nil {
		t.Fatal(err)
	}
	// One after the other: the bucket keeps one value, so a watcher may never see a plan that is replaced at once.
	for _, want := range []predictor.Plan{plan(2, 5, 5), plan(3, 0, 6)} {
		post(t, p, want)
		if diff := cmp.Diff(want, natstest.Receive(t, obeyed, "newer plan")); diff != "" {
			t.Errorf("newer plan (-want +got):\n%s", diff)
		}
	}
}

func TestAttackAPlanOfATermThatCannotBeIsObeyedByNobody(t *testing.T) {
	t.Parallel()
	js := stream(t)
	p := plans(t, js)
	post(t, p, plan(2, 1, 1))
	obeyed := watch(t, p)
	natstest.Receive(t, obeyed, "current plan")
	forged := []byte(`{"v":1,"plan":{"term":18446744073709551615,"tick":1}}`)
	if _, err := js.Publish(t.Context(), "$KV."+wire.PlanBucket+"."+wire.PlanKey, forged); err != nil {
		t.Fatal(err)
	}
	_, revision, err := p.Current(t.Context())
	if err == nil || revision == 0 {
		t.Fatalf("a plan of an impossible term: revision %d, %v, want an error", revision, err)
	}
	if _, err := p.Replace(t.Context(), plan(2, 2, 2), revision); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plan(2, 2, 2), natstest.Receive(t, obeyed, "the leader's next plan")); diff != "" {
		t.Errorf("obeyed (-want +got):\n%s", diff)
	}
}

func TestOnlyWhoKnowsThePlanInForceReplacesIt(t *testing.T) {
	t.Parallel()
	p := plans(t, stream(t))
	if got, revision, err := p.Current(t.Context()); err != nil || revision != 0 || got.Term != 0 {
		t.Fatalf("Current of nothing = %+v, %d, %v", got, revision, err)
	}
	first, err := p.Replace(t.Context(), plan(1, 1, 1), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Replace(t.Context(), plan(1, 2, 2), 0); !errors.Is(err, loop.ErrReplaced) {
		t.Errorf("Replace of nothing although there is a plan: %v, want %v", err, loop.ErrReplaced)
	}
	second, err := p.Replace(t.Context(), plan(2, 1, 3), first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Replace(t.Context(), plan(1, 3, 4), first); !errors.Is(err, loop.ErrReplaced) {
		t.Errorf("Replace of an old plan: %v, want %v", err, loop.ErrReplaced)
	}
	got, revision, err := p.Current(t.Context())
	if diff := cmp.Diff(plan(2, 1, 3), got); err != nil || revision != second || diff != "" {
		t.Errorf("Current: revision %d, want %d; %v (-want +got):\n%s", revision, second, err, diff)
	}
}

func TestAPlanThatIsTooLargeGoesWithoutItsDecisions(t *testing.T) {
	t.Parallel()
	p := plans(t, stream(t))
	large := plan(1, 1, 1)
	large.Decisions = make([]predictor.Decision, 20_000)
	if _, err := p.Replace(t.Context(), large, 0); err != nil {
		t.Fatal(err)
	}
	got, _, err := p.Current(t.Context())
	if diff := cmp.Diff(plan(1, 1, 1), got); err != nil || diff != "" {
		t.Errorf("Current: %v (-want +got):\n%s", err, diff)
	}
}

func TestAPlanOfManyStagesIsCompressed(t *testing.T) {
	t.Parallel()
	js := stream(t)
	p := plans(t, js)
	large := plan(1, 1, 1)
	for i := range 30_000 {
		name := predictor.StageID{App: stage.App, Name: fmt.Sprintf("stage-%d", i), Build: stage.Build}
		large.Grants = append(large.Grants, predictor.Grant{Stage: name, Venue: predictor.Pool, Slots: i})
	}
	obeyed := watch(t, p)
	if _, err := p.Replace(t.Context(), large, 0); err != nil {
		t.Fatal(err)
	}
	got, _, err := p.Current(t.Context())
	if diff := cmp.Diff(large, got); err != nil || diff != "" {
		t.Errorf("Current: %v (-want +got):\n%s", err, diff)
	}
	if diff := cmp.Diff(large, natstest.Receive(t, obeyed, "the plan")); diff != "" {
		t.Errorf("obeyed (-want +got):\n%s", diff)
	}
	broken := []byte{0x1f, 0x8b, 8, 0}
	if _, err := js.Publish(t.Context(), "$KV."+wire.PlanBucket+"."+wire.PlanKey, broken); err != nil {
		t.Fatal(err)
	}
	if _, revision, err := p.Current(t.Context()); err == nil || revision == 0 {
		t.Errorf("a plan that cannot be expanded: revision %d, %v, want an error", revision, err)
	}
}

func TestAPlanThatNoMessageHoldsIsRefused(t *testing.T) {
	t.Parallel()
	p := plans(t, stream(t))
	noise := rand.NewChaCha8([32]byte{})
	large := plan(1, 1, 1)
	for range 30_000 {
		name := make([]byte, 64)
		_, _ = noise.Read(name)
		large.Grants = append(large.Grants, predictor.Grant{Stage: predictor.StageID{Name: hex.EncodeToString(name)}})
	}
	if _, err := p.Replace(t.Context(), large, 0); err == nil || !strings.Contains(err.Error(), "max_payload") {
		t.Errorf("a plan that no message holds: %v", err)
	}
}

func TestWatchGoesOnAcrossARestartOfTheServer(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.Connect()
	ensure(t, js)
	p := plans(t, js)
	obeyed := watch(t, p)
	post(t, p, plan(1, 1, 1))
	natstest.Receive(t, obeyed, "plan before")
	server.Stop()
	server.Restart()
	post(t, p, plan(1, 2, 2))
	if diff := cmp.Diff(plan(1, 2, 2), natstest.Receive(t, obeyed, "plan after")); diff != "" {
		t.Errorf("plan after (-want +got):\n%s", diff)
	}
}
