package wire

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spillway-ml/spillway/predictor"
)

// Version is the version that this package writes and the only one it reads.
const Version = 1

// Kind names what a message of the loop says.
type Kind string

// The kinds of messages.
const (
	KindRunStarted     Kind = "run_started"
	KindRunEnded       Kind = "run_ended"
	KindGoalChanged    Kind = "goal_changed"
	KindScheduled      Kind = "scheduled"
	KindBacklog        Kind = "backlog"
	KindReused         Kind = "reused"
	KindHostHeld       Kind = "host_held"
	KindHostStarted    Kind = "host_started"
	KindAttemptStarted Kind = "attempt_started"
	KindSampled        Kind = "sampled"
	KindRecord         Kind = "record"
	KindDecision       Kind = "decision"
)

// ErrVersion says that a message has a version that this build does not know.
var ErrVersion = errors.New("unknown message version")

// Message is one line of the loop's stream: either an event for Fold or a stored decision.
type Message struct {
	Event    predictor.Event     // nil for a decision
	Decision *predictor.Decision // nil for an event
}

// Kind is what the message says; empty for the zero Message.
func (m Message) Kind() Kind {
	if m.Decision != nil {
		return KindDecision
	}
	kind, _ := kindOf(m.Event)
	return kind
}

type envelope struct {
	Version int             `json:"v"`
	Kind    Kind            `json:"kind"`
	Body    json.RawMessage `json:"body"`
}

// EncodeEvent returns the kind and the bytes of event.
func EncodeEvent(event predictor.Event) (Kind, []byte, error) {
	kind, known := kindOf(event)
	if !known {
		return "", nil, fmt.Errorf("encode event: no kind for %T", event)
	}
	return encode(kind, event)
}

// EncodeDecision returns the kind and the bytes of decision.
func EncodeDecision(decision predictor.Decision) (Kind, []byte, error) {
	return encode(KindDecision, decision)
}

// DecodeMessage is the inverse of EncodeEvent and EncodeDecision. It wraps ErrVersion for a version it does not know,
// and refuses names that CheckText refuses.
func DecodeMessage(data []byte) (Message, error) {
	var outer envelope
	if err := json.Unmarshal(data, &outer); err != nil {
		return Message{}, fmt.Errorf("decode loop message: %w", err)
	}
	if outer.Version != Version {
		return Message{}, fmt.Errorf("decode loop message: %w: %d, this build reads %d", ErrVersion, outer.Version, Version)
	}
	switch outer.Kind {
	case KindRunStarted:
		return decodeEvent[predictor.RunStarted](outer)
	case KindRunEnded:
		return decodeEvent[predictor.RunEnded](outer)
	case KindGoalChanged:
		return decodeEvent[predictor.GoalChanged](outer)
	case KindScheduled:
		return decodeEvent[predictor.Scheduled](outer)
	case KindBacklog:
		return decodeEvent[predictor.BacklogObserved](outer)
	case KindReused:
		return decodeEvent[predictor.Reused](outer)
	case KindHostHeld:
		return decodeEvent[predictor.HostHeld](outer)
	case KindHostStarted:
		return decodeEvent[predictor.HostStarted](outer)
	case KindAttemptStarted:
		return decodeEvent[predictor.AttemptStarted](outer)
	case KindSampled:
		return decodeEvent[predictor.Sampled](outer)
	case KindRecord:
		return decodeEvent[predictor.Record](outer)
	case KindDecision:
		var decision predictor.Decision
		if err := json.Unmarshal(outer.Body, &decision); err != nil {
			return Message{}, fmt.Errorf("decode %s: %w", outer.Kind, err)
		}
		return Message{Decision: &decision}, nil
	default:
		return Message{}, fmt.Errorf("decode loop message: unknown kind %q", outer.Kind)
	}
}

func kindOf(event predictor.Event) (Kind, bool) {
	switch event.(type) {
	case predictor.RunStarted:
		return KindRunStarted, true
	case predictor.RunEnded:
		return KindRunEnded, true
	case predictor.GoalChanged:
		return KindGoalChanged, true
	case predictor.Scheduled:
		return KindScheduled, true
	case predictor.BacklogObserved:
		return KindBacklog, true
	case predictor.Reused:
		return KindReused, true
	case predictor.HostHeld:
		return KindHostHeld, true
	case predictor.HostStarted:
		return KindHostStarted, true
	case predictor.AttemptStarted:
		return KindAttemptStarted, true
	case predictor.Sampled:
		return KindSampled, true
	case predictor.Record:
		return KindRecord, true
	default:
		return "", false
	}
}

func encode(kind Kind, body any) (Kind, []byte, error) {
	encoded, err := json.Marshal(body)
	if err != nil {
		return "", nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	data, err := json.Marshal(envelope{Version: Version, Kind: kind, Body: encoded})
	return kind, data, err
}

func decodeEvent[E predictor.Event](outer envelope) (Message, error) {
	var event E
	if err := json.Unmarshal(outer.Body, &event); err != nil {
		return Message{}, fmt.Errorf("decode %s: %w", outer.Kind, err)
	}
	if err := checkNames(event); err != nil {
		return Message{}, fmt.Errorf("decode %s: %w", outer.Kind, err)
	}
	return Message{Event: event}, nil
}
