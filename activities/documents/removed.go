package documents

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

// NATS keeps of a document that was removed a mark that it is gone, for ever. Each session leaves one, so servers purge
// them. A server that was away while there was a mark, and hears the changes from then on, would take the document for
// one that stands. So a mark stays for removedLife, and whoever has not made sure for a quarter of that time that it
// has heard everything reads all of the bucket anew, and finds what is not there any more.

const (
	// removedLife is how long a mark stays at least after this server has come to know it, and forgetEvery how often it is
	// looked which are that old.
	removedLife = time.Hour
	forgetEvery = 5 * time.Minute
	// unsureMost is how long a watch may go without an answer of NATS how far the changes are.
	unsureMost = removedLife / 4
)

// Errors of a watch that has to begin anew.
var (
	errBehind = errors.New("a change was not told of")
	errUnsure = errors.New("NATS has not answered for long, or this server has stood still")
)

// watched is how far a watch is.
type watched struct {
	seen   uint64    // all changes up to this revision were told of, but for those that others came after
	wanted uint64    // what must have been seen by the next look
	at     time.Time // when NATS was asked last that has answered; by the wall clock
}

// look takes in which change was the last when NATS was asked, and says why the watch has to begin anew.
func (w *watched) look(last uint64, asked time.Time) error {
	switch {
	case w.seen < w.wanted:
		return errBehind
	case asked.Sub(w.at) > unsureMost || asked.Before(w.at.Add(-unsureMost)):
		return errUnsure
	}
	w.wanted, w.at = last, asked
	return nil
}

// wallClock is the time of day, which goes on while the machine sleeps.
func wallClock() time.Time { return time.Now().Round(0) }

// forgetRegularly forgets what is gone for long, until ctx ends.
func (d *Documents) forgetRegularly(ctx context.Context) {
	for wait.For(ctx, forgetEvery) {
		if err := d.forgetRemoved(ctx, time.Now().Add(-removedLife)); err != nil && ctx.Err() == nil {
			d.logger.WarnContext(ctx, "marks of documents that were removed stay for now; it is tried again", "error", err)
		}
	}
}

// forgetRemoved purges the marks that were known before the given time, and forgets them here. Every server does that;
// who comes second finds nothing.
func (d *Documents) forgetRemoved(ctx context.Context, before time.Time) error {
	marks := map[string]uint64{}
	d.mu.Lock()
	for key, one := range d.known {
		if one.raw == nil && one.since.Before(before) {
			marks[key] = one.revision
		}
	}
	d.mu.Unlock()
	if len(marks) == 0 {
		return nil
	}
	stream, err := d.js.Stream(ctx, streams.BucketStream(wire.SharedBucket))
	if err != nil {
		return fmt.Errorf("purge marks of bucket %s: %w", wire.SharedBucket, err)
	}
	for key, revision := range marks {
		if err := purge(ctx, stream, key, revision); err != nil {
			return fmt.Errorf("purge a mark of bucket %s: %w", wire.SharedBucket, err)
		}
		d.mu.Lock()
		if d.known[key].revision == revision {
			delete(d.known, key)
		}
		d.mu.Unlock()
	}
	return nil
}

// purge removes the mark of a key, as long as that is what is there: a document that is made again meanwhile has a
// later revision, and stays. In a bucket that was made anew revisions begin again, so it is looked first.
func purge(ctx context.Context, stream jetstream.Stream, key string, revision uint64) error {
	subject := "$KV." + wire.SharedBucket + "." + key
	last, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if last.Sequence != revision || last.Header.Get("KV-Operation") == "" {
		return nil // the watch tells what is there
	}
	return stream.Purge(ctx, jetstream.WithPurgeSubject(subject), jetstream.WithPurgeSequence(revision+1))
}
