package natstest

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Patience is how long a test waits for what must happen; it decides nothing.
const Patience = 5 * time.Minute

// Receive returns the next value, which the test calls what. It ends the test when none comes.
func Receive[T any](tb testing.TB, from <-chan T, what string) T {
	tb.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(Patience):
		tb.Fatalf("%s: nothing came", what)
		panic("unreachable")
	}
}

// Messages returns how many messages a stream holds.
func Messages(tb testing.TB, js jetstream.JetStream, stream string) uint64 {
	tb.Helper()
	found, err := js.Stream(tb.Context(), stream)
	if err != nil {
		tb.Fatal(err)
	}
	return found.CachedInfo().State.Msgs
}
