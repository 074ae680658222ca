package alerting

import (
	"fmt"
	"strings"
	"time"
)

// MessagesLost is the alert that a stream was found at a time to have lost so many messages, which were stored between
// two times (the zero time is not known), and what that means. Each loss is an alert of its own: behind names how far
// the stream was when it was last known to be whole.
func MessagesLost(
	stream, behind string, messages uint64, since, until time.Time, means string, at time.Time,
) Alert {
	var stored string
	if !since.IsZero() && !until.IsZero() {
		stored = fmt.Sprintf(", stored between %s and %s UTC", since.UTC().Format(time.DateTime),
			until.UTC().Format(time.DateTime))
	}
	return Alert{
		ID:   fmt.Sprintf("%s/%s/%s", KindStreamsLost, stream, behind),
		Kind: KindStreamsLost, At: at,
		Message: fmt.Sprintf("stream %s of NATS has lost %d or more messages%s: its files in the state directory are "+
			"damaged, or were removed. So %s. Look at the disk", stream, messages, stored, means),
	}
}

// BindingsRestored is the alert that bindings, by their keys, were found at a time to be gone from where they are kept,
// though nobody had removed them, and were made again.
func BindingsRestored(keys []string, at time.Time) Alert {
	return Alert{
		ID:   fmt.Sprintf("%s/bindings/%d", KindStreamsLost, at.UnixNano()),
		Kind: KindStreamsLost, At: at,
		Message: fmt.Sprintf("bindings were gone from where they are kept, though nobody had removed them, and were "+
			"made again: %s. Files in the state directory are damaged, or were removed: look at the disk",
			strings.Join(keys, ", ")),
	}
}
