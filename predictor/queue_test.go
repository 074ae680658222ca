package predictor_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor"
	"github.com/spillway-ml/spillway/predictor/quantity"
)

func TestParseQueueIsTheInverseOfQueueAndPoolQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		stage := predictor.StageID{
			App:   rapid.StringMatching(`[a-z0-9_-]{1,40}`).Draw(t, "app"),
			Build: rapid.StringMatching(`[0-9a-f]{12}`).Draw(t, "build"),
			Name:  rapid.StringMatching(`[a-z][a-z0-9_-]{0,39}`).Draw(t, "name"),
		}
		for queue, wantPool := range map[string]bool{stage.Queue(): false, stage.PoolQueue(): true} {
			if got, pool, ok := predictor.ParseQueue(queue); got != stage || pool != wantPool || !ok {
				t.Fatalf("%q is %+v, pool only %t, ok %t; want %+v, %t", queue, got, pool, ok, stage, wantPool)
			}
		}
	})
}

func TestAQueueThatParsesIsWrittenBackAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		queue := rapid.StringMatching(`[a@/.]{0,8}(\.pool)?`).Draw(t, "queue")
		stage, pool, ok := predictor.ParseQueue(queue)
		back := stage.Queue()
		if pool {
			back = stage.PoolQueue()
		}
		if ok && back != queue {
			t.Fatalf("%q is %+v, which is written %q", queue, stage, back)
		}
		if !ok && (stage != predictor.StageID{} || pool) {
			t.Fatalf("%q is no queue and yet %+v, %t", queue, stage, pool)
		}
	})
}

func TestWhatIsNoQueueOfAStageIsRefused(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{"", "digits", "digits@build", "digits/score", "@build/score", "digits@/score", "digits@build/", "digits@build/.pool", "a/b@c"} {
		if stage, _, ok := predictor.ParseQueue(queue); ok {
			t.Errorf("%q is taken for the queue of %+v", queue, stage)
		}
	}
}

func TestThePoolsAttemptOfARefusedTaskCounts(t *testing.T) {
	t.Parallel()
	refused := costly(record("r", "score", 0, 2, 0.1), 0)
	refused.Venue, refused.Outcome = predictor.Function, predictor.Refused
	done := costly(record("r", "score", 0, 4, 1), 3*quantity.USD) // it counts from 1 again on the queue that only the pool polls
	done.PoolOnly = true
	state := fold(
		predictor.State{}, started("before", -200, predictor.Goal{}), hint("before", "score", 1, -200), record("before", "score", 0, -101, 99),
		predictor.RunEnded{Run: "before", State: predictor.RunSucceeded, At: after(-100)},
		started("r", 0, predictor.Goal{}), hint("r", "score", 1, 0), refused, done, done,
	)
	if _, cost, known := state.Forecast("r", after(5)); !known || cost.Mid != 3 {
		t.Errorf("the run comes to %+v USD (known: %v), want the 3 USD that the pool's attempt cost", cost, known)
	}
}
