package results

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
)

const (
	// keptAge and keptBytes bound the stream; the oldest results go first.
	keptAge   = 30 * 24 * time.Hour
	keptBytes = 1 << 30
	// keptResults bounds what the server keeps in memory: 157 bytes for each result, which has a subject of its own.
	keptResults = 200_000
	// inline is the largest output that is kept in the message itself; larger ones are artifacts.
	inline = 16 << 10
	// lookups is how many are on their way at a time.
	lookups = 32
)

// Results is the store of results. Its methods may be called concurrently.
type Results struct {
	js      jetstream.JetStream
	store   activities.Store
	signing Signing
}

// New returns the results in the stream that EnsureStream makes, with large outputs in store. Those that signing does
// not hold for are none.
func New(js jetstream.JetStream, store activities.Store, signing Signing) *Results {
	return &Results{js: js, store: store, signing: signing}
}

// EnsureStream creates the stream, or brings it to this configuration; the number of replicas that an operator has set
// is kept.
func EnsureStream(ctx context.Context, js jetstream.JetStream) error {
	return streams.Ensure(ctx, js, jetstream.StreamConfig{
		Name: wire.ResultStream, Description: "results of tasks that later runs may take",
		Subjects: []string{wire.ResultSubjects},
		Storage:  jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld, MaxAge: keptAge,
		MaxBytes:          keptBytes,
		MaxMsgsPerSubject: 1, MaxMsgs: keptResults, Compression: jetstream.S2Compression, AllowDirect: true,
	})
}

// Keep signs a result and makes it durable. The same key of the same run again replaces it.
func (r *Results) Keep(ctx context.Context, kept wire.Kept) error {
	kept.Version = wire.Version
	if len(kept.Output) > inline {
		ref, err := r.store.Put(ctx, bytes.NewReader(kept.Output))
		if err != nil {
			return fmt.Errorf("keep the result of %s: %w", kept.Task, err)
		}
		kept.Output, kept.Stored = nil, ref
	}
	message, err := r.signing.sign(kept)
	if err != nil {
		return fmt.Errorf("keep the result of %s: %w", kept.Task, err)
	}
	return r.publish(ctx, wire.ResultSubject(kept.Key, kept.Run), message)
}

// publish stores a signed result on a subject.
func (r *Results) publish(
	ctx context.Context, subject string, message signed, options ...jetstream.PublishOpt,
) error {
	_, err := r.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: message.data, Header: message.header()},
		append(options, jetstream.WithExpectStream(wire.ResultStream))...)
	if err != nil {
		return fmt.Errorf("keep the result of %s: %w", message.kept.Task, err)
	}
	return nil
}

