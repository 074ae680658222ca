package artifact

import (
	"context"
	"time"

	"github.com/spillway-ml/spillway/activities"
)

// Store is a store that gives space back: files in a directory, or objects of S3. Package storetest says what all of
// them keep to. Whoever removes artifacts is one process; everybody else puts and opens.
type Store interface {
	activities.Store

	// List calls each with every artifact, those that were discarded among them, once; it must not go on beside Discard.
	List(ctx context.Context, each func(Info) error) error
	// Pins calls each with every pin.
	Pins(ctx context.Context, each func(Info) error) error
	// Pin keeps an artifact, from now on, as one that somebody from outside has put.
	Pin(ctx context.Context, digest string) error
	// Unpin removes a pin that was not made again after then; it is no error when there is none.
	Unpin(ctx context.Context, digest string, then time.Time) error
	// Touch notes that an artifact was asked for from outside, and keeps it from being removed. It is no error when there
	// is none.
	Touch(ctx context.Context, digest string) error
	// Discard begins to remove an artifact, which can be opened still, unless it was put or touched after then. Taken is
	// false when it was, and when there is none.
	Discard(ctx context.Context, digest string, then time.Time) (taken bool, err error)
	// Restore ends what Discard began; it is no error when it began nothing.
	Restore(ctx context.Context, digest string) error
	// Delete removes what Discard took. Gone is false when the artifact is there all the same: somebody has put it, or
	// asked for it, meanwhile.
	Delete(ctx context.Context, digest string) (gone bool, err error)
	// RestoreAll ends all that a killed process had begun. Call it before a collection, and beside none.
	RestoreAll(ctx context.Context) error
	// Usage returns how many bytes the artifacts take.
	Usage(ctx context.Context) (bytes int64, err error)
	// Refuse is told that the disk of the state directory is nearly full, and why nothing more can be stored on it; empty
	// is the end of that. Until then every Put that needs room there is refused, with activities.ErrNoRoom.
	Refuse(why string) error
}

var _ Store = (*Files)(nil)
