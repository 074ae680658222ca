package streams

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ConflictError says that a stream, as somebody has made it, cannot be used: in which setting it differs, and what to
// do.
type ConflictError struct {
	Stream string
	// Setting is the setting as the nats command calls it, Has its value, and Wants the value that it needs.
	Setting, Has, Wants string
	// Harm is what would go wrong.
	Harm string
	// Fix is a command that makes it right.
	Fix string
}

// Error is one line.
func (c *ConflictError) Error() string {
	return fmt.Sprintf("stream %s has %s %s and needs %s, else %s: %s", c.Stream, c.Setting, c.Has, c.Wants, c.Harm, c.Fix)
}

// leastMessage is what a stream must take in one message, in bytes: the largest that is sent without asking the server
// first what it takes.
const leastMessage = 1 << 20

// Settle returns the configuration that a stream which is there gets, given the one that is wanted, and whether that
// changes anything. What can be as it is stays: who has made the stream meant it. That are its replicas and where they
// are, its description, metadata and compression, more subjects than are wanted and, where it has them, bounds of its
// own. A *ConflictError says that it cannot be used.
//
// A bucket's age is part of what the bucket means, so that is as wanted.
func Settle(wanted, there jetstream.StreamConfig) (settled jetstream.StreamConfig, changed bool, err error) {
	if err := conflict(wanted, there); err != nil {
		return there, false, err
	}
	settled = there
	settled.Subjects = slices.Clone(there.Subjects)
	for _, subject := range wanted.Subjects {
		if !slices.Contains(settled.Subjects, subject) {
			settled.Subjects, changed = append(settled.Subjects, subject), true
		}
	}
	mend := func(wrong bool, change func()) {
		if wrong {
			change()
			changed = true
		}
	}
	mend(settled.MaxBytes <= 0 && wanted.MaxBytes > 0, func() { settled.MaxBytes = wanted.MaxBytes })
	mend(settled.MaxMsgs <= 0 && wanted.MaxMsgs > 0, func() { settled.MaxMsgs = wanted.MaxMsgs })
	ours := settled.MaxAge == 0 || strings.HasPrefix(wanted.Name, bucketPrefix)
	mend(ours && settled.MaxAge != wanted.MaxAge, func() { settled.MaxAge = wanted.MaxAge })
	mend(wanted.MaxMsgsPerSubject > 0 && settled.MaxMsgsPerSubject != wanted.MaxMsgsPerSubject,
		func() { settled.MaxMsgsPerSubject = wanted.MaxMsgsPerSubject })
	window := wanted.Duplicates
	if settled.MaxAge > 0 {
		window = min(window, settled.MaxAge) // the server takes no longer one
	}
	mend(settled.Duplicates < window, func() { settled.Duplicates = window })
	mend(wanted.AllowDirect && !settled.AllowDirect, func() { settled.AllowDirect = true })
	mend(wanted.AllowRollup && !settled.AllowRollup, func() { settled.AllowRollup = true })
	return settled, changed, nil
}

// conflict says why a stream cannot be used as it is; nil when it can.
func conflict(wanted, there jetstream.StreamConfig) error {
	anew := fmt.Sprintf("save what is in it and have it made anew with `nats stream rm %s`", wanted.Name)
	edit := func(flag string) string { return fmt.Sprintf("`nats stream edit %s %s`", wanted.Name, flag) }
	refuse := func(setting string, has, wants any, harm, fix string) error {
		return &ConflictError{wanted.Name, setting, fmt.Sprint(has), fmt.Sprint(wants), harm, fix}
	}
	switch {
	case there.Mirror != nil:
		return refuse("mirror", there.Mirror.Name, "none", "nothing can be published into it", anew)
	case there.Sealed:
		return refuse("sealed", true, false, "nothing can be published into it", anew)
	case there.NoAck:
		return refuse("no-ack", true, false, "nobody knows what was stored", edit("--ack"))
	case there.Retention != wanted.Retention:
		return refuse("retention", there.Retention, wanted.Retention, "messages go that are still to be read", anew)
	case there.Storage == jetstream.MemoryStorage && wanted.Storage == jetstream.FileStorage:
		return refuse("storage", there.Storage, wanted.Storage, "what is in it goes when its servers start anew", anew)
	case there.Discard != wanted.Discard && wanted.Discard == jetstream.DiscardOld:
		return refuse("discard", "new", "old", "nothing is taken any more once it is full", edit("--discard old"))
	case there.Discard != wanted.Discard:
		return refuse("discard", "old", "new", "it forgets what is still in use once it is full", edit("--discard new"))
	case there.MaxMsgSize > 0 && there.MaxMsgSize < leastMessage:
		return refuse("max-msg-size", there.MaxMsgSize, leastMessage, "larger messages are refused",
			edit("--max-msg-size=-1"))
	case there.DenyDelete && !wanted.DenyDelete:
		return refuse("deny-delete", true, false, "what is over cannot be removed", anew)
	case there.DenyPurge && !wanted.DenyPurge:
		return refuse("deny-purge", true, false, "what is over cannot be removed", anew)
	case there.SubjectTransform != nil:
		return refuse("transform", there.SubjectTransform.Source, "none", "messages are not found under their subjects",
			edit("--no-transform"))
	case there.MaxMsgsPerSubject > 0 && wanted.MaxMsgsPerSubject <= 0:
		return refuse("max-msgs-per-subject", there.MaxMsgsPerSubject, "unlimited", "messages go that are still to be read",
			edit("--max-msgs-per-subject=-1"))
	}
	return nil
}

// bucketPrefix begins the name of the stream below a bucket, and subjectPrefix the subjects of its keys:
// https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-8.md
const (
	bucketPrefix  = "KV_"
	subjectPrefix = "$KV."
)

// ofBucket is the configuration of the stream below a bucket, as far as Settle reads it.
func ofBucket(bucket jetstream.KeyValueConfig) jetstream.StreamConfig {
	config := jetstream.StreamConfig{
		Name: bucketPrefix + bucket.Bucket, Subjects: []string{subjectPrefix + bucket.Bucket + ".>"},
		Storage: bucket.Storage, MaxAge: bucket.TTL, MaxBytes: bucket.MaxBytes,
		MaxMsgsPerSubject: max(int64(bucket.History), 1), Discard: jetstream.DiscardNew,
		AllowRollup: true, AllowDirect: true, DenyDelete: true,
		Duplicates: bucketDuplicates,
	}
	if bucket.TTL > 0 {
		config.Duplicates = min(config.Duplicates, bucket.TTL)
	}
	return config
}

// bucketDuplicates is the window that NATS gives a bucket.
const bucketDuplicates = 2 * time.Minute
