package trigger

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/spillway-ml/spillway/activities/wire"
)

// inputDigest names an input: equal JSON values have the same, whatever the order of their keys and their spaces are.
// Numbers are as they are written: 1 and 1.0 are two.
func inputDigest(input json.RawMessage) string {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(input))
	decoder.UseNumber() // 2^53+1 is not 2^53
	canonical := []byte(input)
	if decoder.Decode(&value) == nil {
		if encoded, err := json.Marshal(value); err == nil {
			canonical = encoded
		}
	}
	sum := sha256.Sum256(canonical)
	return hex.EncodeToString(sum[:16])
}

// taken refuses a start whose ID is that of a run with another input.
func taken(start Start) error {
	return Refuse("event ID %q is taken: run %s was started with another input; publish the event with another ID, or "+
		"without one", start.Event, start.Run)
}

// conflicts refuses a start whose event JetStream has dropped because it has stored another of the same ID just now,
// where that brought another input.
func (t *Trigger) conflicts(ctx context.Context, start Start, stored uint64) error {
	stream, err := t.js.Stream(ctx, wire.EventStream)
	if err != nil {
		return fmt.Errorf("find stream %s: %w", wire.EventStream, err)
	}
	first, err := stream.GetMsg(ctx, stored)
	if err != nil {
		return fmt.Errorf("read event %d: %w", stored, err)
	}
	other := event{body: first.Data}
	if input, _, err := other.input(); err == nil && inputDigest(input) != inputDigest(start.Input) {
		return taken(start)
	}
	return nil
}
