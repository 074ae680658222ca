package trigger

import (
	"context"
	"fmt"
	"strings"

	"github.com/spillway-ml/spillway/activities/wire"
)

// maxTakenBack is how many events may come again for those that a reader had in hand.
const maxTakenBack = 16 * parallel

// takeBack has the server deliver again what a trigger that was killed had in hand: else it waits until AckWait has
// passed. Each reader begins again behind the events that it has dealt with without a gap, so that events of later
// sequences come again too; their runs are known by their IDs, and their dead letters by theirs. Where one event has
// held up the rest for long, too many would come again: then they wait. It comes before anything is taken.
func (t *Trigger) takeBack(ctx context.Context) error {
	stream, err := t.js.Stream(ctx, wire.EventStream)
	if err != nil {
		return fmt.Errorf("find stream %s: %w", wire.EventStream, err)
	}
	t.before = stream.CachedInfo().State.LastSeq
	lister := stream.ListConsumers(ctx)
	for info := range lister.Info() {
		ours := info.Name == unboundConsumer || strings.HasPrefix(info.Name, consumerPrefix)
		if !ours || info.NumAckPending == 0 || info.Delivered.Stream-info.AckFloor.Stream > maxTakenBack {
			continue
		}
		t.log.InfoContext(ctx, "take back what was in hand", "consumer", info.Name, "events", info.NumAckPending)
		if _, err := stream.ResetConsumer(ctx, info.Name); err != nil { // a server before 2.14 cannot
			t.log.WarnContext(ctx, "what was in hand is not taken back and comes later", "consumer", info.Name,
				"after", t.ackWait, "error", err)
		}
	}
	if err := lister.Err(); err != nil {
		return fmt.Errorf("list consumers of stream %s: %w", wire.EventStream, err)
	}
	return nil
}
