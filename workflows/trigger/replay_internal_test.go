package trigger

import (
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/spillway-ml/spillway/activities/wire"
)

// Two pipelines read the subject of a dead letter: what the other makes of it comes first.
func TestAReplayIsToldOfItsOwnPipelineAlone(t *testing.T) {
	t.Parallel()
	told := make(chan Outcome, 1)
	trigger := &Trigger{replays: map[string]replay{"replay-1": {pipeline: "a", outcome: told}}}
	e := event{header: nats.Header{wire.MessageIDHeader: {"replay-1"}}}
	trigger.became(e, "b", Outcome{Run: "b-1"})
	trigger.became(e, "a", Outcome{Refused: "it is still wrong"})
	if got := <-told; got.Refused == "" {
		t.Errorf("the replay came to %+v; want what its own pipeline made of it", got)
	}
}
