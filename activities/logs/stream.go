package logs

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// usualAge, usualBytes and usualMessages bound the stream; the oldest messages go first. An attempt has a subject of
	// its own, and the server keeps 157 bytes in memory for each: without a bound of messages a million attempts that
	// print a line take 150 MiB of it.
	usualAge      = 7 * 24 * time.Hour
	usualBytes    = 1 << 30
	usualMessages = 200_000
	// duplicates is for how long the server knows a message again that the Writer sends twice because an acknowledgement
	// was lost.
	duplicates = 2 * time.Minute
)

// StreamOptions bounds what is kept. The zero value is the default.
type StreamOptions struct {
	// MaxAge is how long output is kept; 0 means seven days.
	MaxAge time.Duration
	// MaxBytes is how much of it is kept, of all runs together; 0 means 1 GiB. The oldest goes first.
	MaxBytes int64
	// MaxMessages is how many messages of it, each some lines of one attempt; 0 means 200,000. The oldest goes first.
	MaxMessages int64
}

// EnsureStream creates the stream, or brings it to this configuration. It may run any number of times, also beside
// others; the number of replicas that an operator has set is kept.
func EnsureStream(ctx context.Context, js jetstream.JetStream, options StreamOptions) error {
	if options.MaxAge <= 0 {
		options.MaxAge = usualAge
	}
	if options.MaxBytes <= 0 {
		options.MaxBytes = usualBytes
	}
	if options.MaxMessages <= 0 {
		options.MaxMessages = usualMessages
	}
	return streams.Ensure(ctx, js, jetstream.StreamConfig{
		Name:        wire.LogStream,
		Description: "what attempts print",
		Subjects:    []string{wire.LogSubjects},
		Storage:     jetstream.FileStorage,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		MaxAge:      options.MaxAge,
		MaxBytes:    options.MaxBytes,
		MaxMsgs:     options.MaxMessages,
		Duplicates:  min(duplicates, options.MaxAge),
		Compression: jetstream.S2Compression,
		AllowDirect: true,
	})
}