// Find returns for each key of lookup the latest result that may be taken, with its output, or nil where there is none:
// that of lookup.Run first, then that of any run that the same code made, but none that was made more than 30 days ago.
// A result whose output is gone is none. What is found is kept as a result of lookup.For as well, where that is set:
// for retries of that run, other runs do not find it there, and so that what it names stays. What cannot be kept so is
// not taken. With an error there is nil for those that could not be looked up or taken, and the others all the same;
// all is nil where nobody answers.
func (r *Results) Find(ctx context.Context, lookup wire.Lookup) ([]*wire.Kept, error) {
	var stream jetstream.Stream
	err := streams.Patiently(ctx, func() (err error) {
		stream, err = r.js.Stream(ctx, wire.ResultStream)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("look up results: %w", err)
	}
	found, errs := make([]*wire.Kept, len(lookup.Keys)), make([]error, len(lookup.Keys))
	var all sync.WaitGroup
	turn := make(chan struct{}, lookups)
	var full atomic.Bool
	for i, key := range lookup.Keys {
		turn <- struct{}{}
		all.Go(func() {
			found[i], errs[i] = r.find(ctx, stream, lookup, key, &full)
			<-turn
		})
	}
	all.Wait()
	return found, errors.Join(errs...)
}

// takeTries is how often a result is looked up of which the message is another when it is taken: a run has made the
// same one anew, or the one that had it gives it back. takeWait is how long one waits that came too fast.
const (
	takeTries = 3
	takeWait  = 2 * time.Second
)

// find returns one result. Full says that no more can be kept for now.
func (r *Results) find(
	ctx context.Context, stream jetstream.Stream, lookup wire.Lookup, key wire.ResultKey, full *atomic.Bool,
) (*wire.Kept, error) {
	for range takeTries {
		message, held, err := r.look(ctx, stream, lookup, key)
		if err != nil || message == nil {
			return nil, err
		}
		found, err := r.read(ctx, message.kept)
		if found == nil {
			return nil, err
		}
		found.Run = held
		if lookup.For == "" || lookup.For == held {
			return found, nil
		}
		if full.Load() {
			return nil, nil
		}
		switch err := r.take(ctx, *message, lookup.For); {
		case err == nil:
			return found, nil
		case streams.IsTooFast(err): // what nobody holds for the run may be removed before it is used: its task runs
			full.Store(true)
			return nil, nil
		case !errors.Is(err, errChanged):
			return nil, err
		}
	}
	return nil, nil
}

// look returns the latest result that may be taken, and the run that has it, whether it made it or took it; nil when
// there is none.
func (r *Results) look(
	ctx context.Context, stream jetstream.Stream, lookup wire.Lookup, key wire.ResultKey,
) (message *signed, held string, err error) {
	if lookup.Run != "" {
		own := wire.ResultKey{Content: key.Content}
		message, err = r.last(ctx, stream, wire.ResultSubject(own, lookup.Run))
		if err != nil || message != nil {
			return message, lookup.Run, err
		}
	}
	if !lookup.Shared {
		return nil, "", nil
	}
	message, err = r.last(ctx, stream, wire.ResultSubject(key, ""))
	if err != nil || message == nil || message.kept.At.Before(lookup.NotBefore) || time.Since(message.kept.At) > keptAge {
		return nil, "", err
	}
	return message, message.kept.Run, nil
}

// errChanged says that a result is not stored any more where it was found.
var errChanged = errors.New("the result was removed, or made anew, meanwhile")

// take keeps a result as one of another run too, if it is still where it was found. Whoever gives back what the run has
// that it is of (space.Collector) purges it there before looking what is still named: either that run's results are
// seen to name it, or they are not there and it was not taken. The server decides which, in one step.
func (r *Results) take(ctx context.Context, message signed, run string) error {
	waiting, cancel := context.WithTimeout(ctx, takeWait)
	defer cancel()
	err := streams.Patiently(waiting, func() error {
		return r.publish(ctx, wire.TakenSubject(message.kept.Key, run), message,
			jetstream.WithExpectLastSequenceForSubject(message.sequence, message.subject))
	})
	refused, is := errors.AsType[*jetstream.APIError](err)
	if is && (refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
		refused.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return errChanged
	}
	return err
}

// last returns the latest result on a subject as it is stored; nil when there is none that this store may take.
func (r *Results) last(ctx context.Context, stream jetstream.Stream, subject string) (*signed, error) {
	var message *jetstream.RawStreamMsg
	err := streams.Patiently(ctx, func() (err error) {
		message, err = stream.GetLastMsgForSubject(ctx, subject)
		return err
	})
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up a result: %w", err)
	}
	read, genuine := r.signing.verify(message.Subject, message.Header, message.Data)
	if !genuine || read.kept.Version != wire.Version { // that of another version: the task runs again
		return nil, nil
	}
	read.subject, read.sequence = message.Subject, message.Sequence
	return &read, nil
}

// read returns a result with its output; nil when the output is gone, or the checkpoint from which its trial goes on.
func (r *Results) read(ctx context.Context, kept wire.Kept) (*wire.Kept, error) {
	if kept.Told != nil && kept.Told.Checkpoint.Digest != "" {
		content, err := r.store.Open(ctx, kept.Told.Checkpoint.Digest)
		if errors.Is(err, activities.ErrMissing) {
			return nil, nil
		}
		if err == nil {
			err = content.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("look for the checkpoint of %s: %w", kept.Task, err)
		}
	}
	if kept.Stored.Digest == "" {
		return &kept, nil
	}
	output, err := activities.ReadAll(ctx, r.store, kept.Stored.Digest)
	if errors.Is(err, activities.ErrMissing) || errors.Is(err, activities.ErrCorrupt) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the result of %s: %w", kept.Task, err)
	}
	kept.Output = output
	return &kept, nil
}

// OfRun returns what is kept of a run, in the order in which it was kept, and how much more there is that is not signed
// by this engine: it was kept by an engine of an earlier version, before the credentials were made anew, or by somebody
// else, and is not taken. Large outputs are not read: Stored tells where they are.
func (r *Results) OfRun(ctx context.Context, run string) (kept []wire.Kept, unsigned int, err error) {
	subject := wire.ResultSubject(wire.ResultKey{}, run)
	err = r.each(ctx, subject, func(message jetstream.Msg) {
		read, genuine := r.signing.verify(message.Subject(), message.Headers(), message.Data())
		switch {
		case !genuine:
			unsigned++
		case read.kept.Version == wire.Version:
			read.kept.Run = run // it has it, whether it made it or took it
			kept = append(kept, read.kept)
		}
	})
	if err != nil {
		return nil, 0, fmt.Errorf("list the results of run %s: %w", run, err)
	}
	return kept, unsigned, nil
}

// each calls handle with the messages that the stream has now on the subjects that match filter, oldest first.
func (r *Results) each(ctx context.Context, filter string, handle func(jetstream.Msg)) error {
	stream, err := r.js.Stream(ctx, wire.ResultStream)
	if err != nil {
		return err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return err
	}
	left := len(info.State.Subjects)
	if left == 0 {
		return nil
	}
	consumer, err := streams.Reader(ctx, r.js, wire.ResultStream,
		jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for ; left > 0; left-- {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		handle(message)
		if metadata, err := message.Metadata(); err == nil && metadata.NumPending == 0 {
			break
		}
	}
	return nil
}
