package fact_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/predictor/fact"
)

func TestParseQueueIsTheInverseOfQueueAndPoolQueue(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		stage := fact.StageID{
			App:   rapid.StringMatching(`[a-z0-9_-]{1,40}`).Draw(t, "app"),
			Build: rapid.StringMatching(`[0-9a-f]{12}`).Draw(t, "build"),
			Name:  rapid.StringMatching(`[a-z][a-z0-9_-]{0,39}`).Draw(t, "name"),
		}
		for queue, wantPool := range map[string]bool{stage.Queue(): false, stage.PoolQueue(): true} {
			if got, pool, ok := fact.ParseQueue(queue); got != stage || pool != wantPool || !ok {
				t.Fatalf("%q is %+v, pool only %t, ok %t; want %+v, %t", queue, got, pool, ok, stage, wantPool)
			}
		}
	})
}

func TestAQueueThatParsesIsWrittenBackAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		queue := rapid.StringMatching(`[a@/.]{0,8}(\.pool)?`).Draw(t, "queue")
		stage, pool, ok := fact.ParseQueue(queue)
		back := stage.Queue()
		if pool {
			back = stage.PoolQueue()
		}
		if ok && back != queue {
			t.Fatalf("%q is %+v, which is written %q", queue, stage, back)
		}
		if !ok && (stage != fact.StageID{} || pool) {
			t.Fatalf("%q is no queue and yet %+v, %t", queue, stage, pool)
		}
	})
}

func TestWhatIsNoQueueOfAStageIsRefused(t *testing.T) {
	t.Parallel()
	for _, queue := range []string{
		"", "digits", "digits@build", "digits/score", "@build/score", "digits@/score",
		"digits@build/", "digits@build/.pool", "a/b@c",
	} {
		if stage, _, ok := fact.ParseQueue(queue); ok {
			t.Errorf("%q is taken for the queue of %+v", queue, stage)
		}
	}
}
