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

// findLosses compares the streams with what is remembered of them, and has those that have lost their end go on behind
// it. It comes before anybody reads or writes.
func (s *stores) findLosses(ctx context.Context) ([]streammarks.Loss, error) {
	marks, err := s.marks(ctx)
	if err != nil { // as on a full disk, or of a damaged ledger, which is told
		s.logger.WarnContext(ctx, "whether streams have lost messages is not known", "error", err)
		return nil, nil
	}
	var losses []streammarks.Loss
	for _, stream := range marked {
		was := marks[stream.name]
		is, loss, err := streammarks.Look(ctx, s.stream, stream.name, was, s.config.Clock())
		if err != nil {
			return nil, err
		}
		if loss.Messages > 0 {
			s.logger.ErrorContext(ctx, "a stream has lost messages", "stream", stream.name, "messages", loss.Messages,
				"since", loss.Since, "until", loss.Until, "means", stream.means)
			losses = append(losses, loss)
		}
		if subject := unread[stream.name]; subject != "" && is.Last < was.Last {
			if err := streammarks.GoOnBehind(ctx, s.stream, stream.name, subject, was.Last); err != nil {
				return nil, err
			}
		}
	}
	return losses, nil
}

// marks is what is remembered of the streams. The loop's was at least as far as the ledger is.
func (s *stores) marks(ctx context.Context) (map[string]streammarks.Mark, error) {
	marks, err := s.ledger.Marks(ctx)
	if err != nil {
		return nil, err
	}
	if mark, known := marks[wire.LoopStream]; known {
		mark.Last = max(mark.Last, s.ledger.Cursor())
		marks[wire.LoopStream] = mark
	}
	return marks, nil
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
func (r *reports) tellLosses(ctx context.Context, losses []streammarks.Loss) {
	for _, loss := range losses {
		r.alert(alerting.MessagesLost(loss.Stream, loss.Messages, loss.Since, loss.Until, meaning(loss), r.config.Clock()))
	}
	for again := true; again; again = wait.For(ctx, markEvery) {
		if err := r.remember(ctx); err != nil && ctx.Err() == nil {
			r.logger.WarnContext(ctx, "how far the streams are is not kept; it is tried again", "error", err)
		}
	}
}

// meaning is what a loss means to people.
func meaning(loss streammarks.Loss) string {
	for _, stream := range marked {
		if stream.name == loss.Stream {
			return stream.means
		}
	}
	panic(fmt.Sprintf("stream %s is not marked", loss.Stream))
}
