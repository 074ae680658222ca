package logs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// usualAge and usualBytes bound the stream; the oldest messages go first.
	usualAge   = 7 * 24 * time.Hour
	usualBytes = 1 << 30
	// duplicates is for how long the server knows a message again that the Writer sends twice because an acknowledgement was lost.
	duplicates = 2 * time.Minute
)

// StreamOptions bounds what is kept. The zero value is the default.
type StreamOptions struct {
	// MaxAge is how long output is kept; 0 means seven days.
	MaxAge time.Duration
	// MaxBytes is how much of it is kept, of all runs together; 0 means 1 GiB. The oldest goes first.
	MaxBytes int64
}

// EnsureStream creates the stream, or brings it to this configuration. It may run any number of times, also beside others; the number
// of replicas that an operator has set is kept.
func EnsureStream(ctx context.Context, js jetstream.JetStream, options StreamOptions) error {
	if options.MaxAge <= 0 {
		options.MaxAge = usualAge
	}
	if options.MaxBytes <= 0 {
		options.MaxBytes = usualBytes
	}
	replicas := 1
	existing, err := js.Stream(ctx, wire.LogStream)
	switch {
	case err == nil:
		replicas = existing.CachedInfo().Config.Replicas
	case !errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("look up stream %s: %w", wire.LogStream, err)
	}
	_, err = js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:        wire.LogStream,
		Description: "what attempts print",
		Subjects:    []string{wire.LogSubjects},
		Storage:     jetstream.FileStorage,
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		MaxAge:      options.MaxAge,
		MaxBytes:    options.MaxBytes,
		Duplicates:  min(duplicates, options.MaxAge),
		Replicas:    replicas,
		Compression: jetstream.S2Compression,
		AllowDirect: true,
	})
	if err != nil {
		return fmt.Errorf("create stream %s: %w; check that the NATS server has JetStream on and %d MiB of storage left",
			wire.LogStream, err, options.MaxBytes>>20)
	}
	return nil
}

// sleep waits for d, or returns why ctx ended before.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func orDiscard(logger *slog.Logger) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return logger
}
