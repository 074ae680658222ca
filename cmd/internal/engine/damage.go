package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/spillway-ml/spillway/activities/alerts"
	"github.com/spillway-ml/spillway/activities/loop"
	streammarks "github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/alerting"
	"github.com/spillway-ml/spillway/workflows/trigger"
)

// markEvery is how often it is kept how far the streams are: what is lost of this time at the end of a stream, in a
// crash, is not noticed. Of the loop's stream the ledger knows it to the message.
const markEvery = time.Minute

// marked are the streams of which nothing goes but by their bounds, and what it means when something has. NATS reads
// what is left of a damaged file and says nothing.
var marked = []struct{ name, means string }{
	{wire.LoopStream, "runs that go on are found again at Temporal, and ended ones keep what the ledger has of them; " +
		"attempts and decisions of that time are missing from the page"},
	{wire.SampleStream, "curves of that time have holes"},
	{wire.LogStream, "what attempts printed in that time is gone"},
	{wire.EventStream, "events of that time that had started no run yet start none: publish them again"},
	{wire.DoneStream, "whoever waits for completion events of that time does not get them: see spillway runs"},
	{alerts.Stream, "alerts of that time are gone"},
}

// unread are subjects that nobody reads, of the streams whose sequences are known elsewhere: to the ledger and to
// checkpoints, and as names of events.
var unread = map[string]string{wire.LoopStream: wire.LoopSubject("lost"), wire.EventStream: trigger.UnreadSubject}

// loss is what a stream has lost since it was remembered.
type loss struct {
	streammarks.Loss
	remembered streammarks.Mark
}

// behind names the mark that the loss was found by: one that was told of and not remembered, as by an engine that was
// killed, is found again by the same.
func (l loss) behind() string {
	return fmt.Sprintf("%d-%d-%d", l.remembered.First, l.remembered.Last, l.remembered.Missing)
}

// findLosses compares the streams with what is remembered of them, and has those that have lost their end go on behind
// it. It comes before anybody reads or writes. The engine does not start where a stream cannot: under numbers that are
// known as those of other messages, runs would be missing from the ledger, and events would start none.
func (s *stores) findLosses(ctx context.Context) ([]loss, error) {
	marks, err := s.ledger.Marks(ctx)
	if err != nil { // as on a full disk, or of a damaged ledger, which is told
		s.logger.WarnContext(ctx, "whether streams have lost messages is not known", "error", err)
		return nil, nil
	}
	var losses []loss
	for _, stream := range marked {
		remembered, known := marks[stream.name]
		was := remembered
		if known && stream.name == wire.LoopStream { // it was at least as far as the ledger is
			was.Last = max(was.Last, s.ledger.Cursor())
		}
		is, lost, err := streammarks.Look(ctx, s.stream, stream.name, was, s.config.Clock())
		if err != nil {
			return nil, err
		}
		if lost.Messages > 0 {
			s.logger.ErrorContext(ctx, "a stream has lost messages", "stream", stream.name, "messages", lost.Messages,
				"since", lost.Since, "until", lost.Until, "means", stream.means)
			losses = append(losses, loss{lost, remembered})
		}
		if subject := unread[stream.name]; subject != "" && is.Last < was.Last {
			if err := streammarks.GoOnBehind(ctx, s.stream, stream.name, subject, was.Last); err != nil {
				return nil, fmt.Errorf("the stream has lost its end: %w; make room in the state directory, and start again: "+
					"until then nothing more is lost", err)
			}
		}
	}
	return losses, nil
}

// continueLoop makes the loop's stream behind what the ledger knows of it, where it is gone.
func (s *stores) continueLoop(ctx context.Context) error {
	cursor := s.ledger.Cursor()
	if cursor == 0 {
		return nil
	}
	return loop.ContinueStream(ctx, s.stream, cursor)
}

// remember keeps how far the streams are.
func (s *stores) remember(ctx context.Context) error {
	marks := map[string]streammarks.Mark{}
	for _, stream := range marked {
		mark, _, err := streammarks.Look(ctx, s.stream, stream.name, streammarks.Mark{}, time.Time{})
		if err != nil {
			return err
		}
		marks[stream.name] = mark
	}
	return s.ledger.Remember(ctx, marks)
}

// tellLosses alerts of what streams have lost, and keeps from then on how far they are, until ctx ends.
func (r *reports) tellLosses(ctx context.Context, losses []loss) {
	for _, lost := range losses {
		r.alert(alerting.MessagesLost(lost.Stream, lost.behind(), lost.Messages, lost.Since, lost.Until, meaning(lost),
			r.config.Clock()))
	}
	for again := true; again; again = wait.For(ctx, markEvery) {
		if err := r.remember(ctx); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "how far the streams are is not kept; it is tried again", "error", err)
		}
	}
}

// meaning is what a loss means to people.
func meaning(lost loss) string {
	for _, stream := range marked {
		if stream.name == lost.Stream {
			return stream.means
		}
	}
	panic(fmt.Sprintf("stream %s is not marked", lost.Stream))
}
