// Package streams makes the streams of NATS JetStream in which facts are kept, and tells which of them take no message.
package streams

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/wait"
	"github.com/spillway-ml/spillway/activities/wire"
)

// Ensure creates the stream, or brings it to config. It may run any number of times, also beside others. The number of
// replicas that an operator has set is kept; a new stream has one. MaxBytes must be set: what is kept has a bound.
func Ensure(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig) error {
	if config.MaxBytes <= 0 {
		return fmt.Errorf("create stream %s: it has no bound of bytes", config.Name)
	}
	began := time.Now()
	replicas, err := Replicas(ctx, js, config.Name)
	if err == nil {
		config.Replicas = replicas
		_, err = js.CreateOrUpdateStream(ctx, config)
	}
	return unmade("stream "+config.Name, time.Since(began), config.MaxBytes, err)
}

// EnsureBucket creates the bucket, or brings it to config. It may run any number of times, also beside others. The
// number of replicas that an operator has set is kept; a new bucket has one.
func EnsureBucket(ctx context.Context, js jetstream.JetStream, config jetstream.KeyValueConfig) error {
	began := time.Now()
	replicas, err := Replicas(ctx, js, BucketStream(config.Bucket))
	if err == nil {
		config.Replicas = replicas
		_, err = js.CreateOrUpdateKeyValue(ctx, config)
	}
	return unmade("bucket "+config.Bucket, time.Since(began), config.MaxBytes, err)
}

// BucketStream is the stream in which NATS keeps a bucket:
// https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-8.md
func BucketStream(bucket string) string { return "KV_" + bucket }

// unmade says of a stream or bucket that was not made what was tried, for how long, and what to do; nil without an
// error. Most is what it may come to, in bytes; 0 where it has no bound.
func unmade(what string, tried time.Duration, most int64, err error) error {
	room := "room on its disk"
	if most > 0 {
		room = fmt.Sprintf("%d MiB of storage left", (most+1<<20-1)>>20)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("look up or create %s: %w", what, err)
	case IsAway(err):
		return fmt.Errorf("look up or create %s: NATS was asked for %s and did not answer: %w; see whether its servers "+
			"run, whether those of a cluster have elected who leads (`nats server report jetstream`) and how long their "+
			"disks take, and try again", what, tried.Round(100*time.Millisecond), err)
	default:
		return fmt.Errorf("look up or create %s: %w; check that the NATS server has JetStream on and %s", what, err, room)
	}
}

// ReadAll calls visit with all that a watcher has of its bucket as it stands, until there is no more of that: what
// changes later it leaves to whoever reads on. It does not stop the watcher.
func ReadAll(ctx context.Context, watcher jetstream.KeyWatcher, visit func(jetstream.KeyValueEntry)) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case entry, open := <-watcher.Updates():
			if !open {
				return errors.New("the connection to NATS was closed")
			}
			if entry == nil { // all values of now have been delivered
				return nil
			}
			visit(entry)
		}
	}
}

// Create makes the stream where it is missing, its first sequence first; one that is there is left as it is, because a
// stream that got another first sequence would lose all before it when NATS opens it next. It may run any number of
// times, also beside others.
func Create(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, first uint64) error {
	_, err := js.Stream(ctx, config.Name)
	if err == nil {
		return nil
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("look up stream %s: %w", config.Name, err)
	}
	config.FirstSeq = first
	if _, err := js.CreateStream(ctx, config); err != nil && !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
		return fmt.Errorf("make stream %s: %w", config.Name, err)
	}
	return nil
}

// Replicas returns how many servers keep the stream; 1 when it does not exist yet.
func Replicas(ctx context.Context, js jetstream.JetStream, stream string) (int, error) {
	existing, err := js.Stream(ctx, stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	return existing.CachedInfo().Config.Replicas, nil
}

// codeMessageTooLarge is the server's JSStreamMessageExceedsMaximumErr:
// https://github.com/nats-io/nats-server/blob/main/server/errors.json
const codeMessageTooLarge = 10054

// IsFinal reports whether err, of an attempt to publish, will come again however often the same bytes are published:
// they are too large, the subject cannot be, or the connection was closed for good.
func IsFinal(err error) bool {
	var refused *jetstream.APIError
	tooLarge := errors.As(err, &refused) && refused.ErrorCode == codeMessageTooLarge
	return tooLarge || errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, nats.ErrConnectionClosed) ||
		errors.Is(err, nats.ErrBadSubject)
}

// codeForbidden is HTTP's "Forbidden".
const codeForbidden = 403

// IsRefused reports whether err says that who publishes may not say that: it helps nobody to say it again.
func IsRefused(err error) bool {
	refused, is := errors.AsType[*jetstream.APIError](err)
	return is && refused.Code == codeForbidden
}

// codeTooFast is HTTP's "Too Many Requests".
const codeTooFast = 429

// IsTooFast reports whether err says that the server takes no more for now: who waits and tries again succeeds.
func IsTooFast(err error) bool {
	if refused, is := errors.AsType[*jetstream.APIError](err); is {
		return refused.Code == codeTooFast
	}
	// Of a message that is asked for directly the client keeps no more than the reason.
	return err != nil && strings.Contains(err.Error(), wire.TooFast)
}

// IsAway reports whether err says that nobody answered for a stream: its servers are away, or elect who leads it, which
// takes a cluster some seconds. Who waits and tries again succeeds; what was asked may have been done all the same.
func IsAway(err error) bool {
	if refused, is := errors.AsType[*jetstream.APIError](err); is {
		return refused.Code == codeUnavailable
	}
	for _, away := range []error{
		context.DeadlineExceeded, nats.ErrTimeout, nats.ErrNoResponders, jetstream.ErrNoStreamResponse,
		jetstream.ErrNoHeartbeat, nats.ErrConnectionReconnecting, nats.ErrDisconnected,
	} {
		if errors.Is(err, away) {
			return true
		}
	}
	return false
}

// codeUnavailable is HTTP's "Service Unavailable".
const codeUnavailable = 503

// tryFor bounds one of the tries of Persistently.
const tryFor = 3 * time.Second

// Persistently asks the server for something, and again, ever later, while nobody answers, until limit has passed or
// ctx ends. What is asked for must do no harm when it is done twice, as to publish a message with an ID does none.
func Persistently(ctx context.Context, limit time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		trying, done := context.WithTimeout(ctx, tryFor)
		err := ask(trying)
		done()
		if err == nil || !IsAway(err) || !wait.For(ctx, pause) {
			return err
		}
	}
}

// retryLeast and retryMost bound the wait before something is asked again that came too fast.
const (
	retryLeast = 50 * time.Millisecond
	retryMost  = 2 * time.Second
)

// Patiently asks the server for something, and again, ever later, for as long as it came too fast and ctx has not
// ended.
func Patiently(ctx context.Context, ask func() error) error {
	for pause := retryLeast; ; pause = min(2*pause, retryMost) {
		if err := ask(); !IsTooFast(err) || !wait.For(ctx, pause) {
			return err
		}
	}
}

// Reader returns a reader of the messages of a stream, in order, which holds no place in it. What breaks while it is
// read its Next says, and whoever goes on asks for another Reader.
//
// By itself the client would go on within Next: it makes its consumer again, under one name, until that succeeds or the
// reader is stopped, whatever the context. Where a cluster has placed that consumer on a server that is lost just then,
// it never does.
func Reader(ctx context.Context, js jetstream.JetStream, stream string, config jetstream.OrderedConsumerConfig) (
	jetstream.Consumer, error,
) {
	config.MaxResetAttempts = 1
	return js.OrderedConsumer(ctx, stream, config)
}
