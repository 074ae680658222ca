package alerts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/spillway-ml/spillway/activities/streams"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/alerting"
)

// Stream is the stream of JetStream that stores alerts.
const Stream = "SPILLWAY_ALERTS"

const (
	// streamAge and streamBytes bound the stream; the oldest alerts go first.
	streamAge   = 90 * 24 * time.Hour
	streamBytes = 64 << 20
	// duplicates is for how long the server drops a second alert with the same ID: an engine that starts again reads its
	// history anew.
	duplicates = 24 * time.Hour
	// ackWait bounds one try to store an alert.
	ackWait = 5 * time.Second
)

// EnsureStream creates the stream that stores alerts, or brings it to this configuration. It may run any number of
// times; the number of replicas that an operator has set is kept.
func EnsureStream(ctx context.Context, js jetstream.JetStream) error {
	return streams.Ensure(ctx, js, jetstream.StreamConfig{
		Name: Stream, Description: "goals of runs at risk, and recovered", Subjects: []string{wire.AlertSubjects},
		Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxAge: streamAge, MaxBytes: streamBytes, Duplicates: duplicates, AllowDirect: true,
	})
}

// Stored returns the latest limit alerts of the stream, newest first. An alert that this build cannot read is left out.
func Stored(ctx context.Context, js jetstream.JetStream, limit int) ([]alerting.Alert, error) {
	stream, err := js.Stream(ctx, Stream)
	if err != nil {
		return nil, fmt.Errorf("read stored alerts: %w", err)
	}
	state := stream.CachedInfo().State
	var found []alerting.Alert
	for sequence := state.LastSeq; sequence >= max(state.FirstSeq, 1) && len(found) < limit; sequence-- {
		message, err := stream.GetMsg(ctx, sequence)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // deleted by hand
		}
		if err != nil {
			return found, fmt.Errorf("read stored alert %d: %w", sequence, err)
		}
		var alert alerting.Alert
		if json.Unmarshal(message.Data, &alert) == nil && alert.ID != "" {
			found = append(found, alert)
		}
	}
	return slices.Clip(found), nil
}

// store publishes an alert so that the stream keeps it once. It is also an ordinary publication: whoever subscribes to
// the subject gets it.
func store(ctx context.Context, js jetstream.JetStream, alert alerting.Alert, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, ackWait)
	defer cancel()
	_, err := js.Publish(ctx, wire.AlertSubject(alert.Pipeline), data, jetstream.WithMsgID(alert.ID),
		jetstream.WithExpectStream(Stream))
	return err
}

// stream is the stream as a destination.
type stream struct{ js jetstream.JetStream }

func (s stream) name() string { return Stream }

func (s stream) deliver(ctx context.Context, alert alerting.Alert, data []byte) error {
	err := store(ctx, s.js, alert, data)
	if streams.IsFinal(err) {
		return fmt.Errorf("%w: %w", errFinal, err)
	}
	return err
}
